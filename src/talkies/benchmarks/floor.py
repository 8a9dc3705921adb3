"""The floor of a forward: its very products and its attention, alone.

S rows, K inputs, N outputs or heads, H channels a head.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.attention import registry as attention
from talkies.benchmarks.random_dit import QK_NORM
from talkies.benchmarks.timing import by_name, timed
from talkies.h3.config import DiTConfig
from talkies.h3.packing import PackedLayout
from talkies.kernels import select
from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.fp8_linear import scaled_mm
from talkies.kernels.select import Ops

Runs = Sequence[tuple[str, Callable[[], object]]]

LINEARS = ("qkv", "out", "up", "down")


def linear_sizes(config: DiTConfig) -> dict[str, tuple[int, int]]:
    """``(K, N)`` of each product of a block."""
    d, inner, ffn = config.hidden_size, config.inner_dim, config.ffn_dim
    return {"qkv": (d, 3 * inner), "out": (inner, d), "up": (d, 2 * ffn), "down": (ffn, d)}


def floor_runs(
    config: DiTConfig,
    num_rows: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    fast: bool | None,
    attend: Callable[[], object] | None = None,
) -> list[tuple[str, Callable[[], object]]]:
    """Each product of a block and ``attend`` between them, on random data, in the order of a block.

    ``fast`` ``None``: in ``dtype``. Otherwise in e4m3 with that accumulation; operands are quantised beforehand.
    """
    runs: list[tuple[str, Callable[[], object]]] = []
    ops = select.create(select.automatic(device))
    for name, (k, n) in linear_sizes(config).items():
        x = torch.randn(num_rows, k, device=device, dtype=dtype)
        weight = torch.randn(n, k, device=device, dtype=dtype) * k**-0.5
        if fast is None:
            runs.append((name, _linear(x, weight)))
        else:
            rows, columns = ops.quantize_rows(x), ops.quantize_rows(weight)
            runs.append((name, _scaled(rows, columns, fast)))
            del x, weight
    if attend is not None:
        runs.insert(1, ("attention", attend))
    return runs


def projection_runs(
    config: DiTConfig, layout: PackedLayout, device: torch.device
) -> list[tuple[str, Callable[[], object]]]:
    """The products before and after the blocks, float32 as in every checkpoint, on random data."""
    sizes = (
        ("video", layout.num_video_rows, config.video_row_dim),
        ("audio", layout.num_audio_rows, config.audio_in_channels),
    )
    runs: list[tuple[str, Callable[[], object]]] = []
    for name, rows, width in sizes:
        for label, k, n in ((f"{name} in", width, config.hidden_size), (f"{name} out", config.hidden_size, width)):
            x, weight = torch.randn(rows, k, device=device), torch.randn(n, k, device=device) * k**-0.5
            runs.append((label, _linear(x, weight)))
    return runs


class FloorPass:
    """What no forward of ``num_blocks`` blocks can do without, one after the other; ``around`` once a pass."""

    def __init__(self, runs: Runs, num_blocks: int, device: torch.device, around: Runs = ()) -> None:
        self.runs, self.num_blocks, self.device, self.around = runs, num_blocks, device, around
        self._marks: list[tuple[str, Callable[[], float]]] = []

    def __call__(self) -> None:
        for _, run in self.around:
            run()
        self._marks += [(name, timed(run, self.device)) for _ in range(self.num_blocks) for name, run in self.runs]

    def of_a_block(self) -> dict[str, float]:
        """Mean seconds of each run over all passes. Call it when the device is done."""
        return {name: statistics.fmean(seconds) for name, seconds in by_name(self._marks).items()}


def _linear(x: Tensor, weight: Tensor) -> Callable[[], object]:
    return lambda: F.linear(x, weight)


def _scaled(x: Fp8Rows, weight: Fp8Rows, fast: bool) -> Callable[[], object]:
    if x.device.type != "cuda":
        return lambda: scaled_mm.fp8_linear(x, weight.data, weight.scale)
    return lambda: scaled_mm.scaled_mm(x, weight.data, weight.scale, fast=fast)


def attention_runs(
    config: DiTConfig, num_rows: int, device: torch.device, dtype: torch.dtype, names: Sequence[str], ops: Ops
) -> Iterator[tuple[str, Callable[[], object]]]:
    """``(name, run)`` of each backend on the q, k, v of one block, and of what the model adds around some of them.

    Queries and keys are normed and turned as a block's are: how peaked the scores are shows in the time of a kernel.

    ``fa3+strided`` reads q, k, v where the fused projection left them; ``fa3-fp8+kernel`` is the e4m3 kernel alone.
    """
    strided = _normed(config, num_rows, device, dtype, ops)
    q, k, v = (x.contiguous() for x in strided)
    for name in names:
        attend = attention.create(name, ops)
        yield name, _attend(attend, q, k, v)
        if name == "fa3":
            yield "fa3+strided", _attend(attend, *strided)
        if name == "fa3-fp8":
            yield "fa3-fp8+kernel", _fp8_kernel(attend, q, k, v, ops)


def _normed(
    config: DiTConfig, num_rows: int, device: torch.device, dtype: torch.dtype, ops: Ops
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v [S, N, H] where one projection leaves them."""
    heads, head_dim = config.num_attention_heads, config.attention_head_dim
    qkv = torch.randn(num_rows, 3, heads, head_dim, device=device, dtype=dtype)
    norms = (0.1 * torch.randn(2, head_dim, device=device) + QK_NORM).to(dtype)
    theta = torch.randn(num_rows, config.num_angles, device=device)
    return ops.qk_norm_rope(qkv, *norms, theta.cos().to(dtype), theta.sin().to(dtype), eps=config.qk_norm_eps)


def _attend(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    return lambda: attend(q, k, v, None)


def _fp8_kernel(attend: attention.Trimmed, q: Tensor, k: Tensor, v: Tensor, ops: Ops) -> Callable[[], object]:
    from talkies.attention import flash3

    x = flash3.quantize(q, k, v, None, ops)
    kernel = flash3.Flash3(flash3.load())
    scales = {"q_descale": x.q_descale_BN, "k_descale": x.k_descale_BN, "v_descale": x.v_descale_BN}
    return lambda: kernel(x.q_SNH, x.k_SNH, x.v_SNH, None, **scales)
