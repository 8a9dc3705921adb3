"""Writes the table of docs/start/released-model.md: what ``talkies plan`` proposes for cards of several sizes.

    python docs/plans.py [--check]

With ``--check`` nothing is written, and the exit code is 1 where the page has another table.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

from talkies.cli import app

PAGE = Path(__file__).parent / "start" / "released-model.md"
BEGIN, END = "<!-- plans -->", "<!-- end of plans -->"
# What is planned for: the memory of a card, and the line that plans for it.
LINES = {
    "24 GB": "--gpu 4090,ram=128GiB",
    "24 GB, less host memory": "--gpu 4090,ram=96GiB",
    "32 GB": "--gpu 5090,ram=128GiB",
    "48 GB": "--gpu l40s,ram=128GiB",
    "80 GB": "--gpu a100,ram=256GiB",
    "80 GB, Hopper": "--gpu h100,ram=256GiB",
    "two of 24 GB": "--gpu 4090,ram=256GiB --num-gpus 2",
    "two of 80 GB, Hopper": "--gpu h100,ram=256GiB --num-gpus 2",
    "four of 80 GB, Hopper": "--gpu h100,ram=256GiB --num-gpus 4",
}


def planned(line: str) -> dict[str, object]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        app(["plan", *line.split(), "--seconds", "8.7", "--json"], standalone_mode=False)
    found: dict[str, object] = json.loads(said.getvalue().splitlines()[-1])
    return found


def table() -> str:
    rows = [
        "| memory | `talkies plan --seconds 8.7` | DiT, text encoder | GPU peak | RAM | a clip |",
        "|---|---|---|---|---|---|",
    ]
    for memory, line in LINES.items():
        plan = planned(line)
        peak, ram = (f"{float(str(plan[key])) / 2**30:.1f} GiB" for key in ("peak_bytes", "host_bytes"))
        minutes = f"{float(str(plan['total_s'])) / 60:.0f} min"
        precision = f"{plan['precision']}, {plan['text_precision']}"
        rows.append(f"| {memory} | `{line}` | {precision} | {peak} | {ram} | {minutes} |")
    return "\n".join(rows)


def main(words: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    whole = f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"
    if words != ["--check"]:
        PAGE.write_text(whole, encoding="utf-8")
    return int(words == ["--check"] and whole != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
