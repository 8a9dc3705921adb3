"""The modulation of each forward on its device, before the forward asks for it.

A table of a released schedule is 0.5 GB of host memory; a forward needs 10 to 16 MB of it. While one forward runs,
the entries of the next cross on a stream of their own, from pinned memory, so that no forward waits for them.

A small model's table is a megabyte, and its forwards are so short that the copies of a step cost the host a fifth of
what it does for it (0.18 of 1.06 ms on an H200's host). So a small table crosses whole, once a request.
"""

from __future__ import annotations

import torch
from torch import Tensor

from talkies.h3.timesteps import StepPlan
from talkies.model.modulation import ModulationTable, StepModulation

# All steps of a request whose forwards wait for their launches; full-size models have more than that in two steps.
WHOLE_BYTES = 16 << 20


class ModulationFeed:
    """One request's steps. Any step may be asked for; of a large table the one after it is fetched ahead."""

    def __init__(
        self,
        table: ModulationTable,
        device: torch.device,
        stream: torch.cuda.Stream | None = None,
        *,
        whole_bytes: int = WHOLE_BYTES,
    ) -> None:
        """``stream`` copies; feeds of one worker may share it. Steps that are at most ``whole_bytes`` together are on
        the device from here on."""
        self._table, self._device = table, device
        self._stream = stream
        if device.type == "cuda" and stream is None:
            self._stream = torch.cuda.Stream(device)
        if self._stream is not None:
            # Almost every step has the same runs: their indices cross now, so that no step waits for a copy.
            for runs in {runs for plan in table.steps for runs in (plan.rows, plan.output_rows)}:
                runs.index(device)
        whole = table.all_steps_bytes <= whole_bytes
        self._all = table.moved(device, pin=False).all_steps() if whole else None
        self._ahead: tuple[int, StepModulation, torch.cuda.Event] | None = None

    def step(self, index: int) -> StepModulation:
        """Modulation of forward ``index`` on the device, ordered before what the current stream does next."""
        if self._all is not None:
            return self._all[index]
        if self._stream is None:
            return self._table.step(index)
        ahead = self._ahead if self._ahead is not None and self._ahead[0] == index else self._fetch(index)
        _, modulation, ready = ahead
        current = torch.cuda.current_stream(self._device)
        current.wait_event(ready)
        for tensor in (modulation.params, modulation.output):
            tensor.record_stream(current)  # its memory must not be reused while that stream reads it
        self._ahead = self._fetch(index + 1) if index + 1 < len(self._table.steps) else None
        return modulation

    def _fetch(self, index: int) -> tuple[int, StepModulation, torch.cuda.Event]:
        assert self._stream is not None
        plan: StepPlan = self._table.steps[index]
        with torch.cuda.stream(self._stream):
            params, output = self._table.entries(plan)
            modulation = StepModulation(
                _gathered(params, self._device), plan.rows, _gathered(output, self._device), plan.output_rows
            )
            ready = torch.cuda.Event()
            ready.record(self._stream)
        return index, modulation, ready


def _gathered(entries: list[Tensor], device: torch.device) -> Tensor:
    """Host tensors of one shape -> one device tensor [entries, ...]; each is one long copy."""
    out = torch.empty(len(entries), *entries[0].shape, dtype=entries[0].dtype, device=device)
    for slot, entry in zip(out, entries, strict=True):
        slot.copy_(entry, non_blocking=True)
    return out


def pinned(table: ModulationTable) -> ModulationTable:
    """The same table in pinned host memory."""
    return table.moved(torch.device("cpu"), pin=True)
