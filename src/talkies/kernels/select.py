"""The table of kernels: one frozen set of implementations per name, resolved once at build and handed to the model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from talkies.errors import ConfigError
from talkies.kernels.compiled import keep_compiled
from talkies.kernels.fp8_linear.reference import fp8_linear
from talkies.kernels.gate_residual.reference import gate_residual
from talkies.kernels.gate_residual_norm.reference import gate_residual_norm
from talkies.kernels.head_stats.reference import head_stats
from talkies.kernels.norm_rope_quantize.reference import norm_rope_quantize
from talkies.kernels.qk_norm_rope.reference import qk_norm_rope
from talkies.kernels.qkv_scales.reference import qkv_scales
from talkies.kernels.quantize_heads.reference import quantize_heads
from talkies.kernels.quantize_rows.reference import quantize_rows
from talkies.kernels.rms_modulate.reference import rms_modulate
from talkies.kernels.swiglu.reference import swiglu


@dataclass(frozen=True, kw_only=True, slots=True)
class Ops:
    """The fused operations of a block; signatures are those of ``kernels/<op>/reference.py``."""

    rms_modulate: Callable
    gate_residual: Callable
    gate_residual_norm: Callable
    qk_norm_rope: Callable
    swiglu: Callable
    quantize_rows: Callable
    quantize_heads: Callable
    head_stats: Callable
    qkv_scales: Callable
    norm_rope_quantize: Callable
    fp8_linear: Callable


REFERENCE = Ops(
    rms_modulate=rms_modulate,
    gate_residual=gate_residual,
    gate_residual_norm=gate_residual_norm,
    qk_norm_rope=qk_norm_rope,
    swiglu=swiglu,
    quantize_rows=quantize_rows,
    quantize_heads=quantize_heads,
    head_stats=head_stats,
    qkv_scales=qkv_scales,
    norm_rope_quantize=norm_rope_quantize,
    fp8_linear=fp8_linear,
)


def _triton() -> Ops:
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "the triton kernels need the package triton, which is not installed",
            hint="a CUDA build of torch brings it; otherwise use kernels=reference",
            param="kernels",
        )
    import triton

    keep_compiled()
    if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
        raise ConfigError(
            f"the triton kernels need a CUDA device, and torch {torch.__version__} sees none",
            hint="use kernels=reference (TRITON_INTERPRET=1 interprets them on a CPU, for tests)",
            param="kernels",
        )
    from talkies.kernels.fp8_linear import scaled_mm
    from talkies.kernels.gate_residual import triton as gate
    from talkies.kernels.gate_residual_norm import triton as gate_norm
    from talkies.kernels.head_stats import triton as stats
    from talkies.kernels.norm_rope_quantize import triton as operands
    from talkies.kernels.qk_norm_rope import triton as qk
    from talkies.kernels.qkv_scales import triton as scales
    from talkies.kernels.quantize_heads import triton as heads
    from talkies.kernels.quantize_rows import triton as rows
    from talkies.kernels.rms_modulate import triton as rms
    from talkies.kernels.swiglu import triton as glu

    return Ops(
        rms_modulate=rms.rms_modulate,
        gate_residual=gate.gate_residual,
        gate_residual_norm=gate_norm.gate_residual_norm,
        qk_norm_rope=qk.qk_norm_rope,
        swiglu=glu.swiglu,
        quantize_rows=rows.quantize_rows,
        quantize_heads=heads.quantize_heads,
        head_stats=stats.head_stats,
        qkv_scales=scales.qkv_scales,
        norm_rope_quantize=operands.norm_rope_quantize,
        fp8_linear=scaled_mm.fp8_linear,
    )


# A factory per name, so that a set whose package is missing fails when it is asked for and not on import.
KERNELS: dict[str, Callable[[], Ops]] = {"reference": lambda: REFERENCE, "triton": _triton}


def create(name: str) -> Ops:
    """The kernel set called ``name``; raises ``ConfigError`` with the list when there is none, or what it lacks."""
    if name not in KERNELS:
        raise ConfigError(
            f"no kernel set is called {name!r}", hint="one of " + ", ".join(sorted(KERNELS)), param="kernels"
        )
    return KERNELS[name]()


def automatic(device: torch.device) -> str:
    """The name of the set for ``device``: triton on a GPU that has it."""
    has_triton = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return "triton" if has_triton else "reference"
