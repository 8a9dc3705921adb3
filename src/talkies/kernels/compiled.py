"""Where Triton keeps what it compiles: below the home folder, which not every user has or may write to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def keep_compiled() -> None:
    """Names a folder of this user's below the temporary one where the home folder will not do.

    Without a home Triton would make a folder called ``~`` in the working directory; in one that cannot be written, such
    as a container's ``/``, it would fail at the first kernel.
    """
    if os.environ.get("TRITON_CACHE_DIR") or os.environ.get("TRITON_HOME"):
        return
    home = Path(os.path.expanduser("~"))
    if home.is_absolute() and _can_write(home / ".triton" / "cache"):
        return
    folder = Path(tempfile.gettempdir()) / f"talkies-triton-{os.getuid()}"
    # What lies there is loaded as code: nobody else may have made it, or write to it.
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        folder = Path(tempfile.mkdtemp(prefix="talkies-triton-"))
    os.environ["TRITON_CACHE_DIR"] = str(folder)


def _can_write(folder: Path) -> bool:
    """Whether it is, or can be made, a folder of ours."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
