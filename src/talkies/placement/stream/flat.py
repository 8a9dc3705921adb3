"""Tensors of one module in one run of bytes, so that a block crosses a bus as one copy.

Views of it are contiguous and start at multiples of 256 bytes: kernels see what they saw in tensors of their own, and
a matrix product on a CPU, whose rounding depends on its operands' addresses, keeps its bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

ALIGNMENT_BYTES = 256


def padded(num_bytes: int) -> int:
    """What a tensor of ``num_bytes`` takes of a run."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a run; ``offset`` in bytes, a multiple of 256."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Where each tensor lies; ``num_bytes`` is a multiple of 256."""

    fields: tuple[Field, ...]
    num_bytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> FlatLayout:
        fields, offset = [], 0
        for name, tensor in tensors.items():
            field = Field(name, tensor.dtype, tuple(tensor.shape), offset)
            fields.append(field)
            offset += padded(field.num_bytes)
        return cls(tuple(fields), max(offset, ALIGNMENT_BYTES))

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors inside ``flat``, uint8 of at least ``num_bytes``."""
        assert flat.dtype == torch.uint8
        assert flat.numel() >= self.num_bytes
        return {f.name: _view(flat, f) for f in self.fields}

    def pack(self, tensors: Mapping[str, Tensor], flat: Tensor) -> None:
        """Copies ``tensors``, wherever they are, into ``flat``."""
        for name, view in self.views(flat).items():
            copy_bytes(tensors[name].detach(), view)


def copy_bytes(tensor: Tensor, view: Tensor) -> None:
    """``tensor`` into ``view`` of its shape and dtype, as bytes: not every device copies e4m3 as numbers."""
    if view.numel():
        _as_bytes(view).copy_(_as_bytes(tensor.contiguous()))


def parameters_of(module: nn.Module, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Parameters by name, or those of ``names``; absent optional ones are left out."""
    named = module.named_parameters(remove_duplicate=False)
    return {name: p.detach() for name, p in named if names is None or name in names}


def _view(flat: Tensor, field: Field) -> Tensor:
    if not field.num_bytes:  # a run of no bytes has no other dtype
        return torch.empty(field.shape, dtype=field.dtype, device=flat.device)
    return flat[field.offset : field.offset + field.num_bytes].view(field.dtype).view(field.shape)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
