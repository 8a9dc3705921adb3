"""Clips on encode, overlapping windows with a cross-fade on decode (docs/model.md, Time in the video VAE).

F frames, T latent frames. With the release's clip of 17 frames, temporal factor 4 and token drop 3:
17n + 5 frames <-> 5n + 2 latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.codecs.video.tiles import cross_fade_
from talkies.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class TemporalPlan:
    """The three numbers of a config and what follows from them."""

    clip_frames: int  # frames encoded together
    factor: int  # frames per latent frame
    token_drop: int  # trailing latents dropped after encoding

    @property
    def clip_latents(self) -> int:
        return -(-self.clip_frames // self.factor)

    @property
    def overlap_latents(self) -> int:
        """Latents that a decode window shares with the next one; also the tail of a legal length."""
        return -self.token_drop % self.clip_latents

    @property
    def pre_padding(self) -> int:
        """Frames that a clip's first latent stands for but does not have: they are cut from every decoded part."""
        return -self.clip_frames % self.factor

    @property
    def overlap_frames(self) -> int:
        return max(self.overlap_latents * self.factor - self.pre_padding, 0)

    @property
    def min_latents(self) -> int:
        """The shortest latent length that decodes: one window."""
        return self.clip_latents + self.overlap_latents

    def padding_of(self, num_latents: int) -> tuple[int, int]:
        """(latents to repeat at the end, frames to cut again) for ``num_latents``."""
        repeats = -(num_latents + self.token_drop) % self.clip_latents
        tail = self.clip_frames % self.factor
        # The first latent of each clip stands for `tail` frames, every other one for `factor`.
        cut = sum(tail if tail and (num_latents + k) % self.clip_latents == 0 else self.factor for k in range(repeats))
        return repeats, cut

    def windows_of(self, num_latents: int) -> int:
        """How many decode windows ``num_latents`` latents take; 0 when there are too few of them."""
        repeats, _ = self.padding_of(num_latents)
        return max(0, (num_latents + self.token_drop + repeats) // self.clip_latents - int(self.token_drop > 0))

    def frames_of(self, num_latents: int) -> int:
        """Frames that ``num_latents`` latents decode to."""
        _, cut = self.padding_of(num_latents)
        tail = self.overlap_frames if self.token_drop else 0
        return self.windows_of(num_latents) * self.clip_frames + tail - cut

    def encode(self, frames: Tensor, encode_clip: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, 3, F, H, W] -> moments [B, 2C, T, h, w]. One frame is encoded alone.

        Clips are independent; the last frame is repeated to fill the last clip, and the copies reach only
        latents that ``token_drop`` removes when F has the form 17n + 5.
        """
        num_frames = frames.shape[2]
        if num_frames == 1:
            return encode_clip(frames)
        missing = -num_frames % self.clip_frames
        if missing:
            frames = torch.cat([frames, frames[:, :, -1:].repeat(1, 1, missing, 1, 1)], dim=2)
        moments = torch.cat([encode_clip(clip) for clip in frames.split(self.clip_frames, dim=2)], dim=2)
        return moments[:, :, : -self.token_drop] if self.token_drop else moments

    def decode(self, latents: Tensor, decode_window: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """[B, C, T, h, w] -> pixel chunks [B, 3, f, H, W] in order: one per clip, then the tail.

        Raises ``InvalidRequest`` when T is shorter than one window.
        """
        num_latents = latents.shape[2]
        num_windows = self.windows_of(num_latents)
        if not num_windows:
            raise InvalidRequest(
                f"{num_latents} latent frames are too few to decode, at least {self.min_latents} are needed",
                hint=f"that is {self.frames_of(self.min_latents)} frames",
                param="num_frames",
            )
        repeats, _ = self.padding_of(num_latents)
        if repeats:
            latents = torch.cat([latents, latents[:, :, -1:].repeat(1, 1, repeats, 1, 1)], dim=2)
        remaining = self.frames_of(num_latents)
        window = self.clip_latents + self.overlap_latents
        split = self.clip_latents * self.factor
        carried: Tensor | None = None
        for i in range(num_windows):
            start = i * self.clip_latents
            pixels = decode_window(latents[:, :, start : start + window])
            chunk = pixels[:, :, self.pre_padding : split]
            if carried is not None:
                cross_fade_(chunk, carried, self.overlap_frames, dim=2)
            carried = pixels[:, :, split + self.pre_padding :].clone() if self.token_drop else None
            chunk = chunk[:, :, :remaining]
            remaining -= chunk.shape[2]
            if chunk.shape[2]:
                yield chunk
        if carried is not None and remaining > 0:
            yield carried[:, :, :remaining]
