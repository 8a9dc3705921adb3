"""Every fused op at the sizes of one block: its time, the bytes it must move, and what a plain copy would take.

S rows, D hidden, F feed-forward inner, N heads, H channels a head, A rotary angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.benchmarks.timing import median_of
from talkies.h3.config import DiTConfig
from talkies.kernels.fp8 import E4M3
from talkies.kernels.qkv_scales.reference import EVERY
from talkies.kernels.runs import RowRuns
from talkies.kernels.select import Ops


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """``num_bytes``: each input read once and each output written once."""

    seconds: float
    num_bytes: int

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds


def copy_rate(device: torch.device, num_bytes: int = 1 << 30, repeats: int = 10) -> float:
    """Bytes a second of a copy within the device, read and written both counted."""
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_of(lambda: target.copy_(source), device, repeats=repeats)


Run = tuple[str, int, Callable[[], object]]


def op_runs(config: DiTConfig, num_rows: int, device: torch.device, dtype: torch.dtype, ops: Ops) -> Iterator[Run]:
    """``(name, bytes, run)`` of each op of a block. Run each before the next is asked for: its tensors go then."""

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    yield from _stream_ops(config, num_rows, randn, ops)
    yield from _feed_forward_ops(config, num_rows, randn, ops)
    yield from _head_ops(config, num_rows, randn, ops)


def _stream_ops(config: DiTConfig, num_rows: int, randn: Callable[..., Tensor], ops: Ops) -> Iterator[Run]:
    """Norms and residual sums, with rows of three modulation entries."""
    d, cut = config.hidden_size, num_rows // 7
    runs = RowRuns.of([(cut, 1), (cut, 0), (num_rows - 2 * cut, 2)])
    params, weight, x, branch = randn(3, 6, d), randn(d), randn(num_rows, d), randn(num_rows, d)
    shift, scale, gate = params[:, 0], params[:, 1], params[:, 2]
    row, wide, narrow = num_rows * d, x.dtype.itemsize, E4M3.itemsize

    def norm(out: torch.dtype | None) -> Callable[[], object]:
        return lambda: ops.rms_modulate(x, weight, shift, scale, runs, eps=1e-5, dtype=out)

    def gate_norm(out: torch.dtype | None) -> Callable[[], object]:
        return lambda: ops.gate_residual_norm(x, branch, gate, weight, shift, scale, runs, eps=1e-5, dtype=out)

    yield "rms_modulate", 2 * row * wide, norm(None)
    yield "rms_modulate+fp8", row * (wide + narrow), norm(E4M3)
    yield "rms_modulate+float32", row * (wide + 4), norm(torch.float32)
    yield "gate_residual_norm", 4 * row * wide, gate_norm(None)
    yield "gate_residual_norm+fp8", row * (3 * wide + narrow), gate_norm(E4M3)
    yield "gate_residual", 3 * row * wide, lambda: ops.gate_residual(x, branch, gate, runs)


def _feed_forward_ops(config: DiTConfig, num_rows: int, randn: Callable[..., Tensor], ops: Ops) -> Iterator[Run]:
    inner = num_rows * config.ffn_dim
    up = randn(num_rows, 2 * config.ffn_dim)
    wide, narrow = up.dtype.itemsize, E4M3.itemsize
    yield "swiglu", 3 * inner * wide, lambda: ops.swiglu(up)
    yield "swiglu+fp8", inner * (2 * wide + narrow), lambda: ops.swiglu(up, dtype=E4M3)


def _head_ops(config: DiTConfig, num_rows: int, randn: Callable[..., Tensor], ops: Ops) -> Iterator[Run]:
    heads, head_dim = config.num_attention_heads, config.attention_head_dim
    qkv, norms, theta = randn(num_rows, 3, heads, head_dim), randn(2, head_dim), randn(num_rows, config.num_angles)
    cos, sin = theta.float().cos().to(theta.dtype), theta.float().sin().to(theta.dtype)
    one, wide, narrow = num_rows * config.inner_dim, qkv.dtype.itemsize, E4M3.itemsize
    yield "qk_norm_rope", 4 * one * wide, lambda: ops.qk_norm_rope(qkv, norms[0], norms[1], cos, sin, eps=1e-5)
    out = qkv[:, 0].flatten(1)
    yield "quantize_rows (attention output)", one * (wide + narrow), lambda: ops.quantize_rows(out)
    q, k, v = qkv.unbind(1)
    spans = [(0, num_rows)]
    yield "head_stats (queries, keys, values)", 3 * one * wide, lambda: ops.head_stats(q, k, v, spans)
    scales = torch.full((1, heads), 0.01, device=qkv.device)
    offset = torch.zeros(1, heads, head_dim, device=qkv.device)
    yield "quantize_heads (keys)", one * (wide + narrow), lambda: ops.quantize_heads(k, scales, offset, None)
    tables = (*norms, cos, sin)
    yield "qkv_scales", one * wide * (EVERY + 1) // EVERY, lambda: ops.qkv_scales(qkv, *tables, spans, eps=1e-5)
    scale_3BN = scales.expand(3, 1, heads).contiguous()

    def operands() -> object:
        return ops.norm_rope_quantize(qkv, *tables, scale_3BN, offset, None, eps=1e-5)

    yield "norm_rope_quantize", 3 * one * (wide + narrow), operands


def time_ops(
    config: DiTConfig, num_rows: int, device: torch.device, dtype: torch.dtype, ops: Ops, *, repeats: int = 10
) -> Iterator[tuple[str, Timing]]:
    """One at a time, as they are measured."""
    for name, num_bytes, run in op_runs(config, num_rows, device, dtype, ops):
        yield name, Timing(seconds=median_of(run, device, repeats=repeats, warmups=2), num_bytes=num_bytes)


# What a block runs of these, in each precision.
OF_A_BLOCK = {
    "bf16": ("rms_modulate", "qk_norm_rope", "gate_residual_norm", "swiglu", "gate_residual"),
    "fp8": (
        "rms_modulate+fp8",
        "qk_norm_rope",
        "quantize_rows (attention output)",
        "gate_residual_norm+fp8",
        "swiglu+fp8",
        "gate_residual",
    ),
}
