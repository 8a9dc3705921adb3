"""Adapters as requests see them, and the steps that a distilled one was trained for. No torch.

What they do to weights is the affair of ``talkies.adapters``; here is what a request may ask of them, and what it must.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from talkies.errors import InvalidRequest

if TYPE_CHECKING:
    from talkies.h3.release_schedule import ReleaseSchedule
    from talkies.request import VideoRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """The steps of a distilled adapter. ``base``: its sigma points before the shift; ``None``: evenly spaced ones.

    A shift that the file does not state is ``None``: then the request's, or the checkpoint's, holds.
    """

    num_forwards: int
    base: tuple[float, ...] | None = None
    video_shift: float | None = None
    audio_shift: float | None = None

    @property
    def num_sigmas(self) -> int:
        return self.num_forwards + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFacts:
    """What is known of an adapter that an operator gave. ``strength``: of requests that name no adapters.

    ``tasks`` are those that it was trained for; of others it is refused."""

    name: str
    sha256: str
    strength: float
    tasks: tuple[str, ...]
    ladder: Ladder | None = None


@dataclass(frozen=True, slots=True)
class InUse:
    """One adapter of one request."""

    facts: AdapterFacts
    strength: float


def in_use(request: VideoRequest, known: tuple[AdapterFacts, ...]) -> tuple[InUse, ...]:
    """The adapters of ``request``, in the order in which they are applied; those of strength 0 are none.

    Raises ``InvalidRequest`` for a name that is not known, a task that an adapter was not trained for, and two adapters
    with steps of their own.
    """
    task = str(request.resolved_task)
    by_name = {facts.name: facts for facts in known}
    used = []
    for facts in () if request.adapters is not None else known:
        # One that is on by default is left out where it has no meaning; one that is asked for is refused.
        if task in facts.tasks and facts.strength:
            used.append(InUse(facts, facts.strength))
    for asked in request.adapters or ():
        found = by_name.get(asked.name)
        if found is None:
            raise InvalidRequest(
                f"no adapter is called {asked.name!r}",
                hint=f"known: {', '.join(by_name)}" if by_name else "none is loaded: see --adapter",
                param="adapters",
            )
        if task not in found.tasks and asked.strength:
            raise InvalidRequest(
                f"adapter {found.name} was trained for {', '.join(found.tasks)}, and this request is {task}",
                hint="leave it out, or change the task",
                param="adapters",
            )
        if asked.strength:
            used.append(InUse(found, asked.strength))
    with_steps = [one.facts.name for one in used if one.facts.ladder is not None]
    if len(with_steps) > 1:
        raise InvalidRequest(
            f"adapters {' and '.join(with_steps)} were each distilled for steps of their own",
            hint="use one of them",
            param="adapters",
        )
    return tuple(used)


def ladder_of(request: VideoRequest, known: tuple[AdapterFacts, ...]) -> tuple[str, Ladder] | None:
    """The name and the steps of the distilled adapter among those in use. Raises as :func:`in_use`."""
    return next(((one.facts.name, one.facts.ladder) for one in in_use(request, known) if one.facts.ladder), None)


def followed(
    request: VideoRequest, stated: ReleaseSchedule, known: tuple[AdapterFacts, ...]
) -> tuple[int | None, tuple[float, ...] | None, float, float]:
    """``(num_sigmas, base, video shift, audio shift)`` of ``request``: its own values, else its adapter's, else those
    that the checkpoint states. Raises ``InvalidRequest`` where a value contradicts the adapter, with the one needed.
    """
    video, audio = request.video_shift or stated.video_shift, request.audio_shift or stated.audio_shift
    ladder = checked_ladder(request, known)
    if ladder is None:
        base = request.sigmas if request.sigmas is not None else stated.base
        return request.num_sigmas, base, video, audio
    return ladder.num_sigmas, ladder.base, ladder.video_shift or video, ladder.audio_shift or audio


def checked_ladder(request: VideoRequest, known: tuple[AdapterFacts, ...]) -> Ladder | None:
    """The steps that an adapter in use prescribes; ``None`` where none does. Raises as :func:`followed`."""
    found, num_sigmas = ladder_of(request, known), request.num_sigmas
    if found is None:
        return None
    name, ladder = found
    if request.sigmas is not None and request.sigmas != ladder.base:
        raise _mismatch(name, "sigmas", list(request.sigmas), list(ladder.base) if ladder.base else "none")
    if num_sigmas not in (None, ladder.num_sigmas):
        raise InvalidRequest(
            f"num_sigmas={num_sigmas} is {num_sigmas - 1} forwards, but adapter {name} was distilled for "
            f"{ladder.num_forwards}",
            hint=f"use num_sigmas={ladder.num_sigmas}, which are {ladder.num_forwards} forwards, or leave it out",
            param="num_sigmas",
        )
    for field, asked, needed in (
        ("video_shift", request.video_shift, ladder.video_shift),
        ("audio_shift", request.audio_shift, ladder.audio_shift),
    ):
        if None not in (asked, needed) and asked != needed:
            raise _mismatch(name, field, asked, needed)
    return ladder


def _mismatch(name: str, field: str, asked: object, needed: object) -> InvalidRequest:
    return InvalidRequest(
        f"{field}={asked}, but adapter {name} was distilled for {needed}",
        hint=f"use {field}={needed}, or leave it out",
        param=field,
    )
