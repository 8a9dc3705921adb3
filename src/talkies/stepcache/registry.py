"""The one table of step-cache policies."""

from __future__ import annotations

from collections.abc import Callable

from talkies.errors import ConfigError
from talkies.stepcache.base import StepCache
from talkies.stepcache.off import Off

STEP_CACHES: dict[str, Callable[[], StepCache]] = {"off": Off}


def create(name: str) -> StepCache:
    """A fresh policy for one request; raises ``ConfigError`` with the list if unknown."""
    if name not in STEP_CACHES:
        raise ConfigError(
            f"no step cache is called {name!r}", hint="one of " + ", ".join(sorted(STEP_CACHES)), param="step_cache"
        )
    return STEP_CACHES[name]()
