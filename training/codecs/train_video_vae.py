"""Trains the video VAE on rendered clips of all six canvases.

Loss: (1 + 8 * dilated object mask) * (d^2 + d/2 + gradient error) + KL. The decoder sees latents with noise of up to
0.15 standard deviations, because a sampler's latents are never exact. A step (forward, backward, optimizer, average of
weights) is one CUDA graph per canvas: launched kernel by kernel it is several times slower than the GPU needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.codecs import video_vae
from training.components import normalize_pixels, pixel_statistics
from training.editions import FIRST, Edition
from training.resume import Part
from training.world import Canvas

TILE_PX = 256  # talkies.codecs.video.tiles.TILE_PIXELS
NUM_FRAMES = 22  # one decoder window: every phase of the 17 + 5 geometry
PEAK_LR, WARMUP_STEPS, OBJECT_WEIGHT, KL_WEIGHT = 1.2e-3, 200, 8.0, 2e-4
CANVAS_SHARE = {"16:9": 0.5, "21:9": 0.1, "4:3": 0.1, "1:1": 0.1, "3:4": 0.1, "9:16": 0.1}


def build(device: str, edition: Edition = FIRST) -> nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3 import AutoencoderKLMiniMaxH3

    vae = AutoencoderKLMiniMaxH3(**edition.video_vae).to(device)
    with torch.no_grad():
        for block in vae.decoder.transformer_blocks:
            block.scale1.fill_(0.3)  # the stock zeros delay the start
            block.scale2.fill_(0.3)
        vae.decoder.register_tokens.normal_(0, 0.02)
        vae.quant_conv.bias[vae.config.latent_channels :].fill_(-6.0)  # start with a small posterior
    return vae


def draw_batch(canvas: Canvas, num_clips: int, device: str, edition: Edition = FIRST) -> tuple[Tensor, Tensor]:
    """Normalized pixels [B, 3, 22, H, W] and dilated mask [B, 1, 22, H, W]; windows start anywhere in a clip.

    A canvas wider than a tile of the engine gives one of its tiles.
    """
    specs = edition.world.sample_specs(num_clips, canvas, device=device)
    clip = edition.world.render(specs, NUM_FRAMES, torch.rand(num_clips, device=device) * 2.0)
    mask = F.max_pool3d(clip.mask_B1FHW, (1, 5, 5), 1, (0, 2, 2))
    spare = max(0, canvas.width - TILE_PX)
    left = spare * int(torch.rand(()) < 0.5)
    pixels, mask = (x[..., left : left + TILE_PX] for x in (clip.video_B3FHW, mask))
    return normalize_pixels(pixels), mask


def losses(vae: nn.Module, pixels: Tensor, mask: Tensor, autocast: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(reconstruction, KL, squared pixel error [B, 1, F, H, W] in 0..1 units)."""
    with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=autocast):
        sample, mean, logvar = video_vae.sample_posterior(video_vae.encode(vae, pixels))
        spread = sample.detach().std((0, 2, 3, 4), keepdim=True)
        noise_scale = 0.15 * torch.rand(len(pixels), 1, 1, 1, 1, device=pixels.device)
        out = video_vae.decode_window(vae, sample + noise_scale * spread * torch.randn_like(sample)).float()
    error = out - pixels
    weight = 1 + OBJECT_WEIGHT * mask
    edges = (weight[..., 1:] * error.diff(dim=-1).abs()).mean() + (weight[..., 1:, :] * error.diff(dim=-2).abs()).mean()
    reconstruction = (weight * (error.square() + 0.5 * error.abs())).mean() + 0.5 * edges
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    square = (error.detach() * pixel_statistics(pixels.device)[1]).square().mean(1, keepdim=True)
    return reconstruction, kl, square


