from __future__ import annotations

import os
import subprocess
import sys

from tests.kernels.sets import needs_triton


@needs_triton
def test_every_kernel_compiles_for_a_hopper_that_is_not_here():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for", "90"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("v4 loads") == 30
    # Rows are read 16 bytes at a time: no kernel is without such loads.
    assert "v4 loads 0" not in done.stdout
