"""Synthetic adapters of a DiT in every published layout, and what each makes of a weight, written out.

``dense(..)`` is the oracle: W + strength * alpha / rank * B A, in float64, row by row where a layout orders rows
differently, without any code of ``talkies.adapters``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from talkies.h3.config import DiTConfig

LINEARS = ("attn.to_qkv", "attn.to_out", "ff.up", "ff.down")


def modules(config: DiTConfig) -> dict[str, tuple[int, int]]:
    """Our linears that adapters are about -> (outputs, inputs): blocks, refiner, AdaLN, and those outside."""
    d, inner, ffn = config.hidden_size, config.inner_dim, config.ffn_dim
    shapes = {"attn.to_qkv": (3 * inner, d), "attn.to_out": (d, inner), "ff.up": (2 * ffn, d), "ff.down": (d, ffn)}
    found = {f"blocks.{i}.{name}": shapes[name] for i in range(config.num_layers) for name in LINEARS}
    found |= {f"token_refiner.blocks.{i}.{n}": shapes[n] for i in range(config.num_refiner_layers) for n in LINEARS}
    adaln = (config.adaln_out_features, config.time_embed_dim)
    found |= {f"blocks.{i}.adaln": adaln for i in range(config.num_layers)}
    found["norm_out.linear"] = (config.final_adaln_out_features, config.time_embed_dim)
    found["context_embedder"] = (d, config.text_dim)
    found["proj_out"] = (config.video_row_dim, d)
    return found


def factors(config: DiTConfig, rank: int = 4, seed: int = 0, scale: float = 0.3) -> dict[str, tuple]:
    """Random (B, A) of each linear, in the order of our rows."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(n, rank, generator=generator) * scale, torch.randn(rank, k, generator=generator) * scale)
        for name, (n, k) in modules(config).items()
    }


PORT = {"attn.to_out": "attn.to_out.0", "ff.up": "ff.net.0.proj", "ff.down": "ff.net.2", "adaln": "adaln_proj.linear"}
NATIVE = {"attn.to_qkv": "attn.qkv_proj", "attn.to_out": "attn.out_proj", "ff.up": "mlp.fc1", "ff.down": "mlp.fc2"}
NATIVE |= {"adaln": "adaln_proj.linear"}
NATIVE_TOP = {
    "norm_out.linear": "final_layer.adaln_proj.linear",
    "context_embedder": "condition_proj",
    "proj_out": "final_layer.video_out",
}


def _split(name: str) -> tuple[str, str]:
    """``blocks.3.attn.to_out`` -> (``blocks.3.``, ``attn.to_out``)."""
    parts = name.split(".")
    depth = 3 if name.startswith("token_refiner.") else 2
    return (".".join(parts[:depth]) + ".", ".".join(parts[depth:])) if "blocks" in name else ("", name)


def port_pairs(pairs: dict[str, tuple]) -> dict[str, tuple]:
    """By diffusers' modules: three projections instead of one."""
    out = {}
    for name, (b, a) in pairs.items():
        prefix, leaf = _split(name)
        prefix = prefix.replace("token_refiner.blocks.", "token_refiner.refiner_blocks.")
        if prefix.startswith("blocks."):
            prefix = "transformer_" + prefix
        if leaf == "attn.to_qkv":
            out |= {f"{prefix}attn.to_{x}": (part, a) for x, part in zip("qkv", b.chunk(3), strict=True)}
        else:
            out[prefix + PORT.get(leaf, leaf)] = (b, a)
    return out


def native_pairs(pairs: dict[str, tuple], config: DiTConfig, *, grouped: bool) -> dict[str, tuple]:
    """By MiniMax's modules: gates before values, and queries, keys, values stacked, or (``grouped``) head by head."""
    out = {}
    for name, (b, a) in pairs.items():
        prefix, leaf = _split(name)
        if leaf == "ff.up":
            value, gate = b.chunk(2)
            b = torch.cat([gate, value])
        if leaf == "attn.to_qkv" and grouped:
            heads = [part.chunk(config.num_attention_heads) for part in b.chunk(3)]
            b = torch.cat([heads[kind][head] for head in range(config.num_attention_heads) for kind in range(3)])
        out[prefix + NATIVE.get(leaf, leaf) if prefix else NATIVE_TOP[leaf]] = (b, a)
    return out


def peft(pairs: dict[str, tuple], *, prefix: str = "", infix: str = "") -> dict[str, torch.Tensor]:
    out = {}
    for module, (b, a) in pairs.items():
        out[f"{prefix}{module}.lora_A{infix}.weight"], out[f"{prefix}{module}.lora_B{infix}.weight"] = a, b
    return out


def kohya(pairs: dict[str, tuple], alpha: float) -> dict[str, torch.Tensor]:
    out = {}
    for module, (b, a) in pairs.items():
        flat = "lora_unet_" + module.replace(".", "_")
        out |= {f"{flat}.lora_down.weight": a, f"{flat}.lora_up.weight": b, f"{flat}.alpha": torch.tensor(alpha)}
    return out


def save(tensors: dict[str, torch.Tensor], path: Path, **metadata: str) -> Path:
    save_file({key: tensor.clone().contiguous() for key, tensor in tensors.items()}, path, metadata or None)
    return path


def dense(weight: torch.Tensor, pair: tuple, scale: float) -> torch.Tensor:
    b, a = pair
    return (weight.double() + scale * (b.double() @ a.double())).float()
