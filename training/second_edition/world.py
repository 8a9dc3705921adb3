"""The world of the second edition: four times the pixels, and chance in what the words leave open.

The same objects, motions and sounds as in `training.world`, whose attributes, colours and timbres it uses. New are

    size     the six ratios at a short edge of 128 px; all lengths are twice those of the first edition
    chance   size and place are drawn evenly; a clip begins anywhere in its motion (`FIRST_S`); places spread wider
    time     every event lies on a frame and on the 25 ms clock of the audio latents, so on a multiple of 0.125 s
    picture  `paint`: antialiased, lit from the upper left, a soft shadow on the floor

API (pure torch, batched, any device; B clips, F frames, K event slots):

    CANVASES[name] -> Canvas                              short edge 128, multiples of 32
    sample_specs(n, canvas, generator, device) -> Specs   what each clip shows
    trajectory(specs, num_frames, start_s) -> Motion      centre, intensity and events of every clip
    render(specs, num_frames, start_s) -> Rendered        video_B3FHW in 0..1, mask_B1FHW in 0..1, motion
    audio_for(specs, motion, num_frames) -> [B, 2, samples]   `training.world`'s
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training import world
from training.second_edition import paint
from training.world import BOUNCE, FLASH, LEFT, RIGHT, SILENT, STAY, Canvas, Motion, Rendered, constant

CANVASES: dict[str, Canvas] = {c.name: Canvas(c.name, 2 * c.width, 2 * c.height) for c in world.CANVASES.values()}
MOTION_SHARE = (0.34, 0.17, 0.17, 0.09, 0.23)
SOUND_SHARE = (0.29, 0.29, 0.29, 0.13)
PERIOD_S = world.PERIOD_S
CROSSING_S = (1.5, 0.75)
# When the first event comes, drawn evenly: of bounce and flash by tempo, of slides by tempo. In 22 frames, 0.92 s, a
# slow bounce shows its impact and a fast one its second, so that the tempo can be seen in the shortest clip.
FIRST_S = (
    ((0.125, 0.25, 0.375, 0.5), (0.125, 0.25, 0.375)),
    ((1.25, 1.375, 1.5), (0.5, 0.625, 0.75)),
)
DRAWS = 12  # a multiple of all their lengths
TICK_S = 0.125  # three frames, five audio latents
JITTER = 3.0  # px at a short edge of 64: beside a wall, the object touches it at most


@dataclass(frozen=True, slots=True)
class Specs:
    """What B clips show. `attributes` hold indices into `world.ATTRIBUTES`, [B] int64 each; the rest are [B] floats:
    the object's distance from its place in px, and the seconds until its first event."""

    canvas: Canvas
    attributes: dict[str, Tensor]
    jitter_x_px: Tensor
    jitter_y_px: Tensor
    first_s: Tensor

    def __len__(self) -> int:
        return len(self.first_s)

    def _map(self, change) -> Specs:
        attributes = {name: change(value) for name, value in self.attributes.items()}
        return Specs(self.canvas, attributes, *map(change, (self.jitter_x_px, self.jitter_y_px, self.first_s)))

    def __getitem__(self, index: slice | Tensor) -> Specs:
        return self._map(lambda value: value[index])

    def to(self, device: torch.device | str) -> Specs:
        return self._map(lambda value: value.to(device))


