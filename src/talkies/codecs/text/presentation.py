"""What the text encoder reads: labels, vision blocks and the prompt as token ids.

No chat template, no system prompt, no special tokens around it; the prompt is used verbatim. Each segment is
tokenized on its own, since merges across a boundary would change the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from talkies.codecs.text.patches import PatchConfig, concatenate, image_rows, video_rows
from talkies.codecs.text.tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START, TextTokenizer
from talkies.errors import InvalidRequest
from talkies.h3.config import TAG_TEXT, TAG_VIDEO
from talkies.h3.vision import Grid, Outline, Seen, SeenImage, SeenSound, SeenVideo, sample_indices

# Kinds for the encoder's M-RoPE; start and end tokens are text to it.
KIND_TEXT, KIND_IMAGE, KIND_VIDEO = 0, 1, 2


@dataclass(frozen=True, eq=False, slots=True)
class EncoderImage:
    """A keyframe or reference image: the pixels that are also VAE-encoded. uint8 [h, w, 3]."""

    pixels: np.ndarray


@dataclass(frozen=True, eq=False, slots=True)
class EncoderVideo:
    """A reference video after truncation and resize: uint8 [F, h, w, 3] at ``fps``."""

    frames: np.ndarray
    has_soundtrack: bool
    fps: float = 24.0


@dataclass(frozen=True, slots=True)
class EncoderAudio:
    """A reference that is sound alone. It takes a label; a waveform never reaches the encoder."""


Visual = EncoderImage | EncoderVideo | EncoderAudio


@dataclass(frozen=True, kw_only=True, slots=True)
class Presentation:
    """L tokens of one request."""

    input_ids: tuple[int, ...]
    token_tags: tuple[int, ...]  # of the DiT's rows: a vision block, start and end included, is modulated as video
    mm_token_type_ids: tuple[int, ...]  # KIND_*
    image_grids: tuple[Grid, ...]
    video_grids: tuple[Grid, ...]

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, eq=False, slots=True)
class PixelRows:
    """Patch rows of all images and of all videos, in request order. float32 [rows, patch values]."""

    images: np.ndarray | None = None
    videos: np.ndarray | None = None


def present(
    tokenizer: TextTokenizer, prompt: str, visuals: Sequence[Visual] = (), *, patches: PatchConfig | None = None
) -> Presentation:
    """Builds the ids. ``visuals`` are in request order: it decides labels and numbers.

    Raises ``InvalidRequest`` for an empty prompt, a prompt that spells a vision token, or a video too short.
    """
    builder, outline = _Builder(tokenizer), Outline(patches or PatchConfig())
    for visual in visuals:
        for segment in outline.segments(_seen(visual)):
            if isinstance(segment, str):
                builder.text(segment)
            elif segment.kind == "image":
                builder.vision(IMAGE_PAD, KIND_IMAGE, segment.num_pads)
            else:
                builder.vision(VIDEO_PAD, KIND_VIDEO, segment.num_pads)
    builder.prompt(prompt)
    return Presentation(
        input_ids=tuple(builder.ids),
        token_tags=tuple(builder.tags),
        mm_token_type_ids=tuple(builder.kinds),
        image_grids=tuple(outline.image_grids),
        video_grids=tuple(outline.video_grids),
    )


def pixel_rows(visuals: Sequence[Visual], *, patches: PatchConfig | None = None) -> PixelRows:
    """The patch rows that fill the pads of :func:`present` for the same ``visuals``."""
    config = patches or PatchConfig()
    videos = []
    for visual in visuals:
        if isinstance(visual, EncoderVideo):
            sampled = sample_indices(visual.frames.shape[0], visual.fps, config)
            videos.append(video_rows(visual.frames[sampled], config))
    return PixelRows(
        images=concatenate(image_rows(v.pixels, config) for v in visuals if isinstance(v, EncoderImage)),
        videos=concatenate(videos),
    )


def _seen(visual: Visual) -> Seen:
    if isinstance(visual, EncoderImage):
        return SeenImage(height=visual.pixels.shape[0], width=visual.pixels.shape[1])
    if isinstance(visual, EncoderAudio):
        return SeenSound()
    num_frames, height, width = visual.frames.shape[:3]
    return SeenVideo(
        num_frames=num_frames, height=height, width=width, fps=visual.fps, has_soundtrack=visual.has_soundtrack
    )


class _Builder:
    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids: list[int] = []
        self.tags: list[int] = []
        self.kinds: list[int] = []

    def text(self, segment: str) -> None:
        self._append(self._tokenizer.encode(segment), TAG_TEXT, KIND_TEXT)

    def vision(self, pad: str, kind: int, num_pads: int) -> None:
        start, end = self._tokenizer.token_id(VISION_START), self._tokenizer.token_id(VISION_END)
        self._append([start], TAG_VIDEO, KIND_TEXT)
        self._append([self._tokenizer.token_id(pad)] * num_pads, TAG_VIDEO, kind)
        self._append([end], TAG_VIDEO, KIND_TEXT)

    def prompt(self, prompt: str) -> None:
        ids = self._tokenizer.encode(prompt)
        if not ids:
            raise InvalidRequest("the prompt is empty", hint="describe the clip in words", param="prompt")
        for token in (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD):
            # Such a token would claim pixels that do not exist, or another condition's.
            if self._tokenizer.token_id(token) in ids:
                raise InvalidRequest(
                    f"the prompt contains the reserved token {token}", hint="remove it from the text", param="prompt"
                )
        self._append(ids, TAG_TEXT, KIND_TEXT)

    def _append(self, ids: list[int], tag: int, kind: int) -> None:
        self.ids += ids
        self.tags += [tag] * len(ids)
        self.kinds += [kind] * len(ids)
