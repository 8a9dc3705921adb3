"""The one table of attention backends."""

from __future__ import annotations

from collections.abc import Callable

from talkies.attention.base import Attend, Trimmed
from talkies.errors import ConfigError


def _sdpa() -> Attend:
    from talkies.attention.sdpa import sdpa

    return sdpa


# A factory imports its package inside, so that a missing one fails at build and not at step 31.
ATTENTION: dict[str, Callable[[], Attend]] = {"sdpa": _sdpa}


def create(name: str) -> Attend:
    """The backend called ``name``, wrapped to never see padding; raises ``ConfigError`` with the list if unknown."""
    if name not in ATTENTION:
        raise ConfigError(
            f"no attention backend is called {name!r}",
            hint="one of " + ", ".join(sorted(ATTENTION)),
            param="attention",
        )
    return Trimmed(ATTENTION[name]())
