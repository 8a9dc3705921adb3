"""Names and shapes of the DiT's tensors: ours, the port's and the original's (docs/model.md, Checkpoint layouts).

Our names are those of ``PackedDiT``'s state dict. Two things differ between files beyond names: the original
interleaves queries, keys and values per head, and it swaps the halves of the gated feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from talkies.h3.config import DiTConfig

ROPE_KEY = "rope.inv_freq"  # stored by the original, recomputed by us and by the port


class Layout(Enum):
    """Whose names and tensor order a file has: ``PORT`` is diffusers', ``ORIGINAL`` that of MiniMax's release.

    ``REPACKED`` is the original with queries, keys and values already stacked, as community single files are. Names
    and shapes are the original's, so it cannot be told apart and must be asked for.
    """

    PORT = "port"
    ORIGINAL = "original"
    REPACKED = "repacked"


class Form(Enum):
    """How our tensor is made of a file's: see :func:`join`."""

    PLAIN = "plain"
    QKV = "qkv"  # ours: [q; k; v]
    GATED = "gated"  # ours: [value; gate]


@dataclass(frozen=True, slots=True)
class Spec:
    """One of our tensors. ``island`` stays float32 in every checkpoint; the rest has the block dtype."""

    name: str
    shape: tuple[int, ...]
    form: Form = Form.PLAIN
    island: bool = False
    adaln: bool = False


_TOP = (  # ours == port, original
    ("proj_in", "video_patch_proj"),
    ("audio_proj_in", "audio_patch_proj"),
    ("context_embedder", "condition_proj"),
    ("time_embedder.linear_1", "time_embedder.proj_in"),
    ("time_embedder.linear_2", "time_embedder.proj_out"),
    ("token_refiner.final_norm", "token_refiner.final_norm"),
    ("norm_out.norm", "final_layer.norm"),
    ("norm_out.linear", "final_layer.adaln_proj.linear"),
    ("proj_out", "final_layer.video_out"),
    ("audio_proj_out", "final_layer.audio_out"),
)
_BLOCK = {  # ours: (port, original)
    "norm1.weight": (("norm1.weight",), "norm1.weight"),
    "attn.to_qkv.weight": (("attn.to_q.weight", "attn.to_k.weight", "attn.to_v.weight"), "attn.qkv_proj.weight"),
    "attn.norm_q": (("attn.norm_q.weight",), "attn.q_norm.weight"),
    "attn.norm_k": (("attn.norm_k.weight",), "attn.k_norm.weight"),
    "attn.to_out.weight": (("attn.to_out.0.weight",), "attn.out_proj.weight"),
    "norm2.weight": (("norm2.weight",), "norm2.weight"),
    "ff.up.weight": (("ff.net.0.proj.weight",), "mlp.fc1.weight"),
    "ff.down.weight": (("ff.net.2.weight",), "mlp.fc2.weight"),
    "adaln.weight": (("adaln_proj.linear.weight",), "adaln_proj.linear.weight"),
    "adaln.bias": (("adaln_proj.linear.bias",), "adaln_proj.linear.bias"),
}
_PREFIX = {  # ours: (port, original)
    "blocks": ("transformer_blocks", "blocks"),
    "token_refiner.blocks": ("token_refiner.refiner_blocks", "token_refiner.blocks"),
}


def block_specs(config: DiTConfig, prefix: str, *, adaln: bool) -> list[Spec]:
    """Tensors of one block; ``prefix`` such as ``blocks.7.`` or empty."""
    d, inner, head = config.hidden_size, config.inner_dim, config.attention_head_dim
    specs = [
        Spec(prefix + "norm1.weight", (d,)),
        Spec(prefix + "attn.to_qkv.weight", (3 * inner, d), Form.QKV),
        Spec(prefix + "attn.norm_q", (head,)),
        Spec(prefix + "attn.norm_k", (head,)),
        Spec(prefix + "attn.to_out.weight", (d, inner)),
        Spec(prefix + "norm2.weight", (d,)),
        Spec(prefix + "ff.up.weight", (2 * config.ffn_dim, d), Form.GATED),
        Spec(prefix + "ff.down.weight", (d, config.ffn_dim)),
    ]
    if adaln:
        out = config.adaln_out_features
        specs.append(Spec(prefix + "adaln.weight", (out, config.time_embed_dim), adaln=True))
        specs.append(Spec(prefix + "adaln.bias", (out,), adaln=True))
    return specs