def train(
    seconds: float,
    num_clips: int,
    device: str,
    max_steps: int | None = None,
    graphs: bool = True,
    edition: Edition = FIRST,
    part: Part | None = None,
) -> nn.Module | None:
    """Returns the averaged weights in a stock VAE whose config holds the latent statistics.

    None where the time of this `part` is up before all `seconds`, or steps, are spent: the next part goes on.
    """
    cuda, part = device == "cuda", part or Part()
    vae = build(device, edition)
    params = list(vae.parameters())
    averages = [p.detach().clone() for p in params]
    lr = torch.tensor(1e-6, device=device)
    kl_weight, keep = torch.tensor(0.0, device=device), torch.tensor(1.0, device=device)
    optimizer = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.98), weight_decay=1e-4, fused=cuda, capturable=cuda)
    log = torch.zeros(4, device=device)

    def step(pixels: Tensor, mask: Tensor) -> None:
        reconstruction, kl, square = losses(vae, pixels, mask, autocast=cuda)
        (reconstruction + kl_weight * kl).backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        torch._foreach_zero_([p.grad for p in params])
        with torch.no_grad():
            for average, p in zip(averages, params, strict=True):
                average.lerp_(p, keep)
            object_mse = (square * mask).sum() / mask.sum()
            log.copy_(torch.stack([reconstruction, kl, square.mean(), object_mse]).detach())

    for p in params:
        p.grad = torch.zeros_like(p)
    part.begin(params, averages, optimizer)  # before the graphs, which hold the optimizer's tensors
    torch.manual_seed(part.step_before)
    names = list(CANVAS_SHARE)
    steps = {name: _graphed(step, name, num_clips, device, graphs, edition) for name in names}
    shares = torch.tensor([CANVAS_SHARE[name] for name in names])
    start, done = time.perf_counter(), part.step_before
    while True:
        elapsed = part.spent_before_s + time.perf_counter() - start
        progress = elapsed / seconds if max_steps is None else done / max_steps
        if progress >= 1:
            break
        if part.is_over(done, elapsed):
            part.keep(params, averages, optimizer, done, elapsed, now=True)
            print(f"video_vae: {100 * progress:.0f} % done; run the stage again to go on", flush=True)
            return None
        part.keep(params, averages, optimizer, done, elapsed)
        lr.fill_(PEAK_LR * min(1, (done + 1) / WARMUP_STEPS) * (0.5 + 0.5 * math.cos(math.pi * progress)) + 1e-6)
        kl_weight.fill_(KL_WEIGHT * min(1.0, max(0.02, (progress - 0.1) / 0.3)))
        keep.fill_(1 - min(0.998, done / (done + 50)))
        steps[names[int(torch.multinomial(shares, 1))]]()
        done += 1
        if done % 500 == 0 or done in (1, 20):
            values = log.tolist()
            psnr, object_psnr = (-10 * math.log10(max(v, 1e-9)) for v in values[2:])
            print(
                f"video_vae step {done} {elapsed:.0f}s reconstruction {values[0]:.4f} kl {values[1]:.2f}"
                f" psnr {psnr:.1f} object {object_psnr:.1f} dB",
                flush=True,
            )
    part.keep(params, averages, optimizer, done, elapsed, now=True)
    with torch.no_grad():
        for p, average in zip(params, averages, strict=True):
            p.copy_(average)
    write_statistics(vae, device, edition=edition)
    print(f"video_vae done: {done} steps of {num_clips} clips in {time.perf_counter() - start:.0f}s", flush=True)
    return vae


def _graphed(
    step: Callable, name: str, num_clips: int, device: str, graphs: bool, edition: Edition
) -> Callable[[], None]:
    """A function that draws a batch and takes one step; on CUDA the step is captured once and replayed."""
    # the same number of pixels for every canvas keeps the steps equally efficient
    canvas, wide = edition.world.CANVASES[name], edition.world.CANVASES["16:9"]
    num_clips = max(2, round(num_clips * wide.width * wide.height / (canvas.width * canvas.height)))
    if device != "cuda" or not graphs:
        return lambda: step(*draw_batch(canvas, num_clips, device, edition))
    pixels, mask = draw_batch(canvas, num_clips, device, edition)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(pixels, mask)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(pixels, mask)

    def run() -> None:
        new_pixels, new_mask = draw_batch(canvas, num_clips, device, edition)
        pixels.copy_(new_pixels)
        mask.copy_(new_mask)
        graph.replay()

    return run


@torch.no_grad()
def write_statistics(vae: nn.Module, device: str, num_clips: int = 32, edition: Edition = FIRST) -> None:
    """Per-channel mean and standard deviation of posterior samples over all canvases, into the config."""
    total, square, count = torch.zeros(3, vae.config.latent_channels, dtype=torch.float64, device=device)
    for name, share in CANVAS_SHARE.items():
        batch = max(2, round(num_clips * 10 * share)) if device == "cuda" else 2
        pixels, _ = draw_batch(edition.world.CANVASES[name], batch, device, edition)
        sample = video_vae.sample_posterior(video_vae.encode(vae, pixels))[0].double()
        total += sample.sum((0, 2, 3, 4))
        square += sample.square().sum((0, 2, 3, 4))
        count += sample[:, 0].numel()
    mean = total / count
    std = (square / count - mean.square()).sqrt()
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    print("video_vae latent std", [round(v, 2) for v in std.tolist()], flush=True)


def save(vae: nn.Module, folder: Path) -> None:
    vae.to("cpu").half().save_pretrained(folder)
