"""The stock video VAE, run fast enough to train: its causal 3-D convolutions as 2-D ones over stacked frames.

Same weights, same numbers (tests/training/test_video_vae.py); cuDNN's conv3d on few channels is many times slower.
B clips, F frames, T latent frames, C channels; pixels are ImageNet-normalized.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP_FRAMES = 17


def _reflect(x: Tensor, left: int, right: int) -> Tensor:
    """Reflect padding of both spatial axes by at most one. Slices, because the backward of F.pad uses atomics."""
    for axis in (-1, -2):
        parts = [x.narrow(axis, 1, 1)] * left + [x] + [x.narrow(axis, x.shape[axis] - 2, 1)] * right
        x = torch.cat(parts, axis)
    return x


def _causal_conv(conv: nn.Conv3d, x: Tensor, num_clips: int) -> Tensor:
    """x [B*F, C, H, W] -> [B*F', C', H', W']: two zero frames in front, then a 2-D convolution over frame triples."""
    if conv.spatial_padding:
        x = _reflect(x, 1, 1)
    stride_t, *stride = conv.stride
    if conv.kernel_size[0] == 1:
        return F.conv2d(x, conv.weight[:, :, 0], conv.bias, stride)
    x = x.unflatten(0, (num_clips, -1))
    zero = torch.zeros_like(x[:, :1])
    x = torch.cat([zero, zero, x], 1)
    num_frames = (x.shape[1] - 3) // stride_t + 1
    taps = [x[:, k : k + stride_t * (num_frames - 1) + 1 : stride_t] for k in range(3)]
    x = torch.cat(taps, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
    weight = conv.weight.permute(0, 2, 1, 3, 4).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, weight, conv.bias, stride)


def _norm(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        y = F.group_norm(x, norm.num_groups, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)
        return F.silu(y)


def encode_clip(vae: nn.Module, pixels_B3FHW: Tensor) -> Tensor:
    """Moments [B, 2C, T, h, w] of clips of at most 17 frames."""
    encoder, num_clips = vae.encoder, pixels_B3FHW.shape[0]
    x = pixels_B3FHW.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
    x = _causal_conv(encoder.conv_in, x, num_clips)
    for level in encoder.down_blocks:
        for resnet in level.resnets:
            y = _causal_conv(resnet.conv1, _norm(resnet.norm1, x), num_clips)
            y = _causal_conv(resnet.conv2, _norm(resnet.norm2, y), num_clips)
            shortcut = resnet.conv_shortcut
            x = (x if shortcut is None else _causal_conv(shortcut, x, num_clips)) + y
        for down in level.downsamplers or []:
            x = _causal_conv(down.conv, _reflect(x, 0, 1) if down.spatial_stride == 2 else x, num_clips)
    x = _causal_conv(encoder.conv_out, _norm(encoder.norm_out, x), num_clips)
    quant = vae.quant_conv
    x = F.conv2d(x, quant.weight[:, :, 0], quant.bias)
    return x.unflatten(0, (num_clips, -1)).transpose(1, 2)


def encode(vae: nn.Module, pixels_B3FHW: Tensor) -> Tensor:
    """Moments [B, 2C, 5n+2, h, w] of 17n+5 frames, or [B, 2C, 1, h, w] of one frame.

    Clips of 17 frames are independent; the last five frames give the two latents that survive the drop of three.
    """
    num_frames = pixels_B3FHW.shape[2]
    whole = num_frames // CLIP_FRAMES * CLIP_FRAMES
    tail = encode_clip(vae, pixels_B3FHW[:, :, whole:])
    if not whole:
        return tail
    clips = pixels_B3FHW[:, :, :whole].unflatten(2, (-1, CLIP_FRAMES)).transpose(1, 2)
    batch, num_clips = clips.shape[:2]
    moments = encode_clip(vae, clips.flatten(0, 1)).unflatten(0, (batch, num_clips)).transpose(1, 2).flatten(2, 3)
    return torch.cat([moments, tail], 2)


def encode_tiles(vae: nn.Module, pixels_B3FHW: Tensor) -> Tensor:
    """`encode` in the engine's tiles, which are part of the released result: a canvas over 256 px wide has several."""
    from talkies.codecs.video.tiles import TilePlan

    factor = vae.spatial_compression_ratio
    plan = TilePlan.of(*pixels_B3FHW.shape[-2:], step=factor)
    return plan.scaled(factor).stitch([encode(vae, tile) for tile in plan.cut(pixels_B3FHW)])


def decode_window(vae: nn.Module, latents_BCTHW: Tensor) -> Tensor:
    """Seven latents -> the 22 frames that a decoder call contributes: 17, and the 5 of the overlap."""
    y = vae.decoder(vae.post_quant_conv(latents_BCTHW))
    return torch.cat([y[:, :, 3:20], y[:, :, 23:28]], 2)


def sample_posterior(moments: Tensor, scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """(sample, mean, log-variance) of moments [B, 2C, ...], in float32."""
    mean, logvar = moments.float().chunk(2, 1)
    logvar = logvar.clamp(-30, 20)
    return mean + scale * (0.5 * logvar).exp() * torch.randn_like(mean), mean, logvar
