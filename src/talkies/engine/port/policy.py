"""In which order jobs take their turns, by name. What each name means: ``engine/worker/scheduler.py``."""

from __future__ import annotations

from typing import Literal, get_args

from talkies.errors import ConfigError

Policy = Literal["fifo", "shortest-remaining", "fair"]


def check_policy(policy: str) -> None:
    """Raises ``ConfigError``."""
    if policy not in get_args(Policy):
        raise ConfigError(
            f"policy={policy!r} is unknown", hint="use one of " + ", ".join(get_args(Policy)), param="policy"
        )
