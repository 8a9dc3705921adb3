"""Where each component lives, and who leaves when another one works.

    resident   on the device for good
    evicted    in host memory; whole on the device while it works, gone when another component begins
    streamed   in host memory; a layer or two at a time on the device

What runs on one device runs in turns, so the memory of the DiT's buffers is the VAE's when clips are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from talkies.placement.stream.flat import parameters_of
from talkies.placement.stream.layerwise import (
    LayerwiseConfig,
    PinnedFetch,
    Prepare,
    Streamed,
    as_it_is,
    stream,
    streamed_positions,
    to_host,
    weights_of,
)

Where = Literal["resident", "evicted", "streamed"]
COMPONENTS = ("dit", "text", "video", "audio")


@dataclass(frozen=True, kw_only=True, slots=True)
class Residences:
    """``dit`` says how its blocks stream; ``None``: all of it is resident."""

    dit: LayerwiseConfig | None = None
    text: Where = "resident"
    video: Where = "resident"
    audio: Where = "resident"


def evict(modules: Sequence[nn.Module], device: torch.device) -> list[Streamed]:
    """Whole modules, each of which comes at its first call and stays until its group leaves.

    Each has a slot of its own: slots of one stream are all as large as its largest module.
    """
    return [_visiting([(module, None)], device, 1) for module in modules]


def stream_component(
    root: nn.Module,
    stacks: Sequence[Sequence[nn.Module]],
    device: torch.device,
    slots: int = 2,
    prepare: Prepare = as_it_is,
) -> list[Streamed]:
    """The layers of ``stacks`` are streamed; all else below ``root`` comes whole when ``root`` is called."""
    streams = []
    inside: set[int] = set()
    for layers in stacks:
        # Too few layers to stream come with the rest.
        if streamed_positions(len(layers), LayerwiseConfig(slots=slots)):
            inside.update(id(p) for layer in layers for p in layer.parameters())
    rest = {name for name, p in root.named_parameters(remove_duplicate=False) if id(p) not in inside}
    for layers in stacks:
        if any(id(p) in inside for layer in layers for p in layer.parameters()):
            streamed = stream(layers, device, LayerwiseConfig(slots=slots), prepare=prepare)
            assert streamed is not None
            streams.append(streamed)
    if rest and parameters_of(root, rest):
        prepare(root, rest)
        streams.append(_visiting([(root, rest)], device, 1))
    return streams


def _visiting(modules: Sequence[tuple[nn.Module, set[str] | None]], device: torch.device, slots: int) -> Streamed:
    pin = device.type == "cuda"
    buffers = [to_host(module, pin=pin, names=names) for module, names in modules]
    for module, _ in modules:
        move_buffers(module, device)
    return Streamed([weights_of(m, names) for m, names in modules], PinnedFetch(buffers), device, slots)


def move_buffers(module: nn.Module, device: torch.device) -> None:
    """Small tables that are no weights stay on the device."""
    for child in module.modules():
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = buffer.to(device)


class Residency:
    """Everything of one engine that visits the device, in groups that work one at a time."""

    def __init__(self) -> None:
        self._groups: dict[str, list[Streamed]] = {}

    def add(self, group: str, streams: Sequence[Streamed | None]) -> None:
        self._groups.setdefault(group, []).extend(s for s in streams if s is not None)

    def enter(self, group: str) -> None:
        """``group`` works from now on: the others leave the device. A group of residents sends them away, too."""
        for name, streams in self._groups.items():
            if name != group:
                for streamed in streams:
                    streamed.release()

    def release(self) -> None:
        """Everything leaves: between jobs, or after one that failed."""
        self.enter("")

    @property
    def host_bytes(self) -> int:
        return sum(s.host_bytes for streams in self._groups.values() for s in streams)

    def device_bytes(self, group: str) -> int:
        """Of the group's slots, while it works."""
        return sum(s.device_bytes for s in self._groups.get(group, ()))

    def close(self) -> None:
        for streams in self._groups.values():
            for streamed in streams:
                streamed.close()
        self._groups.clear()
