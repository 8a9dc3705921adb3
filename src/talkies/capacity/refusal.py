"""What to say when nothing fits: the smallest budget that would do, and the longest clip that the given one takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from talkies.capacity.demand import Demand
from talkies.capacity.hardware import Hardware
from talkies.capacity.plan import Plan, Wishes, host_needed, needed
from talkies.capacity.price import Pricing
from talkies.capacity.sizes import Sizes
from talkies.errors import ConfigError
from talkies.placement.stream.host_memory import gib


def smallest(sizes: Sizes, demand: Demand, hardware: Hardware, wishes: Wishes) -> Plan:
    """The plan of least device memory within the host's, or at all when none is."""
    return _least(Pricing(sizes, demand, hardware, wishes).all(), hardware.ram_bytes)


def _least(plans: Sequence[Plan], ram_bytes: float) -> Plan:
    in_host = [p for p in plans if host_needed(p) <= ram_bytes]
    return min(in_host or plans, key=lambda p: (p.peak_bytes, p.host_bytes))


def nearest_demand(sizes: Sizes, demand: Demand, hardware: Hardware, wishes: Wishes) -> Demand | None:
    """The longest clip of this canvas that fits, in steps of one VAE clip; ``None`` when not even the shortest."""
    tail, clip = demand.target.num_frames % sizes.video.clip_frames, sizes.video.clip_frames
    longer = range(tail + clip, demand.target.num_frames, clip)
    # What a shorter clip needs is less, so the border is found by halving.
    low, high = 0, len(longer)
    while low < high:
        middle = (low + high) // 2
        candidate = shorter(demand, longer[middle], longer[middle] / demand.target.num_frames)
        if smallest(sizes, candidate, hardware, wishes).fits(hardware):
            low = middle + 1
        else:
            high = middle
    return shorter(demand, longer[low - 1], longer[low - 1] / demand.target.num_frames) if low else None


def refusal(sizes: Sizes, demand: Demand, hardware: Hardware, wishes: Wishes, plans: Sequence[Plan]) -> ConfigError:
    """What ``make_plan`` raises when none of ``plans``, its candidates, fits.

    It is about host memory where only that is short, else about the device's.
    """
    size = f"{demand.target.size} with {demand.target.num_frames} frames"
    near = nearest_demand(sizes, demand, hardware, wishes)
    fits = "no shorter clip fits" if near is None else f"{near.target.num_frames} frames of this canvas would fit"
    within = [p for p in plans if needed(p.peak_bytes) <= hardware.vram_bytes]
    if within:
        host = min(host_needed(p) for p in within)
        return ConfigError(
            f"{size} within {gib(hardware.vram_bytes)} of device memory needs {gib(host)} of host memory, "
            f"{gib(hardware.ram_bytes)} are given",
            hint=f"use ram_budget={_mib(host)} or more, {_unused(wishes)}or a larger vram_budget",
            param="ram_budget",
        )
    best, least = _least(plans, hardware.ram_bytes), _least(plans, math.inf)
    vram, less = needed(best.peak_bytes), needed(least.peak_bytes)
    what, hint = f"{size} needs a vram budget of at least {gib(vram)}", f"use vram_budget={_mib(vram)} or more"
    if less < vram:  # what streams waits in host memory
        what += f" with {gib(hardware.ram_bytes)} of host memory"
        hint += f", or vram_budget={_mib(less)} with ram_budget={_mib(host_needed(least))}"
    return ConfigError(f"{what}, {gib(hardware.vram_bytes)} are given", hint=f"{hint}; {fits}", param="vram_budget")


def _unused(wishes: Wishes) -> str:
    """The precisions that would need less and were not asked for."""
    asked = (("quantization", wishes.quantize), ("text_quantization", wishes.text_quantize))
    return "".join(f"{name}=fp8, " for name, one in asked if one.method != "fp8")


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)}MiB"


def shorter(demand: Demand, num_frames: int, scale: float) -> Demand:
    """About the same request with ``scale`` of its video and sound; its conditions stay."""
    g = demand.target
    target = replace(
        g,
        num_frames=num_frames,
        latent_frames=max(7, round(g.latent_frames * scale)),
        audio_latents=round(g.audio_latents * scale),
        num_samples=round(g.num_samples * scale),
    )
    return replace(demand, target=target)
