"""No skipping: the reference that every policy is compared with."""

from __future__ import annotations

from torch import Tensor

from talkies.h3.packing import PackedLayout
from talkies.model.runner import BlockRun


class Off:
    def begin(self, layout: PackedLayout, num_forwards: int) -> None:
        pass

    def forward(self, step: int, x_SD: Tensor, run: BlockRun) -> Tensor:
        return run(x_SD)
