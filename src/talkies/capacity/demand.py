"""What a request asks of a checkpoint, counted once: rows, tokens, patches, sizes, seconds of sound. No torch.

Time, memory, the plan of a machine and the ETA are all derived from one :class:`Demand`. It is exact where it can be:
the rows of the packed layout (tests/capacity/test_demand.py) follow from the request and the headers of its files.
What cannot be asked (a URL) counts as the largest that the checkpoint would take: a prediction errs towards refusing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from talkies.capacity.headers import Header, header_of
from talkies.h3.clip_plan import cache_of, num_forwards, plan
from talkies.h3.geometry import (
    Geometry,
    Limits,
    canvas_of_aspect,
    encodable_frames,
    geometry_of,
    latent_frames_of,
    reference_image_size,
)
from talkies.h3.locks import with_target_of_locks
from talkies.h3.vision import Outline, Seen, SeenImage, SeenSound, SeenVideo
from talkies.quality import OFF, CachePolicy
from talkies.request import KEYFRAME_ROLES, Condition, Task, VideoRequest

CHARS_PER_TOKEN = 3.5  # English prose in a Qwen vocabulary
CountTokens = Callable[[str], int]


def estimated_tokens(text: str) -> int:
    """About how many tokens a text becomes, where no tokenizer is at hand."""
    return round(len(text) / CHARS_PER_TOKEN) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ConditionDemand:
    """One condition as it is encoded. ``num_frames`` of these sides are decoded and shown to the text encoder, 0 of a
    sound; the VAEs make ``latent_frames`` and, of ``num_samples``, ``audio_latents`` per channel of them.

    A lock is encoded, too, but its rows are the target's own, and the text encoder never sees it."""

    kind: Literal["keyframe", "image", "video", "audio", "soundtrack", "footage"]
    width: int = 0
    height: int = 0
    num_frames: int = 0
    latent_frames: int = 0
    video_rows: int = 0
    num_samples: int = 0
    audio_latents: int = 0
    text_tokens: int = 0  # its labels and vision blocks
    vision_patches: int = 0
    patches_per_pair: int = 0  # of a picture, or of one merged pair of a video: they see each other
    has_own_timestep: bool = False  # of a lock: its rows are not at the target's

    @property
    def pixels(self) -> int:
        return self.width * self.height * self.num_frames

    @property
    def audio_rows(self) -> int:
        return 2 * self.audio_latents


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """One request on one checkpoint. ``num_forwards`` are one output's; ``target`` is what each output becomes."""

    target: Geometry
    conditions: tuple[ConditionDemand, ...] = ()
    prompt_tokens: int
    num_forwards: int
    num_outputs: int = 1
    headers: tuple[Header | None, ...] = ()  # of the conditions' files
    cache: CachePolicy = OFF.policy  # what may leave out some of its forwards

    @property
    def forwards_to_run(self) -> float:
        """Of all outputs, as far as is known before: whole ones, the parts of others added up."""
        return self.num_forwards * self.num_outputs * (1 - self.cache.skipped)

    @property
    def text_tokens(self) -> int:
        """Rows of text: labels, vision blocks and the prompt."""
        return self.prompt_tokens + sum(c.text_tokens for c in self.conditions)

    @property
    def vision_patches(self) -> int:
        return sum(c.vision_patches for c in self.conditions)

    @property
    def condition_video_rows(self) -> int:
        return sum(c.video_rows for c in self.conditions)

    @property
    def condition_audio_rows(self) -> int:
        return sum(c.audio_rows for c in self.conditions)

    @property
    def video_rows(self) -> int:
        """Of conditions and target."""
        return self.condition_video_rows + self.target.video_rows

    @property
    def audio_rows(self) -> int:
        """Of conditions and target."""
        return self.condition_audio_rows + self.target.audio_rows

    @property
    def rows(self) -> int:
        """Of one forward."""
        return self.text_tokens + self.video_rows + self.audio_rows

    @property
    def num_timesteps(self) -> int:
        """Distinct ones in a forward: of the target's picture (and the text) and sound, and of conditions of either."""
        own = {c.kind for c in self.conditions if c.has_own_timestep}
        video, audio = self.condition_video_rows > 0, self.condition_audio_rows > 0
        return 2 + (video or "footage" in own) + (audio or "soundtrack" in own)

    @property
    def pixels(self) -> int:
        """To decode, of all outputs."""
        g = self.target
        return g.width * g.height * g.num_frames * self.num_outputs


