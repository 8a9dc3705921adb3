"""Reading a DiT checkpoint, one tensor or one block at a time.

Everything is checked from the files' headers before a byte of weights is read: an unknown, missing or misshapen key
is refused by name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from talkies.attention.base import Attend
from talkies.errors import CheckpointError
from talkies.files.read_ahead import ReadAhead, Span
from talkies.files.tensor_files import TensorFiles
from talkies.h3 import dit_keys as keys
from talkies.h3.config import DiTConfig
from talkies.h3.dit_keys import Layout, Spec
from talkies.kernels.select import REFERENCE, Ops
from talkies.model.cuts import Cut, file_runs
from talkies.model.dit import PackedDiT
from talkies.model.modulation import Affine


def read_config(folder: Path) -> DiTConfig:
    """``config.json`` of a transformer folder; raises ``CheckpointError`` naming file and key."""
    path = (folder if folder.is_dir() else folder.parent) / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing", hint="a DiT folder holds config.json beside its weights") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return DiTConfig.from_dict(values)


class NamedTensors(ABC):
    """The tensors of a DiT under our names (see ``h3/dit_keys.py``), wherever they come from.

    A :class:`DiTSource`, and the AdaLN weights as ``modulation.build_table`` asks for them.
    """

    config: DiTConfig

    @abstractmethod
    def tensor(self, name: str) -> Tensor:
        """One tensor, in the dtype it is to have."""

    def part(self, name: str, cut: Cut) -> Tensor:
        """A share of a tensor, contiguous; a source that can reads no more than that."""
        return cut.of(self.tensor(name))

    def top(self, *, adaln: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Tensors outside the block stack, one at a time."""
        for spec in keys.top_specs(self.config):
            if adaln or not spec.adaln:
                yield spec.name, self.tensor(spec.name)

    def block(self, index: int, *, adaln: bool = True) -> dict[str, Tensor]:
        """Tensors of one block under the names of ``Block``'s state dict."""
        specs = keys.block_specs(self.config, "", adaln=adaln)
        return {spec.name: self.tensor(f"blocks.{index}.{spec.name}") for spec in specs}

    def time_embedder_weights(self) -> tuple[Affine, Affine]:
        return self._affine("time_embedder.linear_1"), self._affine("time_embedder.linear_2")

    def block_adaln(self, block: int) -> Affine:
        return self._affine(f"blocks.{block}.adaln")

    def output_adaln(self) -> Affine:
        return self._affine("norm_out.linear")

    def _affine(self, name: str) -> Affine:
        return Affine(self.tensor(name + ".weight"), self.tensor(name + ".bias"))


class DiTReader(NamedTensors):
    """A checked checkpoint in either layout. Tensors come out under our names (see ``h3/dit_keys.py``).

    ``dtype`` is what block tensors are cast to (``None``: as stored); float32 islands are always float32.
    ``layout`` is found from the keys, except ``Layout.REPACKED``, which looks like the original. Blocks come from the
    disk one ahead of the reader, and so do AdaLN matrices; ``align`` as for :class:`TensorFiles`.
    """

    def __init__(
        self,
        path: Path | str,
        config: DiTConfig | None = None,
        dtype: torch.dtype | None = None,
        layout: Layout | None = None,
        *,
        align: bool = True,
    ) -> None:
        self.path = Path(path)
        self.files = TensorFiles(self.path, align=align)
        self._ahead = ReadAhead()
        self.config = config or read_config(self.path)
        self.dtype = dtype
        layout = layout or keys.detect(self.files.keys)
        if layout is None:
            raise CheckpointError(
                f"{self.path} holds no MiniMax-H3 DiT: none of its {len(self.files.keys)} keys is one of its names",
                hint="point at the transformer folder",
            )
        self.layout: Layout = layout
        self.specs: dict[str, Spec] = {spec.name: spec for spec in keys.all_specs(self.config)}
        self._check()

    def tensor(self, name: str) -> Tensor:
        """One of our tensors, on CPU."""
        spec = self.specs[name]
        parts = [self.files.tensor(key) for key in keys.file_keys(name, self.layout)]
        tensor = keys.join(spec, parts, self.layout, self.config)
        return tensor.to(torch.float32 if spec.island else self.dtype or tensor.dtype)

    def part(self, name: str, cut: Cut) -> Tensor:
        """A share of one of our tensors, on CPU; of the files only that share is read."""
        spec, files = self.specs[name], keys.file_keys(name, self.layout)
        runs = file_runs(spec, cut, self.layout, self.config)
        parts = [self.files.part(files[run.part], cut.axis, run.start, run.stop) for run in runs]
        tensor = torch.cat(parts, cut.axis)
        return tensor.to(torch.float32 if spec.island else self.dtype or tensor.dtype)

    def top(self, *, adaln: bool = True) -> Iterator[tuple[str, Tensor]]:
        names = [spec.name for spec in keys.top_specs(self.config) if adaln or not spec.adaln]
        self._ahead.begin(self._spans(names), self._spans(self._block_names(0, adaln=adaln)))
        return super().top(adaln=adaln)

    def block(self, index: int, *, adaln: bool = True) -> dict[str, Tensor]:
        now, then = (self._spans(self._block_names(i, adaln=adaln)) for i in (index, index + 1))
        self._ahead.begin(now, then)
        return super().block(index, adaln=adaln)

    def block_adaln(self, block: int) -> Affine:
        now, then = (self._spans(self._adaln_names(i)) for i in (block, block + 1))
        self._ahead.begin(now, then)
        return super().block_adaln(block)

    def _block_names(self, index: int, *, adaln: bool) -> list[str]:
        if index >= self.config.num_layers:
            return []
        return [f"blocks.{index}.{spec.name}" for spec in keys.block_specs(self.config, "", adaln=adaln)]

    def _adaln_names(self, index: int) -> list[str]:
        return [f"blocks.{index}.adaln.{leaf}" for leaf in ("weight", "bias") if index < self.config.num_layers]

    def _spans(self, names: Iterable[str]) -> list[Span]:
        return self.files.spans(key for name in names for key in keys.file_keys(name, self.layout))

    def _check(self) -> None:
        expected = keys.expected_keys(self.config, self.layout)
        found = self.files.keys
        for key in sorted(found.keys() - expected.keys()):
            raise CheckpointError(
                f"{self.files.file_of(key)} has an unknown key {key!r}",
                hint=f"{len(found.keys() - expected.keys())} unknown in all; an adapter must be fused first",
                param=key,
            )
        for key, shape in expected.items():
            if key not in found:
                if key == keys.ROPE_KEY:
                    continue  # recomputed anyway
                missing = [k for k in expected if k not in found]
                raise CheckpointError(
                    f"{self.path} lacks the key {key!r}", hint=f"{len(missing)} missing in all", param=key
                )
            if found[key].shape != shape:
                raise CheckpointError(
                    f"{self.files.file_of(key)}: {key!r} has shape {list(found[key].shape)}, "
                    f"the config asks for {list(shape)}",
                    hint="the config belongs to another checkpoint",
                    param=key,
                )
            if not found[key].dtype.is_floating_point:
                raise CheckpointError(
                    f"{self.files.file_of(key)}: {key!r} is {found[key].dtype}, not a float", param=key
                )


