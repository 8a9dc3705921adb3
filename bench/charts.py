"""Charts of docs from the results beside them:  python -m bench.charts

    docs/img/streaming.svg    resident blocks against seconds and peak, beside the plan    from streaming-*.json
    docs/img/quality.svg      what tiers of quality skip, against PSNR and SI-SDR          from quality-*.json
    docs/img/dit_forward.svg  a forward, its floor and diffusers; the kernels of a block   from dit_forward-*.json

Nothing is drawn that is not in a file, and every chart names the device, the commit and the day of its file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.report import RESULTS
from bench.svg import HUES, INK, PALE, Axes, Drawing

IMAGES = Path(__file__).parent.parent / "docs" / "img"
PLAN_DASH = "5 4"
CATEGORIES = ("attention", "matmul")  # drawn first, then our kernels by size


def streaming(result: Mapping[str, Any]) -> Drawing | None:
    """A row of panels per precision: seconds above, peak below, one column per length. ``None``: no curve in it."""
    metrics = result["metrics"]
    kinds = [(prefix, name) for prefix, name in (("", "bf16"), ("fp8_", "fp8")) if _rows(metrics, prefix)]
    if not kinds:
        return None
    lengths = sorted({rows for prefix, _ in kinds for rows in _rows(metrics, prefix)}, reverse=True)
    width, height, gap, left, top = 280, 170, 100, 62, 84
    drawing = Drawing(left + len(lengths) * (width + gap), top + 2 * (height + 62), "Resident blocks")
    drawing.text(20, 24, "Resident blocks: time and peak of one forward", bold=True, size=15)
    drawing.text(20, 43, _origin(result))
    hues = {prefix: HUES[i] for i, (prefix, _) in enumerate(kinds)}
    entries = [e for p, n in kinds for e in ((f"{n} measured", hues[p], ""), (f"{n} planned", hues[p], PLAN_DASH))]
    drawing.legend(20, 64, entries)
    for column, rows in enumerate(lengths):
        for row, (quantity, label) in enumerate((("s", "seconds"), ("peak_gib", "peak, GiB"))):
            curves = {
                (p, kind): _curve(metrics, f"{p}{kind}{quantity}", rows) for p, _ in kinds for kind in ("", "plan_")
            }
            curves = {key: points for key, points in curves.items() if points}
            if not curves:
                continue
            most = max(b for points in curves.values() for _, b in points)
            last = max(a for points in curves.values() for a, _ in points)
            box = (left + column * (width + gap), top + row * (height + 62), width, height)
            axes = Axes(
                drawing,
                box,
                (0, last),
                (0, most),
                x_label=f"resident blocks, {rows:,} rows",
                y_label=label,
                x_ticks=sorted({a for points in curves.values() for a, _ in points}),
            )
            for (prefix, kind), points in curves.items():
                axes.curve(points, hues[prefix], dash=PLAN_DASH if kind else "", dots=not kind)
                if kind:
                    continue
                (first, start), (end, value) = points[0], points[-1]
                drawing.text(axes.x(end) + 7, axes.y(value) + 4, f"{value:.3g}", size=11)
                # The lower curve's number is under it.
                aside, down = (7, 13) if prefix and len(kinds) > 1 else (0, -8)
                drawing.text(axes.x(first) + aside, axes.y(start) + down, f"{start:.3g}", size=11)
    return drawing


def _rows(metrics: Mapping[str, float], prefix: str) -> set[int]:
    found = (re.fullmatch(rf"{prefix}s_(\d+)_r\d+", name) for name in metrics)
    return {int(match[1]) for match in found if match}


def _curve(metrics: Mapping[str, float], name: str, rows: int) -> list[tuple[float, float]]:
    """(resident blocks, value), in order; points of chunked runs are others' and stay out."""
    found = ((re.fullmatch(rf"{name}_{rows}_r(\d+)", key), value) for key, value in metrics.items())
    return sorted((int(match[1]), value) for match, value in found if match)


def dit_forward(result: Mapping[str, Any]) -> Drawing | None:
    """Seconds of a forward as bars, and a block of each precision as a stack. ``None``: neither is in it."""
    metrics, peer = result["metrics"], result["peer"]
    bars = [
        (label, float(values[name]), hue)
        for label, values, name, hue in (
            ("diffusers, eager", peer, "diffusers_eager_s", INK),
            ("diffusers, compiled", peer, "diffusers_compiled_s", INK),
            ("ours, bf16", metrics, "bf16_s", HUES[0]),
            ("floor, bf16", metrics, "floor_bf16_s", PALE),
            ("ours, fp8", metrics, "fp8_s", HUES[1]),
            ("floor, fp8", metrics, "floor_fp8_s", PALE),
        )
        if name in values
    ]
    stacks = {kind: _kernels(metrics, f"{kind}_block_") for kind in ("bf16", "fp8")}
    stacks = {kind: kernels for kind, kernels in stacks.items() if kernels}
    if not bars and not stacks:
        return None
    names = list(dict.fromkeys(name for kernels in stacks.values() for name in kernels))
    names.sort(key="other".__eq__)
    left, width, step = 150, 560, 30
    below = 84 + step * len(bars) + 40
    drawing = Drawing(left + width + 90, below + 52 * len(stacks) + 20 * len(names) + 50, "One forward")
    rows = f"{result['shape'].get('rows', 0):,} rows"
    drawing.text(20, 24, f"One forward of {rows}: seconds", bold=True, size=15)
    drawing.text(20, 43, _origin(result))
    longest = max((value for _, value, _ in bars), default=1.0)
    for i, (label, value, hue) in enumerate(bars):
        y = 62 + step * i
        drawing.text(left - 10, y + 15, label, anchor="end")
        drawing.bar(left, y, width * value / longest, step - 9, hue, f"{label}: {value:.2f} s")
        drawing.text(left + width * value / longest + 6, y + 15, f"{value:.2f} s")
    if stacks:
        drawing.text(20, below - 14, "Kernels of one block: milliseconds", bold=True, size=15)
    hues = dict(zip(names, (HUES[i % len(HUES)] for i in range(len(names))), strict=True))
    widest = max((sum(kernels.values()) for kernels in stacks.values()), default=1.0)
    for i, (kind, kernels) in enumerate(stacks.items()):
        x, y = float(left), below + 52 * i
        drawing.text(left - 10, y + 20, kind, anchor="end")
        for name, value in kernels.items():
            drawing.bar(x, y, width * value / widest, 30, hues[name], f"{name}: {value:.2f} ms")
            x += width * value / widest
        drawing.text(x + 6, y + 20, f"{sum(kernels.values()):.1f} ms")
    y = below + 52 * len(stacks) + 14
    for i, kind in enumerate(stacks):
        drawing.text(left + 270 + 90 * i, y, f"{kind}, ms", anchor="end", size=11)
    for i, name in enumerate(names):
        drawing.bar(left, y + 20 * i + 8, 12, 12, hues[name], name)
        drawing.text(left + 20, y + 20 * i + 19, name.removesuffix("_kernel"))
        for j, kernels in enumerate(stacks.values()):
            text = f"{kernels[name]:.2f}" if name in kernels else "-"
            drawing.text(left + 270 + 90 * j, y + 20 * i + 19, text, anchor="end")
    return drawing


