"""Every fused op at the sizes of one block: its time, the bytes it must move, and what a plain copy would take.

S rows, D hidden, F feed-forward inner, N heads, H channels a head, A rotary angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.benchmarks.timing import median_of
from talkies.kernels.fp8 import E4M3
from talkies.kernels.runs import RowRuns
from talkies.kernels.select import Ops
from talkies.model.config import DiTConfig


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


def op_runs(
    config: DiTConfig, num_rows: int, device: torch.device, dtype: torch.dtype, ops: Ops
) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """``(name, bytes, run)`` of each op of a block, with rows of three modulation entries."""
    d, f = config.hidden_size, config.ffn_dim
    heads, head_dim, angles = config.num_attention_heads, config.attention_head_dim, config.num_angles
    wide, narrow = dtype.itemsize, E4M3.itemsize
    cut = num_rows // 7
    runs = RowRuns.of([(cut, 1), (cut, 0), (num_rows - 2 * cut, 2)])
    params = torch.randn(3, 6, d, device=device, dtype=dtype)
    weight = torch.randn(d, device=device, dtype=dtype)
    x, branch = (torch.randn(num_rows, d, device=device, dtype=dtype) for _ in range(2))
    shift, scale, gate = params[:, 0], params[:, 1], params[:, 2] * 0.01
    row = num_rows * d

    def norm(out: torch.dtype | None) -> Callable[[], object]:
        return lambda: ops.rms_modulate(x, weight, shift, scale, runs, eps=1e-5, dtype=out)

    def gate_norm(out: torch.dtype | None) -> Callable[[], object]:
        return lambda: ops.gate_residual_norm(x, branch, params[:, 2], weight, shift, scale, runs, eps=1e-5, dtype=out)

    yield "rms_modulate", 2 * row * wide, norm(None)
    yield "rms_modulate+fp8", row * (wide + narrow), norm(E4M3)
    yield "rms_modulate+float32", row * (wide + 4), norm(torch.float32)
    yield "gate_residual_norm", 4 * row * wide, gate_norm(None)
    yield "gate_residual_norm+fp8", row * (3 * wide + narrow), gate_norm(E4M3)
    yield "gate_residual", 3 * row * wide, lambda: ops.gate_residual(x, branch, gate, runs)
    del branch
    up = torch.randn(num_rows, 2 * f, device=device, dtype=dtype)
    yield "swiglu", 3 * num_rows * f * wide, lambda: ops.swiglu(up)
    yield "swiglu+fp8", num_rows * f * (2 * wide + narrow), lambda: ops.swiglu(up, dtype=E4M3)
    del up
    qkv = torch.randn(num_rows, 3, heads, head_dim, device=device, dtype=dtype)
    norms = torch.randn(2, head_dim, device=device, dtype=dtype)
    theta = torch.randn(num_rows, angles, device=device)
    cos, sin = theta.cos().to(dtype), theta.sin().to(dtype)
    one = num_rows * heads * head_dim
    yield "qk_norm_rope", 4 * one * wide, lambda: ops.qk_norm_rope(qkv, norms[0], norms[1], cos, sin, eps=1e-5)
    out: Tensor = qkv[:, 0].flatten(1)
    yield "quantize_rows (attention output)", one * (wide + narrow), lambda: ops.quantize_rows(out)
    scales = torch.full((1, heads), 0.01, device=device)
    offset = torch.zeros(1, heads, head_dim, device=device)
    yield (
        "quantize_heads (keys)",
        one * (wide + narrow),
        lambda: ops.quantize_heads(qkv[:, 1], scales, offset, None),
    )


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