class DiTSource(Protocol):
    """Who hands out a DiT's tensors under our names: a checked checkpoint, or a maker of random ones."""

    @property
    def config(self) -> DiTConfig: ...

    def top(self, *, adaln: bool = True) -> Iterator[tuple[str, Tensor]]: ...

    def block(self, index: int, *, adaln: bool = True) -> dict[str, Tensor]: ...


class Place(Protocol):
    """What becomes of a tensor while it is loaded: moved, quantised, pinned. ``name`` is that of our state dict."""

    def __call__(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """The tensors that take its place, by full name."""
        ...


class Settle(Protocol):
    """What becomes of a block once it is whole, before the next one is read; ``name`` such as ``blocks.7``."""

    def __call__(self, name: str, block: nn.Module) -> None: ...


def where_it_is(name: str, block: nn.Module) -> None:
    """A :class:`Settle` that leaves blocks on their device."""


def as_it_is(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A :class:`Place` that changes nothing."""
    return {name: tensor}


def build_dit(
    source: DiTSource,
    *,
    attend: Attend,
    text_attend: Attend | None = None,
    ops: Ops = REFERENCE,
    adaln: bool = True,
    place: Place = as_it_is,
    settle: Settle = where_it_is,
) -> PackedDiT:
    """A DiT in evaluation mode.

    Tensors pass through ``place`` one by one, so that loading needs the finished size and what one block holds besides,
    whatever ``place`` makes of them. Without ``adaln`` the AdaLN projections are never read: build tables from the
    source.
    """
    with torch.device("meta"):
        dit = PackedDiT(source.config, attend=attend, text_attend=text_attend, ops=ops, adaln=adaln)
    for name, tensor in source.top(adaln=adaln):
        assign(dit, place(name, tensor))
    _check_whole(dit, without="blocks.")
    for index, block in enumerate(dit.token_refiner.blocks):
        settle(f"token_refiner.blocks.{index}", block)
    for index in range(source.config.num_layers):
        tensors = source.block(index, adaln=adaln)
        while tensors:
            name, tensor = tensors.popitem()
            assign(dit, place(f"blocks.{index}.{name}", tensor))
        _check_whole(dit.blocks[index])
        settle(f"blocks.{index}", dit.blocks[index])
    return dit.eval().requires_grad_(False)


def _check_whole(module: nn.Module, without: str | None = None) -> None:
    named = module.named_parameters()
    left = [name for name, p in named if p.is_meta and not (without and name.startswith(without))]
    assert not left, left


def assign(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts tensors in the place of parameters of these names, an absent optional one included."""
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        assert leaf in owner._parameters, name
        known = owner._parameters[leaf]
        assert known is None or known.shape == tensor.shape, (name, tuple(tensor.shape))
        owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
