"""No skipping: the reference that every policy is compared with."""

from __future__ import annotations

from talkies.stepcache.base import StepCache


class Off(StepCache):
    """All blocks of all forwards."""
