"""The user's folder, which not every user has: a container's uid may stand in no /etc/passwd, with HOME unset."""

from __future__ import annotations

import os
from pathlib import Path

from talkies.errors import ConfigError


def home() -> Path | None:
    """``None`` for a user without one. Libraries that do not ask make a folder called ``~`` where they run."""
    try:
        folder = Path.home()
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None


def base_folder(variable: str, *below_home: str) -> Path | None:
    """Of an XDG ``variable``: the folder that it names, else that one below home; ``None`` without both."""
    named = os.environ.get(variable)
    if named:
        return Path(named)
    folder = home()
    return None if folder is None else folder.joinpath(*below_home)


def expanded(path: str | Path, param: str) -> Path:
    """The path with ``~`` or ``~name`` written out. Raises ``ConfigError`` naming ``param`` where nobody is at home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{param}={str(path)!r} begins with a home folder that is unknown",
            hint="write the path out, or set HOME",
            param=param,
        ) from None
