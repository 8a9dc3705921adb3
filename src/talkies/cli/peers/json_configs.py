"""Peers' options that are JSON: where weights live, and in which precision."""

from __future__ import annotations

import json

from talkies.errors import ConfigError

WEIGHT_TRANSFERS = ("rank-local", "allgather")  # of one rank they are the same copy


def offload_config(text: str) -> tuple[str, str | None, int | None]:
    """(mode, components, resident blocks) of a peer's ``--diffusion-offload-config`` JSON.

    Raises ``ConfigError`` naming a key or value that has no meaning here.
    """

    def wrong(what: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"--diffusion-offload-config: {what}", hint=hint, param="--diffusion-offload-config")

    try:
        values = json.loads(text)
    except ValueError as error:
        raise wrong(f"not JSON: {error}") from None
    if not isinstance(values, dict) or values.get("mode") not in ("module", "layer"):
        raise wrong("mode is missing or unknown", "module or layer")
    options = values.get("layer_options", {})
    stray = sorted(values.keys() - {"mode", "components", "layer_options"}) + sorted(options.keys() - {"dit"})
    dit = options.get("dit", {})
    stray += sorted(dit.keys() - {"weight_transfer", "resident_layers"})
    if stray:
        raise wrong(f"unknown key {stray[0]!r}")
    transfer = dit.get("weight_transfer", WEIGHT_TRANSFERS[0])
    if transfer not in WEIGHT_TRANSFERS:
        raise wrong(f"weight_transfer is {transfer!r}", " or ".join(WEIGHT_TRANSFERS))
    resident = dit.get("resident_layers")
    if resident is not None and (not isinstance(resident, int) or isinstance(resident, bool) or resident < 0):
        raise wrong(f"resident_layers is {resident!r}", "0 or more")
    names = values.get("components")
    return values["mode"], None if names is None else ",".join(map(str, names)), resident


def quantization_config(text: str) -> tuple[str, str, tuple[str, ...]]:
    """(method of the DiT, of the text encoder, excluded linears) of a peer's ``--diffusion-quantization-config`` JSON.

    Raises ``ConfigError`` naming a key that has no meaning here; methods and layers are judged with our own options.
    """
    flag = "--diffusion-quantization-config"
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: not JSON: {error}", param=flag) from None
    if not isinstance(values, dict) or not all(isinstance(value, dict) for value in values.values()):
        raise ConfigError(f"{flag}: not an object of components", hint='{"transformer": {"method": "fp8"}}', param=flag)
    methods, excluded = {"transformer": "none", "text_encoder": "none"}, []
    for component, options in values.items():
        stray = sorted(options.keys() - {"method", "ignored_layers"})
        if component not in methods or stray:
            name = f"{component}.{stray[0]}" if component in methods else component
            raise ConfigError(
                f"{flag}: unknown key {name!r}",
                hint="transformer and text_encoder, each with method and ignored_layers",
                param=flag,
            )
        methods[component] = str(options.get("method", "none"))
        prefix = "text_encoder." if component == "text_encoder" else ""
        excluded += [prefix + str(layer).removeprefix(prefix) for layer in options.get("ignored_layers", ())]
    return methods["transformer"], methods["text_encoder"], tuple(excluded)
