"""What a request is conditioned on, as sizes: the layout needs no pixel and no latent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

VisualKind = Literal["keyframe-first", "keyframe-last", "image", "video"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VisualCondition:
    """A keyframe, a reference image or a reference video. ``audio_latents`` (per channel): a video's soundtrack."""

    kind: VisualKind
    latent_height: int
    latent_width: int
    latent_frames: int = 1
    audio_latents: int = 0

    @property
    def is_keyframe(self) -> bool:
        return self.kind in ("keyframe-first", "keyframe-last")


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioCondition:
    """A standalone audio reference of ``audio_latents`` latents per channel."""

    audio_latents: int
    kind: Literal["audio"] = "audio"


PackedCondition: TypeAlias = VisualCondition | AudioCondition
