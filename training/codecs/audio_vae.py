"""The audio VAE in closed form, both ways.

Events lie on the latent clock and timbres carry no noise, so all 800-sample frames span about 20 dimensions. Their
first 16 principal directions, split into five sub-frames of 160 samples, are written into the stock decoder
(conv_pre, two transposed convolutions, conv_post) and, transposed, into the stock encoder (two strided convolutions,
conv, pre_block). Everything nonlinear in between is scaled into its linear range. Gradient training of the same
layers with a KL term collapsed to silence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training import world
from training.components import AUDIO_CHANNELS, AUDIO_VAE

SUB_FRAMES, SUB_SAMPLES, SUB_DIMS = 5, 160, 16
SNAKE_LINEAR = 1e-4  # Snake is x + sin(a x)^2 / a, so with small a it is x + a x^2
NORM_CONSTANT = 64.0  # constants beside the latents in front of pre_block's LayerNorm make it a fixed scale


def basis() -> tuple[Tensor, Tensor]:
    """(directions [16, 800] orthonormal, scale [16]): latent = frame @ directions.T / scale."""
    samples = world.SAMPLES_PER_LATENT
    frames = world.timbres()[:3].double().view(-1, samples)
    directions = torch.linalg.svd(frames, full_matrices=False)[2][:AUDIO_CHANNELS]
    active = frames[frames.square().mean(1) > 1e-8] @ directions.T
    spread = active.square().mean(0).sqrt()
    return directions.float(), ((spread * spread[0]).sqrt() * 0.8).float()


def project(audio: Tensor, directions: Tensor, scale: Tensor) -> Tensor:
    """Exact latents [..., 16, Ta] of audio [..., 800 * Ta]."""
    frames = audio.unflatten(-1, (-1, world.SAMPLES_PER_LATENT))
    return ((frames @ directions.T) / scale).transpose(-1, -2)


def _write(conv: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
    """Sets a weight-normed convolution. A zero row gets g = 0 and any v: v = 0 would be 0/0."""
    norm = weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.ndim - 1))
    filler = torch.linspace(-1, 1, weight[0].numel()).view_as(weight[0]).expand_as(weight)
    conv.weight_v.data.copy_(torch.where(norm > 0, weight, filler))
    conv.weight_g.data.copy_(norm)
    if conv.bias is not None:
        conv.bias.data.copy_(torch.zeros_like(conv.bias) if bias is None else bias)


def _zero(conv: nn.Module) -> None:
    _write(conv, torch.zeros_like(conv.weight_v))


def _subframe_basis(frames: Tensor) -> tuple[Tensor, Tensor]:
    """frames [16, 800] = coefficients [16, 5, 16] @ sub-frame directions [16, 160]."""
    parts = frames.view(-1, SUB_FRAMES, SUB_SAMPLES).double()
    directions = torch.linalg.svd(parts.reshape(-1, SUB_SAMPLES), full_matrices=False)[2][:SUB_DIMS]
    return (parts @ directions.T).float(), directions.float()


@torch.no_grad()
def build() -> nn.Module:
    """The stock audio VAE with both halves written in."""
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio

    vae = AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE)
    directions, scale = basis()
    _fill_decoder(vae, scale[:, None] * directions)
    _fill_encoder(vae, directions / scale[:, None])
    return vae.eval()


def _fill_decoder(vae: nn.Module, frames: Tensor) -> None:
    decoder, n = vae.decoder, AUDIO_CHANNELS
    coefficients, directions = _subframe_basis(frames)
    eye = torch.eye(n)
    vae.dec_in_proj.weight.zero_()
    vae.dec_in_proj.weight[:n, :, 0] = eye
    vae.dec_in_proj.bias.zero_()
    weight = torch.zeros_like(decoder.conv_pre.weight_v)
    weight[:n, :n, 3] = eye
    _write(decoder.conv_pre, weight)
    weight = torch.zeros_like(decoder.ups[0][0].weight_v)
    weight[:n, :, 2:7] = coefficients.permute(0, 2, 1)
    _write(decoder.ups[0][0], weight)
    weight = torch.zeros_like(decoder.ups[1][0].weight_v)
    weight[:, 0, 80:240] = directions
    _write(decoder.ups[1][0], weight)
    for block in decoder.resblocks:
        for conv in block.convs2:
            _zero(conv)  # the residual branch is silent
    decoder.activation_post.act.beta.fill_(9.0)  # x + sin(x)^2 * e^-9
    weight = torch.zeros_like(decoder.conv_post.weight_v)
    weight[0, 0, 3] = 1
    _write(decoder.conv_post, weight)


def _fill_encoder(vae: nn.Module, analysis: Tensor) -> None:
    """`analysis` [16, 800] maps a frame to its latent."""
    n = AUDIO_CHANNELS
    coefficients, directions = _subframe_basis(analysis)
    for module in vae.encoder.modules():
        if type(module).__name__ == "MiniMaxH3AudioSnake1d":
            module.alpha.fill_(SNAKE_LINEAR)
        if type(module).__name__ == "MiniMaxH3AudioResidualUnit":
            _zero(module.block[3])
    first, to_subframes, to_frames, _, last = vae.encoder.block
    weight = torch.zeros_like(first.weight_v)
    weight[0, 0, 3] = 1
    _write(first, weight)
    down = to_subframes.block[4]  # kernel 320, stride 160, padding 80: output j reads from sample 160 j - 80
    weight = torch.zeros_like(down.weight_v)
    weight[:, 0, 80:240] = directions
    _write(down, weight)
    down = to_frames.block[4]  # kernel 10, stride 5, padding 3
    weight = torch.zeros_like(down.weight_v)
    weight[:n, :, 3:8] = coefficients.permute(0, 2, 1)
    _write(down, weight)
    weight, bias = torch.zeros_like(last.weight_v), torch.zeros_like(last.bias)
    weight[:n, :n, 1], weight[n : 2 * n, :n, 1] = torch.eye(n), -torch.eye(n)  # mean zero for every latent
    bias[2 * n :: 2], bias[2 * n + 1 :: 2] = NORM_CONSTANT, -NORM_CONSTANT
    _write(last, weight, bias)
    block = vae.pre_block
    deviation = (NORM_CONSTANT**2 * (len(bias) - 2 * n) / len(bias)) ** 0.5
    block.proj.weight.zero_()
    block.proj.weight[:, :n] = torch.eye(n) * deviation
    block.proj.bias.zero_()
    for linear in (block.attn.proj, block.mlp.w2):
        linear.weight.zero_()
        linear.bias.zero_()
    vae.mean_proj.weight.copy_(torch.eye(n)[:, :, None])
    vae.mean_proj.bias.zero_()
    vae.logs_proj.weight.zero_()
    vae.logs_proj.bias.fill_(-6.0)
