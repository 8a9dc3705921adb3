"""The memory model of a loaded checkpoint, from its configs; and the room that is left for jobs."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from talkies.capacity.admission import SLACK, MemoryModel, Need, Visits
from talkies.capacity.demand import demand_of
from talkies.capacity.forward_bytes import ForwardRates, forward_rates
from talkies.capacity.plan import MARGIN
from talkies.capacity.ram import free_ram_bytes, rss_bytes
from talkies.engine.load.build import MEMO_BYTES, Components
from talkies.engine.load.planning import AUTO_SHARE, sizes_of
from talkies.engine.port.messages import WorkerOptions
from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from talkies.placement.modulation_feed import WHOLE_BYTES
from talkies.request import Target, VideoRequest

LOOK_EVERY_S = 5.0


def measure(components: Components, *, ram_budget: int | None = None, vram_budget: int | None = None) -> MemoryModel:
    """Call it when everything that stays is loaded.

    Raises ``ConfigError`` for a budget of the wrong device, or one that not even the smallest clip fits.
    """
    on_cuda = components.config.device.type == "cuda"
    flag = "--vram-budget" if on_cuda else "--ram-budget"
    wrong = ("--ram-budget", ram_budget) if on_cuda else ("--vram-budget", vram_budget)
    if wrong[1] is not None:
        raise ConfigError(
            f"{wrong[0]} has no meaning on {components.config.device}",
            hint=f"use {flag}",
            param=wrong[0],
        )
    if on_cuda:
        components.residency.release()  # what visits is counted with the stage that it comes for
        components.give_back()
    model = _model(components)
    budget = vram_budget if on_cuda else ram_budget
    room = _room(components, budget)
    if room is None:
        return model
    room -= _reserve(components)
    smallest = _smallest(components, model)
    if budget is not None and smallest.peak > room:
        needed = budget - room + smallest.peak
        raise ConfigError(
            f"{flag} of {budget / 2**20:.0f} MiB leaves {max(0, room) / 2**20:.0f} MiB beside the weights, "
            f"the smallest clip needs {smallest.peak / 2**20:.0f}",
            hint=f"use at least {-(-needed // 2**20)}MiB",
            param=flag,
        )
    return replace(model, room=max(0, room), budget=budget, flag=flag)


class RoomKeeper:
    """Looks at the memory of a worker again, not too often."""

    def __init__(self, components: Components, options: WorkerOptions) -> None:
        self._components = components
        # On a GPU the host's budget is the planner's affair; jobs take the device's memory.
        name = "vram_budget" if components.config.device.type == "cuda" else "ram_budget"
        self._budget: dict[str, int | None] = {name: getattr(options.config, name)}
        self._looked_at = 0.0

    def measure(self) -> MemoryModel:
        """Raises ``ConfigError`` as :func:`measure`."""
        self._looked_at = time.monotonic()
        return measure(self._components, **self._budget)

    def look(self) -> MemoryModel | None:
        """A new figure, if one is due and may have changed. Only while no job runs."""
        fixed = any(budget is not None for budget in self._budget.values())
        return None if fixed or time.monotonic() - self._looked_at < LOOK_EVERY_S else self.measure()


def _room(components: Components, budget: int | None) -> int | None:
    """Bytes beside what is resident now."""
    device = components.config.device
    if device.type == "cuda":
        if budget is not None:
            return budget - torch.cuda.memory_reserved(device)
        return int(AUTO_SHARE * torch.cuda.mem_get_info(device)[0])
    if budget is not None:
        return budget - rss_bytes()
    free = free_ram_bytes()
    return None if free is None else int(AUTO_SHARE * free)


def _reserve(components: Components) -> int:
    """What fills up over the first jobs and then stays: remembered encodings, a resident video encoder, on a GPU graphs
    of small forwards, and on a CPU modulation tables."""
    stays = MEMO_BYTES
    waits = not components.video.encoder_is_loaded and components.placement.residences.video == "resident"
    if waits and set(components.limits.tasks) - {"t2va"}:  # words alone never call it
        stays += components.video.encoder_bytes()
    if components.config.device.type == "cuda":
        graphs = components.graphs
        return stays + (0 if graphs is None else graphs.max_bytes - graphs.held_bytes)
    return stays + components.tables.max_bytes


def _smallest(components: Components, model: MemoryModel) -> Need:
    limits = components.limits
    m = limits.canvas_multiple
    side = max(m, limits.canvas_short_edge // m * m)
    target = Target(width=side, height=side, num_frames=limits.min_frames)
    # Words alone cost least, whatever the task.
    t2va = VideoRequest(prompt="a", target=target)
    return model.need(demand_of(t2va, replace(limits, tasks=("t2va",))))


def _model(components: Components) -> MemoryModel:
    config = components.config
    on_cuda = config.device.type == "cuda"
    sizes = sizes_of(components.parts, on_gpu=on_cuda, dtype=config.dtype, mesh=config.mesh, num_text=config.num_text)
    linear_bytes = components.video.decoder.compute_dtype.itemsize
    return MemoryModel(
        sizes=replace(sizes, video=replace(sizes.video, linear_bytes=linear_bytes)),
        forward=_forward(components),
        whole_modulation=WHOLE_BYTES,
        fp8_text=config.text_quantize.method == "fp8",
        visits=_visits(components),
        slack=MARGIN if on_cuda else SLACK,
        one_memory=not on_cuda,
    )


def _visits(components: Components) -> Visits:
    bytes_of, video = components.residency.device_bytes, components.video
    encode = bytes_of("video.encoder")
    if not video.encoder_is_loaded and components.placement.residences.video != "resident":
        encode = video.encoder_bytes()  # it joins its group at the first encode
    return Visits(
        denoise=max(bytes_of(f"dit.{partition}") for partition in components.dits),
        text=bytes_of("text"),
        decode=bytes_of("video"),
        encode=encode,
        sound=bytes_of("audio"),
    )


def _forward(components: Components) -> ForwardRates:
    """As the planner counts it on a GPU, so that what a plan promises is not refused."""
    config, c = components.config, next(iter(components.dits.values())).config
    if config.kernels == "reference":
        return ForwardRates(whole=_row_bytes(c, config.dtype.itemsize))
    return forward_rates(
        c,
        config.dtype.itemsize,
        components.placement.chunking,
        mesh=config.mesh,
        fp8=config.quantize.method == "fp8",
        fp8_attention=components.attend.exactness is not None,
    )


def _row_bytes(c: DiTConfig, size: int) -> float:
    """One packed row during a block, with the reference kernels; fused ones need less."""
    wide = 0 if size == 4 else 2 * c.inner_dim * (4 + size)
    attention = 3 * c.inner_dim * size + 2 * 2 * c.inner_dim * 4 + wide
    feed_forward = size * (3 * c.ffn_dim + c.hidden_size)
    return size * 4 * c.hidden_size + max(attention, feed_forward)
