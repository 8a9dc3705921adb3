"""How long the tests go on that look for input nobody thought of."""

from __future__ import annotations

import os

FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))  # of each
