"""What one running job says to its owner: events, one percentage over all stages, an ETA, previews."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from talkies.capacity.cost import CostModel, pixels_of
from talkies.engine.events import Progress, Reporter
from talkies.engine.pipeline.preview import Peek, to_jpeg
from talkies.engine.pipeline.state import RequestState
from talkies.engine.port.service import EventKind, Job, JobEvent

log = logging.getLogger(__name__)
Emit = Callable[[JobEvent], None]
PREVIEW_SHARE = 0.05  # of the time, at most, in the long run: on a slow machine they come seldom


class JobVoice:
    """Follows a job from output to output. ``emit`` says one thing; the other methods know what to say when."""

    def __init__(self, job: Job, send: Emit, *, preview_every_s: float) -> None:
        self._job, self._send = job, send
        self._preview_every_s = preview_every_s
        self._step_s: float | None = None  # of its own steps, smoothed: what an ETA follows
        self._decode_s = self._later_s = 0.0  # of this output, and of those after it
        self._next_preview_at = time.monotonic() + preview_every_s
        self._peek: Peek | None = None
        self._output = 0
        # Not the engine's ETA, which assumes that the device belongs to this request alone.
        self._report = Reporter(self._on_progress, num_outputs=job.request.num_outputs)

    def emit(self, kind: EventKind, **fields: Any) -> None:
        self._send(JobEvent(job_id=self._job.id, kind=kind, **fields))

    def begin_output(self, output: int) -> None:
        self._output = output

    def stage(self, name: str, step: int = 1, num_steps: int = 1) -> None:
        """``step`` of a stage other than denoising is done."""
        decoding = name == "decode" and self._step_s is not None
        eta_s = self._later_s + self._decode_s * (1 - step / num_steps) if decoding else None
        self._report(name, step, num_steps, output=self._output, eta_s=eta_s)

    def before_step(self, state: RequestState) -> None:
        self._peek = Peek(state) if time.monotonic() >= self._next_preview_at else None

    def stepped(
        self, state: RequestState, seconds: float, cost: CostModel, *, forwards_left: float, outputs: int
    ) -> None:
        """``outputs``: clips that are not decoded yet, this one included. What others do between two of its steps is
        not its own time: whoever knows the order of all jobs adds that."""
        whole_s = seconds / state.last_ran if state.last_ran else None  # of a forward of which all is run
        if self._step_s is None:
            self._step_s = cost.forward_s(state.num_rows) if whole_s is None else whole_s
        elif whole_s is not None:
            self._step_s = 0.7 * self._step_s + 0.3 * whole_s
        pixels = pixels_of(state.geometry)
        self._decode_s = cost.left_s(num_forwards=0, step_s=0.0, pixels=pixels)
        eta_s = cost.left_s(num_forwards=forwards_left, step_s=self._step_s, pixels=pixels * outputs)
        self._later_s = eta_s - self._decode_s
        self._report("denoise", state.step, state.num_forwards, output=self._output, eta_s=eta_s)

    def preview(self, state: RequestState, decode: Callable[[Tensor], Tensor]) -> None:
        """If one is due: ``decode`` makes a latent [C, h, w] uint8 RGB [H, W, 3]. It is a courtesy: its failure is
        logged and the clip goes on."""
        if self._peek is None:
            return
        g = state.geometry
        began = time.monotonic()
        try:
            jpeg = to_jpeg(decode(self._peek.x0(state)), width=g.width, height=g.height)
            self.emit("preview", stage="denoise", step=state.step, num_steps=state.num_forwards, jpeg=jpeg)
        except Exception:
            log.exception("job %s: no preview", self._job.id)
        self.forget()
        now = time.monotonic()
        self._next_preview_at = now + max(self._preview_every_s, (now - began) / PREVIEW_SHARE)

    def forget(self) -> None:
        """Drops what it holds of a step."""
        self._peek = None

    def _on_progress(self, p: Progress) -> None:
        done = {"step": p.step, "num_steps": p.num_steps}
        self.emit("progress", stage=p.stage, fraction=p.fraction, eta_s=p.eta_s, **done)