def demand_of(request: VideoRequest, limits: Limits, *, count_tokens: CountTokens = estimated_tokens) -> Demand:
    """Reads the header of each local file once. ``count_tokens`` counts a text on its own.

    Raises ``InvalidRequest`` or ``UnsupportedTask`` where the checkpoint cannot make it.
    """
    headers = tuple(header_of(condition) for condition in request.conditions)
    request = _after_locks(request, headers, limits)
    aspect = None
    if request.resolved_task is Task.FL2VA:
        aspect = _canvas_aspect(headers[request.conditions.index(request.keyframes[0])], limits)
    target = plan(request, limits, auto_aspect=aspect)
    return Demand(
        target=target,
        conditions=_counted(request.conditions, headers, target, limits, count_tokens),
        prompt_tokens=count_tokens(request.prompt),
        num_forwards=num_forwards(request, limits),
        num_outputs=request.num_outputs,
        headers=headers,
        cache=cache_of(request, limits).policy,
    )


def of_clip(
    demand: Demand, request: VideoRequest, limits: Limits, *, width: int, height: int, num_frames: int
) -> Demand:
    """The same request with another canvas and length. No file is read again, and labels count as estimated."""
    target = geometry_of(width, height, num_frames, limits)
    conditions = request.conditions if demand.conditions else ()
    return replace(
        demand,
        target=target,
        conditions=_counted(conditions, demand.headers, target, limits, estimated_tokens),
    )


def _counted(
    conditions: Sequence[Condition],
    headers: Sequence[Header | None],
    target: Geometry,
    limits: Limits,
    count_tokens: CountTokens,
) -> tuple[ConditionDemand, ...]:
    outline, counted = Outline(limits.vision), []
    for condition, header in zip(conditions, headers, strict=True):
        if condition.is_lock:
            counted.append(_locked(condition, target, limits))
            continue
        sized = _sized(condition, header, target, limits)
        before, tokens, pads = outline.num_patches, 0, 0
        for segment in outline.segments(_seen(sized, limits)):
            if isinstance(segment, str):
                tokens += count_tokens(segment)
            else:
                pads = segment.num_pads
                tokens += pads + 2  # a vision block has a start and an end
        counted.append(
            replace(
                sized,
                text_tokens=tokens,
                vision_patches=outline.num_patches - before,
                patches_per_pair=pads * limits.vision.merge_size**2,
            )
        )
    return tuple(counted)


def _after_locks(request: VideoRequest, headers: Sequence[Header | None], limits: Limits) -> VideoRequest:
    """The request with what it left free said by the headers of its locks; of one that nobody has opened the longest
    clip there is, on the default canvas."""
    lengths: list[float] = []
    aspect: float | None = None
    for condition, header in zip(request.conditions, headers, strict=True):
        if condition.role == "soundtrack":
            lengths.append(limits.max_frames / limits.fps if header is None else header.sound_s)
        elif condition.role == "footage":
            lengths.append(limits.max_frames / limits.fps if header is None else header.seconds)
            aspect = _aspect_of(header, limits) if header is not None and header.width and header.height else None
    return with_target_of_locks(request, limits, seconds=min(lengths), aspect=aspect) if lengths else request


def _locked(condition: Condition, target: Geometry, limits: Limits) -> ConditionDemand:
    """As long as the clip, which it becomes a part of."""
    own = condition.role in limits.card.locks
    if condition.role == "soundtrack":
        return ConditionDemand(kind="soundtrack", num_samples=target.num_samples, has_own_timestep=own)
    return ConditionDemand(
        kind="footage",
        width=target.width,
        height=target.height,
        num_frames=target.num_frames,
        latent_frames=target.latent_frames,
        has_own_timestep=own,
    )


