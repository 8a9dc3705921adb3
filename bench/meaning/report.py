"""What bench/meaning says of its clips: shares of each attribute, a table, what is wrong, and the checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bench.meaning.clips import DEFAULT_CANVAS, PLAIN, Outcome
from bench.report import device_name, result_of
from training.judge.verdict import ATTRIBUTES, Scores, is_right, score, wanted

THRESHOLDS = {"color": 0.92, "motion": 0.92, "sound": 0.92, "shape": 0.85, "tempo": 0.90, "offset": 0.95}
# The share of what prompts in plain English state, each attribute by itself.
PLAIN_SHARE = 0.96
PLAIN_JUDGED = ("color", "shape", "background", "motion", "tempo", "sound", "offset")
# The share of the reference clips that take on what a reference alone decides.
FOLLOWED = {"color": 0.80, "shape": 0.80, "sound": 0.80, "motion": 0.80}
# Judged right of the rendered clips after the VAEs: below it, the table says more about the codecs than the model.
CEILING = 0.98


def scores_of(outcomes: Iterable[Outcome]) -> Scores:
    chosen = list(outcomes)
    return score([o.verdict for o in chosen], [o.job.case.expected for o in chosen])


def followed_of(outcomes: Iterable[Outcome]) -> Scores:
    """The reference clips, judged by what their references alone decide."""
    chosen = [(o.verdict, o.job.asked.decided) for o in outcomes if o.job.asked]
    return score([verdict for verdict, _ in chosen], [decided for _, decided in chosen])


def table(outcomes: Sequence[Outcome]) -> str:
    """Rates in per cent by part, with the text clips together and the ceiling last."""
    parts = list(dict.fromkeys(o.job.part for o in outcomes if o.job.part != "ceiling"))
    columns = {"text": [o for o in outcomes if _is_text(o)]}
    columns |= {part: [o for o in outcomes if o.job.part == part] for part in parts}
    columns["VAE round trip"] = [o for o in outcomes if o.job.part == "ceiling"]
    scores = {name: scores_of(chosen) for name, chosen in columns.items()}
    rows = [["", *columns], ["clips", *(str(len(chosen)) for chosen in columns.values())]]
    for name in (*ATTRIBUTES, "all", "events", "offset"):
        rates = [s.rates[name] for s in scores.values()]
        rows.append([name, *(f"{100 * r.share:.1f}" if r.total else "-" for r in rates)])
    rows.append(["offset median ms", *(f"{s.offset_median_ms:.1f}" for s in scores.values())])
    rows.append(["offset p90 ms", *(f"{s.offset_p90_ms:.1f}" for s in scores.values())])
    rows.append(["pan error", *(f"{s.pan_error:.3f}" for s in scores.values())])
    for end in ("first", "last"):
        for key in (end, f"{end} at best"):
            cells = [[o.psnr_db[key] for o in chosen if key in o.psnr_db] for chosen in columns.values()]
            if any(cells):
                rows.append([f"{key} PSNR dB", *(f"{np.mean(c):.1f}" if c else "-" for c in cells)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def failures(outcomes: Sequence[Outcome]) -> str:
    """One line for each clip that is wrong: what was asked for and what was seen."""
    lines = []
    for o in outcomes:
        seen = {k: (v, getattr(o.verdict, k)) for k, v in wanted(o.verdict, o.job.case.expected).items()}
        wrong = [f"{k} {v} -> {got}" for k, (v, got) in seen.items() if not is_right(got, v)]
        if wrong:
            j = o.job
            lines.append(
                f"{j.part}, {j.canvas}, {j.num_frames} frames, seed {j.seed}: {'; '.join(wrong)} | {j.case.prompt}"
            )
    return "\n".join(lines)


def report(outcomes: Sequence[Outcome], device: str, quick: bool) -> dict[str, Any]:
    """The result file."""
    text = scores_of(o for o in outcomes if _is_text(o))
    ceiling = scores_of(o for o in outcomes if o.job.part == "ceiling")
    metrics: dict[str, float] = {f"{name}_share": rate.share for name, rate in text.rates.items() if rate.total}
    metrics |= {f"ceiling_{name}_share": rate.share for name, rate in ceiling.rates.items() if rate.total}
    metrics |= {"offset_median_ms": text.offset_median_ms, "offset_p90_ms": text.offset_p90_ms}
    metrics |= {"pan_error": text.pan_error}
    for part in dict.fromkeys(o.job.part for o in outcomes if o.job.part != "ceiling"):
        chosen = [o for o in outcomes if o.job.part == part]
        label = part.replace(" ", "_")
        metrics |= {f"{label}_{name}_share": rate.share for name, rate in scores_of(chosen).rates.items() if rate.total}
        metrics[f"{label}_seconds_median"] = float(np.median([o.seconds for o in chosen]))
        for key in dict.fromkeys(key for o in chosen for key in o.psnr_db):
            metrics[f"{label}_{key.replace(' ', '_')}_psnr_db"] = float(
                np.mean([o.psnr_db[key] for o in chosen if key in o.psnr_db])
            )
    checks = {}
    followed = followed_of(outcomes)
    for name, share in FOLLOWED.items():
        if followed.rates[name].total:
            metrics[f"followed_{name}_share"] = followed.rates[name].share
            checks[f"followed_{name}>={share:.2f}"] = followed.rates[name].share >= share
    plain = scores_of(o for o in outcomes if o.job.part == PLAIN)
    if plain.rates["all"].total:
        checks |= {f"plain_{n}>={PLAIN_SHARE:.2f}": plain.rates[n].share >= PLAIN_SHARE for n in PLAIN_JUDGED}
    if text.rates["all"].total:
        checks |= {f"{name}>={share:.2f}": text.rates[name].share >= share for name, share in THRESHOLDS.items()}
    if ceiling.rates["all"].total:
        checks |= {f"ceiling_{name}>={CEILING:.2f}": ceiling.rates[name].share >= CEILING for name in THRESHOLDS}
    return result_of(
        "meaning",
        device_name(device),
        shape={
            "canvas": DEFAULT_CANVAS,
            "frames": sorted({o.job.num_frames for o in outcomes if _is_text(o)}),
            "prompts": len({o.job.case.prompt for o in outcomes if _is_text(o)}),
            "seeds": len({o.job.seed for o in outcomes if _is_text(o)}),
            "clips": len(outcomes),
            "quick": quick,
        },
        metrics={name: round(value, 4) for name, value in metrics.items()},
        peer={},
        checks=checks,
    )


def _is_text(outcome: Outcome) -> bool:
    return outcome.job.part == f"{outcome.job.num_frames} frames"
