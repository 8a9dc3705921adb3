"""What a job will hold at its highest point, from its demand and the model's sizes, before anything is allocated.
No torch.

A worker does one unit at a time, so what counts is what all begun jobs *hold* between units, plus the largest
*transient* of any one unit. The terms are the allocations of the pipeline, one by one; tests/capacity/test_admission.py
compares them with what torch records.

    denoise   rows x (4 copies of the stream + the larger of attention and feed-forward), see model/block.py; on a GPU
              less, see capacity/forward_bytes.py
    decode    one batch of ViT tokens, all tiles of a window, the stitched window and its chunk; or the whole wave
    encode    the pixels in float32 and one clip of one tile in the encoder; text rows and vision patches
    visits    weights that come for a stage and leave after it
    held      latents, noise and anchors, rotary tables, refined text, modulation on the device, decoded references, a
              decode that was left half way, and the MP4 writer with its look-ahead
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from talkies.capacity import stage_bytes
from talkies.capacity.demand import Demand, of_clip
from talkies.capacity.forward_bytes import ForwardRates
from talkies.capacity.sizes import Sizes
from talkies.errors import InvalidRequest
from talkies.h3.geometry import Limits, snap_frames
from talkies.request import VideoRequest

SLACK = 1.25  # fragmentation, workspaces of libraries, what an estimate forgets; a GPU's allocator says it exactly
WRITER_BYTES_PER_PIXEL = 225  # 150 frames of yuv420p in x264 and before it


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Bytes: ``held`` from the job's first unit to its last, ``transient`` on top during its largest unit."""

    held: int
    transient: int

    @property
    def peak(self) -> int:
        return self.held + self.transient


@dataclass(frozen=True, kw_only=True, slots=True)
class Visits:
    """Bytes of weights on the device while a stage works, beside those that are always there."""

    denoise: int = 0
    text: int = 0
    decode: int = 0
    encode: int = 0
    sound: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryModel:
    """Sizes of one loaded checkpoint on one device, and the room that jobs have there.

    :func:`talkies.engine.worker.memory_model.measure` makes one.
    """

    sizes: Sizes
    forward: ForwardRates  # of packed rows, with the kernels that run
    whole_modulation: int  # up to which all steps of a request are on the device; of more, two
    fp8_text: bool = False
    visits: Visits = Visits()
    slack: float = SLACK
    room: int | None = None  # for jobs; None: nobody knows, nothing is refused
    budget: int | None = None  # the operator's figure, of the whole worker
    flag: str = "--ram-budget"
    one_memory: bool = False  # of all ranks

    @property
    def room_or_inf(self) -> float:
        return float("inf") if self.room is None else float(self.room)

    def rows_here(self, rows: int) -> int:
        """Of a forward, in the memory that is counted: on CPUs all ranks have one."""
        return rows if self.one_memory else self.sizes.rows_here(rows)

    def need(self, demand: Demand) -> Need:
        """Of a job, by the formulas of ``stage_bytes``, and what of it lies in host memory besides."""
        sizes, visits = self.sizes, self.visits
        stages = (
            (visits.denoise, self.forward.bytes(self.rows_here(demand.rows))),
            (visits.text, stage_bytes.text_bytes(sizes, demand, fp8=self.fp8_text)),
            (visits.decode, stage_bytes.decode_bytes(sizes, demand)),
            (visits.sound, stage_bytes.sound_bytes(sizes, demand)),
            *((visits.encode, stage_bytes.condition_bytes(sizes, c)) for c in demand.conditions),
        )
        held = stage_bytes.held_bytes(sizes, demand, whole_modulation=self.whole_modulation)
        transient = max(visiting + self.slack * most for visiting, most in stages)
        return Need(held=round(self.slack * (held + _host_bytes(sizes, demand))), transient=round(transient))


def _host_bytes(sizes: Sizes, demand: Demand) -> float:
    """Decoded references, the wave, a decode that was left half way, and the MP4 writer with its look-ahead."""
    inputs = sum(3 * c.pixels + 8 * c.num_samples for c in demand.conditions)
    wave = 3 * 8 * demand.target.num_samples
    canvas = demand.target.width * demand.target.height
    return inputs + wave + 1.5 * stage_bytes.window_bytes(sizes.video, demand) + WRITER_BYTES_PER_PIXEL * canvas


def check_fits(model: MemoryModel | None, request: VideoRequest, demand: Demand, limits: Limits) -> None:
    """Raises ``InvalidRequest`` for a job that would not fit even alone; ``param`` is what the client can change."""
    if model is None or model.room is None:
        return
    need = model.need(demand)
    if need.peak <= model.room:
        return
    param, hint = _way_out(model, request, demand, limits)
    value = {
        "size": demand.target.size,
        "num_frames": demand.target.num_frames,
        "seconds": request.target.seconds,
        "conditions": f"{len(request.conditions)} references",
    }[param]
    room = f"of {_gib(model.budget)} ({model.flag})" if model.budget else "of free memory"
    raise InvalidRequest(
        f"{param}={value}: this clip needs about {_gib(need.peak)}, over the {_gib(model.room)} left for jobs {room}",
        hint=hint,
        param=param,
    )


def _way_out(model: MemoryModel, request: VideoRequest, demand: Demand, limits: Limits) -> tuple[str, str]:
    """The field whose change helps, with the largest value that fits: fewer frames, else fewer references or pixels."""
    asked = demand.target

    def fits(width: int, height: int, num_frames: int, *, references: bool = True) -> bool:
        base = demand if references else replace(demand, conditions=(), headers=())
        other = of_clip(base, request, limits, width=width, height=height, num_frames=num_frames)
        return model.need(other).peak <= (model.room or 0)

    shortest = snap_frames(limits.min_frames, limits)
    for frames in range(asked.num_frames - limits.clip_frames, shortest - 1, -limits.clip_frames):
        if fits(asked.width, asked.height, frames):
            param = "seconds" if request.target.seconds is not None else "num_frames"
            return param, f"at this size at most {frames} frames ({frames / limits.fps:.2f} seconds) fit"
    if request.conditions and fits(asked.width, asked.height, shortest, references=False):
        return "conditions", "use fewer or smaller references"
    m = limits.canvas_multiple
    for side in range(min(asked.width, asked.height) - m, 0, -m):
        if fits(side, side, shortest):
            return "size", f"{side}x{side} with {shortest} frames would fit"
    return "size", f"the server needs a larger {model.flag}"


def _gib(value: int | None) -> str:
    value = value or 0
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
