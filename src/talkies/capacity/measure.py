"""The rates of a real GPU, measured once in a few seconds and kept in the cache folder.

S rows, K inputs, N outputs of a product or heads, H channels a head; sizes are the released model's.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from talkies.attention import registry
from talkies.attention.base import Documents, QkNorm, attended
from talkies.capacity import hardware
from talkies.capacity.hardware import Hardware
from talkies.capacity.ram import free_ram_bytes
from talkies.capacity.seconds import operand_bytes
from talkies.h3.config import DiTConfig
from talkies.kernels import select
from talkies.kernels.fp8 import E4M3, Fp8Rows
from talkies.kernels.fp8_linear.scaled_mm import fp8_linear
from talkies.placement.stream.host_memory import is_unified

log = logging.getLogger(__name__)
COPY_BYTES = 256 << 20
ROWS = 16_384  # products and attention share a block's time about evenly, as in a long forward
RELEASED = DiTConfig()
# The fused kernels' share of the rate at which the device copies, counted as read and written. One H200 at 58,758 rows
# (bench/results/dit_forward-nvidia-h200.json): 3.99 of 4.25 TB/s, in bf16 and in fp8.
ELEMENTWISE_SHARE = 0.94
# A large card works at its power limit: what runs alone for some milliseconds runs at clocks that no forward sees (an
# H200's product 821 TFLOP/s in 13 runs, 730 in a forward). So products and attention run in turn, as in a block, for
# this long before anything counts and as long again.
HOLD_S = 0.5
COPY_HOLD_S = 0.05  # a copy draws little power


def of_device(device: torch.device, cache: Path | None, attention: str) -> Hardware:
    """Of a CUDA device with a backend of ``attention/registry.py``, by its resolved name; from the cache if it was
    measured with this torch and backend before."""
    name = torch.cuda.get_device_name(device)
    slug = re.sub(r"\W+", "-", f"{name}-{torch.__version__}-{attention}").lower()
    path = None if cache is None else cache / "hardware" / f"{slug}.json"
    known = None if path is None else hardware.load(path)
    if known is not None:
        return known
    found = rates(device, attention)
    log.info(
        "measured %s: %.1f GB/s from the host, %.0f TFLOP/s in bf16, %s in e4m3, attention %s %.0f TFLOP/s, %s in e4m3",
        name,
        found.h2d_bytes_per_s / 1e9,
        found.matmul_flops / 1e12,
        _tflops(found.fp8_flops),
        attention,
        found.attention_flops / 1e12,
        _tflops(found.fp8_attention_flops),
    )
    if path is not None:
        try:
            hardware.save(found, path)
        except OSError as error:
            log.warning("the measured rates are not kept: %s", error)
    return found


def _tflops(flops: float | None) -> str:
    return "none" if flops is None else f"{flops / 1e12:.0f}"


@torch.inference_mode()
def rates(device: torch.device, attention: str) -> Hardware:
    """Needs about 2.5 GiB of the device for about three seconds, and gives them back."""
    h2d, copy = _copy_rates(device)
    elementwise = ELEMENTWISE_SHARE * copy
    bf16, fp8 = block_rates(device, attention, elementwise)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)  # no job held this
    return Hardware(
        name=torch.cuda.get_device_name(device),
        vram_bytes=total,
        ram_bytes=free_ram_bytes() or 64 * hardware.GIB,
        h2d_bytes_per_s=h2d,
        matmul_flops=bf16.products,
        fp8_flops=None if fp8 is None else fp8.products,
        attention_flops=bf16.attention,
        fp8_attention_flops=None if fp8 is None else fp8.attention,
        elementwise_bytes_per_s=elementwise,
        unified=is_unified(device),
        source="measured",
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Floating-point operations a second of a block's products and of its attention."""

    products: float
    attention: float


@dataclass(frozen=True, slots=True)
class Fp8Rates:
    """The same in e4m3; ``None`` for attention that does not approximate."""

    products: float
    attention: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """``run`` does ``amount`` of something: bytes, or floating-point operations."""

    kind: str
    amount: float
    run: Callable[[], object]


def block_rates(device: torch.device, attention: str, elementwise_bytes_per_s: float) -> tuple[Rates, Fp8Rates | None]:
    """Of a block in bf16; and in e4m3 where the device multiplies it, with the approximating form of ``attention`` if
    it has one. What makes the operands of that one is left out: ``timing.py`` counts it as bytes."""
    exact, approximate = _attention_runs(device, attention)
    found = _held([*_products(device, fp8=False), exact], device, HOLD_S)
    bf16 = Rates(_rate(found, "products"), _rate(found, "attention"))
    if not _has_fp8_products(device):
        return bf16, None
    found = _held([*_products(device, fp8=True), approximate or exact], device, HOLD_S)
    if approximate is None:
        return bf16, Fp8Rates(_rate(found, "products"), None)
    amount, seconds, runs = found["attention"]
    around = operand_bytes(RELEASED, ROWS, fp8_attention=True)
    kernel_s = seconds - runs * around / elementwise_bytes_per_s
    # Should the bytes be far off on some card, a plan is late rather than absurd.
    return bf16, Fp8Rates(_rate(found, "products"), amount / max(kernel_s, seconds / 2))


