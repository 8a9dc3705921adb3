"""The procedural world that the embedded checkpoint is trained on: one object, one motion, one sound.

API (pure torch, batched, any device; B clips, F frames, K event slots, Ta audio latents per channel):

    CANVASES[name] -> Canvas(name, width, height)       six named ratios, short edge 64, multiples of 16
    ATTRIBUTES[name] -> tuple of value names            a clip's attribute is an index into its tuple
    sample_specs(n, canvas, generator) -> Specs         what each clip shows; the words fix nearly all of it
    trajectory(specs, num_frames, start_s) -> Motion    centre, intensity and events (seconds) of every clip
    render(specs, num_frames, start_s) -> Rendered      video_B3FHW in 0..1, mask_B1FHW in 0..1, motion
    audio_for(specs, motion, num_frames) -> [B, 2, 800 * Ta], 32 kHz, Ta = num_audio_latents(num_frames)
    describe(specs, index) -> {attribute: value name}   the truth that a judge compares with
    prompt(attributes, rng, kind) -> (text, kept)       re-exported from training.prompts

Two rules make the world learnable by a model of a few million parameters. Every event lies on the 25 ms clock of the
audio latents and no timbre has noise, so all 800-sample frames span about 20 dimensions. And what the words leave
open is kept tiny (the centre, +-2 px): a free position would have to be found at high noise, where the loss of a small
object of unknown place hardly depends on its colour.

What the words mean, in numbers:

    tempo    period of bounce and flash PERIOD_S, time of a slide's wall hit CROSSING_S
    bounce   parabola of height bounce_height_px(canvas); the clip starts at the apex; impact and sound at P/2 + k*P
    flash    dim, at P/2 + k*P at once fully bright, then fading with FLASH_DECAY_S; sound at each onset
    left     starts at the right wall, crosses at constant speed, hits the left wall at CROSSING_S, stays there
    right    the mirror image
    stay     rests on the floor, always silent
    size     RADIUS_PX; place: centre x of bounce, flash and stay (a slide has no place: index 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from training.prompts import prompt as prompt

FPS = 24
SAMPLE_RATE_HZ = 32_000
SAMPLES_PER_LATENT = 800
FRAME_COUNTS = (22, 39, 56, 73, 90, 107, 124)  # 17n + 5


@dataclass(frozen=True, slots=True)
class Canvas:
    name: str
    width: int
    height: int

    @property
    def scale(self) -> float:
        """Pixels for each pixel of a canvas whose short edge is 64, the first edition's."""
        return min(self.width, self.height) / 64

    @property
    def latent_px(self) -> int:
        """Side of a latent in pixels: 8 in the first edition, 16 in the second, so their rows are as many."""
        return min(self.width, self.height) // 8

    @property
    def floor_y(self) -> float:
        return self.height - 8.0 * self.scale


CANVASES: dict[str, Canvas] = {
    name: Canvas(name, width, height)
    for name, width, height in (
        ("16:9", 112, 64),
        ("21:9", 144, 64),
        ("4:3", 80, 64),
        ("1:1", 64, 64),
        ("3:4", 64, 80),
        ("9:16", 64, 112),
    )
}

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "color": ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "pink"),
    "shape": ("ball", "square", "triangle"),
    "background": ("dark", "light"),
    "motion": ("bounce", "left", "right", "stay", "flash"),
    "tempo": ("slow", "fast"),
    "sound": ("bell", "drum", "beep", "silent"),
    "size": ("small", "medium", "big"),
    "place": ("left", "middle", "right"),
}
BOUNCE, LEFT, RIGHT, STAY, FLASH = range(5)
SILENT = 3

MOTION_SHARE = (0.34, 0.17, 0.17, 0.09, 0.23)
SOUND_SHARE = (0.29, 0.29, 0.29, 0.13)
SIZE_SHARE = PLACE_SHARE = (0.28, 0.44, 0.28)  # the middle value goes unsaid, so it is the likeliest

