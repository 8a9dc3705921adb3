"""Plants faults in a copy of the tree, one at a time, and says which of them the tests of their room did not notice.

    python -m tests.plant --plants 30 --seconds 1200 --rooms model,sampling
    python -m tests.plant --named                # those that were once not noticed

The same seed plants the same faults in the same order, as long as the files are the same. Exit code 1: something
survived that ``accepted.toml`` does not have.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from tests.plant.faults import Fault, faults_in, operators_of
from tests.plant.named import NAMED, Named
from tests.plant.rooms import ROOMS, files_of, stages_of
from tests.plant.workshop import Workshop

ROOT = Path(__file__).parents[2]
ACCEPTED = Path(__file__).with_name("accepted.toml")
LIMIT_S = 300.0  # of one run of tests: what takes longer hangs


@dataclass(frozen=True, slots=True)
class Plan:
    """A fault, its room's name and the tests it is given to, in runs."""

    fault: Fault
    room: str
    stages: Sequence[Sequence[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for survivors without a reason, 2 for tests that fail without a fault, too."""
    options = _parse(arguments)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the copy goes, too
    plans = [_of_named(named) for named in NAMED] if options.named else list(chosen(ROOT, options))
    with Workshop(ROOT) as shop:
        shop.check_imports("talkies")
        return plant_all(shop, plans, accepted(ACCEPTED), stop_at=began + options.seconds)


def plant_all(shop: Workshop, plans: Sequence[Plan], reasons: dict[tuple[str, str, str], str], stop_at: float) -> int:
    """Plants each, prints a line for it and a summary at the end."""
    counts = {"noticed": 0, "accepted": 0, "unclear": 0, "SURVIVED": 0}
    green: set[str] = set()
    for number, plan in enumerate(plans, 1):
        if time.monotonic() > stop_at:
            print(f"out of time: {len(plans) - number + 1} of {len(plans)} were not planted")
            break
        before, after = plan.fault.lines((shop.tree / plan.fault.path).read_bytes())
        why = reasons.get((plan.fault.path, before, after))
        verdict, told = ("accepted", why) if why else _judged(shop, plan, green)
        counts[verdict] += 1
        where = f"{plan.fault.path}:{plan.fault.line}"
        print(f"{verdict:8} {plan.room} {plan.fault.operator} {where} {told}\n  - {before}\n  + {after}", flush=True)
    print(", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items()))
    return 1 if counts["SURVIVED"] else 2 if counts["unclear"] else 0


def _judged(shop: Workshop, plan: Plan, green: set[str]) -> tuple[str, str]:
    """The verdict and its words. A test that failed has noticed something only if it passes without the fault, which
    is tried once a test: ``green`` are those that did."""
    for stage in plan.stages:
        with shop.planted(plan.fault):
            ran = shop.run(stage, LIMIT_S)
        if ran.passed:
            continue
        if ran.failed not in green:
            alone = (ran.failed,) if (shop.tree / ran.failed.split("::")[0]).is_file() else stage
            if not shop.run(alone, LIMIT_S).passed:
                return "unclear", f"{ran.failed} fails without the fault, too"
            green.add(ran.failed)
        return "noticed", f"by {ran.failed}"
    return "SURVIVED", ""


def chosen(root: Path, options: argparse.Namespace) -> Iterator[Plan]:
    """``options.plants`` faults, rooms in turn and within a room operators in turn, by the seed."""
    rooms = [_of_room(root, room, options.seed) for room in options.rooms]
    mixed = (plan for plan in chain.from_iterable(zip_longest(*rooms)) if plan is not None)
    for plan, _ in zip(mixed, range(options.plants), strict=False):
        yield plan


def _of_room(root: Path, room: str, seed: int) -> Iterator[Plan]:
    dice = random.Random(f"{seed} {room}")
    faults = [f for path in files_of(root, room) for f in faults_in((root / path).read_bytes(), path)]
    dice.shuffle(faults)
    piles = [[f for f in faults if f.operator == operator] for operator in operators_of(faults)]
    dice.shuffle(piles)
    for fault in chain.from_iterable(zip_longest(*piles)):
        if fault is not None:
            yield Plan(fault, room, stages_of(root, room, fault.path))


def _of_named(named: Named) -> Plan:
    return Plan(named.fault(ROOT), named.path.split("/")[2], [named.tests])


def accepted(path: Path) -> dict[tuple[str, str, str], str]:
    """Why a fault may survive, by its file and its lines before and after."""
    entries = tomllib.loads(path.read_text())["accepted"]
    return {(entry["path"], entry["before"], entry["after"]): entry["why"] for entry in entries}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.plant", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plants", type=int, default=30, help="how many (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1800, help="no new one after so long (default %(default)s)")
    parser.add_argument("--rooms", default=",".join(ROOMS), help="names with commas between (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--named", action="store_true", help="those of named.py in place of random ones")
    options = parser.parse_args(arguments)
    options.rooms = options.rooms.split(",")
    if unknown := [room for room in options.rooms if room not in ROOMS]:
        parser.error(f"no room is called {unknown[0]!r}; there are {', '.join(ROOMS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
