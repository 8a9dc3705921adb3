"""No skipping: the reference that every policy is compared with."""

from __future__ import annotations

from torch import Tensor

from talkies.h3.packing import PackedLayout


class Off:
    def begin(self, layout: PackedLayout, num_forwards: int) -> None:
        pass

    def decide(self, step: int, x_SD: Tensor) -> bool:
        return False

    def predict(self, step: int, x_SD: Tensor) -> Tensor:
        raise AssertionError("off never skips")

    def observe(self, step: int, x_SD: Tensor, out_SD: Tensor) -> None:
        pass