COLOR_RGB = (
    (0.90, 0.15, 0.15),
    (0.15, 0.75, 0.25),
    (0.20, 0.35, 0.95),
    (0.95, 0.85, 0.15),
    (0.98, 0.55, 0.10),
    (0.60, 0.25, 0.80),
    (0.15, 0.80, 0.85),
    (0.98, 0.50, 0.75),
)
BACKGROUND_RGB = ((0.10, 0.10, 0.14), (0.90, 0.90, 0.86))
FRAME_RGB = ((0.22, 0.22, 0.28), (0.70, 0.70, 0.66))  # floor and walls
WALL_PX = 3.0
RADIUS_PX = (8.0, 10.0, 13.0)
SHAPE_BOTTOM = (1.0, 0.88, 0.85)  # distance from centre to floor in radii
PERIOD_S = (1.0, 0.5)
CROSSING_S = (1.6, 0.8)
FLASH_DIM, FLASH_DECAY_S = 0.25, 0.15
JITTER_PX = 2.0
MAX_EVENTS = 12


@dataclass(frozen=True, slots=True)
class Specs:
    """What B clips show. `attributes` hold indices into ATTRIBUTES, [B] int64 each; jitters are px, [B] float."""

    canvas: Canvas
    attributes: dict[str, Tensor]
    jitter_x_px: Tensor
    jitter_y_px: Tensor

    def __len__(self) -> int:
        return len(self.jitter_x_px)

    def __getitem__(self, index: slice | Tensor) -> Specs:
        attributes = {name: value[index] for name, value in self.attributes.items()}
        return Specs(self.canvas, attributes, self.jitter_x_px[index], self.jitter_y_px[index])

    def to(self, device: torch.device | str) -> Specs:
        attributes = {name: value.to(device) for name, value in self.attributes.items()}
        return Specs(self.canvas, attributes, self.jitter_x_px.to(device), self.jitter_y_px.to(device))


@dataclass(frozen=True, slots=True)
class Motion:
    """Centre and brightness per frame [B, F]; impact or onset times and places [B, K], true where `event_valid`."""

    x_px: Tensor
    y_px: Tensor
    intensity: Tensor
    event_s: Tensor
    event_x_px: Tensor
    event_valid: Tensor


@dataclass(frozen=True, slots=True)
class Rendered:
    video_B3FHW: Tensor
    mask_B1FHW: Tensor
    motion: Motion


def num_audio_latents(num_frames: int) -> int:
    return round(num_frames / FPS * 40)


def bounce_height_px(canvas: Canvas) -> float:
    return min(canvas.floor_y - 30.0, 32.0)  # the biggest object stays inside the picture at the apex


def sample_specs(
    n: int, canvas: Canvas, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> Specs:
    """Draws n clips. The generator decides the device unless one is given."""
    device = device or (generator.device if generator else "cpu")

    def draw(shares: tuple[float, ...]) -> Tensor:
        weights = constant(shares, torch.device(device))
        return torch.multinomial(weights, n, replacement=True, generator=generator)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator, device=device)

    attributes = {name: draw((1.0,) * len(values)) for name, values in ATTRIBUTES.items()}
    attributes["motion"], attributes["sound"] = draw(MOTION_SHARE), draw(SOUND_SHARE)
    attributes["size"], attributes["place"] = draw(SIZE_SHARE), draw(PLACE_SHARE)
    motion = attributes["motion"]
    attributes["sound"] = torch.where(motion == STAY, SILENT, attributes["sound"])
    attributes["place"] = torch.where((motion == LEFT) | (motion == RIGHT), 1, attributes["place"])
    return Specs(canvas, attributes, uniform(-JITTER_PX, JITTER_PX), uniform(-JITTER_PX, JITTER_PX))


def describe(specs: Specs, index: int) -> dict[str, str]:
    """The attribute values of one clip by name."""
    return {name: ATTRIBUTES[name][int(value[index])] for name, value in specs.attributes.items()}