def _seen(c: ConditionDemand, limits: Limits) -> Seen:
    if c.kind == "audio":
        return SeenSound()
    if c.kind != "video":
        return SeenImage(height=c.height, width=c.width)
    sound = c.num_samples > 0
    return SeenVideo(num_frames=c.num_frames, height=c.height, width=c.width, fps=limits.fps, has_soundtrack=sound)


def _sized(condition: Condition, header: Header | None, target: Geometry, limits: Limits) -> ConditionDemand:
    if condition.role in KEYFRAME_ROLES:
        return _picture("keyframe", target.width, target.height, limits)
    if condition.kind == "image":
        if header is None:
            header = Header(width=limits.max_aspect, height=1)
        size = reference_image_size(*_within_aspects(header.width, header.height, limits), limits)
        return _picture("image", *size, limits)
    if condition.kind == "audio":
        sound_s = target.duration_s if header is None else header.sound_s
        samples = max(1, _samples(sound_s, target.num_frames, header, limits))
        return ConditionDemand(kind="audio", num_samples=samples, audio_latents=_audio_latents(samples, limits))
    if header is None or not header.width or not header.height:
        clips = [
            _clip(*canvas_of_aspect(aspect, limits), target.num_frames, target.num_samples, limits)
            for aspect in _aspects(limits)
        ]
        return max(clips, key=lambda clip: clip.pixels)
    size = canvas_of_aspect(_aspect_of(header, limits), limits, of_picture=True)
    start = condition.start_time_s
    shown = math.floor((header.seconds - start) * limits.fps + 0.5)
    # A clip that is too short is refused when it is read.
    num_frames = max(limits.clip_frames + limits.tail_frames, min(target.num_frames, shown))
    return _clip(*size, num_frames, _samples(header.sound_s - start, num_frames, header, limits), limits)


def _picture(kind: Literal["keyframe", "image"], width: int, height: int, limits: Limits) -> ConditionDemand:
    rows = (width // limits.canvas_multiple) * (height // limits.canvas_multiple)
    return ConditionDemand(kind=kind, width=width, height=height, num_frames=1, latent_frames=1, video_rows=rows)


def _clip(width: int, height: int, num_frames: int, num_samples: int, limits: Limits) -> ConditionDemand:
    m = limits.canvas_multiple
    latent_frames = latent_frames_of(encodable_frames(num_frames, limits), limits)
    return ConditionDemand(
        kind="video",
        width=width,
        height=height,
        num_frames=num_frames,
        latent_frames=latent_frames,
        video_rows=latent_frames * (width // m) * (height // m),
        num_samples=num_samples,
        audio_latents=_audio_latents(num_samples, limits),
    )


def _samples(sound_s: float, num_frames: int, header: Header | None, limits: Limits) -> int:
    """Per channel: sound is cut to the picture's length at its own rate, then resampled once."""
    rate = header.sound_rate_hz if header is not None and header.sound_rate_hz else limits.sample_rate_hz
    own = min(num_frames * rate // limits.fps, round(sound_s * rate))
    return max(0, -(-own * limits.sample_rate_hz // rate))


def _audio_latents(num_samples: int, limits: Limits) -> int:
    return -(-num_samples // limits.audio_hop)


def _canvas_aspect(header: Header | None, limits: Limits) -> float:
    """Of the first keyframe, which gives the canvas; of one that nobody has opened the largest canvas there is."""
    if header is not None:
        return _aspect_of(header, limits)

    def pixels(aspect: float) -> int:
        width, height = canvas_of_aspect(aspect, limits)
        return width * height if width * height <= limits.canvas_max_pixels else 0

    return max(_aspects(limits), key=pixels)


def _aspects(limits: Limits) -> list[float]:
    return [1.0, *(width / height for width, height in limits.named_ratios.values()), float(limits.max_aspect)]


def _aspect_of(header: Header, limits: Limits) -> float:
    width, height = _within_aspects(header.width, header.height, limits)
    return width / height


def _within_aspects(width: int, height: int, limits: Limits) -> tuple[int, int]:
    """A picture outside the allowed ratios is refused when it is read; until then it counts as one at the limit."""
    return min(width, limits.max_aspect * height), min(height, limits.max_aspect * width)
