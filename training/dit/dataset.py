"""Clips encoded once, kept on the device: latents, audio latents, keyframes and prompts of one canvas.

Every clip is encoded at 124 frames. Chunks of 17 frames are independent and the encoder is causal, so the latents of a
shorter clip are a prefix of the long one's; only its last frame, encoded alone as a keyframe, has to be made extra.

N clips, R rows per latent frame, A = 1 + 7 keyframes (the first, and the last of every frame count).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import world
from training.codecs import audio_vae, video_vae
from training.components import PATCH, normalize_pixels
from training.dit.batched import patchify
from training.editions import FIRST, Edition

MAX_FRAMES = max(world.FRAME_COUNTS)
NUM_PROMPTS = {"t2va": 5, "fl2va": 3}  # per clip
KEYFRAME_INDEX = (0, *(count - 1 for count in world.FRAME_COUNTS))


@dataclass(frozen=True)
class PromptPairs:
    """(clip, prompt) pairs grouped by token count. `ids` and `clip` are one row per pair, sorted by length."""

    ids: Tensor  # [P, longest] int16
    clip: Tensor  # [P]
    spans: dict[int, tuple[int, int]]  # token count -> range of pairs

    def draw(self, num_samples: int, rng: random.Random) -> tuple[Tensor, Tensor]:
        """(prompt ids [B, L], clip [B]) of one length, drawn with the share that the length has."""
        total = len(self.clip)
        at = rng.randrange(total)
        length, (start, stop) = next((n, span) for n, span in self.spans.items() if span[0] <= at < span[1])
        index = torch.randint(start, stop, (num_samples,), device=self.clip.device)
        return self.ids[index, :length].long(), self.clip[index]


@dataclass(frozen=True)
class ClipSet:
    canvas: world.Canvas
    video_rows: Tensor  # [N, 37 * R, 64] half, normalized latents
    keyframe_rows: Tensor  # [N, A, R, 64] half
    keyframe_u8: Tensor  # [N, A, 3, H, W]
    keyframe_xy: Tensor  # [N, A, 2] centre of the object, 0..1
    audio: Tensor  # [N, 2, 207, 16] half, normalized latents
    shows_object: Tensor  # [N, 37 * R] bool
    attributes: dict[str, Tensor]
    prompts: dict[str, PromptPairs]

    def __len__(self) -> int:
        return len(self.video_rows)


def write_prompts(
    descriptions: list[dict[str, str]], seed: int, prompt: Callable[..., tuple] = world.prompt
) -> dict[str, list[str]]:
    """NUM_PROMPTS texts per clip and kind, clip by clip."""
    rng = random.Random(seed)
    return {k: [prompt(d, rng, k)[0] for d in descriptions for _ in range(n)] for k, n in NUM_PROMPTS.items()}


def tokenize(texts: list[str], clips: list[int], tokenizer, device: str) -> PromptPairs:
    encoded = [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    longest = len(encoded[order[-1]])
    ids = torch.zeros(len(order), longest, dtype=torch.int16)
    spans: dict[int, tuple[int, int]] = {}
    for row, i in enumerate(order):
        ids[row, : len(encoded[i])] = torch.tensor(encoded[i], dtype=torch.int16)
        start = spans.get(len(encoded[i]), (row, row))[0]
        spans[len(encoded[i])] = (start, row + 1)
    clip = torch.tensor([clips[i] for i in order])
    return PromptPairs(ids.to(device), clip.to(device), spans)


def plan(
    canvas: world.Canvas, num_clips: int, seed: int, pool: Executor | None, made_by: Edition = FIRST
) -> tuple[Any, dict]:
    """Specs on the CPU and their prompts (or futures of them): what needs no GPU."""
    specs = made_by.world.sample_specs(num_clips, canvas, torch.Generator().manual_seed(seed))
    descriptions = [world.describe(specs, i) for i in range(num_clips)]
    if pool is None:
        return specs, write_prompts(descriptions, seed, made_by.prompt)
    chunk = 512
    jobs = [
        pool.submit(write_prompts, descriptions[i : i + chunk], seed + i, made_by.prompt)
        for i in range(0, num_clips, chunk)
    ]
    done = [job.result() for job in jobs]
    return specs, {kind: [text for part in done for text in part[kind]] for kind in NUM_PROMPTS}


def _latent_of_frame(device: str) -> Tensor:
    frames = torch.arange(MAX_FRAMES, device=device)
    inside = frames % 17
    return frames // 17 * 5 + torch.where(inside == 0, 0, 1 + (inside - 1) // 4)


@torch.no_grad()
def encode(
    vae: nn.Module,
    specs: Any,
    texts: dict[str, list[str]],
    tokenizer,
    device: str,
    batch: int = 64,
    made_by: Edition = FIRST,
) -> ClipSet:
    """Renders and encodes all clips of one canvas. `tokenizer` is a raw `tokenizers.Tokenizer`."""
    cuda = device == "cuda"
    mean, std = (
        torch.tensor(getattr(vae.config, name), device=device).view(1, -1, 1, 1, 1)
        for name in ("latents_mean", "latents_std")
    )
    directions, scale = (tensor.to(device) for tensor in audio_vae.basis())
    latent_of_frame = _latent_of_frame(device)
    parts: dict[str, list[Tensor]] = {}
    keyframes = torch.tensor(KEYFRAME_INDEX, device=device)

    def normalized_rows(pixels: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=cuda):
            moments = video_vae.encode_tiles(vae, pixels)
        latents = (video_vae.sample_posterior(moments, scale=0.0)[1] - mean) / std
        return patchify(latents).half()

    for start in range(0, len(specs), batch):
        part = specs[slice(start, start + batch)].to(device)
        clip = made_by.world.render(part, MAX_FRAMES)
        pixels = normalize_pixels(clip.video_B3FHW)
        stills = clip.video_B3FHW[:, :, keyframes].transpose(1, 2)  # [B, A, 3, H, W]
        stills_u8 = (stills * 255).round().to(torch.uint8)
        still_pixels = normalize_pixels((stills_u8.float() / 255).flatten(0, 1)[:, :, None])
        coverage = F.max_pool2d(clip.mask_B1FHW[:, 0], PATCH * specs.canvas.latent_px)
        shown = torch.zeros(len(part), 37, *coverage.shape[2:], device=device)
        shown.index_reduce_(1, latent_of_frame, coverage, "amax")
        audio = world.audio_for(part, clip.motion, MAX_FRAMES)
        motion = clip.motion
        xy = torch.stack([motion.x_px / specs.canvas.width, motion.y_px / specs.canvas.height], -1)
        for name, value in {
            "video_rows": normalized_rows(pixels),
            "keyframe_rows": normalized_rows(still_pixels).unflatten(0, (-1, len(KEYFRAME_INDEX))),
            "keyframe_u8": stills_u8,
            "keyframe_xy": xy[:, keyframes],
            "audio": audio_vae.project(audio, directions, scale).transpose(-1, -2).half(),
            "shows_object": (shown > 0.05).flatten(1),
        }.items():
            parts.setdefault(name, []).append(value)
    pairs = {}
    for kind in texts:
        count = NUM_PROMPTS[kind]
        clips = [i for i in range(len(specs)) for _ in range(count)]
        pairs[kind] = tokenize(texts[kind], clips, tokenizer, device)
    tensors = {name: torch.cat(values) for name, values in parts.items()}
    return ClipSet(canvas=specs.canvas, attributes=specs.to(device).attributes, prompts=pairs, **tensors)
