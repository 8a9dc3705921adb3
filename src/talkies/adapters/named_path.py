"""``NAME=PATH[:STRENGTH]``: an adapter as an operator names it. No torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from talkies.errors import ConfigError
from talkies.values import MAX_STRENGTH, check_adapter_name

_TEXT = re.compile(r"(?P<name>[^=]+)=(?P<path>.+?)(?::(?P<strength>[+-]?(?:\d+\.?\d*|\.\d+)))?", re.DOTALL)
FORM = "NAME=PATH or NAME=PATH:STRENGTH, for example film=film.safetensors:0.8"


@dataclass(frozen=True, slots=True)
class NamedPath:
    """``strength`` is that of requests that do not say which adapters they want; 0 is off."""

    name: str
    path: str
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_adapter_name(self.name, ConfigError, param="adapters")
        if not math.isfinite(self.strength) or abs(self.strength) > MAX_STRENGTH:
            raise ConfigError(
                f"adapter {self.name}: strength {self.strength} is outside -{MAX_STRENGTH:g}..{MAX_STRENGTH:g}",
                hint="1 is the adapter as it was trained, 0 is off",
                param="adapters",
            )

    @classmethod
    def parse(cls, text: object) -> NamedPath:
        """Raises ``ConfigError``."""
        if isinstance(text, NamedPath):
            return text
        match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f"adapters={text!r} is not NAME=PATH", hint=f"give {FORM}", param="adapters")
        return cls(match["name"].strip(), match["path"], float(match["strength"] or 1.0))
