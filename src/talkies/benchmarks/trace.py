"""Where the time of a forward goes: the kernels of its blocks by name, and what surrounds the blocks."""

from __future__ import annotations

import torch

from talkies.benchmarks.forward import Step
from talkies.benchmarks.timing import chained

CATEGORIES = (
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("matmul", ("gemm", "nvjet", "cutlass", "xmma", "cublas", "scaled_mm", "matmul", "splitk")),
)


IDLE = "idle between kernels"


def breakdown(step: Step, num_blocks: int) -> dict[str, float]:
    """Seconds a block of every GPU kernel, by name, from a trace of ``num_blocks`` blocks; and of none (``IDLE``).

    Of a step that has run before: nothing is warmed up here, so the card is as warm as it was left.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode():
        x = step.embed()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
            step.blocks(x, step.view, step.inputs.modulation, 0, num_blocks)
            torch.cuda.synchronize()
    seconds: dict[str, float] = {}
    for event in trace.key_averages():
        total = getattr(event, "self_device_time_total", 0.0)
        if total:
            seconds[event.key] = seconds.get(event.key, 0.0) + total / 1e6 / num_blocks
    spans = sorted((e.time_range.start, e.time_range.end) for e in trace.events() if e.device_type == DeviceType.CUDA)
    idle, until = 0.0, spans[0][0]
    for start, stop in spans:
        idle += max(0.0, start - until)
        until = max(until, stop)
    seconds[IDLE] = idle / 1e6 / num_blocks
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def around_blocks(step: Step, device: torch.device) -> dict[str, float]:
    """Median seconds of what a step does before and after its blocks."""
    with torch.inference_mode():
        x = step.embed()
        runs = [
            ("embed", step.embed),
            ("project", lambda: step.dit.project(x, step.inputs.layout, step.inputs.modulation)),
        ]
        return chained(runs, device, repeats=5)


def category(kernel: str) -> str:
    """``attention``, ``matmul``, the name of one of our kernels, ``idle``, or ``other``."""
    if kernel == IDLE:
        return "idle"
    lowered = kernel.lower()
    for name, words in CATEGORIES:
        if any(word in lowered for word in words):
            return name
    return kernel if lowered.endswith("_kernel") and " " not in kernel and "::" not in kernel else "other"
