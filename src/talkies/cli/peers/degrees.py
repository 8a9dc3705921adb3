"""How many devices a launch script written for a peer asks for, in its words."""

from __future__ import annotations

from collections.abc import Sequence

from talkies.cli.peers.words import valued
from talkies.errors import ConfigError

TENSOR_PARALLEL = ("--tensor-parallel-size", "--tp-size", "-tp")
NUM_GPUS = "--num-gpus"
GATHER = "--dlo-use-allgather"


def take_tensor_parallel(arguments: Sequence[str], stated: int | None) -> tuple[int, list[str]]:
    """(devices that share the DiT's blocks, the other arguments); ``stated`` is our own option's.

    ``--num-gpus N`` alone asks for N: tensor parallelism is how several devices serve one model here. Raises
    ``ConfigError`` where two flags disagree, and for a gathered offload of shards.
    """
    asked = {} if stated is None else {"--tensor-parallel-size": stated}
    found, rest = valued(arguments, (*TENSOR_PARALLEL, NUM_GPUS))
    for name, value in found:
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"{name} {value} is no number of devices", hint="1 or more", param=name)
        asked[name] = int(value)
    if len(set(asked.values())) > 1:
        shown = " and ".join(f"{name} {value}" for name, value in asked.items())
        raise ConfigError(
            f"{shown} differ: tensor parallelism is the only way that several devices serve one model yet",
            hint="give both the same number, or one of them",
            param=next(iter(asked)),
        )
    degree = next(iter(asked.values()), 1)
    if degree > 1 and GATHER in rest:
        raise ConfigError(
            f"{GATHER} gathers whole blocks, and with {degree} devices each streams its own shard",
            hint=f"leave it out: --dlo-no-use-allgather is what {degree} devices do",
            param=GATHER,
        )
    return degree, rest
