"""Video VAE keys: original layout <-> port layout.

Three things differ beyond names: the original stores q, k, v interleaved per head in one matrix, stores the gated
FFN as [gate; up] where the port has [up; gate], and carries a ``decoder.mask_token`` that nothing reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

RELEASE_NUM_HEADS = 32
UNUSED = frozenset({"decoder.mask_token"})
# Present in single-file repacks of the original layout; the statistics are read from config.json.
STATISTICS = frozenset({"latents_mean", "latents_std"})

_RENAMES: tuple[tuple[str, str], ...] = (  # (original pattern, port replacement); inverted below
    (r"^encoder\.down\.(\d+)\.block\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"^decoder\.x_embedder\.", "decoder.proj_in."),
    (r"\.attn\.to_out\.(weight|bias)$", r".attn.to_out.0.\1"),
    (r"\.ff\.w2\.", ".ff.net.2."),
)
_RENAMES_BACK: tuple[tuple[str, str], ...] = (
    (r"^encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.", r"encoder.down.\1.block.\2."),
    (r"^encoder\.down_blocks\.(\d+)\.downsamplers\.0\.", r"encoder.down.\1.downsample."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"^decoder\.proj_in\.", "decoder.x_embedder."),
    (r"\.attn\.to_out\.0\.(weight|bias)$", r".attn.to_out.\1"),
    (r"\.ff\.net\.2\.", ".ff.w2."),
)


def is_original(keys: frozenset[str]) -> bool:
    """Whether these keys are the original layout's."""
    return "decoder.x_embedder.weight" in keys


def convert_video_vae(
    tensors: Mapping[str, Tensor], to: Literal["original", "port"], *, num_heads: int = RELEASE_NUM_HEADS
) -> dict[str, Tensor]:
    """All tensors under the keys of the other layout, bit for bit; ``num_heads`` is the ViT decoder's.

    Port -> original -> port is the identity; the other way round loses only the unread ``decoder.mask_token``.
    """
    if to == "port":
        port: dict[str, Tensor] = {}
        for key in tensors:
            port.update(to_port(key, lambda key=key: tensors[key], num_heads))  # type: ignore[misc]
        return port
    return dict(_originals(tensors, num_heads))


def to_port(key: str, read: Callable[[], Tensor], num_heads: int) -> Iterator[tuple[str, Tensor]]:
    """The port tensors made of one original tensor; ``read`` is called only when the tensor is used."""
    if key in UNUSED or key in STATISTICS:
        return
    if ".attn.to_qkv." in key:
        for name, part in zip("qkv", split_heads(read(), num_heads), strict=True):
            yield key.replace(".to_qkv.", f".to_{name}."), part
    elif ".ff.w1." in key:
        yield key.replace(".ff.w1.", ".ff.net.0.proj."), swap_halves(read())
    else:
        yield _rename(key, _RENAMES), read()


def _originals(tensors: Mapping[str, Tensor], num_heads: int) -> Iterator[tuple[str, Tensor]]:
    for key, tensor in tensors.items():
        if ".attn.to_q." in key:
            parts = [tensors[key.replace(".to_q.", f".to_{name}.")] for name in "qkv"]
            yield key.replace(".to_q.", ".to_qkv."), join_heads(parts, num_heads)
        elif ".attn.to_k." in key or ".attn.to_v." in key:
            continue
        elif ".ff.net.0.proj." in key:
            yield key.replace(".ff.net.0.proj.", ".ff.w1."), swap_halves(tensor)
        else:
            yield _rename(key, _RENAMES_BACK), tensor


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [heads, (q, k, v), head_dim] interleaved -> three tensors of heads * head_dim rows."""
    parts = qkv.unflatten(0, (num_heads, 3, -1)).unbind(1)
    q, k, v = (part.flatten(0, 1).contiguous() for part in parts)
    return q, k, v


def join_heads(parts: list[Tensor], num_heads: int) -> Tensor:
    """The inverse of :func:`split_heads`."""
    return torch.stack([part.unflatten(0, (num_heads, -1)) for part in parts], dim=1).flatten(0, 2)


def swap_halves(fused: Tensor) -> Tensor:
    """[a; b] -> [b; a] along the rows; its own inverse."""
    first, second = fused.chunk(2, dim=0)
    return torch.cat([second, first], dim=0)


def _rename(key: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key
