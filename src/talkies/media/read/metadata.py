"""The request that made a clip, inside the clip: compact JSON in the file's comment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

METADATA_KEY = "comment"  # the one tag that MP4 keeps whole and every tool shows


def pack_metadata(metadata: Mapping[str, Any]) -> str:
    """Compact JSON of a request. A lone surrogate cannot be UTF-8, so such a text falls back to ASCII escapes."""
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(metadata, separators=(",", ":"))
    return text


def unpack_metadata(text: str | None) -> dict[str, Any]:
    """The request in a file's comment; ``{}`` for a comment that is not ours. Bytes that are no UTF-8 are U+FFFD."""
    try:  # PyAV 19 escapes such bytes, older ones were told to replace them
        value = json.loads((text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
