"""A few shapes of SVG for charts: no package needed, the text of a figure stays text.

Greys and hues are of middle lightness on no ground of their own, so that they read on white and on black pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

INK, FAINT = "#7d8590", "#7d859055"
PALE = "#94a3b8"
HUES = (
    "#3b82f6",
    "#e0662f",
    "#1a9e6e",
    "#b45bcf",
    "#c99700",
    "#d6455d",
    "#2aa3b8",
    "#8b7355",
    "#7c9a2e",
    "#e27fb0",
    "#5b5fc7",
    "#a8b3c2",
)
FONT = "font-family='system-ui, sans-serif'"


class Drawing:
    """Shapes in pixels from the upper left."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, dash: str = "") -> None:
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<path d='M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}' stroke='{colour}'{dashed}/>")

    def path(self, points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> None:
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<path d='{d}' fill='none' stroke='{colour}' stroke-width='2'{dashed}/>")

    def dot(self, x: float, y: float, colour: str) -> None:
        self.parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>")

    def bar(self, x: float, y: float, width: float, height: float, colour: str, tip: str) -> None:
        size = f"width='{width:.1f}' height='{height:.1f}'"
        self.parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' {size} fill='{colour}'><title>{escape(tip)}</title></rect>")

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, bold: bool = False, turn: int = 0
    ) -> None:
        style = f"text-anchor='{anchor}' font-size='{size}'" + (" font-weight='600'" if bold else "")
        turned = f" transform='rotate({turn} {x:.1f} {y:.1f})'" if turn else ""
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}' fill='{INK}' {style}{turned}>{escape(text)}</text>")

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
        """``(label, colour, dash)`` in a row."""
        for label, colour, dash in entries:
            self.path([(x, y - 4), (x + 22, y - 4)], colour, dash)
            self.text(x + 28, y, label)
            x += 46 + 6.6 * len(label)

    def __str__(self) -> str:
        size = f"viewBox='0 0 {self.width} {self.height}' width='{self.width}' height='{self.height}'"
        head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT} role='img'>"
        return "\n".join([head, f"<title>{escape(self.title)}</title>", *self.parts, "</svg>", ""])


class Axes:
    """A frame with linear scales. ``x`` and ``y`` are (least, most) of the data; ``y`` starts at zero unless said."""

    def __init__(
        self,
        drawing: Drawing,
        box: tuple[float, float, float, float],
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_label: str,
        y_label: str,
        x_ticks: Sequence[float],
    ) -> None:
        """``box``: left, top, width, height in pixels."""
        self.drawing, self.box, self.x_range = drawing, box, x
        left, top, width, height = box
        ticks = nice_ticks(*y)
        self.y_range = (ticks[0], ticks[-1])
        for tick in ticks:
            at = self.y(tick)
            drawing.line(left, at, left + width, at)
            drawing.text(left - 6, at + 4, f"{tick:g}", anchor="end", size=11)
        for tick in x_ticks:
            drawing.line(self.x(tick), top + height, self.x(tick), top + height + 4, INK)
            drawing.text(self.x(tick), top + height + 17, f"{tick:g}", anchor="middle", size=11)
        drawing.text(left + width / 2, top + height + 34, x_label, anchor="middle")
        drawing.text(left - 40, top + height / 2, y_label, anchor="middle", turn=-90)

    def x(self, value: float) -> float:
        left, _, width, _ = self.box
        return left + width * (value - self.x_range[0]) / (self.x_range[1] - self.x_range[0])

    def y(self, value: float) -> float:
        _, top, _, height = self.box
        low, high = self.y_range
        return top + height * (1 - (value - low) / (high - low))

    def curve(self, points: Sequence[tuple[float, float]], colour: str, *, dash: str = "", dots: bool = True) -> None:
        placed = [(self.x(a), self.y(b)) for a, b in points]
        self.drawing.path(placed, colour, dash)
        for x, y in placed if dots else ():
            self.drawing.dot(x, y, colour)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from at or under ``low`` to at or over ``high``."""
    span = (high - low) or abs(high) or 1.0
    raw = span / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]