@lru_cache
def constant(values: tuple, device: torch.device) -> Tensor:
    """The values as a tensor, made once: a copy to a GPU waits for everything queued before it."""
    return torch.tensor(values, device=device)


def _lookup(values: tuple, index: Tensor) -> Tensor:
    return constant(values, index.device)[index]


def trajectory(specs: Specs, num_frames: int, start_s: Tensor | float = 0.0) -> Motion:
    """Where the object is in every frame and when it sounds. `start_s` ([B] or a number) shifts the window."""
    canvas, attributes = specs.canvas, specs.attributes
    device = specs.jitter_x_px.device
    n = len(specs)
    start_s = torch.as_tensor(start_s, device=device, dtype=torch.float32).expand(n)
    time_BF = torch.arange(num_frames, device=device)[None] / FPS + start_s[:, None]
    motion = attributes["motion"][:, None]
    slides = (motion == LEFT) | (motion == RIGHT)
    radius = _lookup(RADIUS_PX, attributes["size"])
    period = _lookup(PERIOD_S, attributes["tempo"])[:, None]
    crossing = _lookup(CROSSING_S, attributes["tempo"])[:, None]
    phase = torch.remainder(time_BF - period / 2, period)  # seconds since the last event
    ones_BF = torch.ones_like(time_BF)

    ground_y = (canvas.floor_y - _lookup(SHAPE_BOTTOM, attributes["shape"]) * radius)[:, None]
    lift = phase / period
    bouncing_y = ground_y - 4 * bounce_height_px(canvas) * lift * (1 - lift)
    flashing_y = (canvas.floor_y / 2 + specs.jitter_y_px)[:, None] * ones_BF
    y = torch.where(motion == BOUNCE, bouncing_y, torch.where(motion == FLASH, flashing_y, ground_y * ones_BF))

    side = torch.maximum(WALL_PX + radius + 3, torch.full_like(radius, 0.2 * canvas.width))
    place = attributes["place"]
    middle = torch.full_like(radius, canvas.width / 2)
    resting_x = torch.where(place == 0, side, torch.where(place == 1, middle, canvas.width - side)) + specs.jitter_x_px
    low, high = (WALL_PX + radius)[:, None], (canvas.width - WALL_PX - radius)[:, None]
    travelled = (time_BF / crossing).clamp(0, 1) * (high - low)
    x = torch.where(motion == RIGHT, low + travelled, torch.where(motion == LEFT, high - travelled, resting_x[:, None]))

    flash = FLASH_DIM + (1 - FLASH_DIM) * torch.exp(-phase / FLASH_DECAY_S) * (time_BF >= period / 2)
    intensity = torch.where(motion == FLASH, flash, ones_BF)

    slot = torch.arange(MAX_EVENTS, device=device)[None]
    event_s = torch.where(slides, crossing, period / 2 + slot * period) - start_s[:, None]
    valid = torch.where(slides, slot == 0, motion != STAY) & (event_s >= 0) & (event_s < num_frames / FPS)
    event_x = torch.where(motion == LEFT, low, torch.where(motion == RIGHT, high, resting_x[:, None]))
    return Motion(x, y, intensity, event_s, event_x.expand(-1, MAX_EVENTS), valid)


