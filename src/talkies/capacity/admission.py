"""What a job will hold at its highest point, from its sizes and the model's, before anything is allocated. No torch.

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

from dataclasses import dataclass
from math import prod

from talkies.capacity.cost import CHARS_PER_TOKEN, FALLBACK_ASPECT, num_forwards
from talkies.capacity.demand import Extent, extents_of
from talkies.capacity.forward_bytes import ForwardRates
from talkies.errors import InvalidRequest
from talkies.h3.clip_plan import plan
from talkies.h3.geometry import Geometry, Limits, geometry_of, snap_frames, tiles_along
from talkies.request import VideoRequest

SLACK = 1.25  # fragmentation, workspaces of libraries, what an estimate forgets; a GPU's allocator says it exactly
WRITER_BYTES_PER_PIXEL = 225  # 150 frames of yuv420p in x264 and before it
VISION_PATCH_PIXELS = 16 * 16


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
    """Bytes per unit of size, of one loaded checkpoint on one device.

    :func:`talkies.engine.worker.memory_model.measure` makes one.
    """

    forward: ForwardRates  # of packed rows
    row_held: float
    step_modulation: int  # of one forward
    whole_modulation: int  # up to which all steps of a request are on the device; of more, two
    text_token: float
    vision_patch: float
    vit_token: float  # of a token of the VAE's decoder
    vit_batch_tokens: int
    vit_extra_tokens: int  # registers of each tile
    tile_pixels: int  # side of a tile
    tile_overlap: int
    window_frames: int
    clip_frames: int
    encoder_pixel: float  # of one pixel of one frame of a tile in the encoder
    sample_decode: float  # of one stereo sample
    sample_encode: float
    visits: Visits = Visits()
    slack: float = SLACK
    room: int | None = None  # for jobs; None: nobody knows, nothing is refused
    budget: int | None = None  # the operator's figure, of the whole worker
    flag: str = "--ram-budget"

    @property
    def room_or_inf(self) -> float:
        return float("inf") if self.room is None else float(self.room)

    def need(self, request: VideoRequest, limits: Limits) -> Need:
        """Raises ``InvalidRequest`` where the checkpoint cannot make it."""
        geometry = plan(request, limits, auto_aspect=FALLBACK_ASPECT)
        return self.need_of(request, geometry, limits, extents_of(request, geometry, limits))

    def need_of(self, request: VideoRequest, geometry: Geometry, limits: Limits, extents: tuple[Extent, ...]) -> Need:
        canvas = geometry.width * geometry.height
        patches = sum(e.pixels for e in extents) / VISION_PATCH_PIXELS
        tokens = len(request.prompt) / CHARS_PER_TOKEN + 1 + patches / 4
        rows = tokens + geometry.video_rows + geometry.audio_rows + sum(e.rows(limits) for e in extents)
        window = 3 * 4 * self.window_frames * canvas
        stages = (
            (self.visits.denoise, self.forward.bytes(rows)),
            (self.visits.text, tokens * self.text_token + patches * self.vision_patch),
            (self.visits.decode, self._decode(geometry, limits) + 2 * window),
            (self.visits.sound, geometry.num_samples * self.sample_decode),
            *((self.visits.encode, self._encode(e, limits)) for e in extents),
        )
        inputs = sum(3 * e.pixels for e in extents)
        wave = 3 * 8 * geometry.num_samples
        all_steps = num_forwards(request, limits) * self.step_modulation
        modulation = max(2 * self.step_modulation, min(self.whole_modulation, all_steps))
        held = rows * self.row_held + modulation + inputs + wave + 1.5 * window + WRITER_BYTES_PER_PIXEL * canvas
        transient = max(visiting + self.slack * most for visiting, most in stages)
        return Need(held=round(self.slack * held), transient=round(transient))

    def _decode(self, geometry: Geometry, limits: Limits) -> float:
        """Tokens of the largest batch of tiles, and the pixels of all tiles of a window."""
        sides = [min(side, self.tile_pixels) for side in (geometry.height, geometry.width)]
        latent = limits.clip_latents + limits.tail_latents
        tokens = latent * (sides[0] // limits.spatial_factor) * (sides[1] // limits.spatial_factor)
        tokens += self.vit_extra_tokens
        tiles = prod(
            tiles_along(side, tile=self.tile_pixels, min_overlap=self.tile_overlap)
            for side in (geometry.height, geometry.width)
        )
        batch = min(tiles, max(1, self.vit_batch_tokens // tokens))
        return batch * tokens * self.vit_token + tiles * sides[0] * sides[1] * 3 * 4 * self.window_frames

    def _encode(self, extent: Extent, limits: Limits) -> float:
        frames = min(extent.num_frames, self.clip_frames)
        tile = min(extent.height, self.tile_pixels) * min(extent.width, self.tile_pixels)
        samples = extent.audio_latents * limits.audio_hop
        pixels = 3 * 3 * 4 * extent.pixels
        return max(pixels + frames * tile * self.encoder_pixel, samples * self.sample_encode)


def check_fits(model: MemoryModel | None, request: VideoRequest, limits: Limits) -> None:
    """Raises ``InvalidRequest`` for a job that would not fit even alone; ``param`` is what the client can change."""
    if model is None or model.room is None:
        return
    need = model.need(request, limits)
    if need.peak <= model.room:
        return
    param, hint = _way_out(model, request, limits)
    geometry = plan(request, limits, auto_aspect=FALLBACK_ASPECT)
    value = {
        "size": geometry.size,
        "num_frames": geometry.num_frames,
        "seconds": request.target.seconds,
        "conditions": f"{len(request.conditions)} references",
    }[param]
    room = f"of {_gib(model.budget)} ({model.flag})" if model.budget else "of free memory"
    raise InvalidRequest(
        f"{param}={value}: this clip needs about {_gib(need.peak)}, over the {_gib(model.room)} left for jobs {room}",
        hint=hint,
        param=param,
    )


def _way_out(model: MemoryModel, request: VideoRequest, limits: Limits) -> tuple[str, str]:
    """The field whose change helps, with the largest value that fits: fewer frames, else fewer references or pixels."""
    asked = plan(request, limits, auto_aspect=FALLBACK_ASPECT)

    def fits(width: int, height: int, num_frames: int, *, references: bool = True) -> bool:
        geometry = geometry_of(width, height, num_frames, limits)
        extents = extents_of(request, geometry, limits) if references else ()
        return model.need_of(request, geometry, limits, extents).peak <= (model.room or 0)

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
