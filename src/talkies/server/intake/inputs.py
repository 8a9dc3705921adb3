"""References on their way in: upload, data:, http(s) or file:// -> a file of ours under a random name, checked.

Everything a user can get wrong about a file is found here, while the POST is still waiting: a bad reference is a 400,
never a job that fails after minutes in the queue. The engine then sees local paths only, and a job survives a restart
although the URL it came from does not.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from talkies.errors import MediaError, TooLarge
from talkies.h3.clip_plan import plan
from talkies.h3.geometry import Geometry, Limits
from talkies.request import KEYFRAME_ROLES, Kind, Task, VideoRequest
from talkies.server.config import ServerConfig
from talkies.server.intake.locks import check_locks
from talkies.server.intake.references import Source, blamed_on
from talkies.server.intake.schema import Draft

if TYPE_CHECKING:  # they bring PyAV, which a server without references never needs
    from talkies.media.read.limits import MediaLimits, ReferenceTotals

MAX_BYTES: dict[Kind, int] = {"image": 30 << 20, "video": 50 << 20, "audio": 15 << 20}
RELEASED_SHORT_EDGE = 768  # the hosted API's limits belong to the released canvas; smaller models take smaller files
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A request that the engine can take as it is. ``digests``: SHA-256 of each reference, in order; ``hints`` for
    the one who wrote the prompt."""

    request: VideoRequest
    geometry: Geometry
    digests: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def materialize(draft: Draft, *, folder: Path, config: ServerConfig, limits: Limits) -> Checked:
    """Blocks: call it in a thread. Whoever named ``folder`` removes it when this raises.

    Raises ``InvalidRequest`` with ``param``.
    """
    # A wrong size or length is refused before a byte is fetched; 1.0 stands for a ratio not yet known.
    geometry = plan(draft.request, limits, auto_aspect=1.0)
    if not draft.sources:
        return Checked(request=draft.request, geometry=geometry, hints=_hints(draft.request, []))
    folder.mkdir(parents=True, mode=0o700)
    paths, digests = [], []
    for source, label in zip(draft.sources, _labels(draft.sources), strict=True):
        path = folder / secrets.token_hex(16)
        with blamed_on(source):
            digests.append(_spool(source, path, label, config))
        paths.append(path)
    aspect, kinds = _check_all(draft.sources, paths, limits, read_s=geometry.duration_s)
    conditions = tuple(replace(c, uri=str(p)) for c, p in zip(draft.request.conditions, paths, strict=True))
    request = check_locks(draft.request.replace(conditions=conditions), draft.sources, limits)
    geometry = plan(request, limits, auto_aspect=aspect if request.resolved_task is Task.FL2VA else None)
    return Checked(request=request, geometry=geometry, digests=tuple(digests), hints=_hints(request, kinds))


def _hints(request: VideoRequest, kinds: list[tuple[Kind, bool]]) -> tuple[str, ...]:
    from talkies.media.prompt_hints import prompt_hints

    return tuple(prompt_hints(request.prompt, kinds, need_roles=request.resolved_task is Task.REF2VA))


def _labels(sources: tuple[Source, ...]) -> list[str]:
    """``image 1``, ``video 1``, ``image 2``: counted per kind, as the model's own labels are; a lock by its role."""

    def number(i: int, kind: Kind) -> int:
        return sum(o.kind == kind and not o.is_lock for o in sources[: i + 1])

    return [s.role if s.is_lock else f"{s.kind} {number(i, s.kind)}" for i, s in enumerate(sources)]


