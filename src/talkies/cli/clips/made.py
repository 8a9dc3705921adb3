"""Whether a clip that is on disk already is the one that a request would make: then a batch does not make it again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talkies.errors import TalkiesError
from talkies.files.paths import local_path
from talkies.request import VideoRequest

if TYPE_CHECKING:
    from talkies.h3.geometry import Geometry, Limits
    from talkies.h3.partitions import Parts


def is_made(path: Path, expected: Mapping[str, Any], request: VideoRequest, model_hash: str) -> bool:
    """Whether the MP4 at ``path`` holds :func:`expected`, of the same model and of files of the same content."""
    from talkies.media.read.probe import probe

    if not path.is_file():
        return False
    try:
        stored = probe(os.fspath(path)).request
    except TalkiesError:
        return False
    said = stored.get("request")
    if not isinstance(said, dict) or (stored.get("model") or {}).get("hash") != model_hash:
        return False
    same = all(said.get(name) == value for name, value in expected.items())
    return same and _same_media(said.get("conditions"), stored.get("inputs") or [], request)


def expected(request: VideoRequest, geometry: Geometry, parts: Parts, limits: Limits) -> dict[str, Any]:
    """What the clip's file will say of its request of one output, but for its conditions: every default filled in."""
    from talkies.engine.pipeline.path import schedule_for
    from talkies.few_steps import followed, in_use
    from talkies.h3.release_schedule import read_schedule

    values = request.to_dict()
    for name in ("conditions", "record_inputs"):
        del values[name]
    stated = read_schedule(parts)
    _, _, values["video_shift"], values["audio_shift"] = followed(request, stated, limits.adapters)
    if request.sigmas is None:
        values["num_sigmas"] = schedule_for(parts, limits, request).num_sigmas
    used = in_use(request, limits.adapters)
    values["adapters"] = [{"name": one.facts.name, "strength": one.strength} for one in used]
    values["target"] = {"width": geometry.width, "height": geometry.height, "num_frames": geometry.num_frames}
    return values


def _same_media(said: Any, inputs: Any, request: VideoRequest) -> bool:
    """The same roles and times, and files of the same content; a clip that does not name its inputs is made again."""
    if not isinstance(said, list) or len(said) != len(request.conditions):
        return False
    if request.conditions and (not isinstance(inputs, list) or len(inputs) != len(said)):
        return False
    for one, known, condition in zip(said, inputs, request.conditions, strict=False):
        for name in ("kind", "role", "start_time_s", "end_time_s"):
            if one.get(name) != getattr(condition, name):
                return False
        uri = condition.uri
        if uri.startswith(("http://", "https://", "data:")):
            return False
        with open(local_path(uri), "rb") as file:
            if known.get("sha256") != hashlib.file_digest(file, "sha256").hexdigest():
                return False
    return True
