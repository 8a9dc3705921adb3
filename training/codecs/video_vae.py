"""The stock video VAE, run fast enough to train: its causal 3-D convolutions as 2-D ones over stacked frames.

Same weights, same numbers (tests/training/test_video_vae.py); cuDNN's conv3d on few channels is many times slower.
B clips, F frames, T latent frames, C channels; pixels are ImageNet-normalized.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP_FRAMES = 17


class _Windows(torch.autograd.Function):
    """What a causal 3-D convolution of 3 x k x k reads, as the channels of a 2-D one: frame triples, reflected edges.

    x [B*F, C, H, W] -> [B*F', 3 * C, H + before + after, W + before + after], channels last; frames -2 and -1 are zero.
    Written out with its own backward: autograd's, of slices and concatenations, fills and adds a whole tensor for
    each slice, and that of F.pad uses atomics.
    """

    @staticmethod
    def forward(ctx, x: Tensor, num_clips: int, stride_t: int, before: int, after: int) -> Tensor:
        ctx.sizes = x.shape, num_clips, stride_t, before, after
        x = x.permute(0, 2, 3, 1).unflatten(0, (num_clips, -1))  # [B, F, H, W, C]
        _, frames, height, width, channels = x.shape
        out = x.new_empty(
            num_clips, (frames - 1) // stride_t + 1, height + before + after, width + before + after, 3, channels
        )
        inner = out[:, :, before : before + height, before : before + width]
        for tap, (mine, theirs) in enumerate(_taps(frames, stride_t)):
            inner[:, mine, ..., tap, :] = x[:, theirs]
            out[:, : mine.start, ..., tap, :] = 0
        for axis, size in ((3, width), (2, height)):
            if before:
                out.select(axis, 0).copy_(out.select(axis, 2))
            if after:
                out.select(axis, before + size).copy_(out.select(axis, before + size - 2))
        return out.flatten(0, 1).flatten(3).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        shape, num_clips, stride_t, before, after = ctx.sizes
        _, channels, height, width = shape
        grad = grad.permute(0, 2, 3, 1).unflatten(0, (num_clips, -1)).unflatten(-1, (3, channels))
        frames = shape[0] // num_clips
        taps = _taps(frames, stride_t)

        def gather(part: Tensor) -> Tensor:
            """[B, F', ..., 3, C] -> [B, F, ..., C]: every frame's share of the triples that it is in."""
            mine, theirs = taps[2]  # of a stride of 2 it reads every other frame
            total = part.new_zeros(num_clips, frames, *part.shape[2:-2], channels)
            total[:, theirs] = part[:, mine, ..., 2, :]
            for tap in (1, 0):
                mine, theirs = taps[tap]
                total[:, theirs] += part[:, mine, ..., tap, :]
            return total

        def columns(rows: Tensor) -> Tensor:
            """Folds the last spatial axis [.., W + before + after, 3, C] -> [.., W, C] over frames."""
            total = gather(rows.narrow(-3, before, width))
            if before:
                total.select(-2, 1).add_(gather(rows.select(-3, 0)))
            if after:
                total.select(-2, width - 2).add_(gather(rows.select(-3, before + width)))
            return total

        total = columns(grad.narrow(2, before, height))
        if before:
            total.select(2, 1).add_(columns(grad.select(2, 0)))
        if after:
            total.select(2, height - 2).add_(columns(grad.select(2, before + height)))
        return total.flatten(0, 1).permute(0, 3, 1, 2), None, None, None, None


def _taps(frames: int, stride_t: int) -> list[tuple[slice, slice]]:
    """For each tap of three: which output frames read a frame that exists, and which frames those are."""
    count, taps = (frames - 1) // stride_t + 1, []
    for tap in range(3):
        first = max(0, -((tap - 2) // stride_t))  # the first output frame whose tap is not before the clip
        start = first * stride_t + tap - 2
        stop = max(start, start + stride_t * (count - first - 1) + 1)
        taps.append((slice(first, count), slice(start, stop, stride_t)))
    return taps


def _causal_conv(conv: nn.Conv3d, x: Tensor, num_clips: int, after: int = 0) -> Tensor:
    """x [B*F, C, H, W] -> [B*F', C', H', W']: two zero frames in front, then a 2-D convolution over frame triples.

    `after` reflects that many pixels at the lower and right edges alone, where the convolution itself pads none.
    """
    before, after = (1, 1) if conv.spatial_padding else (0, after)
    stride_t, *stride = conv.stride
    if conv.kernel_size[0] == 1:
        return F.conv2d(x, conv.weight[:, :, 0], conv.bias, stride)
    x = _Windows.apply(x, num_clips, stride_t, before, after)
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
            x = _causal_conv(down.conv, x, num_clips, after=int(down.spatial_stride == 2))
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