def sample_specs(
    n: int, canvas: Canvas, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> Specs:
    """Draws n clips. The generator decides the device unless one is given."""
    device = torch.device(device or (generator.device if generator else "cpu"))

    def draw(shares: tuple[float, ...]) -> Tensor:
        return torch.multinomial(constant(shares, device), n, replacement=True, generator=generator)

    def jitter() -> Tensor:
        return JITTER * canvas.scale * (2 * torch.rand(n, generator=generator, device=device) - 1)

    attributes = {name: draw((1.0,) * len(values)) for name, values in world.ATTRIBUTES.items()}
    attributes["motion"], attributes["sound"] = draw(MOTION_SHARE), draw(SOUND_SHARE)
    motion = attributes["motion"]
    slides = (motion == LEFT) | (motion == RIGHT)
    attributes["sound"] = torch.where(motion == STAY, SILENT, attributes["sound"])
    attributes["place"] = torch.where(slides, 1, attributes["place"])
    options = tuple(tuple((options * DRAWS)[:DRAWS] for options in kind) for kind in FIRST_S)
    choice = torch.randint(DRAWS, (n,), generator=generator, device=device)
    first_s = constant(options, device)[slides.long(), attributes["tempo"], choice]
    return Specs(canvas, attributes, jitter(), jitter(), first_s)


def describe(specs: Specs, index: int) -> dict[str, str]:
    """The attribute values of one clip by name."""
    return {name: world.ATTRIBUTES[name][int(value[index])] for name, value in specs.attributes.items()}


def trajectory(specs: Specs, num_frames: int, start_s: Tensor | float = 0.0) -> Motion:
    """Where the object is in every frame and when it sounds. `start_s` ([B] or a number) shifts the window."""
    canvas, attributes, scale = specs.canvas, specs.attributes, specs.canvas.scale
    device = specs.first_s.device

    def lookup(values: tuple, name: str) -> Tensor:
        return constant(values, device)[attributes[name]]

    start_s = torch.as_tensor(start_s, device=device, dtype=torch.float32).expand(len(specs))
    time_BF = torch.arange(num_frames, device=device)[None] / world.FPS + start_s[:, None]
    motion, first_s = attributes["motion"][:, None], specs.first_s[:, None]
    slides = (motion == LEFT) | (motion == RIGHT)
    radius = lookup(world.RADIUS_PX, "size") * scale
    period, crossing = lookup(PERIOD_S, "tempo")[:, None], lookup(CROSSING_S, "tempo")[:, None]
    phase = torch.remainder(time_BF - first_s + 1e-5, period)  # an event's own frame is after it, whatever the rounding
    ones_BF = torch.ones_like(time_BF)

    ground_y = (canvas.floor_y - lookup(world.SHAPE_BOTTOM, "shape") * radius)[:, None]
    lift = phase / period
    bouncing_y = ground_y - 4 * bounce_height_px(canvas) * lift * (1 - lift)
    flashing_y = (canvas.floor_y / 2 + specs.jitter_y_px)[:, None]
    y = torch.where(motion == BOUNCE, bouncing_y, torch.where(motion == FLASH, flashing_y, ground_y) * ones_BF)

    wall = world.WALL_PX * scale
    side = torch.maximum(wall + radius + JITTER * scale, torch.full_like(radius, 0.2 * canvas.width))
    place = attributes["place"]
    middle = torch.full_like(radius, canvas.width / 2)
    resting_x = torch.where(place == 0, side, torch.where(place == 1, middle, canvas.width - side)) + specs.jitter_x_px
    low, high = (wall + radius)[:, None], (canvas.width - wall - radius)[:, None]
    travelled = (1 - (first_s - time_BF) / crossing).clamp(0, 1) * (high - low)
    x = torch.where(motion == RIGHT, low + travelled, torch.where(motion == LEFT, high - travelled, resting_x[:, None]))

    flash = world.FLASH_DIM + (1 - world.FLASH_DIM) * torch.exp(-phase / world.FLASH_DECAY_S)
    intensity = torch.where(motion == FLASH, flash, ones_BF)

    slot = torch.arange(world.MAX_EVENTS, device=device)[None]
    event_s = torch.where(slides, first_s, first_s + slot * period) - start_s[:, None]
    valid = torch.where(slides, slot == 0, motion != STAY) & (event_s >= 0) & (event_s < num_frames / world.FPS)
    event_x = torch.where(motion == LEFT, low, torch.where(motion == RIGHT, high, resting_x[:, None]))
    return Motion(x, y, intensity, event_s, event_x.expand(-1, world.MAX_EVENTS), valid)


def bounce_height_px(canvas: Canvas) -> float:
    """The biggest object stays inside the picture at the apex."""
    return min(canvas.floor_y - 30.0 * canvas.scale, 32.0 * canvas.scale)


def render(specs: Specs, num_frames: int, start_s: Tensor | float = 0.0) -> Rendered:
    """Pictures, object mask and the motion behind them."""
    motion = trajectory(specs, num_frames, start_s)
    return Rendered(*paint.paint(specs.canvas, specs.attributes, motion, bounce_height_px(specs.canvas)), motion)


audio_for = world.audio_for
