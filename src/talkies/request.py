"""VideoRequest, Target, Condition, Task: frozen, valid once built. Server, CLI and tests build the same object.

Structure is checked here, when the object is built; what one checkpoint can make is checked by
:func:`talkies.h3.clip_plan.plan` against its :class:`~talkies.h3.geometry.Limits`. Both happen
before any weight is touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from talkies.condition import KEYFRAME_ROLES as KEYFRAME_ROLES
from talkies.condition import LOCK_KINDS as LOCK_KINDS
from talkies.condition import MAX_REFERENCES as MAX_REFERENCES
from talkies.condition import MAX_REFERENCES_TOTAL as MAX_REFERENCES_TOTAL
from talkies.condition import Condition as Condition
from talkies.condition import Kind as Kind
from talkies.condition import Role as Role
from talkies.condition import Task as Task
from talkies.condition import check_conditions
from talkies.errors import InvalidRequest
from talkies.values import (
    INT64_MAX,
    INT64_MIN,
    MAX_ADAPTERS,
    MAX_SHIFT,
    MAX_SIGMAS,
    MAX_STRENGTH,
    MIN_SHIFT,
    MIN_SIGMAS,
    check_adapter_name,
    check_instance,
    check_integer,
    check_ladder,
    check_number,
    check_one_of,
    check_prompt,
    parse_ratio,
)

MAX_OUTPUTS = 10
Fit = Literal["auto", "stretch", "crop", "pad", "adapt", "released"]
Quality = Literal["lossless", "high", "medium", "low"]
# The OpenAI and SGLang words for "whatever the server does by default".
QUALITY_DEFAULT_WORDS = ("auto", "standard", "default", "hd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The wanted canvas and length: ``width`` and ``height`` in pixels, ``seconds`` or ``num_frames``. Everything may
    be left out; explicit sides win over a ratio, ``num_frames`` and ``seconds`` exclude each other."""

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
class AdapterChoice:
    """One of the operator's adapters, by its name. ``strength``: 1 is as it was trained, 0 is off."""

    name: str
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_adapter_name(self.name, param="adapters")
        check_number("adapters.strength", self.strength, -MAX_STRENGTH, MAX_STRENGTH)


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoRequest:
    """One clip (or several with consecutive seeds) to make.

    ``task`` None is inferred from the conditions. ``num_sigmas`` counts sigma points, as
    ``num_inference_steps`` does for peers: N points are N - 1 forwards. ``sigmas`` is a custom base ladder,
    strictly decreasing from at most 1.0 to 0.0. ``adapters`` are applied in their order; None are those that the
    operator turned on, and an empty tuple is none. Fields left None take the checkpoint's value.
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
    adapters: tuple[AdapterChoice, ...] | None = None

    def __post_init__(self) -> None:
        if self.adapters is not None:
            object.__setattr__(self, "adapters", _checked_adapters(self.adapters))
        if isinstance(self.conditions, Condition):  # one alone
            object.__setattr__(self, "conditions", (self.conditions,))
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
        check_integer("num_outputs", self.num_outputs, 1, MAX_OUTPUTS)
        if self.seed + self.num_outputs - 1 > INT64_MAX:
            raise InvalidRequest(
                f"seed={self.seed} leaves no room for {self.num_outputs} consecutive seeds",
                hint=f"use at most {INT64_MAX - self.num_outputs + 1}",
                param="seed",
            )
        if self.num_sigmas is not None:
            check_integer("num_sigmas", self.num_sigmas, MIN_SIGMAS, MAX_SIGMAS)
        if self.sigmas is not None:
            object.__setattr__(self, "sigmas", check_ladder(self.sigmas))
            if self.num_sigmas not in (None, len(self.sigmas)):
                raise InvalidRequest(
                    f"num_sigmas={self.num_sigmas} but sigmas has {len(self.sigmas)} points",
                    hint="leave num_sigmas out when you give sigmas",
                    param="num_sigmas",
                )
        for name, value in (("video_shift", self.video_shift), ("audio_shift", self.audio_shift)):
            if value is not None:
                check_number(name, value, MIN_SHIFT, MAX_SHIFT)
        check_one_of("fit", self.fit, get_args(Fit))
        if self.quality in QUALITY_DEFAULT_WORDS:
            object.__setattr__(self, "quality", "lossless")
        check_one_of("quality", self.quality, (*get_args(Quality), *QUALITY_DEFAULT_WORDS))
        if self.task is not None:
            try:
                object.__setattr__(self, "task", Task(self.task))
            except ValueError:
                check_one_of("task", self.task, tuple(Task))
        check_conditions(self.resolved_task, self.conditions)

    @property
    def resolved_task(self) -> Task:
        """The task asked for, else: references -> ref2va, keyframes -> fl2va, neither -> t2va. Locks go with any.

        An explicit fl2va without any image is plain text-to-video (the model card's rule)."""
        followed = [c for c in self.conditions if not c.is_lock]
        if self.task is None or (self.task is Task.FL2VA and not followed):
            if any(c.role == "reference" for c in followed):
                return Task.REF2VA
            return Task.FL2VA if followed else Task.T2VA
        return self.task

    @property
    def keyframes(self) -> tuple[Condition, ...]:
        return tuple(c for c in self.conditions if c.role in KEYFRAME_ROLES)

    @property
    def references(self) -> tuple[Condition, ...]:
        return tuple(c for c in self.conditions if c.role == "reference")

    @property
    def locks(self) -> tuple[Condition, ...]:
        return tuple(c for c in self.conditions if c.is_lock)

    @property
    def footage(self) -> Condition | None:
        return next((c for c in self.conditions if c.role == "footage"), None)

    def replace(self, **changes: Any) -> VideoRequest:
        """The same request with other fields, checked again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_dict` gives an equal request back."""
        out = dataclasses.asdict(self)
        # What only locks have is left out of the others: their clips' metadata stay byte for byte what they were.
        out["conditions"] = [
            {name: value for name, value in c.items() if name != "end_time_s" or value is not None}
            for c in out["conditions"]
        ]
        out["task"] = None if self.task is None else str(self.task)
        out["sigmas"] = None if self.sigmas is None else list(self.sigmas)
        out["adapters"] = None if self.adapters is None else [dict(one) for one in out["adapters"]]
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
            if values.get("adapters") is not None:
                values["adapters"] = tuple(AdapterChoice(**one) for one in values["adapters"])
            if values.get("sigmas") is not None:
                values["sigmas"] = tuple(values["sigmas"])
            return cls(**values)
        except TypeError as error:
            raise InvalidRequest(f"malformed request: {error}", hint="see docs/requests.md") from None


def _checked_adapters(adapters: Any) -> tuple[AdapterChoice, ...]:
    if not isinstance(adapters, (list, tuple)):
        check_instance("adapters", adapters, tuple)
    for one in adapters:
        check_instance("adapters", one, AdapterChoice)
    if len(adapters) > MAX_ADAPTERS:
        raise InvalidRequest(f"{len(adapters)} adapters are over the limit of {MAX_ADAPTERS}", param="adapters")
    names = [one.name for one in adapters]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"adapter {twice} is named twice", hint="add up its strengths", param="adapters")
    return tuple(adapters)
