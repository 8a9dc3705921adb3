"""JSON files of a checkpoint. No torch: whoever only counts tokens reads a tokenizer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from talkies.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; ``CheckpointError`` naming the file when it is absent or is not an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}", param=str(path)) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}", param=str(path)) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds {type(found).__name__}, not an object", param=str(path))
    return found
