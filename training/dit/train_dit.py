"""Trains the DiT, the two live text layers and the vision tower together.

Loss: squared error of the velocity x0 - noise at x_t = t x0 + (1 - t) noise, rows that show the object x 9, sounding
audio rows x 4. Timesteps are per sample; both modalities share a base draw in 3 of 4 samples, under shifts that are
log-uniform in 1..16 (video) and 1..8 (audio), so that any schedule in between works. In half of the samples the audio
noise is a prefix of the video noise, as the reference's seeding makes it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import ranks, world
from training.components import PATCH
from training.dit import batched, noise, text
from training.dit.dataset import ClipSet
from training.editions import FIRST, Edition
from training.resume import Part

PEAK_LR, WARMUP_STEPS, DECAY_SHARE, AVERAGE = 1.5e-3, 300, 0.45, 0.9985
OBJECT_WEIGHT, SOUND_WEIGHT, PROBE_WEIGHT = 8.0, 3.0, 0.1
FRAME_SHARE = {22: 0.15, 39: 0.10, 56: 0.35, 73: 0.08, 90: 0.08, 107: 0.08, 124: 0.16}
CANVAS_SHARE = {"16:9": 0.5, "21:9": 0.1, "4:3": 0.1, "1:1": 0.1, "3:4": 0.1, "9:16": 0.1}
KEYFRAME_SHARE = {(): 0.70, ("first",): 0.13, ("last",): 0.06, ("first", "last"): 0.11}
AGREE_EVERY = 50  # steps between two looks at the clock, which all ranks share
PROBED = ("color", "shape", "background", "size")
ANCHOR_JITTER = 0.03  # in latent standard deviations: a keyframe's posterior is sampled, and it may be a JPEG


@dataclass(frozen=True, kw_only=True)
class Batch:
    placed: batched.PlacedLayout
    presentation: text.Presentation
    prompt_ids: Tensor  # [B, L]
    images: Tensor | None  # [B, K, 3, H, W] in 0..1
    images_truth: dict[str, Tensor] | None
    condition_rows: Tensor  # [B, K*R, 64]
    audio_rows: Tensor  # [B, 2*Ta, 16]
    video_rows: Tensor  # [B, T*R, 64]
    shows_object: Tensor  # [B, T*R]


class Models(nn.Module):
    """What is trained: the stock DiT, the text encoder, and linear probes that keep the vision tower looking."""

    def __init__(self, tokenizer, edition: Edition = FIRST) -> None:
        super().__init__()
        from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3Transformer3DModel

        self.dit = MiniMaxH3Transformer3DModel(**edition.dit)
        self.text = text.TextEncoder(tokenizer, edition.num_live_text_layers)
        self.probes = nn.ModuleDict({n: nn.Linear(64, len(world.ATTRIBUTES[n])) for n in PROBED})
        self.probes["xy"] = nn.Linear(64, 2)
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        for name, p in self.text.stock.model.language_model.named_parameters():
            if p.ndim == 2:
                p.normal_(0, 0.5 if "embed" in name else 0.08)
        for name, p in self.text.stock.model.visual.named_parameters():
            if p.ndim == 2:
                p.normal_(0, p.shape[1] ** -0.5 if "embed" not in name else 0.1)
        for block in self.dit.transformer_blocks:
            block.adaln_proj.linear.weight.zero_()
            block.adaln_proj.linear.bias.zero_()
        for linear in (self.dit.norm_out.linear, self.dit.proj_out, self.dit.audio_proj_out):
            linear.weight.mul_(0.1)
            linear.bias.zero_()


class BatchMaker:
    """Draws batches of about `rows_per_batch` rows; all samples of one share their layout."""

    def __init__(
        self, clips: dict[str, ClipSet], models: Models, rows_per_batch: int, device: str, seed: int = 0
    ) -> None:
        self.clips, self.models, self.rows_per_batch, self.device = clips, models, rows_per_batch, device
        self.rng = random.Random(seed)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._place = batched.Placer(models.dit.rope.inv_freq.to(device), dtype)
        self._presentations = {
            (name, count): text.present(models.text.tokenizer, clips[name].canvas, count)
            for name in clips
            for count in range(3)
        }
        # index tensors live on the device: making one waits for everything queued before it
        self._keyframe_index = {
            (frames, keyframes): torch.tensor(
                [0 if k == "first" else 1 + world.FRAME_COUNTS.index(frames) for k in keyframes], device=device
            )
            for frames in FRAME_SHARE
            for keyframes in KEYFRAME_SHARE
        }

    def _pick(self, shares: dict):
        return self.rng.choices(list(shares), list(shares.values()))[0]

    def draw(self) -> Batch:
        canvas = self._pick({name: share for name, share in CANVAS_SHARE.items() if name in self.clips})
        clips, keyframes, num_frames = self.clips[canvas], self._pick(KEYFRAME_SHARE), self._pick(FRAME_SHARE)
        presentation = self._presentations[canvas, len(keyframes)]
        pairs = clips.prompts["fl2va" if keyframes else "t2va"]
        base = batched.Layout(clips.canvas, num_frames, keyframes, presentation.is_vision)
        batch_size = max(2, self.rows_per_batch // (base.num_rows + 20) // 8 * 8)
        prompt_ids, clip = pairs.draw(batch_size, self.rng)
        images = truth = None
        condition = torch.zeros(batch_size, 0, clips.video_rows.shape[-1], device=self.device)
        if keyframes:
            index = self._keyframe_index[num_frames, keyframes]
            images = clips.keyframe_u8[clip[:, None], index].float() / 255
            condition = clips.keyframe_rows[clip[:, None], index].flatten(1, 2).float()
            condition = condition + ANCHOR_JITTER * torch.randn_like(condition)
            condition = batched.ANCHOR_T * condition + (1 - batched.ANCHOR_T) * torch.randn_like(condition)
            truth = {n: clips.attributes[n][clip].repeat_interleave(len(keyframes)) for n in PROBED}
            truth["xy"] = clips.keyframe_xy[clip[:, None], index].flatten(0, 1)
        num_latents = world.num_audio_latents(num_frames)
        return Batch(
            placed=self._place(base, prompt_ids.shape[1]),
            presentation=presentation,
            prompt_ids=prompt_ids,
            images=images,
            images_truth=truth,
            condition_rows=condition,
            audio_rows=clips.audio[clip, :, :num_latents].flatten(1, 2).float(),
            video_rows=clips.video_rows[clip, : base.num_video_rows].float(),
            shows_object=clips.shows_object[clip, : base.num_video_rows],
        )


def vision_loss(models: Models, tokens_BVC: Tensor, truth: dict[str, Tensor]) -> Tensor:
    pooled = tokens_BVC.float().mean(1)
    total = F.mse_loss(models.probes["xy"](pooled), truth["xy"]) * 4
    for name in PROBED:
        total = total + F.cross_entropy(models.probes[name](pooled), truth[name])
    return total


def loss_of(models: Models, batch: Batch, block_fn) -> tuple[Tensor, Tensor, Tensor]:
    """(video, audio, vision probes), means over the batch."""
    layout = batch.placed.layout
    size, device = len(batch.video_rows), batch.video_rows.device.type
    video_noise, audio_noise = noise.draw_noise(layout, batch.video_rows.shape[-1] // PATCH**2, size, device)
    video_t, audio_t = noise.draw_timesteps(size, device)
    tv, ta = video_t[:, None, None], audio_t[:, None, None]
    features, probes = None, torch.zeros((), device=device)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        if batch.images is not None:
            tokens, deep = models.text.vision(batch.images.flatten(0, 1), layout.canvas)
            features = tuple(x.unflatten(0, (size, -1)).flatten(1, 2) for x in (tokens, deep))
        text_rows = models.text(batch.presentation, batch.prompt_ids, features)
        video_v, audio_v = batched.forward(
            models.dit,
            batch.placed,
            text_rows,
            batch.condition_rows,
            ta * batch.audio_rows + (1 - ta) * audio_noise,
            tv * batch.video_rows + (1 - tv) * video_noise,
            video_t,
            audio_t,
            block_fn,
        )
    if batch.images is not None:
        probes = vision_loss(models, tokens, batch.images_truth)
    video, audio = velocity_loss(
        batch, video_v - (batch.video_rows - video_noise), audio_v - (batch.audio_rows - audio_noise)
    )
    return video, audio, probes


def velocity_loss(batch, video_error: Tensor, audio_error: Tensor) -> tuple[Tensor, Tensor]:
    """(video, audio): weighted mean squares; the weights follow what `batch` shows and what it sounds like."""
    video_weight = 1 + OBJECT_WEIGHT * batch.shows_object[..., None].float()
    audio_weight = 1 + SOUND_WEIGHT * (batch.audio_rows.abs().amax(-1, keepdim=True) > 0.05).float()
    video = (video_weight * video_error.square()).mean() / video_weight.mean()
    return video, (audio_weight * audio_error.square()).mean()


def learning_rate(progress: float, step: int) -> float:
    return PEAK_LR * min(1.0, (step + 1) / WARMUP_STEPS) * min(1.0, (1 - progress) / DECAY_SHARE + 0.01)


def train(
    models: nn.Module,
    maker,
    loss_fn=loss_of,
    *,
    seconds: float,
    device: str,
    peak_lr: float = PEAK_LR,
    max_steps: int | None = None,
    log_every: int = 250,
    compiled: bool = True,
    snapshot: Path | None = None,
    world_ranks: ranks.Ranks = ranks.Ranks(),
    part: Part | None = None,
) -> nn.Module | None:
    """Trains what requires a gradient, in place, on `loss_fn(models, maker.draw(), block_fn)`.

    Returns the models with averaged weights. Compilation does not count against the time.

    `snapshot` names a file that gets the averaged weights at half time, in case the machine goes away. None comes back
    where the time of this `part` is up before all `seconds`, or steps, are spent: the next part goes on.
    """
    cuda, part = device == "cuda", part or Part()
    models.to(device)
    ranks.share_start(models, world_ranks)
    block_fn = batched.run_block
    if cuda and compiled:
        torch._dynamo.config.recompile_limit = 64
        block_fn = torch.compile(batched.run_block, dynamic=True)
    params = [p for p in models.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=PEAK_LR, betas=(0.9, 0.97), weight_decay=0.01, fused=cuda)
    averages = [p.detach().clone() for p in params]
    part.begin(params, averages, optimizer)
    step, spent = part.step_before, part.spent_before_s
    torch.manual_seed(1 + world_ranks.rank + 1000 * step)  # noise and timesteps are each rank's own, and each part's
    sums, warm, progress = torch.zeros(4, device=device), step + 12, 0.0
    start = mark = time.perf_counter()
    while True:
        if step == warm:
            if cuda:
                torch.cuda.synchronize()
            print(
                f"dit: {warm - part.step_before} steps with compilation took {time.perf_counter() - start:.0f}s",
                flush=True,
            )
            start = mark = time.perf_counter()
        if max_steps is not None:
            progress = step / max_steps
        elif step >= warm and step % AGREE_EVERY == 0:
            spent = part.spent_before_s + ranks.agree(time.perf_counter() - start, device, world_ranks)
            progress = spent / seconds
        if progress >= 1:
            break
        if part.is_over(step, spent):
            if world_ranks.is_first:
                part.keep(params, averages, optimizer, step, spent, now=True)
            print(f"dit: {100 * progress:.0f} % done; run the stage again to go on", flush=True)
            return None
        if world_ranks.is_first and step >= warm:
            part.keep(params, averages, optimizer, step, spent)
        for group in optimizer.param_groups:
            group["lr"] = peak_lr / PEAK_LR * learning_rate(progress, step)
        video, audio, probes = loss_fn(models, maker.draw(), block_fn)
        (video + audio + PROBE_WEIGHT * probes).backward()
        ranks.average_gradients(params, world_ranks)
        norm = nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(averages, params, 1 - min(AVERAGE, step / (step + 30)))
            sums += torch.stack([video.detach(), audio.detach(), probes.detach(), norm.detach()])
        step += 1
        if snapshot is not None and world_ranks.is_first and progress > 0.5:
            names = [name for name, p in models.named_parameters() if p.requires_grad]
            torch.save({n: a.bfloat16().cpu() for n, a in zip(names, averages, strict=True)}, snapshot)
            snapshot = None
        if step % log_every == 0 or step in (1, 4):
            count = log_every if step % log_every == 0 else 1
            values = (sums / count).tolist()
            sums.zero_()
            now = time.perf_counter()
            if not world_ranks.is_first:
                continue
            print(
                f"dit step {step} {spent:.0f}s video {values[0]:.4f} audio {values[1]:.4f} probes {values[2]:.3f}"
                f" norm {values[3]:.2f} {1e3 * (now - mark) / count:.0f} ms/step",
                flush=True,
            )
            mark = now
    if world_ranks.is_first:
        part.keep(params, averages, optimizer, step, spent, now=True)
    with torch.no_grad():
        for p, average in zip(params, averages, strict=True):
            p.copy_(average)
    print(f"dit done: {step} steps in {spent:.0f}s", flush=True)
    return models