def _has_fp8_products(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _copy_rates(device: torch.device) -> tuple[float, float]:
    """Bytes a second from pinned memory, and read and written on the device."""
    host = torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    other = torch.empty_like(target)
    runs = [
        Run("h2d", COPY_BYTES, lambda: target.copy_(host, non_blocking=True)),
        Run("copy", 2 * COPY_BYTES, lambda: target.copy_(other)),
    ]
    found = _held(runs, device, COPY_HOLD_S)
    return _rate(found, "h2d"), _rate(found, "copy")


def _products(device: torch.device, *, fp8: bool) -> list[Run]:
    """The four products of a block. They share their memory: no values are looked at."""
    d, inner, ffn = RELEASED.hidden_size, RELEASED.inner_dim, RELEASED.ffn_dim
    sizes = ((d, 3 * inner), (inner, d), (d, 2 * ffn), (ffn, d))
    x = torch.randn(ROWS * max(k for k, _ in sizes), device=device, dtype=torch.bfloat16)
    weights = torch.randn(max(k * n for k, n in sizes), device=device, dtype=torch.bfloat16)
    if fp8:
        x, weights = x.to(E4M3), weights.to(E4M3)
    runs = []
    for k, n in sizes:
        x_SK, weight_NK = x[: ROWS * k].view(ROWS, k), weights[: n * k].view(n, k)
        run = _fp8_product(x_SK, weight_NK) if fp8 else _product(x_SK, weight_NK)
        runs.append(Run("products", 2 * ROWS * k * n, run))
    return runs


def _product(x_SK: torch.Tensor, weight_NK: torch.Tensor) -> Callable[[], object]:
    return lambda: F.linear(x_SK, weight_NK)


def _fp8_product(x_SK: torch.Tensor, weight_NK: torch.Tensor) -> Callable[[], object]:
    """As the engine multiplies: its accumulation, a scale a row and a scale an output."""
    rows = Fp8Rows(x_SK, torch.ones(x_SK.shape[0], 1, device=x_SK.device), torch.bfloat16)
    scale_N1 = torch.ones(weight_NK.shape[0], 1, device=x_SK.device)
    return lambda: fp8_linear(rows, weight_NK, scale_N1)


def _attention_runs(device: torch.device, name: str) -> tuple[Run, Run | None]:
    """The backend as exact as it can be told to be, and, from the projection on, as it approximates (``None`` for one
    that does not)."""
    ops = select.create(select.automatic(device))
    attend = registry.create(name, ops)
    heads, head_dim = RELEASED.num_attention_heads, RELEASED.attention_head_dim
    qkv_S3NH = torch.randn(3, ROWS, heads, head_dim, device=device, dtype=torch.bfloat16).transpose(0, 1)
    q_SNH, k_SNH, v_SNH = qkv_S3NH.unbind(1)
    flops = 4 * ROWS**2 * heads * head_dim
    exact = Documents.of_lengths([ROWS]).with_exact([(0, ROWS)]) if attend.exactness is not None else None
    plain = Run("attention", flops, lambda: attend(q_SNH, k_SNH, v_SNH, exact))
    if attend.exactness is None:
        return plain, None
    weight_H = torch.ones(head_dim, device=device, dtype=torch.bfloat16)
    cos_SA = torch.ones(ROWS, RELEASED.num_angles, device=device, dtype=torch.bfloat16)
    norm = QkNorm(weight_H, weight_H, cos_SA, torch.zeros_like(cos_SA), RELEASED.qk_norm_eps)
    return plain, Run("attention", flops, lambda: attended(qkv_S3NH, norm, None, attend, ops))


# Amount, seconds and number of runs of each kind.
Found = dict[str, tuple[float, float, int]]


def _rate(found: Found, kind: str) -> float:
    amount, seconds, _ = found[kind]
    return amount / seconds


def _held(runs: Sequence[Run], device: torch.device, hold_s: float) -> Found:
    """Runs them in turn, without a break, for ``hold_s`` uncounted and for ``hold_s`` counted seconds, or so."""
    _turns(runs, device, 1)  # kernels compile, plans are made
    once_s = sum(seconds for _, seconds, _ in _turns(runs, device, 1).values())
    turns = max(1, math.ceil(hold_s / max(once_s, 1e-6)))
    _turns(runs, device, turns, wait=False)
    return _turns(runs, device, turns)


def _turns(runs: Sequence[Run], device: torch.device, turns: int, *, wait: bool = True) -> Found:
    """Without ``wait`` nothing is counted and the device is still at work when it returns."""
    marks = [_mark(device)]
    for _ in range(turns):
        for run in runs:
            run.run()
            marks.append(_mark(device))
    if not wait:
        return {}
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    found: Found = {}
    for run, start, stop in zip(list(runs) * turns, marks, marks[1:], strict=False):
        amount, seconds, number = found.get(run.kind, (0.0, 0.0, 0))
        found[run.kind] = (amount + run.amount, seconds + _between(start, stop), number + 1)
    return found


def _mark(device: torch.device) -> torch.cuda.Event | float:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(start: torch.cuda.Event | float, stop: torch.cuda.Event | float) -> float:
    if isinstance(start, torch.cuda.Event):
        assert isinstance(stop, torch.cuda.Event)
        return float(start.elapsed_time(stop)) / 1e3
    assert isinstance(stop, float)
    return stop - start