def _kernels(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Milliseconds by name: attention, products, then what is ours by size, then the rest."""
    found = {
        k.removeprefix(prefix).removesuffix("_ms"): v
        for k, v in metrics.items()
        if k.startswith(prefix) and k != f"{prefix}ms"
    }

    def order(item: tuple[str, float]) -> tuple[int, float]:
        name, value = item
        place = CATEGORIES.index(name) if name in CATEGORIES else len(CATEGORIES) + (name == "other")
        return place, -value

    return dict(sorted(found.items(), key=order))


def _origin(result: Mapping[str, Any]) -> str:
    shape = result["shape"]
    with_what = f", attention {shape['attention']}" if "attention" in shape else ""
    return f"{result['device']}, torch {result['torch']}{with_what}, commit {result['commit']}, {result['date']}"


def quality(result: Mapping[str, Any]) -> Drawing | None:
    """Panels of picture and sound: what each tier skips against how far its clips are from lossless, a curve for each
    task and number of forwards. ``None``: no tier in it."""
    found = re.compile(r"(high|medium|low)_(\d+)_(t2va|fl2va|ref2va)_skipped")
    curves: dict[tuple[str, str], list[str]] = {}
    for name in result["metrics"]:
        if match := found.fullmatch(name):
            curves.setdefault((match[3], match[2]), []).append(name.removesuffix("_skipped"))
    if not curves:
        return None
    metrics, width, height, left, top = result["metrics"], 300, 210, 62, 104
    panels = [("psnr_db", "PSNR, dB"), ("si_sdr_db", "SI-SDR, dB")]
    drawing = Drawing(left + len(panels) * (width + 100), top + height + 62, "Tiers of quality")
    drawing.text(20, 24, "Tiers of quality: skipped compute and distance from lossless", bold=True, size=15)
    drawing.text(20, 43, _origin(result))
    tasks = list(dict.fromkeys(task for task, _ in curves))
    most = max(int(forwards) for _, forwards in curves)
    dash = {forwards: "" if int(forwards) == most else PLAN_DASH for _, forwards in curves}
    drawing.legend(20, 64, [(task, HUES[i], "") for i, task in enumerate(tasks)])
    drawing.legend(20, 82, [(f"{forwards} forwards", INK, line) for forwards, line in sorted(dash.items())])
    for column, (quantity, label) in enumerate(panels):
        lines = {
            key: sorted(
                (metrics[f"{n}_skipped"], metrics[f"{n}_{quantity}"]) for n in names if f"{n}_{quantity}" in metrics
            )
            for key, names in curves.items()
            if any(f"{n}_{quantity}" in metrics for n in names)
        }
        values = [b for points in lines.values() for _, b in points]
        if not values:
            continue
        box = (left + column * (width + 100), top, width, height)
        ticks = [0, 0.25, 0.5, 0.75, 1]
        axes = Axes(drawing, box, (0, 1), (0, max(values)), x_label="skipped", y_label=label, x_ticks=ticks)
        for (task, forwards), points in lines.items():
            axes.curve(points, HUES[tasks.index(task)], dash=dash[forwards])
    return drawing


CHARTS: dict[str, Callable[[Mapping[str, Any]], Drawing | None]] = {
    "streaming": streaming,
    "dit_forward": dit_forward,
    "quality": quality,
}


def draw(results: Path, images: Path) -> list[Path]:
    """Every chart that ``results`` has a file for; of several devices the newest file. Returns what was written."""
    written = []
    for name, chart in CHARTS.items():
        found = [json.loads(path.read_text()) for path in results.glob(f"{name}-*.json")]
        found = [result for result in found if result.get("bench") == name]
        if not found:
            continue
        drawing = chart(max(found, key=lambda result: result["date"]))
        if drawing is not None:
            images.mkdir(parents=True, exist_ok=True)
            path = images / f"{name}.svg"
            path.write_text(str(drawing))
            written.append(path)
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=IMAGES)
    a = parser.parse_args(argv)
    written = draw(a.results, a.out)
    for path in written:
        print(path)
    if not written:
        wanted = ", ".join(f"{name}-*.json" for name in CHARTS)
        print(f"nothing to draw: {a.results} has none of {wanted} with a curve or a forward in it", file=sys.stderr)
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
