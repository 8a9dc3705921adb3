"""``talkies generate --dry-run``: a line for each clip that would be made, or an object of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from talkies.cli.common import plain, print_json


def show_plan(plans: Sequence[dict[str, Any]], *, json: bool) -> None:
    if json:
        for one in plans:
            print_json(one)
        return
    count, seconds = 0, 0.0
    for one in plans:
        count += len(one["paths"])
        seconds += one["seconds"] * len(one["paths"])
        print(
            f"{plain(' '.join(one['paths']))}  {one['size']}, {one['frames']} frames, {one['seconds']:.2f} s, "
            f"{one['num_forwards']} forwards of {one['rows']} rows, seed {one['seed']}: {plain(one['prompt'])}"
        )
    print(f"{count} clips would be made, {seconds:.1f} s of video in all")
