"""Batched sampling with the training forward, under the reference's seeding: what the figures are measured on.

A study is one canvas, frame count, set of keyframes and pair of shifts. Its clips share the prompt length, one length
per group, as in training. Results are latent rows; `decode` makes them frames and sound, on a CPU as well.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from training import world
from training.codecs import video_vae
from training.components import AUDIO_CHANNELS, LATENT_CHANNELS, denormalize_pixels, normalize_pixels
from training.dit import batched, text
from training.dit.train_dit import Models
from training.editions import FIRST, Edition

PROMPT_SEED = 987_654  # no clip or prompt draw of the training set uses it


@dataclass(frozen=True, kw_only=True)
class Study:
    canvas: str = "16:9"
    num_frames: int = 56
    keyframes: tuple[str, ...] = ()
    shifts: tuple[float, float] = (3.0, 2.0)
    num_sigmas: int = 20
    num_clips: int = 96


STUDIES = {
    "t2va_22": Study(num_frames=22),
    "t2va_56": Study(),
    "t2va_124": Study(num_frames=124),
    "t2va_56_shifts_12_3": Study(shifts=(12.0, 3.0)),
    "t2va_56_shifts_5_3": Study(shifts=(5.0, 3.0)),
    "t2va_56_10_points": Study(num_sigmas=10),
    "t2va_56_square": Study(canvas="1:1"),
    "t2va_56_tall": Study(canvas="9:16"),
    "t2va_73_wide": Study(canvas="21:9", num_frames=73),
    "first_56": Study(keyframes=("first",)),
    "last_56": Study(keyframes=("last",)),
    "both_124": Study(keyframes=("first", "last"), num_frames=124, num_clips=64),
}


def sigma_grid(num_sigmas: int, shift: float) -> Tensor:
    base = torch.linspace(1, 0, num_sigmas)
    return shift * base / (1 + (shift - 1) * base)


def reference_noise(
    layout: batched.Layout, seeds: list[int], num_channels: int = LATENT_CHANNELS
) -> tuple[Tensor, Tensor]:
    """(video rows, audio rows): per seed, two generators with the same seed, as the reference draws them."""
    height, width = layout.latent_size
    frames = batched.num_latent_frames(layout.num_frames)
    video, audio = [], []
    for seed in seeds:
        shape = (1, num_channels, frames, height, width)
        video.append(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
        rows = (layout.num_audio_rows, AUDIO_CHANNELS)
        audio.append(torch.randn(rows, generator=torch.Generator().manual_seed(seed)))
    return batched.patchify(torch.cat(video)), torch.stack(audio)


def choose_clips(
    study: Study, tokenizer, group: int = 32, edition: Edition = FIRST
) -> list[tuple[Any, list[str], list]]:
    """Groups of clips whose prompts have one token count each: the commonest counts, a third of the clips each."""
    rng, generator = random.Random(PROMPT_SEED), torch.Generator().manual_seed(PROMPT_SEED)
    specs = edition.world.sample_specs(3000, edition.world.CANVASES[study.canvas], generator)
    by_length: dict[int, list[tuple[int, str, Any]]] = defaultdict(list)
    for i in range(len(specs)):
        prompt, kept = edition.prompt(world.describe(specs, i), rng, "fl2va" if study.keyframes else "t2va")
        by_length[len(tokenizer(prompt, add_special_tokens=False)["input_ids"])].append((i, prompt, kept))
    groups = []
    for members in sorted(by_length.values(), key=len, reverse=True)[: max(1, study.num_clips // group)]:
        picked = members[: min(group, study.num_clips)]
        index = torch.tensor([i for i, _, _ in picked])
        groups.append((specs[index], [p for _, p, _ in picked], [k for _, _, k in picked]))
    return groups


@torch.no_grad()
def sample_group(
    models: Models,
    vae: nn.Module,
    study: Study,
    specs: Any,
    prompts: list[str],
    first_seed: int,
    edition: Edition = FIRST,
) -> dict[str, Tensor]:
    """Video and audio rows of one group, float16 on the CPU."""
    device = next(models.parameters()).device
    canvas, cuda = specs.canvas, device.type == "cuda"
    tokenizer = models.text.tokenizer
    presentation = text.present(tokenizer, canvas, len(study.keyframes))
    ids = torch.tensor([tokenizer(p, add_special_tokens=False)["input_ids"] for p in prompts], device=device)
    is_vision = presentation.is_vision + (False,) * ids.shape[1]
    layout = batched.Layout(canvas, study.num_frames, study.keyframes, is_vision)
    placed = batched.place(layout, models.dit.rope.inv_freq.to(device), torch.bfloat16 if cuda else torch.float32)
    seeds, channels = [first_seed + i for i in range(len(specs))], vae.config.latent_channels
    video, audio = (x.to(device) for x in reference_noise(layout, seeds, channels))
    features, condition = None, torch.zeros(len(specs), 0, video.shape[-1], device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        if study.keyframes:
            frames = [0 if k == "first" else study.num_frames - 1 for k in study.keyframes]
            stills = edition.world.render(specs.to(device), study.num_frames).video_B3FHW[:, :, frames].transpose(1, 2)
            stills = (stills * 255).round() / 255
            tokens, deep = models.text.vision(stills.flatten(0, 1), canvas)
            features = tuple(x.unflatten(0, (len(specs), -1)).flatten(1, 2) for x in (tokens, deep))
            condition = encode_rows(vae, stills.flatten(0, 1)[:, :, None]).unflatten(0, (len(specs), -1)).flatten(1, 2)
            noise = torch.randn(condition.shape, generator=torch.Generator().manual_seed(first_seed)).to(device)
            condition = batched.ANCHOR_T * condition + (1 - batched.ANCHOR_T) * noise
        rows = models.text(presentation, ids, features)
        sigmas_v, sigmas_a = (sigma_grid(study.num_sigmas, shift).tolist() for shift in study.shifts)
        for i in range(study.num_sigmas - 1):
            times = [torch.full((len(specs),), 1 - s[i], device=device) for s in (sigmas_v, sigmas_a)]
            velocity_v, velocity_a = batched.forward(models.dit, placed, rows, condition, audio, video, *times)
            video = video + (sigmas_v[i] - sigmas_v[i + 1]) * velocity_v
            audio = audio + (sigmas_a[i] - sigmas_a[i + 1]) * velocity_a
    return {"video_rows": video.half().cpu(), "audio_rows": audio.half().cpu()}


def _statistics(vae: nn.Module, device) -> tuple[Tensor, Tensor]:
    names = ("latents_mean", "latents_std")
    return tuple(torch.tensor(getattr(vae.config, n), device=device).view(1, -1, 1, 1, 1) for n in names)


def encode_rows(vae: nn.Module, video_B3FHW: Tensor) -> Tensor:
    """Normalized latent rows of clips in 0..1."""
    mean, std = _statistics(vae, video_B3FHW.device)
    moments = video_vae.encode_tiles(vae, normalize_pixels(video_B3FHW))
    return batched.patchify((video_vae.sample_posterior(moments, scale=0.0)[1] - mean) / std)


def run_study(models: Models, vae: nn.Module, study: Study, edition: Edition = FIRST) -> list[dict]:
    """All groups of a study: rows, specs, prompts, and what the prompts fix."""
    models.eval()
    groups, seed = [], 0
    for specs, prompts, kept in choose_clips(study, models.text.tokenizer, edition=edition):
        rows = sample_group(models, vae, study, specs, prompts, seed, edition)
        groups.append({**rows, "specs": specs, "prompts": prompts, "kept": kept})
        seed += len(specs)
    return groups


@torch.no_grad()
def decode(
    vae: nn.Module, audio_vae: nn.Module, study: Study, group: dict, edition: Edition = FIRST
) -> tuple[np.ndarray, np.ndarray]:
    """(frames uint8 [B, F, H, W, 3], waves float32 [B, 2, 800 * Ta])."""
    canvas = edition.world.CANVASES[study.canvas]
    layout = batched.Layout(canvas, study.num_frames, study.keyframes, ())
    device = next(vae.parameters()).device
    mean, std = _statistics(vae, device)
    latents = batched.unpatchify(group["video_rows"].float().to(device), layout.latent_size) * std + mean
    clips = torch.cat([denormalize_pixels(vae.decode(part).sample) for part in latents.split(4)])
    frames = (clips * 255).round().byte().permute(0, 2, 3, 4, 1).cpu().numpy()
    audio = group["audio_rows"].float().unflatten(1, (2, -1)).flatten(0, 1).transpose(1, 2).to(device)
    waves = audio_vae.decode(audio).sample.view(len(frames), 2, -1).cpu().numpy()
    return frames, waves