def paint(specs: Specs, motion: Motion) -> tuple[Tensor, Tensor]:
    """Antialiased picture [B, 3, F, H, W] in 0..1 and the object's coverage [B, 1, F, H, W]."""
    canvas, attributes = specs.canvas, specs.attributes
    device = motion.x_px.device
    columns = (torch.arange(canvas.width, device=device) + 0.5).view(1, 1, 1, -1)
    lines = (torch.arange(canvas.height, device=device) + 0.5).view(1, 1, -1, 1)
    dx, dy = columns - motion.x_px[:, :, None, None], lines - motion.y_px[:, :, None, None]
    radius = _lookup(RADIUS_PX, attributes["size"])[:, None, None, None]
    shape = attributes["shape"][:, None, None, None]
    ball = torch.sqrt(dx * dx + dy * dy + 1e-6) - radius
    square = torch.maximum(dx.abs(), dy.abs()) - 0.88 * radius
    triangle = torch.maximum(dy - 0.85 * radius, 0.875 * dx.abs() - 0.484 * (dy + 1.05 * radius))
    distance = torch.where(shape == 0, ball, torch.where(shape == 1, square, triangle))
    mask = (0.5 - distance).clamp(0, 1)[:, None]

    def rgb(palette: tuple, index: Tensor) -> Tensor:
        return _lookup(palette, index)[:, :, None, None, None]

    edge = (lines > canvas.floor_y) | (columns < WALL_PX) | (columns > canvas.width - WALL_PX)
    background = attributes["background"]
    scene = torch.where(edge[:, None], rgb(FRAME_RGB, background), rgb(BACKGROUND_RGB, background))
    alpha = mask * motion.intensity[:, None, :, None, None]
    return scene * (1 - alpha) + rgb(COLOR_RGB, attributes["color"]) * alpha, mask


def render(specs: Specs, num_frames: int, start_s: Tensor | float = 0.0) -> Rendered:
    """Pictures, object mask and the motion behind them."""
    motion = trajectory(specs, num_frames, start_s)
    return Rendered(*paint(specs, motion), motion)


@lru_cache
def timbres(device: torch.device | str = "cpu") -> Tensor:
    """[4, 28800]: 0.9 s of bell, drum, beep and silence."""
    num_samples = 36 * SAMPLES_PER_LATENT
    t = torch.arange(num_samples, dtype=torch.float64) / SAMPLE_RATE_HZ
    partials = ((1.0, 0.5, 0.22), (2.0, 0.22, 0.14), (2.76, 0.14, 0.10), (5.4, 0.06, 0.05))
    bell = sum(gain * torch.sin(2 * math.pi * 660 * ratio * t) * torch.exp(-t / fade) for ratio, gain, fade in partials)
    glide = 2 * math.pi * (70 * t + 110 * 0.03 * (1 - torch.exp(-t / 0.03)))
    click = 0.15 * torch.sin(2 * math.pi * 420 * t) * torch.exp(-t / 0.012)
    drum = 0.8 * torch.sin(glide) * torch.exp(-t / 0.09) + click
    beep = 0.5 * torch.sin(2 * math.pi * 1000 * t) * (t / 0.004).clamp(max=1) * ((0.11 - t) / 0.01).clamp(0, 1)
    release = ((0.9 - t) / 0.1).clamp(max=1)
    attack = (t / 0.001).clamp(max=1)
    return torch.stack([bell * release * attack, drum * release, beep, torch.zeros_like(t)]).float().to(device)


def pan(x_px: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Constant-power gains (left, right) of a sound at column x."""
    angle = (math.pi / 2) * (0.08 + 0.84 * (x_px / width).clamp(0, 1))
    return torch.cos(angle), torch.sin(angle)


def audio_for(specs: Specs, motion: Motion, num_frames: int) -> Tensor:
    """[B, 2, 800 * Ta] in -1..1: the clip's timbre at each of its events, panned to where the event is."""
    num_samples = num_audio_latents(num_frames) * SAMPLES_PER_LATENT
    template = timbres(motion.event_s.device)[specs.attributes["sound"]]
    index = (motion.event_s * SAMPLE_RATE_HZ).round().long().clamp(0, num_samples - 1)
    sounding = (motion.event_valid & (motion.event_s * SAMPLE_RATE_HZ < num_samples)).float()
    impulses = torch.zeros(len(specs), 2, num_samples, device=template.device)
    for channel, gain in enumerate(pan(motion.event_x_px, specs.canvas.width)):
        impulses[:, channel].scatter_add_(1, index, gain * sounding)
    size = num_samples + template.shape[1]
    spectrum = torch.fft.rfft(impulses, size) * torch.fft.rfft(template, size)[:, None]
    return torch.fft.irfft(spectrum, size)[..., :num_samples].clamp(-1, 1)
