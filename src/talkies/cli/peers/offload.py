"""Peers' switches for where weights live, and what each of them is here."""

from __future__ import annotations

from collections.abc import Sequence

from talkies.cli.peers.words import booleans, valued
from talkies.errors import ConfigError

# Peers' switches for where weights live. With several of them a peer takes one in silence; here that is refused.
OFFLOAD_SWITCHES = {
    "--enable-cpu-offload": "module",
    "--enable-layerwise-offload": "layer",
    "--enable-distributed-layerwise-offload": "layer",  # on one device the two are the same
}
GATHER_SWITCHES = ("--dlo-use-allgather", "--dlo-no-use-allgather")
PIN_BUDGET = "--dlo-pin-budget-gb"
MEMORY_MODE = ("--performance-mode", "memory")
# A component that leaves the device when it does not work; the DiT's two ways are the same here, see docs/memory.md.
COMPONENT_SWITCHES = {
    "--text-encoder-cpu-offload": ("text",),
    "--vae-cpu-offload": ("video", "audio"),
    "--dit-cpu-offload": ("dit",),
    "--dit-layerwise-offload": ("dit",),
}


def take_offload(arguments: Sequence[str], offload: str) -> tuple[str | None, list[str]]:
    """(the mode that peers' switches ask for, the other arguments). Raises ``ConfigError`` where two disagree."""
    if all(name in arguments for name in GATHER_SWITCHES):
        raise ConfigError(
            f"{' and '.join(GATHER_SWITCHES)} exclude each other", hint="give one", param=GATHER_SWITCHES[0]
        )
    arguments, memory = _without_memory_mode(arguments)
    found = [name for name in arguments if name in OFFLOAD_SWITCHES]
    modes = {OFFLOAD_SWITCHES[name] for name in found} | ({offload} - {"auto"})
    if memory:
        found.append(" ".join(MEMORY_MODE))
        modes = modes or {"layer"}  # it names no way to save memory: any other flag may
    if len(modes) > 1 or (memory and modes == {"none"}):
        stated = [*found, f"--offload {offload}"] if offload != "auto" else found
        raise ConfigError(f"{' and '.join(stated)} exclude each other", hint="give one", param=found[0])
    return (modes.pop() if modes else None), [name for name in arguments if name not in OFFLOAD_SWITCHES]


def take_pin_budget(arguments: Sequence[str], ram_budget: int | None) -> tuple[int | None, list[str]]:
    """(bytes of host memory for weights, the other arguments): a peer's budget of pinned memory, in gigabytes, is
    ``--ram-budget``. Raises ``ConfigError`` for a value that is none, or where the two disagree."""
    found, rest = valued(arguments, (PIN_BUDGET,))
    for _, value in found:
        try:
            num_bytes = int(float(value) * 1e9)
        except (ValueError, OverflowError):
            num_bytes = 0
        if num_bytes <= 0:
            raise ConfigError(f"{PIN_BUDGET} {value} is not a size", hint="gigabytes, such as 40", param=PIN_BUDGET)
        if ram_budget not in (None, num_bytes):
            raise ConfigError(f"{PIN_BUDGET} {value} and --ram-budget differ", hint="give one", param=PIN_BUDGET)
        ram_budget = num_bytes
    return ram_budget, rest


def _without_memory_mode(arguments: Sequence[str]) -> tuple[list[str], bool]:
    found, rest = valued(arguments, MEMORY_MODE[:1])
    others = [word for name, value in found if value != MEMORY_MODE[1] for word in (name, value)]
    return rest + others, len(others) < 2 * len(found)


def take_components(
    arguments: Sequence[str], mode: str, components: tuple[str, ...] | None
) -> tuple[str, tuple[str, ...] | None, list[str]]:
    """(mode, components, the other arguments), with what a peer's switch for a single component adds.

    ``mode`` and ``components`` are what was stated otherwise. A mode that has all components away is left so. Raises
    ``ConfigError`` beside ``--offload none``.
    """
    found, rest = booleans(arguments, tuple(COMPONENT_SWITCHES))
    away = [name for name, yes in found.items() if yes]
    if not away:
        return mode, components, rest
    if mode == "none":
        raise ConfigError(f"{away[0]} and --offload none exclude each other", hint="give one", param=away[0])
    named = tuple(dict.fromkeys(part for name in away for part in COMPONENT_SWITCHES[name]))
    if mode != "auto" and components is None:
        return mode, None, rest
    if mode == "auto":
        mode = "layer" if "--dit-layerwise-offload" in away else "module"
    return mode, (*(components or ()), *(part for part in named if part not in (components or ()))), rest
