"""Layerwise streaming: the weights of modules that run one after another wait in host memory and visit the device.

A few device buffers (slots) take turns. While one module computes from its slot, the next one's weights cross on a
stream of their own into another; nothing is allocated between two modules. Modules stay where they are and are called
as ever: a hook points their parameters at a slot before and back at the host after, so that a weight that is not
there can be missed but never be another module's.

    order     0 1 2 3 4 5 6 7 ...        r resident, s streamed, k slots
    slots     A B r A B r A B            the upload into A starts when the module that used A is done
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from talkies.errors import ConfigError
from talkies.placement.stream.flat import FlatLayout, copy_bytes, parameters_of
from talkies.placement.stream.host_memory import HostBuffer
from talkies.placement.stream.lanes import Lane, lane_for

NUM_SLOTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerwiseConfig:
    """``resident``: modules that stay on the device; ``slots``: buffers that the others take turns in. Two hide a
    transfer behind one module's work; a third one lets transfers that take longer get further ahead over residents."""

    resident: int = 0
    slots: int = NUM_SLOTS

    def __post_init__(self) -> None:
        if self.resident < 0:
            raise ConfigError(f"resident_blocks={self.resident} is negative", param="resident_blocks")
        if self.slots < 1:
            raise ConfigError(f"slots={self.slots} is too few", hint="use 2 or more", param="slots")


