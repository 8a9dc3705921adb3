"""Which adapters are in a DiT's weights now, and how others get there: changed tensors are summed anew, in place.

Another set costs reading what either set changes, from the checkpoint's files (whose pages the system keeps while it
can), and one sum each; everything else stays. Sums are those of loading, by the same code from the same stored weights,
so a DiT that went through any number of sets has the bits of one that was loaded with the last. A low-rank product
beside each linear would cost nothing to switch, but it costs every step of every request, cannot express what published
few-step files change besides (norms, biases, whole weights), and rounds otherwise than a sum.

Tensors keep their memory: graphs that were recorded read the new weights, and host buffers stay locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from talkies.adapters.fuse import FusedTensors
from talkies.model.dit import PackedDiT
from talkies.model.weights import NamedTensors, Place

Adapters = tuple[tuple[str, float], ...]  # names and strengths, in the order in which they are applied


class AdaptedDiT:
    """``dit`` was placed from ``source`` by ``place``, with the adapters ``current`` in it.

    ``cut`` makes of a source what this rank holds. ``leave`` is called before weights change: copies of them on the
    device are then void. ``say`` hears what a change took.
    """

    def __init__(
        self,
        partition: str,
        dit: PackedDiT,
        source: FusedTensors,
        place: Place,
        *,
        cut: Callable[[FusedTensors], NamedTensors],
        leave: Callable[[], object],
        say: Callable[[str], object],
    ) -> None:
        self._partition, self._dit, self._source, self._place = partition, dit, source, place
        self._cut, self._leave, self._say = cut, leave, say
        self.current: Adapters | None = known(source)

    def source(self, adapters: Adapters) -> FusedTensors:
        """The checkpoint's tensors with ``adapters`` in them."""
        return self._source.with_strengths(dict(adapters))

    @torch.no_grad()
    def use(self, adapters: Adapters) -> None:
        """Nothing where they are in already. Raises ``CheckpointError``; the next call then does all of it again."""
        if adapters == self.current:
            return
        began = time.perf_counter()
        # A change that broke off left weights of two sets: then every tensor that any adapter changes is summed anew.
        before = [one.name for one in self._source.adapters] if self.current is None else [n for n, _ in self.current]
        self._leave()
        self.current = None
        source = self.source(adapters)
        tensors = self._cut(source)
        changed = source.changed_by([*before, *(name for name, _ in adapters)])
        count = 0
        for name in sorted(changed):
            if source.source.specs[name].adaln:
                continue  # no DiT holds them: tables are made from the source
            for full, tensor in self._place(name, tensors.tensor(name)).items():
                self._dit.get_parameter(full).copy_(tensor)
                count += 1
        self.current = adapters
        shown = ", ".join(f"{name}:{strength:g}" for name, strength in adapters) or "none"
        took = time.perf_counter() - began
        self._say(f"adapters of {self._partition} are now {shown}: {count} tensors in {took:.2f} s")


def use_adapters(adapted: Mapping[str, AdaptedDiT], partition: str, adapters: Adapters) -> None:
    """Has ``adapters`` in the weights of ``partition``; costs nothing where they are there."""
    dit = adapted.get(partition)
    if dit is None:
        assert not adapters, adapters
        return
    dit.use(adapters)


def known(source: FusedTensors) -> Adapters:
    """What ``source`` has in it."""
    return tuple((one.name, one.strength) for one in source.adapters if one.strength)
