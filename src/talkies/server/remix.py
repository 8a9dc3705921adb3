"""A remix: the request of an earlier job with another prompt, and whatever else the body names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from talkies.errors import InvalidRequest
from talkies.request import LOCK_KINDS, VideoRequest
from talkies.server.intake import fields
from talkies.server.intake.body import Body
from talkies.server.intake.coerce import coerce
from talkies.server.intake.references import ANY_FIELDS, JSON_FIELDS
from talkies.server.jobs.record import JobRecord

_REFERENCES = (*ANY_FIELDS, *JSON_FIELDS, *LOCK_KINDS, "conditions")
# Fields that say the same thing: one of them in the body stands for all of them.
_SAME = (
    ("size", "width", "height", "aspect_ratio", "short_edge"),
    ("seconds", "num_frames"),
    ("num_inference_steps", "num_forwards", "sigmas"),
    ("n", "num_outputs_per_prompt"),
    ("adapters", "lora"),
)
_NESTED = ("target", "extra_params", "extra_body", "video_params")  # objects that may hold any of them


def remixed(body: Body, source: JobRecord) -> Body:
    """``body`` with what it leaves out filled in from ``source``: the same door, the same checks as any request.

    Raises ``InvalidRequest`` without a prompt, and for a job made from references that the body does not bring again:
    they are removed when a job ends.
    """
    if not body.values.get("prompt"):
        raise InvalidRequest("prompt is missing", hint="say what is to be different", param="prompt")
    request = VideoRequest.from_dict(source.request)
    if request.conditions and not any(body.values.get(name) for name in _REFERENCES):
        raise InvalidRequest(
            f"Video {source.id} was made from {len(request.conditions)} references, which are not kept",
            hint="send them again beside the prompt",
            param="video_id",
        )
    given = {name: value for name, value in body.values.items() if value is not None}
    named = set(_names(given))
    replaced = {name for group in _SAME if named & set(group) for name in group}
    kept = {name: value for name, value in _fields(request).items() if name not in named | replaced}
    return Body(values=kept | given, form=body.form)


def _names(values: Mapping[str, Any]) -> Iterator[str]:
    """The flat names of all fields that the body gives, wherever they stand in it."""
    for name, value in values.items():
        yield fields.EXTRA_PARAMS.get(name, name)
        if name in _NESTED:
            yield from _names(coerce(name, "object", value, form=True))


def _fields(request: VideoRequest) -> dict[str, Any]:
    """The request as the API writes it. What it left to the model or to its first picture is left to them again."""
    target = request.target
    found: dict[str, Any] = {
        "task": None if request.task is None else str(request.task),
        "size": None if target.width is None else f"{target.width}x{target.height}",
        "aspect_ratio": target.aspect,
        "seconds": target.seconds,
        "num_frames": target.num_frames,
        "seed": request.seed,
        "num_outputs_per_prompt": request.num_outputs,
        "sigmas": None if request.sigmas is None else list(request.sigmas),
        "num_inference_steps": None if request.sigmas is not None else request.num_sigmas,
        "adapters": None if request.adapters is None else [asdict(one) for one in request.adapters],
        "flow_shift": request.video_shift,
        "audio_flow_shift": request.audio_shift,
        "fit": request.fit,
        "audio": request.audio,
        "record_inputs": request.record_inputs,
    }
    return {name: value for name, value in found.items() if value is not None}
