"""200 prompts in plain English, written by hand as different people would, and what each of them states.

`plain_prompts.jsonl` has one JSON object a line: `prompt`, and `states`, which maps attribute to the values that are
right. A loose word has several ("lilac" is purple or pink); what a prompt leaves open is absent and is not judged.
No prompt can come out of the training generator: `tests/training/second_edition/test_held_out.py`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from bench.meaning.cases import Case
from bench.meaning.clips import PLAIN, Job
from training import world

FILE = Path(__file__).with_name("plain_prompts.jsonl")
SEEDS = (0, 1)
NUM_FRAMES = 56


@lru_cache
def plain_cases() -> tuple[Case, ...]:
    """All prompts, in the order of the file. Raises ValueError where a line names a value that the world has not."""
    cases = []
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        entry = json.loads(line)
        expected: dict[str, str | tuple[str, ...]] = {}
        for name, values in entry["states"].items():
            known = world.ATTRIBUTES.get(name, ())
            if not values or not set(values) <= set(known):
                raise ValueError(f"{FILE.name}, line {number}: {name} {values}; the world knows {', '.join(known)}")
            expected[name] = values[0] if len(values) == 1 else tuple(values)
        cases.append(Case(entry["prompt"], expected))
    return tuple(cases)


def plain_jobs() -> list[Job]:
    return [Job(PLAIN, case, NUM_FRAMES, seed=seed) for case in plain_cases() for seed in SEEDS]
