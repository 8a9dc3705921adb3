"""The picture of a clip: one lit object over its soft shadow, in front of a wall, between two walls, on a floor.

Edges are antialiased: coverage falls from 1 to 0 over the pixel that the edge crosses. Light comes from the upper left.
The shadow lies on the floor alone, wider and fainter the higher the object is.

B clips, F frames, H lines, W columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training import world
from training.world import Canvas, Motion, constant

SHADE = 0.16  # of the colour, from the middle of an object to its lit or dark side
GLOSS, GLOSS_REACH = 0.3, 0.3  # a ball's highlight: share of white, width in radii
SHADOW, SHADOW_FADE = 0.5, 0.6  # darkness of a shadow at rest, share that is lost at the apex
SKY = 0.03  # the wall is this much lighter at the top and darker at the bottom


def paint(canvas: Canvas, attributes: dict[str, Tensor], motion: Motion, apex_px: float) -> tuple[Tensor, Tensor]:
    """Picture [B, 3, F, H, W] in 0..1 and the object's coverage [B, 1, F, H, W]. `apex_px` is a bounce's height."""
    device = motion.x_px.device

    def of_each(values: tuple, name: str) -> Tensor:
        return constant(values, device)[attributes[name]]

    columns = (torch.arange(canvas.width, device=device) + 0.5).view(1, 1, 1, -1)
    lines = (torch.arange(canvas.height, device=device) + 0.5).view(1, 1, -1, 1)
    dx, dy = columns - motion.x_px[:, :, None, None], lines - motion.y_px[:, :, None, None]
    radius = (of_each(world.RADIUS_PX, "size") * canvas.scale)[:, None, None, None]
    mask = coverage(dx, dy, radius, attributes["shape"][:, None, None, None])[:, None]

    light = (-0.6 * dx - 0.8 * dy) / radius
    shade = (1 + SHADE * light.clamp(-1.2, 1.2))[:, None]
    far = ((dx + 0.35 * radius).square() + (dy + 0.4 * radius).square()) / (GLOSS_REACH * radius).square()
    is_ball = (attributes["shape"] == 0).view(-1, 1, 1, 1)
    gloss = (GLOSS * torch.exp(-far) * is_ball)[:, None]
    color = of_each(world.COLOR_RGB, "color")[:, :, None, None, None]
    lit = (color * shade).clamp(0, 1)
    lit = lit + gloss * (1 - lit)
    alpha = mask * motion.intensity[:, None, :, None, None]
    picture = torch.lerp(room(canvas, attributes["background"]), lit, alpha)
    top = int(canvas.floor_y)  # objects stand on the floor's upper edge, so none covers a shadow
    picture[..., top:, :] *= 1 - shadow(canvas, motion, radius, lines[:, :, top:], columns, apex_px)[:, None]
    return picture, mask


def coverage(dx: Tensor, dy: Tensor, radius: Tensor, shape: Tensor) -> Tensor:
    """How much of each pixel the object covers, by the signed distance of its centre from the edge in px."""
    ball = torch.sqrt(dx * dx + dy * dy + 1e-6) - radius
    square = torch.maximum(dx.abs(), dy.abs()) - 0.88 * radius
    triangle = torch.maximum(dy - 0.85 * radius, 0.875 * dx.abs() - 0.484 * (dy + 1.05 * radius))
    distance = torch.where(shape == 0, ball, torch.where(shape == 1, square, triangle))
    return (0.5 - distance).clamp(0, 1)


def shadow(canvas: Canvas, motion: Motion, radius: Tensor, lines: Tensor, columns: Tensor, apex_px: float) -> Tensor:
    """Darkness [B, F, lines, W] of the floor below the object, 0..SHADOW; nothing above the floor."""
    reach_y = 3.5 * canvas.scale
    height = ((canvas.floor_y - motion.y_px[:, :, None, None] - radius) / apex_px).clamp(0, 1)
    reach_x = radius * (1.1 + 0.3 * height)
    across = (columns - motion.x_px[:, :, None, None]) / reach_x
    down = (lines - canvas.floor_y - reach_y) / reach_y
    inside = (1 - across.square() - down.square()).clamp(min=0)
    brightness = 0.4 + 0.6 * motion.intensity[:, :, None, None]
    return SHADOW * (1 - SHADOW_FADE * height) * inside * brightness


def room(canvas: Canvas, background: Tensor) -> Tensor:
    """The empty room [B, 3, 1, H, W]: wall, side walls and floor."""
    device = background.device
    columns = (torch.arange(canvas.width, device=device) + 0.5).view(1, 1, 1, 1, -1)
    lines = (torch.arange(canvas.height, device=device) + 0.5).view(1, 1, 1, -1, 1)
    wall = world.WALL_PX * canvas.scale
    edge = (lines > canvas.floor_y) | (columns < wall) | (columns > canvas.width - wall)

    def rgb(palette: tuple) -> Tensor:
        return constant(palette, device)[background][:, :, None, None, None]

    sky = 1 + SKY * (1 - 2 * lines / canvas.height)
    return torch.where(edge, rgb(world.FRAME_RGB), rgb(world.BACKGROUND_RGB) * sky)
