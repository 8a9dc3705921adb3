"""What a clip is made from besides words: pictures, videos and sounds, and which of them a task takes together.

A condition is a keyframe, a reference (the clip follows it) or a lock (it becomes a part of the clip).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

from talkies.errors import InvalidRequest
from talkies.in_memory import ACCEPTED, data_url
from talkies.values import check_instance, check_number, check_one_of, plain

MAX_REFERENCES: Mapping[str, int] = {"image": 9, "video": 3, "audio": 3}
MAX_REFERENCES_TOTAL = 12

Kind = Literal["image", "video", "audio"]
Role = Literal["first", "last", "reference", "soundtrack", "footage"]
KEYFRAME_ROLES = ("first", "last")
LOCK_KINDS: Mapping[Role, Kind] = {"soundtrack": "audio", "footage": "video"}  # role -> kind


class Task(StrEnum):
    T2VA = "t2va"  # text alone
    FL2VA = "fl2va"  # first and/or last frame
    REF2VA = "ref2va"  # reference images, videos, sounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One picture, video or sound that the clip must follow.

    ``uri`` is a file path, an http(s) URL or a data: URL; or what :func:`talkies.in_memory.data_url` takes: bytes of a
    file, a picture as a PIL image, array or tensor, a sound as ``(samples, rate in Hz)``. ``role`` is ``first`` or
    ``last`` (a keyframe, image only), ``reference``, or a lock: ``soundtrack`` (a sound that becomes the clip's own)
    or ``footage`` (a video that becomes its picture).

    ``start_time_s`` of a reference video skips its beginning. Of a lock, ``start_time_s`` and ``end_time_s`` are the
    part of the clip that is made anew, in seconds of the clip; all outside it is kept. Either end may be left out;
    with neither, all of it is kept.
    """

    kind: Kind
    uri: str
    role: Role = "reference"
    start_time_s: float = 0.0
    end_time_s: float | None = None
    require_sound: bool = False  # SGLang's video_audio: refuse a silent file instead of going on without sound
    name: str = ""  # what its owner calls the file; for the clip's metadata alone

    def __post_init__(self) -> None:
        check_one_of("conditions.kind", self.kind, get_args(Kind))
        check_one_of("conditions.role", self.role, get_args(Role))
        uri = os.fspath(self.uri) if isinstance(self.uri, os.PathLike) else self.uri
        if not isinstance(uri, str) and uri is not None:
            uri = data_url(self.kind, uri) or uri
        if not isinstance(uri, str) or not uri.strip():
            got = "is empty" if isinstance(uri, str) else f"is not text but {type(uri).__name__}"
            raise InvalidRequest(f"conditions.uri {got}", hint=f"give {ACCEPTED}", param="uri")
        object.__setattr__(self, "uri", uri)
        if self.role in KEYFRAME_ROLES and self.kind != "image":
            raise InvalidRequest(
                f"a {self.kind} cannot be the {self.role} frame", hint="keyframes are images", param="conditions.role"
            )
        if self.is_lock and self.kind != LOCK_KINDS[self.role]:
            raise InvalidRequest(
                f"kind {self.kind!r} cannot have the role {self.role}",
                hint=f"a {self.role} has kind {LOCK_KINDS[self.role]!r}",
                param="conditions.role",
            )
        check_number("start_time_s", self.start_time_s, 0, math.inf)
        self._check_end()
        check_instance("require_sound", self.require_sound, bool)
        check_instance("name", self.name, str)
        has_start = self.is_lock or self.kind == "video"
        has_sound = self.kind == "video" and not self.is_lock
        if (self.start_time_s and not has_start) or (self.require_sound and not has_sound):
            name = "start_time_s" if self.start_time_s and not has_start else "require_sound"
            raise InvalidRequest(
                f"{name} has no meaning for kind={self.kind!r}, role={self.role!r}",
                hint="it is for videos only" + (" and locks" if name == "start_time_s" else ", as references"),
                param=name,
            )

    @property
    def is_lock(self) -> bool:
        """Whether it becomes a part of the clip itself."""
        return self.role in LOCK_KINDS

    @property
    def has_window(self) -> bool:
        """Of a lock: whether a part of it is made anew."""
        return self.is_lock and (self.start_time_s > 0 or self.end_time_s is not None)

    def _check_end(self) -> None:
        if self.end_time_s is None:
            return
        check_number("end_time_s", self.end_time_s, 0, math.inf, exclusive_min=True)
        if not self.is_lock:
            raise InvalidRequest(
                f"end_time_s has no meaning for role={self.role!r}",
                hint="it is for the roles soundtrack and footage",
                param="end_time_s",
            )
        if self.end_time_s <= self.start_time_s:
            raise InvalidRequest(
                f"end_time_s={plain(self.end_time_s)} is not after start_time_s={plain(self.start_time_s)}",
                hint="the part between them is made anew",
                param="end_time_s",
            )


def check_conditions(task: Task, conditions: tuple[Condition, ...]) -> None:
    """Raises ``InvalidRequest`` for conditions that a task does not take, or not together."""
    keyframes = [c for c in conditions if c.role in KEYFRAME_ROLES]
    references = [c for c in conditions if c.role == "reference"]
    _check_locks([c for c in conditions if c.is_lock], keyframes)
    if task is Task.T2VA and (keyframes or references):
        raise InvalidRequest(
            f"t2va takes no image, video or audio, got {len(keyframes) + len(references)}",
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


def _check_locks(locks: list[Condition], keyframes: list[Condition]) -> None:
    roles = [c.role for c in locks]
    for role in LOCK_KINDS:
        if roles.count(role) > 1:
            raise InvalidRequest(
                f"a clip takes one {role}, got {roles.count(role)}",
                hint="cut them together into one file",
                param="conditions",
            )
    if "footage" in roles and keyframes:
        raise InvalidRequest(
            f"footage and a {keyframes[0].role} frame both say what the picture is",
            hint="leave one of them out",
            param="conditions",
        )
    if len(roles) == len(LOCK_KINDS) and not any(c.has_window for c in locks):
        raise InvalidRequest(
            "soundtrack and footage are both kept from end to end, so nothing is left to make",
            hint="leave one of them out, or say with start_time_s and end_time_s which part to make anew",
            param="conditions",
        )
