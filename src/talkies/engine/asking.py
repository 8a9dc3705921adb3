"""What a program asks of an engine, in words of Python: prompts and seeds, one or several, and media of any kind."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from talkies.errors import InvalidRequest
from talkies.media.reference_kinds import kind_of_head, kind_of_uri
from talkies.request import Condition, Kind, Target, VideoRequest

TARGET = tuple(one.name for one in dataclasses.fields(Target))
REQUEST = tuple(one.name for one in dataclasses.fields(VideoRequest))
MEDIA = ("first_frame", "last_frame", "references", "soundtrack", "footage")
HEAD_BYTES = 64


def requests_of(request: VideoRequest | Sequence[VideoRequest] | None, words: dict[str, Any]) -> list[VideoRequest]:
    """One request for each prompt and seed, prompts first; ``words`` beside a request replace what they name.

    ``words`` are fields of ``VideoRequest`` and ``Target`` (``seconds``, ``num_frames``, ``width``, ``height``,
    ``aspect``), and ``first_frame``, ``last_frame``, ``references`` (one or several), ``soundtrack`` and ``footage``:
    paths, URLs, bytes, PIL pictures, arrays, ``(samples, rate)`` or conditions. ``prompt`` and ``seed`` may be lists.
    Raises ``InvalidRequest``.
    """
    for name in words.keys() - {*TARGET, *REQUEST, *MEDIA}:
        raise InvalidRequest(
            f"{name}={words[name]!r} is no word of a request",
            hint="known are " + ", ".join((*REQUEST, *TARGET, *MEDIA)),
            param=name,
        )
    given = [request] if isinstance(request, VideoRequest) else request
    if given is None:
        if "prompt" not in words:
            raise InvalidRequest("prompt is missing", hint='generate(prompt="a red ball bounces")', param="prompt")
        given = [VideoRequest(prompt=_several(words, "prompt")[0])]
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(one, VideoRequest) for one in given):
        raise InvalidRequest(
            f"a request must be a VideoRequest, got {type(request).__name__}",
            hint='for example VideoRequest(prompt="a red ball bounces"), or generate(prompt="a red ball bounces")',
            param="request",
        )
    return [made for one in given for made in _asked(one, words)] if words else list(given)


def one_request(request: VideoRequest | None, words: dict[str, Any], *, what: str, way: str) -> VideoRequest:
    """As :func:`requests_of`, for ``what`` is of one clip; raises ``InvalidRequest`` with ``way`` for several."""
    requests = requests_of(request, words)
    outputs = sum(one.num_outputs for one in requests)
    if outputs != 1:
        said = f"num_outputs={outputs}" if len(requests) == 1 else f"these are {outputs} clips"
        raise InvalidRequest(f"{said}, but {what} one", hint=f"use {way}", param="num_outputs")
    return requests[0]


def _asked(base: VideoRequest, words: dict[str, Any]) -> Iterable[VideoRequest]:
    changes = {name: value for name, value in words.items() if name in REQUEST and name not in ("prompt", "seed")}
    canvas = {name: value for name, value in words.items() if name in TARGET}
    if canvas:
        changes["target"] = dataclasses.replace(changes.get("target", base.target), **canvas)
    if conditions := list(_conditions(words)):
        listed = words.get("conditions", ())
        changes["conditions"] = (*([listed] if isinstance(listed, Condition) else listed), *conditions)
    prompts = _several(words, "prompt") if "prompt" in words else [base.prompt]
    seeds = _several(words, "seed") if "seed" in words else [base.seed]
    for prompt in prompts:
        for seed in seeds:
            yield base.replace(**{**changes, "prompt": prompt, "seed": seed})


def _several(words: dict[str, Any], name: str) -> list[Any]:
    value = words[name]
    listed = list(value) if isinstance(value, (list, tuple, range)) else [value]
    if not listed:
        raise InvalidRequest(f"{name}={value!r} is empty", hint="give at least one", param=name)
    return listed


def _conditions(words: dict[str, Any]) -> Iterable[Condition]:
    for name, role in (("first_frame", "first"), ("last_frame", "last")):
        if words.get(name) is not None:
            yield _condition(words[name], kind="image", role=role)
    references = words.get("references")
    if references is not None:
        is_one = not isinstance(references, (list, tuple)) or _is_sound(references)
        for one in (references,) if is_one else references:
            yield _condition(one, kind=None, role="reference")
    if words.get("soundtrack") is not None:
        yield _condition(words["soundtrack"], kind="audio", role="soundtrack")
    if words.get("footage") is not None:
        yield _condition(words["footage"], kind="video", role="footage")


def _condition(media: Any, *, kind: Kind | None, role: Any) -> Condition:
    if isinstance(media, Condition):
        return dataclasses.replace(media, role=role) if role != "reference" else media
    return Condition(kind=kind or _kind(media), uri=media, role=role)


def _kind(media: Any) -> Kind:
    """By its name, its first bytes or its type. Raises ``InvalidRequest``."""
    found: Kind | None
    if isinstance(media, (str, os.PathLike)):
        found = kind_of_uri(os.fspath(media))
    elif isinstance(media, (bytes, bytearray, memoryview)):
        found = kind_of_head(bytes(media[:HEAD_BYTES]))
    else:
        return "audio" if _is_sound(media) else "image"
    if found is None:
        raise InvalidRequest(
            "a reference does not say whether it is a picture, a video or a sound",
            hint='say it: Condition(kind="image", uri=...)',
            param="references",
        )
    return found


def _is_sound(media: Any) -> bool:
    """``(samples, rate)``."""
    return isinstance(media, tuple) and len(media) == 2 and isinstance(media[1], int)
