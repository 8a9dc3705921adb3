"""The data folder as a thing that can be wrong: a file in its place, read-only, another server's."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from talkies.errors import ConfigError


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Makes ``ConfigError`` of a folder that is a file, read-only, or on a full disk."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be used: {error.strerror or error}",
            hint="use a --data-dir that can be written",
            param="data_dir",
        ) from None


def lock(path: Path) -> int:
    """Held until the process ends, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ConfigError(
            f"{path.parent} belongs to another running server", hint="use another --data-dir", param="data_dir"
        ) from None
    return handle
