"""The rates of a real GPU, measured once in a few seconds and kept in the cache folder."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from talkies.placement import hardware
from talkies.placement.hardware import H200, Hardware
from talkies.placement.host import is_unified
from talkies.placement.ram import free_ram_bytes

log = logging.getLogger(__name__)
COPY_BYTES = 256 << 20
ROWS, INPUTS, OUTPUTS = 16_384, 5376, 14_336  # products and attention of the released model's shape
HEADS, HEAD_DIM = 56, 128
# The fused kernels' share of the rate at which the device copies, counted as read and written: 2.02 of 4.28 TB/s.
ELEMENTWISE_SHARE = H200.elementwise_bytes_per_s / 4.28e12


def of_device(device: torch.device, cache: Path | None) -> Hardware:
    """Of a CUDA device; from the cache if it was measured with this torch before."""
    name = torch.cuda.get_device_name(device)
    slug = re.sub(r"\W+", "-", f"{name}-{torch.__version__}").lower()
    path = None if cache is None else cache / "hardware" / f"{slug}.json"
    known = None if path is None else hardware.load(path)
    if known is not None:
        return known
    found = rates(device)
    log.info(
        "measured %s: %.1f GB/s from the host, %.0f TFLOP/s, attention %.0f TFLOP/s",
        name,
        found.h2d_bytes_per_s / 1e9,
        found.matmul_flops / 1e12,
        found.attention_flops / 1e12,
    )
    if path is not None:
        try:
            hardware.save(found, path)
        except OSError as error:
            log.warning("the measured rates are not kept: %s", error)
    return found


@torch.inference_mode()
def rates(device: torch.device) -> Hardware:
    """Needs about 2 GiB of the device for a moment."""
    h2d, copy = _copy_rates(device)
    matmul, fp8 = _product_rates(device)
    total = torch.cuda.get_device_properties(device).total_memory
    return Hardware(
        name=torch.cuda.get_device_name(device),
        vram_bytes=total,
        ram_bytes=free_ram_bytes() or 64 * hardware.GIB,
        h2d_bytes_per_s=h2d,
        matmul_flops=matmul,
        fp8_flops=fp8,
        attention_flops=_attention_rate(device),
        fp8_attention_flops=None,
        elementwise_bytes_per_s=ELEMENTWISE_SHARE * copy,
        unified=is_unified(device),
        source="measured",
    )


def _copy_rates(device: torch.device) -> tuple[float, float]:
    """Bytes a second from pinned memory, and read and written on the device."""
    host = torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    other = torch.empty_like(target)
    h2d = COPY_BYTES / _seconds(lambda: target.copy_(host, non_blocking=True), device)
    return h2d, 2 * COPY_BYTES / _seconds(lambda: target.copy_(other), device)


def _product_rates(device: torch.device) -> tuple[float, float | None]:
    """In bf16, and in e4m3 where the device has it."""
    x = torch.randn(ROWS, INPUTS, device=device, dtype=torch.bfloat16)
    weight = torch.randn(OUTPUTS, INPUTS, device=device, dtype=torch.bfloat16)
    flops = 2 * ROWS * INPUTS * OUTPUTS
    bf16 = flops / _seconds(lambda: F.linear(x, weight), device)
    if torch.cuda.get_device_capability(device) < (8, 9):
        return bf16, None
    a, b = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    rows, columns = torch.ones(ROWS, 1, device=device), torch.ones(1, OUTPUTS, device=device)
    seconds = _seconds(lambda: torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.bfloat16), device)
    return bf16, flops / seconds


def _attention_rate(device: torch.device) -> float:
    """Of torch's own attention: faster backends only make a plan come true early."""
    q, k, v = torch.randn(3, 1, HEADS, ROWS, HEAD_DIM, device=device, dtype=torch.bfloat16).unbind(0)
    return 4 * ROWS**2 * HEADS * HEAD_DIM / _seconds(lambda: F.scaled_dot_product_attention(q, k, v), device)


def _seconds(run: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """Mean of ``repeats`` runs one after another, after three to warm up."""
    for _ in range(3):
        run()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(torch.cuda.current_stream(device))
    for _ in range(repeats):
        run()
    stop.record(torch.cuda.current_stream(device))
    torch.cuda.synchronize(device)
    return start.elapsed_time(stop) / 1e3 / repeats
