"""How many devices a launch script written for a peer asks for, and what each of them does, in its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from talkies.cli.peers.words import valued
from talkies.errors import ConfigError

# Words for the degree of an axis; the first one is our own flag.
AXES: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel": ("--tensor-parallel-size", "--tp-size", "-tp"),
    "ulysses_degree": ("--ulysses-degree", "--usp"),
    "ring_degree": ("--ring-degree", "--ring"),
}
ROWS = ("--sp-degree", "--sp-size")  # ulysses and ring together
NUM_GPUS = "--num-gpus"
GATHER = "--dlo-use-allgather"
DEGREES = (*(word for words in AXES.values() for word in words), *ROWS)


def take_degrees(arguments: Sequence[str], stated: Mapping[str, int]) -> tuple[dict[str, int], list[str]]:
    """(degrees by the name of our option, the other arguments); ``stated`` are our own options'.

    ``--num-gpus N`` without any degree asks for N by tensor parallelism, and is the product of the degrees otherwise.
    Raises ``ConfigError`` where two flags disagree, and for a gathered offload.
    """
    found, rest = valued(arguments, DEGREES)
    said = [(name, _number(name, value)) for name, value in found]
    given = {axis: [(words[0], stated[axis])] if axis in stated else [] for axis, words in AXES.items()}
    degrees = {axis: _one([*given[axis], *(pair for pair in said if pair[0] in words)]) for axis, words in AXES.items()}
    devices = [(NUM_GPUS, stated["num_gpus"])] if "num_gpus" in stated else []
    _share_rows(degrees, _one([pair for pair in said if pair[0] in ROWS]))
    _count(degrees, _one(devices))
    known = {axis: found[1] if found else 1 for axis, found in degrees.items()}
    ranks = _product(degrees)
    if ranks > 1 and GATHER in rest:
        raise ConfigError(
            f"{GATHER} gathers whole blocks, and with {ranks} devices each streams its own weights",
            hint=f"leave it out: --dlo-no-use-allgather is what {ranks} devices do",
            param=GATHER,
        )
    return known, rest


Stated = tuple[str, int] | None  # the flag and its number


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{name} {value} is no number of devices", hint="1 or more", param=name)
    return int(value)


def _one(pairs: Sequence[tuple[str, int]]) -> Stated:
    """What all of them say. Raises ``ConfigError`` where they do not say the same."""
    if len({value for _, value in pairs}) > 1:
        shown = " and ".join(f"{name} {value}" for name, value in pairs)
        raise ConfigError(f"{shown} differ", hint="give one of them", param=pairs[0][0])
    return pairs[0] if pairs else None


def _share_rows(degrees: dict[str, Stated], rows: Stated) -> None:
    """A degree of both axes that share rows: it fills the one that nobody stated, ulysses first."""
    if rows is None:
        return
    ulysses, ring = degrees["ulysses_degree"], degrees["ring_degree"]
    if ulysses is None:
        share, left = divmod(rows[1], ring[1] if ring else 1)
        degrees["ulysses_degree"] = ulysses = (rows[0], share)
    elif ring is None:
        share, left = divmod(rows[1], ulysses[1])
        degrees["ring_degree"] = ring = (rows[0], share)
    else:
        left = 0
    made = ulysses[1] * (ring[1] if ring else 1)
    if left or made != rows[1]:
        raise ConfigError(
            f"{rows[0]} {rows[1]} is not the product of the Ulysses and ring degrees that are given",
            hint="give the degrees alone",
            param=rows[0],
        )


def _count(degrees: dict[str, Stated], devices: Stated) -> None:
    """Devices are the product of all degrees; alone, they share the DiT by tensor parallelism."""
    if devices is None:
        return
    ranks = _product(degrees)
    if ranks == 1 and degrees["tensor_parallel"] is None:
        degrees["tensor_parallel"] = devices
    elif ranks != devices[1]:
        shown = " and ".join(f"{found[0]} {found[1]}" for found in degrees.values() if found is not None)
        raise ConfigError(
            f"{NUM_GPUS} {devices[1]} differs from what {shown} need, {ranks}",
            hint="give degrees whose product is the number of devices, or leave it out",
            param=NUM_GPUS,
        )


def _product(degrees: Mapping[str, Stated]) -> int:
    product = 1
    for found in degrees.values():
        product *= found[1] if found else 1
    return product
