"""The one table of step-cache policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from talkies.errors import ConfigError
from talkies.stepcache.base import StepCache
from talkies.stepcache.block import BlockCache
from talkies.stepcache.forecast import Forecast
from talkies.stepcache.off import Off
from talkies.stepcache.teacache import TeaCache

STEP_CACHES: dict[str, Callable[..., StepCache]] = {
    "off": Off,
    "teacache": TeaCache,
    "block": BlockCache,
    "forecast": Forecast,
}


def create(name: str, parameters: Mapping[str, Any] | None = None) -> StepCache:
    """A fresh policy for one request; raises ``ConfigError`` for a name or a parameter that it does not know."""
    if name not in STEP_CACHES:
        raise ConfigError(
            f"no step cache is called {name!r}", hint="one of " + ", ".join(sorted(STEP_CACHES)), param="step_cache"
        )
    policy, given = STEP_CACHES[name], dict(parameters or {})
    known = [p.name for p in inspect.signature(policy).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for unknown in sorted(set(given) - set(known)):
        raise ConfigError(
            f"step cache {name} has no parameter {unknown!r}",
            hint="it has " + (", ".join(known) or "none"),
            param="step_cache",
        )
    try:
        return policy(**given)
    except TypeError as error:
        raise ConfigError(f"step cache {name}: {error}", param="step_cache") from None