def top_specs(config: DiTConfig) -> list[Spec]:
    """Tensors outside the block stack, text refiner included."""
    c, d = config, config.hidden_size

    def linear(name: str, outputs: int, inputs: int, *, island: bool = False, adaln: bool = False) -> list[Spec]:
        weight = Spec(name + ".weight", (outputs, inputs), island=island, adaln=adaln)
        return [weight, Spec(name + ".bias", (outputs,), island=island, adaln=adaln)]

    specs = [
        *linear("proj_in", d, c.video_row_dim, island=True),
        *linear("audio_proj_in", d, c.audio_in_channels, island=True),
        *linear("context_embedder", d, c.text_dim),
        *linear("time_embedder.linear_1", c.time_embed_hidden_dim, c.freq_dim, island=True),
        *linear("time_embedder.linear_2", c.time_embed_dim, c.time_embed_hidden_dim, island=True),
        Spec("token_refiner.final_norm.weight", (d,)),
        Spec("norm_out.norm.weight", (d,)),
        *linear("norm_out.linear", c.final_adaln_out_features, c.time_embed_dim, adaln=True),
        *linear("proj_out", c.video_row_dim, d, island=True),
        *linear("audio_proj_out", c.audio_in_channels, d, island=True),
    ]
    for i in range(config.num_refiner_layers):
        specs.extend(block_specs(config, f"token_refiner.blocks.{i}.", adaln=False))
    return specs


def all_specs(config: DiTConfig) -> list[Spec]:
    """Every tensor of the model, AdaLN projections included."""
    blocks = [s for i in range(config.num_layers) for s in block_specs(config, f"blocks.{i}.", adaln=True)]
    return top_specs(config) + blocks


def file_keys(name: str, layout: Layout) -> tuple[str, ...]:
    """The keys of a file that make up our tensor ``name``."""
    for ours, (port, original) in _PREFIX.items():
        if name.startswith(ours + "."):
            index, _, rest = name[len(ours) + 1 :].partition(".")
            port_rests, original_rest = _BLOCK[rest]
            if layout is Layout.PORT:
                return tuple(f"{port}.{index}.{r}" for r in port_rests)
            return (f"{original}.{index}.{original_rest}",)
    if layout is Layout.PORT:
        return (name,)
    module, _, parameter = name.rpartition(".")
    return (f"{dict(_TOP)[module]}.{parameter}",)


def file_shape(spec: Spec, layout: Layout) -> tuple[int, ...]:
    """Shape of each of the file's tensors of ``spec``."""
    if spec.form is Form.QKV and layout is Layout.PORT:
        return (spec.shape[0] // 3, *spec.shape[1:])
    return spec.shape


def expected_keys(config: DiTConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Every key of a file in ``layout`` and its shape."""
    keys = {key: file_shape(spec, layout) for spec in all_specs(config) for key in file_keys(spec.name, layout)}
    if layout is not Layout.PORT:
        keys[ROPE_KEY] = (config.rope_freq_dim,)
    return keys


def detect(keys: Iterable[str]) -> Layout | None:
    """The layout of a file by its keys; ``None`` when it is neither."""
    for key in keys:
        if key.startswith(("transformer_blocks.", "proj_in.", "token_refiner.refiner_blocks.")):
            return Layout.PORT
        if key.startswith(("blocks.", "video_patch_proj.", "final_layer.")):
            return Layout.ORIGINAL
    return None


def join(spec: Spec, tensors: Sequence[Tensor], layout: Layout, config: DiTConfig) -> Tensor:
    """The file's tensors -> ours."""
    if spec.form is Form.QKV:
        if layout is Layout.ORIGINAL:
            return _by_kind(tensors[0], config)
        return torch.cat(list(tensors)) if layout is Layout.PORT else tensors[0]
    if spec.form is Form.GATED and layout is not Layout.PORT:
        return _swap_halves(tensors[0])
    return tensors[0]


def split(spec: Spec, tensor: Tensor, layout: Layout, config: DiTConfig) -> tuple[Tensor, ...]:
    """Ours -> the file's tensors, in the order of :func:`file_keys`."""
    if spec.form is Form.QKV:
        if layout is Layout.PORT:
            return tuple(part.contiguous() for part in tensor.chunk(3))
        return (_by_head(tensor, config),) if layout is Layout.ORIGINAL else (tensor,)
    if spec.form is Form.GATED and layout is not Layout.PORT:
        return (_swap_halves(tensor),)
    return (tensor,)


def _by_kind(weight: Tensor, config: DiTConfig) -> Tensor:
    """Rows head by head (q, k, v of head 0, then of head 1, ...) -> all q, all k, all v."""
    return weight.unflatten(0, (config.num_attention_heads, 3, -1)).transpose(0, 1).flatten(0, 2).contiguous()


def _by_head(weight: Tensor, config: DiTConfig) -> Tensor:
    return weight.unflatten(0, (3, config.num_attention_heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()


def _swap_halves(weight: Tensor) -> Tensor:
    return torch.cat(list(reversed(weight.chunk(2))))
