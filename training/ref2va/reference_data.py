"""What references are drawn from, encoded once and kept on the device: stills, sounds and preceding clips.

A still is another render of an object: same colour, shape and size, any place, and background as asked. A sound is
another clip of the same timbre. A preceding clip shows the target's own object and motion, and ends where the target
begins (bounce and flash), or is an earlier run of it (slides, whose target starts at its wall again).

N target clips, M stills or sounds per choice, R rows per latent frame, V vision tokens per picture or frame pair.
"""

from __future__ import annotations

import math
import random
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from training import world
from training.codecs import audio_vae, video_vae
from training.components import normalize_pixels
from training.dit import dataset, text
from training.dit.batched import patchify
from training.ref2va import reference_prompts
from training.ref2va.references import Reference

COUNTS = {name: len(world.ATTRIBUTES[name]) for name in ("color", "shape", "size", "background")}
LONGEST_SOUND = 80  # latents: two seconds
OFF_CLOCK_SHARE = 0.15  # of the sounds: a user's file need not begin on the latents' clock, though it loses by it


@dataclass(frozen=True)
class Features:
    """Vision tokens and DeepStack features, [N, V, 64] each."""

    tokens: Tensor
    deep: Tensor

    def __getitem__(self, index) -> tuple[Tensor, Tensor]:
        return self.tokens[index], self.deep[index]


@dataclass(frozen=True)
class StillBank:
    """M stills of every look: colour, shape, size, background, in this order of significance."""

    rows: Tensor  # [looks * M, R, 64] half
    features: Features
    per_look: int

    def draw(self, attributes: dict[str, Tensor], keep_background: bool) -> Tensor:
        """Index of a still for each clip; its background is the clip's or any."""
        look = torch.zeros_like(attributes["color"])
        for name, count in COUNTS.items():
            value = attributes[name]
            if name == "background" and not keep_background:
                value = torch.randint_like(value, count)
            look = look * count + value
        return look * self.per_look + torch.randint_like(look, self.per_look)


@dataclass(frozen=True)
class SoundBank:
    rows: Tensor  # [3 timbres * M, 2, LONGEST_SOUND, 16] half
    per_timbre: int

    def draw(self, timbre: Tensor) -> Tensor:
        return timbre * self.per_timbre + torch.randint_like(timbre, self.per_timbre)


@dataclass(frozen=True)
class Preceding:
    """The preceding clips of all N target clips, of one length."""

    reference: Reference  # with its soundtrack
    rows: Tensor  # [N, T * R, 64] half
    audio: Tensor  # [N, 2, Ta, 16] half
    features: Features


@dataclass(frozen=True)
class TargetClips:
    """Target clips of one canvas with what precedes them; `prompts` has an entry per kind of request."""

    clips: dataset.ClipSet
    prompts: dict[str, dataset.PromptPairs]
    preceding: dict[int, Preceding]  # by number of frames


class Encoder:
    """The frozen parts that turn renders into rows and features."""

    def __init__(self, vae: nn.Module, encoder: text.TextEncoder, device: str) -> None:
        self.vae, self.encoder, self.device = vae, encoder, device
        self._statistics = [
            torch.tensor(getattr(vae.config, name), device=device).view(1, -1, 1, 1, 1)
            for name in ("latents_mean", "latents_std")
        ]
        self._basis = tuple(tensor.to(device) for tensor in audio_vae.basis())

    def rows(self, video_B3FHW: Tensor) -> Tensor:
        mean, std = self._statistics
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            moments = video_vae.encode(self.vae, normalize_pixels(video_B3FHW))
        return patchify((video_vae.sample_posterior(moments, scale=0.0)[1] - mean) / std).half()

    def audio(self, wave: Tensor) -> Tensor:
        return audio_vae.project(wave, *self._basis).transpose(-1, -2).half()

    def features(self, pairs_BP23HW: Tensor, canvas: world.Canvas) -> tuple[Tensor, Tensor]:
        size = len(pairs_BP23HW)
        both = self.encoder.vision_of_pairs(pairs_BP23HW.flatten(0, 1), canvas)
        return tuple(x.unflatten(0, (size, -1)).flatten(1, 2) for x in both)


