"""VideoRequest, Target, Condition, Task: frozen, valid once built. Server, CLI and tests build the same object.

Structure is checked here, when the object is built; what one checkpoint can make is checked by
:func:`talkies.h3.clip_plan.plan` against its :class:`~talkies.h3.geometry.Limits`. Both happen
before any weight is touched.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, get_args

from talkies.errors import InvalidRequest
from talkies.values import (
    INT64_MAX,
    INT64_MIN,
    MAX_SHIFT,
    MAX_SIGMAS,
    MIN_SHIFT,
    MIN_SIGMAS,
    check_instance,
    check_integer,
    check_ladder,
    check_number,
    check_one_of,
    check_prompt,
    parse_ratio,
)

MAX_OUTPUTS = 10
MAX_REFERENCES: Mapping[str, int] = {"image": 9, "video": 3, "audio": 3}
MAX_REFERENCES_TOTAL = 12

Kind = Literal["image", "video", "audio"]
Role = Literal["first", "last", "reference"]
Fit = Literal["auto", "stretch", "crop", "pad", "adapt", "released"]
Quality = Literal["lossless", "high", "medium", "low"]
# The OpenAI and SGLang words for "whatever the server does by default".
QUALITY_DEFAULT_WORDS = ("auto", "standard", "default", "hd")


class Task(StrEnum):
    T2VA = "t2va"  # text alone
    FL2VA = "fl2va"  # first and/or last frame
    REF2VA = "ref2va"  # reference images, videos, sounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One picture, video or sound that the clip must follow.

    ``uri`` is a file path, an http(s) URL or a data: URL. ``role`` is ``first`` or ``last`` (a keyframe, image
    only) or ``reference``. ``start_time_s`` (videos only) skips the beginning.
    """

    kind: Kind
    uri: str
    role: Role = "reference"
    start_time_s: float = 0.0
    require_sound: bool = False  # SGLang's video_audio: refuse a silent file instead of going on without sound
    name: str = ""  # what its owner calls the file; for the clip's metadata alone

    def __post_init__(self) -> None:
        check_one_of("conditions.kind", self.kind, get_args(Kind))
        check_one_of("conditions.role", self.role, get_args(Role))
        uri = os.fspath(self.uri) if isinstance(self.uri, os.PathLike) else self.uri
        if not isinstance(uri, str) or not uri.strip():
            got = "is empty" if isinstance(uri, str) else f"is not text but {type(uri).__name__}"
            raise InvalidRequest(f"conditions.uri {got}", hint="give a file path, a URL or a data: URL", param="uri")
        object.__setattr__(self, "uri", uri)
        if self.role != "reference" and self.kind != "image":
            raise InvalidRequest(
                f"a {self.kind} cannot be the {self.role} frame", hint="keyframes are images", param="conditions.role"
            )
        check_number("start_time_seconds", self.start_time_s, 0, math.inf)
        check_instance("require_sound", self.require_sound, bool)
        check_instance("name", self.name, str)
        if self.kind != "video" and (self.start_time_s or self.require_sound):
            name = "start_time_seconds" if self.start_time_s else "require_sound"
            raise InvalidRequest(
                f"{name} has no meaning for kind={self.kind!r}", hint="it is for videos only", param=name
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The wanted canvas and length. Everything may be left out; explicit sides win over a ratio,
    ``num_frames`` and ``seconds`` exclude each other."""

    width: int | None = None
    height: int | None = None
    aspect: str | None = None  # a named ratio, "W:H", or "auto"
    seconds: float | None = None
    num_frames: int | None = None

    def __post_init__(self) -> None:
        if (self.width is None) != (self.height is None):
            missing = "height" if self.height is None else "width"
            raise InvalidRequest(f"{missing} is missing", hint="give both width and height, or neither", param=missing)
        for name in ("width", "height", "num_frames"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, 1, 2**31 - 1)
        if self.seconds is not None:
            check_number("seconds", self.seconds, 0, 86_400, exclusive_min=True)
            if self.num_frames is not None:
                raise InvalidRequest(
                    "seconds and num_frames are both given", hint="give one of them", param="num_frames"
                )
        if self.aspect is not None and self.aspect not in ("auto", "adaptive"):
            parse_ratio(self.aspect)


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoRequest:
    """One clip (or several with consecutive seeds) to make.

    ``task`` None is inferred from the conditions. ``num_sigmas`` counts sigma points, as
    ``num_inference_steps`` does for peers: N points are N - 1 forwards. ``sigmas`` is a custom base ladder,
    strictly decreasing from at most 1.0 to 0.0. Fields left None take the checkpoint's value.
    Raises ``InvalidRequest`` naming field, value, limit and way out.
    """

    prompt: str
    task: Task | None = None
    target: Target = field(default_factory=Target)
    conditions: tuple[Condition, ...] = ()
    seed: int = 42
    num_sigmas: int | None = None
    sigmas: tuple[float, ...] | None = None
    video_shift: float | None = None
    audio_shift: float | None = None
    num_outputs: int = 1
    fit: Fit = "auto"
    quality: Quality = "lossless"
    audio: bool = True  # False writes a file without an audio stream
    record_inputs: bool = True  # False leaves names and hashes of the conditions out of the clip's metadata

    def __post_init__(self) -> None:
        if not isinstance(self.conditions, (list, tuple)):
            check_instance("conditions", self.conditions, tuple)
        object.__setattr__(self, "conditions", tuple(self.conditions))
        for condition in self.conditions:
            check_instance("conditions", condition, Condition)
        check_instance("target", self.target, Target)
        check_instance("audio", self.audio, bool)
        check_instance("record_inputs", self.record_inputs, bool)
        check_prompt(self.prompt)
        check_integer("seed", self.seed, INT64_MIN, INT64_MAX)
        check_integer("num_outputs_per_prompt", self.num_outputs, 1, MAX_OUTPUTS)
        if self.seed + self.num_outputs - 1 > INT64_MAX:
            raise InvalidRequest(
                f"seed={self.seed} leaves no room for {self.num_outputs} consecutive seeds",
                hint=f"use at most {INT64_MAX - self.num_outputs + 1}",
                param="seed",
            )
        if self.num_sigmas is not None:
            check_integer("num_inference_steps", self.num_sigmas, MIN_SIGMAS, MAX_SIGMAS)
        if self.sigmas is not None:
            object.__setattr__(self, "sigmas", check_ladder(self.sigmas))
            if self.num_sigmas not in (None, len(self.sigmas)):
                raise InvalidRequest(
                    f"num_inference_steps={self.num_sigmas} but sigmas has {len(self.sigmas)} points",
                    hint="leave num_inference_steps out when you give sigmas",
                    param="num_inference_steps",
                )
        for name, value in (("flow_shift", self.video_shift), ("audio_flow_shift", self.audio_shift)):
            if value is not None:
                check_number(name, value, MIN_SHIFT, MAX_SHIFT)
        check_one_of("fit", self.fit, get_args(Fit))
        if self.quality in QUALITY_DEFAULT_WORDS:
            object.__setattr__(self, "quality", "lossless")
        check_one_of("quality", self.quality, (*get_args(Quality), *QUALITY_DEFAULT_WORDS))
        if self.quality != "lossless":
            raise InvalidRequest(
                f"quality={self.quality!r} is not available: no measured step-cache profile exists yet",
                hint="use 'lossless' or leave quality out",
                param="quality",
            )
        if self.task is not None:
            try:
                object.__setattr__(self, "task", Task(self.task))
            except ValueError:
                check_one_of("task", self.task, tuple(Task))
        _check_conditions(self.resolved_task, self.conditions)

    @property
    def resolved_task(self) -> Task:
        """The task asked for, else: references -> ref2va, keyframes -> fl2va, nothing -> t2va.

        An explicit fl2va without any image is plain text-to-video (the model card's rule)."""
        if self.task is None or (self.task is Task.FL2VA and not self.conditions):
            if any(c.role == "reference" for c in self.conditions):
                return Task.REF2VA
            return Task.FL2VA if self.conditions else Task.T2VA
        return self.task

    @property
    def keyframes(self) -> tuple[Condition, ...]:
        return tuple(c for c in self.conditions if c.role != "reference")

    def replace(self, **changes: Any) -> VideoRequest:
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_dict` gives an equal request back."""
        out = dataclasses.asdict(self)
        out["conditions"] = [dict(c) for c in out["conditions"]]
        out["task"] = None if self.task is None else str(self.task)
        out["sigmas"] = None if self.sigmas is None else list(self.sigmas)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> VideoRequest:
        """Raises ``InvalidRequest`` for unknown keys and wrong shapes."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InvalidRequest(f"unknown request field {unknown[0]!r}", hint="known: " + ", ".join(sorted(known)))
        try:
            values = dict(data)
            values["target"] = Target(**(values.get("target") or {}))
            values["conditions"] = tuple(Condition(**c) for c in values.get("conditions") or ())
            if values.get("sigmas") is not None:
                values["sigmas"] = tuple(values["sigmas"])
            return cls(**values)
        except TypeError as error:
            raise InvalidRequest(f"malformed request: {error}", hint="see docs/requests.md") from None


def _check_conditions(task: Task, conditions: tuple[Condition, ...]) -> None:
    keyframes = [c for c in conditions if c.role != "reference"]
    references = [c for c in conditions if c.role == "reference"]
    if task is Task.T2VA and conditions:
        raise InvalidRequest(
            f"t2va takes no image, video or audio, got {len(conditions)}",
            hint="use task fl2va for keyframes, ref2va for references, or leave task out",
            param="task",
        )
    if task is Task.FL2VA:
        if references:
            raise InvalidRequest(
                f"fl2va takes keyframes only, got a reference {references[0].kind}",
                hint="use task ref2va, or give the image the role first or last",
                param="conditions",
            )
        roles = [c.role for c in keyframes]
        if len(set(roles)) != len(roles):
            raise InvalidRequest(
                f"fl2va takes one first and one last frame, got {', '.join(roles)}",
                hint="at most one image per end of the clip",
                param="conditions",
            )
    if task is Task.REF2VA:
        if keyframes:
            raise InvalidRequest(
                f"ref2va takes references only, got a {keyframes[0].role} frame",
                hint="use task fl2va for keyframes",
                param="conditions",
            )
        for kind, limit in MAX_REFERENCES.items():
            count = sum(c.kind == kind for c in references)
            if count > limit:
                raise InvalidRequest(
                    f"ref2va takes at most {limit} {kind} references, got {count}",
                    hint="leave some out",
                    param="conditions",
                )
        if len(references) > MAX_REFERENCES_TOTAL:
            raise InvalidRequest(
                f"ref2va takes at most {MAX_REFERENCES_TOTAL} references, got {len(references)}",
                hint="leave some out",
                param="conditions",
            )
        if not any(c.kind in ("image", "video") for c in references):
            raise InvalidRequest(
                "ref2va needs at least one image or video reference",
                hint="add a picture; audio alone is refused",
                param="conditions",
            )
