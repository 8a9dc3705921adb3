"""A whole start line of a peer: what it says about the engine, in the engine's own options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from talkies.cli.common import Refusals
from talkies.cli.peers.degrees import AXES, DEGREES, take_degrees
from talkies.cli.peers.json_configs import offload_config, quantization_config
from talkies.cli.peers.offload import (
    COMPONENT_SWITCHES,
    MEMORY_MODE,
    OFFLOAD_SWITCHES,
    PIN_BUDGET,
    take_components,
    take_offload,
    take_pin_budget,
)
from talkies.cli.peers.take import take
from talkies.cli.peers.words import booleans, valued
from talkies.engine.options import OPTIONS
from talkies.errors import ConfigError

EAGER = "--enforce-eager"  # a peer's word for --cuda-graphs off
PRECISIONS = ("quantization", "text_quantization", "quantization_exclude")


def translate(
    arguments: Sequence[str],
    engine: Mapping[str, Any],
    own_flags: Sequence[str],
    *,
    offload_json: str | None,
    quantization_json: str | None,
    refusals: Refusals,
) -> tuple[dict[str, Any], list[str]]:
    """(options of the engine, notes). ``engine`` is what our own flags stated, ``arguments`` the words that are left.

    What is wrong goes to ``refusals``, everything of it.
    """
    said: dict[str, Any] = {}
    for name, value in engine.items():
        with refusals.kept():
            said[name] = OPTIONS[name].read(value)
    if quantization_json is not None:
        with refusals.kept():
            said |= _precisions(said, quantization_json)
    if offload_json is not None:
        with refusals.kept():
            stated, components, resident = offload_config(offload_json)
            said["offload"] = stated
            if components is not None:
                said["offload_components"] = OPTIONS["offload_components"].read(components)
            if resident is not None:
                said["resident_blocks"] = resident
    rest = list(arguments)
    with refusals.kept():
        budget, rest = take_pin_budget(rest, said.get("ram_budget"))
        if budget is not None:
            said["ram_budget"] = budget
    with refusals.kept():
        degrees, rest = take_degrees(rest, {name: said[name] for name in (*AXES, "num_gpus") if name in said})
        said |= degrees
    with refusals.kept():
        asked, rest = take_offload(rest, said.get("offload", "auto"))
        mode, parts, rest = take_components(rest, asked or "auto", said.get("offload_components"))
        said["offload"] = mode
        if parts is not None:
            said["offload_components"] = parts
    # What was wrong with them was told; no table needs to know their words.
    for names in ((PIN_BUDGET,), DEGREES, MEMORY_MODE[:1] if refusals.errors else ()):
        rest = valued(rest, names)[1]
    rest = [word for word in booleans(rest, tuple(COMPONENT_SWITCHES))[1] if word not in OFFLOAD_SWITCHES]
    if EAGER in rest:
        said["cuda_graphs"] = "off"
        rest = [word for word in rest if word != EAGER]
    taken = take(rest, own_flags)
    refusals.errors += taken.refusals
    for model in taken.models[:1]:
        if said.get("model", model) != model:
            with refusals.kept():
                raise ConfigError(f"MODEL {model} and --model {said['model']} differ", hint="name one", param="model")
        said["model"] = model
    return said, taken.notes


def _precisions(said: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Raises ``ConfigError`` also where our own flags say it too."""
    if any(said.get(name, OPTIONS[name].default) != OPTIONS[name].default for name in PRECISIONS):
        raise ConfigError(
            "--diffusion-quantization-config and --quantization, --text-quantization or --quantization-exclude "
            "exclude each other",
            hint="give one",
            param="--diffusion-quantization-config",
        )
    return {name: OPTIONS[name].read(value) for name, value in zip(PRECISIONS, quantization_config(text), strict=True)}