def streamed_positions(num_modules: int, config: LayerwiseConfig) -> tuple[int, ...]:
    """Which of ``num_modules`` are streamed: spread evenly, each at the end of its group.

    Transfers and work run beside each other and a step repeats, so the order is a ring; what is lost is the time in
    which the transfer's head start is used up. Equal gaps keep the head start nearest to its mean everywhere, and no
    other order needs fewer slots for the same speed. Residents come first in a group: the first module of a run then
    waits for nothing. As many streamed modules as slots, or fewer, would sit in their slots for good: then all stay.
    """
    count = num_modules - min(config.resident, num_modules)
    if count <= config.slots:
        return ()
    return tuple((i + 1) * num_modules // count - 1 for i in range(count))


class Fetch(Protocol):
    """Who brings the weights of streamed module ``index`` (0 is the first streamed one) into a slot."""

    def __call__(self, index: int, slot: Tensor) -> None: ...

    def close(self) -> None: ...


class PinnedFetch:
    """One buffer of host memory per module; a module is one copy."""

    def __init__(self, buffers: Sequence[HostBuffer]) -> None:
        self.buffers = list(buffers)

    def __call__(self, index: int, slot: Tensor) -> None:
        flat = self.buffers[index].flat
        slot[: flat.numel()].copy_(flat, non_blocking=True)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()


class Prepare(Protocol):
    """Gives a module its weights (those of ``names``, all if ``None``)."""

    def __call__(self, module: nn.Module, names: Collection[str] | None) -> None: ...


def as_it_is(module: nn.Module, names: Collection[str] | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Weights:
    """One streamed module: where its parameters hang, its layout, and its parameters when it is away."""

    module: nn.Module
    layout: FlatLayout
    owners: tuple[tuple[dict[str, Any], str], ...]  # in the order of layout.fields
    away: tuple[nn.Parameter, ...]

    def bind(self, parameters: Sequence[nn.Parameter]) -> None:
        for (owner, leaf), parameter in zip(self.owners, parameters, strict=True):
            owner[leaf] = parameter


class Streamed:
    """Streams ``modules``, called in order and any number of times over; a call out of order waits for its weights.

    ``close`` ends it. ``release`` gives the device memory back until the next call: between the stages of a request.
    """

    def __init__(
        self,
        weights: Sequence[_Weights],
        fetch: Fetch,
        device: torch.device,
        slots: int = NUM_SLOTS,
        lane: Lane | None = None,
        slot_bytes: int = 0,
    ) -> None:
        """``slot_bytes``: what a fetch needs of a slot, if that is more than the largest module."""
        assert weights
        self._weights, self._fetch, self.device = list(weights), fetch, device
        self._num_slots = min(slots, len(weights))
        self._lane = lane or lane_for(device, self._num_slots)
        self.slot_bytes = max(slot_bytes, *(w.layout.num_bytes for w in weights))
        self.bytes_moved = 0
        self._slots: list[Tensor] = []
        self._parameters: list[dict[int, tuple[nn.Parameter, ...]]] = []  # of each slot, by module
        self._holds: list[int | None] = []
        self._hooks: list[Any] = []
        for index, w in enumerate(self._weights):
            self._hooks.append(w.module.register_forward_pre_hook(self._before(index)))
            self._hooks.append(w.module.register_forward_hook(self._after(index), always_call=True))

    @property
    def device_bytes(self) -> int:
        """Of the slots, open or not."""
        return self._num_slots * self.slot_bytes

    @property
    def host_bytes(self) -> int:
        return sum(w.layout.num_bytes for w in self._weights)

    @property
    def is_open(self) -> bool:
        return bool(self._slots)

    @torch.inference_mode(False)  # what is made inside it could not be written outside
    def open(self) -> None:
        """Takes the device memory; calling a module does so, too. Raises what the allocator raises."""
        if self._slots:
            return
        slots = [torch.empty(self.slot_bytes, dtype=torch.uint8, device=self.device) for _ in range(self._num_slots)]
        self._parameters = [
            {i: _as_parameters(w.layout.views(slot)) for i, w in enumerate(self._weights)} for slot in slots
        ]
        self._holds = [None] * self._num_slots
        self._lane.open()
        self._slots = slots  # last: an allocation that fails leaves it closed

    def release(self) -> None:
        """Gives the slots back. Must not be called while one of the modules runs."""
        if self._slots:
            self._lane.close()
            for w in self._weights:
                w.bind(w.away)
            self._slots, self._parameters, self._holds = [], [], []

    def close(self) -> None:
        """The modules must not be called any more: their weights are gone."""
        self.release()
        for hook in self._hooks:
            hook.remove()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._fetch.close()

    def _before(self, index: int) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            self.open()
            if index not in self._holds:
                self._upload(index, self._victim(index))
            slot = self._holds.index(index)
            self._lane.acquire(slot)
            self._weights[index].bind(self._parameters[slot][index])
            # With every slot but this one: on a cold start the second transfer runs beside the first module.
            self._look_ahead(index, keep=index)

        return hook

    def _after(self, index: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._weights[index].bind(self._weights[index].away)
            if self._slots and index in self._holds:  # not after a failure to open
                self._lane.release(self._holds.index(index))
                self._look_ahead(index, keep=None)

        return hook

    def _look_ahead(self, index: int, keep: int | None) -> None:
        """Starts the transfers of what comes after ``index``, into slots that hold neither that nor ``keep``."""
        if self._num_slots == len(self._weights) and None not in self._holds:
            return
        room = self._num_slots - (keep is not None)
        wanted = [(index + 1 + i) % len(self._weights) for i in range(room)]
        spare = [s for s, held in enumerate(self._holds) if held not in wanted and (keep is None or held != keep)]
        for module in wanted:
            if module not in self._holds and module != keep and spare:
                self._upload(module, spare.pop(0))

    def _victim(self, index: int) -> int:
        """The slot whose module is needed last, counted from ``index``."""
        n = len(self._weights)
        distance = [n if held is None else (held - index) % n for held in self._holds]
        return distance.index(max(distance))

    def _upload(self, index: int, slot: int) -> None:
        self._holds[slot] = None  # should the copy fail, nobody takes the slot for whole
        self._lane.upload(slot, lambda: self._fetch(index, self._slots[slot]))
        self._holds[slot] = index
        self.bytes_moved += self._weights[index].layout.num_bytes


def to_host(module: nn.Module, *, pin: bool, names: Collection[str] | None = None) -> HostBuffer:
    """Moves a module's parameters (those of ``names``) into one host buffer, from wherever they are; they become
    views of it.

    One tensor at a time, so that host memory holds the module once and one tensor besides: locking takes all pages of
    the buffer at once, and waits until the tensors that come from the host have left theirs. Those of a device come
    fast into locked pages only.
    """
    tensors = parameters_of(module, names)
    layout, from_device = FlatLayout.of(tensors), any(t.device.type == "cuda" for t in tensors.values())
    del tensors
    buffer = HostBuffer.private(layout.num_bytes, pin=pin and from_device)
    views = layout.views(buffer.flat)
    for field, (owner, leaf) in zip(layout.fields, _owners(module, layout), strict=True):
        copy_bytes(owner[leaf].detach(), views[field.name])
        owner[leaf] = nn.Parameter(views[field.name], requires_grad=False)
    if pin and not buffer.pinned:
        buffer.pin()
    return buffer


def rebind(module: nn.Module, layout: FlatLayout, tensors: Sequence[Tensor]) -> None:
    """Puts ``tensors`` in the place of the parameters of ``layout``, in its order."""
    for (owner, leaf), tensor in zip(_owners(module, layout), tensors, strict=True):
        owner[leaf] = nn.Parameter(tensor, requires_grad=False)


def weights_of(module: nn.Module, names: Collection[str] | None = None) -> _Weights:
    """Of a module whose parameters (those of ``names``) are where they shall be when it is away."""
    layout = FlatLayout.of(parameters_of(module, names))
    owners = _owners(module, layout)
    return _Weights(module, layout, owners, tuple(owner[leaf] for owner, leaf in owners))


def stream(
    modules: Sequence[nn.Module],
    device: torch.device,
    config: LayerwiseConfig | None = None,
    *,
    buffers: dict[int, HostBuffer] | None = None,
    prepare: Prepare = as_it_is,
) -> Streamed | None:
    """Streams what ``config`` says and moves the others to ``device``; ``None`` when all of them stay.

    ``buffers`` are those of modules that :func:`to_host` has moved already, by position. ``prepare`` is called with
    each module before it is moved: one whose weights are not there yet gets them then.
    """
    config, buffers = config or LayerwiseConfig(), buffers or {}
    positions = streamed_positions(len(modules), config)
    for position, module in enumerate(modules):
        if position not in positions:
            prepare(module, None)
            move(module, device)
    if not positions:
        return None
    pin = device.type == "cuda"
    held = []
    for p in positions:
        prepare(modules[p], None)
        held.append(buffers.get(p) or to_host(modules[p], pin=pin))
    return Streamed([weights_of(modules[p]) for p in positions], PinnedFetch(held), device, config.slots)


def move(module: nn.Module, device: torch.device) -> None:
    """Parameters (never shared between modules here) and buffers to ``device``."""
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None and parameter.device.type != device.type:
                child._parameters[name] = nn.Parameter(parameter.detach().to(device), requires_grad=False)
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = buffer.to(device)


def _owners(module: nn.Module, layout: FlatLayout) -> tuple[tuple[dict[str, Any], str], ...]:
    owners = []
    for field in layout.fields:
        path, _, leaf = field.name.rpartition(".")
        owners.append((module.get_submodule(path)._parameters, leaf))
    return tuple(owners)


def _as_parameters(tensors: dict[str, Tensor]) -> tuple[nn.Parameter, ...]:
    return tuple(nn.Parameter(tensor, requires_grad=False) for tensor in tensors.values())