def _joined(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
    return [torch.cat(values) for values in zip(*parts, strict=True)]


@torch.no_grad()
def still_bank(encoder: Encoder, canvas: world.Canvas, per_look: int, seed: int, batch: int) -> StillBank:
    generator = torch.Generator().manual_seed(seed)
    total = per_look * math.prod(COUNTS.values())
    specs = world.sample_specs(total, canvas, generator)
    look = torch.arange(total) // per_look
    attributes = dict(specs.attributes)
    for name, count in reversed(COUNTS.items()):
        attributes[name], look = look % count, look // count
    # a flash is dim most of the time, and then it hides its colour
    attributes["motion"] = torch.randint(world.FLASH, (total,), generator=generator)
    specs, start_s = replace(specs, attributes=attributes), 2 * torch.rand(total, generator=generator)
    parts = []
    for at in range(0, total, batch):
        chosen = slice(at, at + batch)
        part = specs[chosen].to(encoder.device)
        still = world.render(part, 1, start_s[chosen].to(encoder.device)).video_B3FHW
        still = (still * 255).round() / 255
        pairs = still.transpose(1, 2)[:, None].expand(-1, -1, 2, -1, -1, -1)
        parts.append((encoder.rows(still), *encoder.features(pairs, canvas)))
    rows, tokens, deep = _joined(parts)
    return StillBank(rows, Features(tokens, deep), per_look)


@torch.no_grad()
def sound_bank(encoder: Encoder, per_timbre: int, seed: int) -> SoundBank:
    """One to four events in two seconds, each at any place and, in a share, off the latents' clock."""
    generator = torch.Generator().manual_seed(seed)
    canvas, total = world.CANVASES["16:9"], 3 * per_timbre
    specs = world.sample_specs(total, canvas, generator)
    specs = replace(specs, attributes=specs.attributes | {"sound": torch.arange(total) // per_timbre})

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    start, gap = uniform(0, 10, total, 1).round(), uniform(16, 40, total, 1).round()
    shift = uniform(0, 1, total, 1) * (uniform(0, 1, total, 1) < OFF_CLOCK_SHARE)
    event_s = (start + shift + gap * torch.arange(4)) / 40
    x_px = uniform(0, canvas.width, total, 1).expand(-1, 4)
    still = torch.zeros(total, 1)
    motion = world.Motion(still, still, still, event_s, x_px, torch.ones(total, 4, dtype=torch.bool))
    parts = [
        encoder.audio(
            world.audio_for(
                specs[part].to(encoder.device),
                world.Motion(*(getattr(motion, name)[part].to(encoder.device) for name in motion.__slots__)),
                56,
            )
        )
        for part in (slice(at, at + 256) for at in range(0, total, 256))
    ]
    return SoundBank(torch.cat(parts)[:, :, :LONGEST_SOUND], per_timbre)


def preceding_start_s(specs: world.Specs, num_frames: int) -> Tensor:
    """When the preceding clip starts, so that a periodic motion is at its beginning when the clip ends."""
    motion = specs.attributes["motion"]
    period = world.constant(world.PERIOD_S, motion.device)[specs.attributes["tempo"]]
    periodic = (motion == world.BOUNCE) | (motion == world.FLASH)
    start_s = torch.remainder(-num_frames / world.FPS, period)
    return torch.where(periodic, (start_s * 40).round() / 40, 0.0)  # events stay on the clock of the audio latents


@torch.no_grad()
def preceding(encoder: Encoder, specs: world.Specs, num_frames: int, batch: int) -> Preceding:
    reference = Reference(
        canvas=specs.canvas, num_frames=num_frames, num_audio_latents=world.num_audio_latents(num_frames)
    )
    sampled = torch.tensor(reference.sampled_frames, device=encoder.device)
    parts = []
    for at in range(0, len(specs), batch):
        part = specs[slice(at, at + batch)].to(encoder.device)
        clip = world.render(part, num_frames, preceding_start_s(part, num_frames))
        shown = (clip.video_B3FHW[:, :, sampled] * 255).round() / 255
        pairs = shown.transpose(1, 2).unflatten(1, (-1, 2))
        audio = encoder.audio(world.audio_for(part, clip.motion, num_frames))
        parts.append((encoder.rows(clip.video_B3FHW), audio, *encoder.features(pairs, specs.canvas)))
    rows, audio, tokens, deep = _joined(parts)
    return Preceding(reference, rows, audio, Features(tokens, deep))


def write_prompts(descriptions: list[dict[str, str]], seed: int) -> dict[str, list[str]]:
    """One text per clip and kind."""
    rng = random.Random(seed)
    return {k: [reference_prompts.prompt(d, rng, k) for d in descriptions] for k in reference_prompts.KINDS}


def target_clips(
    encoder: Encoder,
    specs: world.Specs,
    tokenizer,
    lengths: tuple[int, ...],
    seed: int,
    batch: int,
    pool: Executor | None,
) -> TargetClips:
    """Encodes the clips of one canvas. Requests with a sound leave out the silent clips: nothing is to be heard."""
    descriptions = [world.describe(specs, i) for i in range(len(specs))]
    starts = range(0, len(descriptions), 512)
    run = pool.map if pool else map
    done = list(run(write_prompts, [descriptions[i : i + 512] for i in starts], [seed + i for i in starts]))
    pairs = {}
    for kind in reference_prompts.KINDS:
        lines = [line for part in done for line in part[kind]]
        sounding = kind in ("image_audio", "audio_image")
        kept = [i for i, d in enumerate(descriptions) if not sounding or d["sound"] != "silent"]
        pairs[kind] = dataset.tokenize([lines[i] for i in kept], kept, tokenizer, encoder.device)
    clips = dataset.encode(encoder.vae, specs, {}, tokenizer, encoder.device, batch)
    return TargetClips(clips, pairs, {n: preceding(encoder, specs, n, batch) for n in lengths})
