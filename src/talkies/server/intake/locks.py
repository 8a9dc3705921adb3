"""Locks on their way in: a wrong file or window is a 400, and what the request left free is settled."""

from __future__ import annotations

from collections.abc import Sequence

from talkies.h3.clip_plan import plan
from talkies.h3.geometry import Limits
from talkies.h3.locks import check_covers, longest_s, plan_lock, with_target_of_locks
from talkies.request import Condition, VideoRequest
from talkies.server.intake.references import Source, blamed_on


def check_locks(request: VideoRequest, sources: Sequence[Source], limits: Limits) -> VideoRequest:
    """The request with the length, and the canvas of footage, that its locks give where it names none.

    ``sources`` are those of the conditions, whose files are on disk. What the engine will read of them is decoded once.
    Raises ``InvalidRequest`` naming the field that the client wrote.
    """
    locks = [(c, source) for c, source in zip(request.conditions, sources, strict=True) if c.is_lock]
    if not locks:
        return request
    read_s = longest_s(request, limits)
    lengths: list[float] = []
    aspect: float | None = None
    for condition, source in locks:
        with blamed_on(source):
            seconds, ratio = _read(condition, limits, read_s)
            lengths.append(seconds)
            aspect = ratio or aspect
    shortest = min(range(len(locks)), key=lengths.__getitem__)
    with blamed_on(locks[shortest][1]):
        request = with_target_of_locks(request, limits, seconds=lengths[shortest], aspect=aspect)
        # The canvas of keyframes is not known here, and locks ask for the length alone.
        geometry = plan(request, limits, auto_aspect=1.0)
    for (condition, source), seconds in zip(locks, lengths, strict=True):
        with blamed_on(source):
            check_covers(condition.role, seconds, geometry, limits)
            plan_lock(condition, geometry, limits)
    return request


def _read(condition: Condition, limits: Limits, max_seconds: float) -> tuple[float, float | None]:
    """Seconds, and width / height of footage."""
    from talkies.media.read.audio import read_audio
    from talkies.media.read.video import check_decodes

    name = condition.role
    if name == "soundtrack":
        rate = limits.sample_rate_hz
        wave = read_audio(condition.uri, max_seconds=max_seconds, sample_rate_hz=rate, name=name)
        return wave.shape[1] / rate, None
    decoded = check_decodes(condition.uri, fps=limits.fps, max_seconds=max_seconds, name=name, with_audio=False)
    return decoded.num_frames / limits.fps, decoded.width / decoded.height