def _check_all(
    sources: tuple[Source, ...], paths: list[Path], limits: Limits, *, read_s: float
) -> tuple[float | None, list[tuple[Kind, bool]]]:
    """Formats, sizes, durations; what a job of ``read_s`` seconds would read is decoded once. Returns width / height of
    the first keyframe, and of each source its kind and whether it has sound."""
    from talkies.media.read import limits as media
    from talkies.media.read.image import read_image
    from talkies.media.read.video import check_decodes

    rules = media.MediaLimits() if limits.canvas_short_edge >= RELEASED_SHORT_EDGE else media.MediaLimits.loose()
    totals = media.ReferenceTotals(limits=rules)
    labels = _labels(sources)
    # All headers before the first pixel: what they ask for together is known, and refused, before any of it is paid.
    kinds = []
    for source, path, label in zip(sources, paths, labels, strict=True):
        with blamed_on(source):
            has_sound = _check_headers(source, path, label, rules, totals, limits)
        if not source.is_lock:
            kinds.append((source.kind, has_sound))
    aspect: float | None = None
    for source, path, label in zip(sources, paths, labels, strict=True):
        with blamed_on(source):
            if source.kind == "image":
                height, width = read_image(path, name=label).shape[:2]  # decoded: damage is found now
                if source.role in KEYFRAME_ROLES and aspect is None:
                    aspect = width / height
            elif source.kind == "video" and not source.is_lock:
                # A header can promise frames that the file does not have, and damage lies anywhere.
                start_s = source.start_time_s
                check_decodes(path, fps=limits.fps, max_seconds=read_s, start_time_s=start_s, name=label)
    return aspect, kinds


def _check_headers(
    source: Source, path: Path, label: str, rules: MediaLimits, totals: ReferenceTotals, limits: Limits
) -> bool:
    """Raises ``MediaError`` and ``TooLarge``. Returns whether it has sound."""
    from talkies.media.read import limits as media

    if source.kind == "image":
        media.check_image(path, rules, name=label, totals=totals)
        return False
    if source.is_lock:  # what is longer than the clip is left out of it
        check = media.check_audio if source.kind == "audio" else media.check_video
        return check(path, rules, name=label, longer_is_cut=True).audio is not None
    if source.kind == "audio":
        media.check_audio(path, rules, name=label, totals=totals)
        return True
    info = media.check_video(path, rules, name=label, start_time_s=source.start_time_s, totals=totals)
    if source.require_sound and info.audio is None:
        raise MediaError(f"{label} has no sound, which type video_audio needs", hint="use type video")
    length_s = (info.video.duration_s if info.video else info.duration_s) - source.start_time_s
    shortest_s = (limits.clip_frames + limits.tail_frames) / limits.fps
    if length_s < shortest_s - rules.slack_s:
        raise MediaError(
            f"{label} has {length_s:.2f} s to read, under the {shortest_s:.2f} that can be encoded",
            hint="use a longer video",
        )
    return info.audio is not None


def _spool(source: Source, path: Path, label: str, config: ServerConfig) -> str:
    """Writes ``path`` and returns the SHA-256 of its bytes."""
    limit = MAX_BYTES[source.kind]
    if source.upload is not None:
        if (source.upload.size or 0) > limit:
            raise _too_large(label, limit)
        source.upload.file.seek(0)
        return _write(path, _chunks(source.upload.file), label, limit)
    from talkies.media.fetch.addresses import AllowList
    from talkies.media.fetch.uri import FetchPolicy, fetch

    policy = FetchPolicy(allow=AllowList(config.allow_hosts), media_root=config.media_root)
    data = fetch(source.uri, policy, kind=source.kind, max_bytes=limit, name=label)
    return _write(path, iter([data]), label, limit)


def _write(path: Path, chunks: Iterator[bytes], label: str, limit: int) -> str:
    digest, total = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for chunk in chunks:
            total += len(chunk)
            if total > limit:
                raise _too_large(label, limit)
            digest.update(chunk)
            file.write(chunk)
    if not total:
        raise MediaError(f"{label} is empty", hint="send the file again")
    return digest.hexdigest()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _too_large(label: str, limit: int) -> TooLarge:
    return TooLarge(f"{label} exceeds the {limit >> 20} MiB size limit", hint="compress or shorten it")
