"""Flags of ``vllm serve --omni`` and ``sglang serve`` that have no option of their own in ``talkies serve``.

A launch script written for a peer either starts the same service or stops at once with the reason. Nothing is taken
and dropped: a flag is here because its value is already the truth, or it is refused by name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from talkies.errors import ConfigError
from talkies.server.config import PIPELINE_CLASS

_ONE_DEVICE = "several devices share a model by --tensor-parallel-size only"
_PLACED = "weights are placed by the engine itself"
_NO_CACHE = "no step cache is active: quality is lossless"
_NO_LORA = "adapters are not available"


@dataclass(frozen=True, slots=True)
class PeerFlag:
    """``accepted``: values that change nothing here; a switch has ``takes_value=False``, accepted as it stands if
    ``accepted`` is ``("",)``."""

    reason: str
    accepted: tuple[str, ...] = ()
    takes_value: bool = True


def _switch(reason: str, *, holds: bool = False) -> PeerFlag:
    return PeerFlag(reason, ("",) if holds else (), takes_value=False)


PEER_FLAGS: dict[str, PeerFlag] = {
    "--omni": _switch("every model here makes picture and sound", holds=True),
    "--step-execution": _switch("the scheduler always works between steps", holds=True),
    "--log-stats": _switch("metrics are on; --disable-log-stats turns them off", holds=True),
    "--trust-remote-code": _switch("code from a checkpoint is never run"),
    "--revision": PeerFlag("a folder is served as it is"),
    "--model-class-name": PeerFlag("there is one pipeline", (PIPELINE_CLASS,)),
    "--usp": PeerFlag(_ONE_DEVICE, ("1",)),
    "--ulysses-degree": PeerFlag(_ONE_DEVICE, ("1",)),
    "--ulysses-mode": PeerFlag(_ONE_DEVICE, ("strict",)),
    "--ulysses-a2a-permute": _switch(_ONE_DEVICE),
    "--ring": PeerFlag(_ONE_DEVICE, ("1",)),
    "--ring-degree": PeerFlag(_ONE_DEVICE, ("1",)),
    "--allgather-degree": PeerFlag(_ONE_DEVICE, ("1",)),
    "--text-encoder-tp-size": PeerFlag(_ONE_DEVICE, ("1",)),
    "--cfg-parallel-size": PeerFlag("the model is guidance-distilled", ("1",)),
    "--data-parallel-size": PeerFlag("one server drives one engine", ("1",)),
    "--vae-patch-parallel-size": PeerFlag(_ONE_DEVICE, ("1",)),
    "--vae-parallel-mode": PeerFlag(_ONE_DEVICE, ("tile",)),
    "--vae-use-tiling": _switch("the video VAE always works in tiles", holds=True),
    "--vae-use-slicing": _switch(_PLACED),
    "--use-hsdp": _switch(_ONE_DEVICE),
    "--hsdp-shard-size": PeerFlag(_ONE_DEVICE, ("-1",)),
    "--hsdp-replicate-size": PeerFlag(_ONE_DEVICE, ("1",)),
    "--dlo-use-allgather": _switch("one device holds every slice", holds=True),
    "--dlo-no-use-allgather": _switch("each device streams its own weights", holds=True),
    "--dlo-chunk-size-mb": PeerFlag("a block crosses as one copy", ("64",)),
    "--dlo-pin-failure-policy": PeerFlag("memory that cannot be locked ends the start", ("fail",)),
    "--dlo-host-registration-limit-gib": PeerFlag("use --ram-budget to bound weights in host memory", ("0",)),
    "--host-weight-runtime-mode": PeerFlag(_PLACED, ("disabled",)),
    "--host-weight-runtime-root": PeerFlag(_PLACED),
    "--performance-mode": PeerFlag(_PLACED, ("auto",)),
    "--encoder-parallel": PeerFlag(_ONE_DEVICE, ("auto",)),
    "--request-batch-max-wait-ms": PeerFlag("requests are batched between steps, without waiting", ("0",)),
    "--diffusion-streaming-output": _switch("use GET /v1/videos/{id}/events"),
    "--cache-backend": PeerFlag(_NO_CACHE, ("none",)),
    "--cache-config": PeerFlag(_NO_CACHE),
    "--enable-cache-dit-summary": _switch(_NO_CACHE),
    "--force-cutlass-fp8": _switch("fp8 products are torch's own, see --quantization"),
    "--diffusion-attention-config": PeerFlag("one backend serves all roles: use --attention"),
    "-dac": PeerFlag("one backend serves all roles: use --attention"),
    "--fastvideo-vsa-topk": PeerFlag("attention is dense"),
    "--fa-deterministic": _switch("use --attention sdpa, which repeats bit for bit on one device"),
    "--diffusion-kv-cache-dtype": PeerFlag("use --attention fa3-fp8 for attention in e4m3", ("auto",)),
    "--diffusion-kv-cache-skip-steps": PeerFlag("--attention fa3-fp8 chooses its own steps"),
    "--diffusion-kv-cache-skip-layers": PeerFlag("--attention fa3-fp8 works in every layer"),
    "--lora-path": PeerFlag(_NO_LORA),
    "--lora-backend": PeerFlag(_NO_LORA),
    "--lora-scale": PeerFlag(_NO_LORA),
    "--diffusion-compile-granularity": PeerFlag("nothing is compiled"),
    "--diffusion-compile-dynamic": _switch("nothing is compiled"),
    "--no-diffusion-compile-dynamic": _switch("nothing is compiled", holds=True),
    "--default-sampling-params": PeerFlag("defaults are the checkpoint's own; requests say what they want"),
    "--diffusion-load-format": PeerFlag("a checkpoint has one layout", ("default",)),
    "--max-generated-image-size": PeerFlag("canvases are limited by the checkpoint"),
    "--stage-init-timeout": PeerFlag("use --start-timeout-s: silence while loading, not its length, has a deadline"),
    "--init-timeout": PeerFlag("use --start-timeout-s: silence while loading, not its length, has a deadline"),
    "--api-server-count": PeerFlag("one server owns the jobs", ("1",)),
    "--num-weight-load-threads": PeerFlag("four threads read ahead of the loader", ("4",)),
    "--disable-multithread-weight-load": _switch("four threads read ahead of the loader"),
    "--enable-broadcast-weight-load": _switch(_ONE_DEVICE),
    "--enable-diffusion-pipeline-profiler": _switch("stage times are always in the job's stage_durations", holds=True),
    "--log-file": PeerFlag("redirect stderr"),
    "--enable-sleep-mode": _switch("the model stays loaded"),
    "--omni-lb-policy": PeerFlag(_ONE_DEVICE),
}


# Peers' switches for where weights live. With several of them a peer takes one in silence; here that is refused.
OFFLOAD_SWITCHES = {
    "--enable-cpu-offload": "module",
    "--enable-layerwise-offload": "layer",
    "--enable-distributed-layerwise-offload": "layer",  # on one device the two are the same
}
GATHER_SWITCHES = ("--dlo-use-allgather", "--dlo-no-use-allgather")
PIN_BUDGET = "--dlo-pin-budget-gb"
WEIGHT_TRANSFERS = ("rank-local", "allgather")  # of one rank they are the same copy
EAGER_SWITCH = "--enforce-eager"  # a peer's word for --cuda-graphs off
COMPONENT_NAMES = {
    "dit": ("dit",),
    "transformer": ("dit",),
    "text": ("text",),
    "text_encoder": ("text",),
    "video": ("video",),
    "audio": ("audio",),
    "vae": ("video", "audio"),
}


def take_offload(arguments: Sequence[str], offload: str) -> tuple[str | None, list[str]]:
    """(the mode that peers' switches ask for, the other arguments). Raises ``ConfigError`` where two disagree."""
    if all(name in arguments for name in GATHER_SWITCHES):
        raise ConfigError(
            f"{' and '.join(GATHER_SWITCHES)} exclude each other", hint="give one", param=GATHER_SWITCHES[0]
        )
    found = [name for name in arguments if name in OFFLOAD_SWITCHES]
    modes = {OFFLOAD_SWITCHES[name] for name in found} | ({offload} - {"auto"})
    if len(modes) > 1:
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


def valued(arguments: Sequence[str], names: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(flags of ``names`` with their values, the other arguments), in order; ``--flag value`` or ``--flag=value``."""
    found: list[tuple[str, str]] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in names:
            found.append((name, value if equals else next(words, "")))
        else:
            rest.append(word)
    return found, rest


def take_eager(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """(whether a peer's switch asks for kernels launched one by one, the other arguments)."""
    return EAGER_SWITCH in arguments, [name for name in arguments if name != EAGER_SWITCH]


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


def components(text: str) -> tuple[str, ...]:
    """``dit,text_encoder,vae`` -> our names. Raises ``ConfigError``."""
    found: list[str] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in COMPONENT_NAMES:
            raise ConfigError(
                f"no component is called {name!r}",
                hint="use " + ", ".join(COMPONENT_NAMES),
                param="--offload-components",
            )
        found += [ours for ours in COMPONENT_NAMES[name] if ours not in found]
    return tuple(found)


def take(arguments: Sequence[str], own_flags: Iterable[str]) -> tuple[str | None, list[str]]:
    """(model, notes) from the arguments that no option of ours took.

    Raises ``ConfigError`` naming the flag: a peer's with the reason, any other with the nearest name.
    """
    models: list[str] = []
    notes: list[str] = []
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            models.append(token)
            continue
        name, equals, value = token.partition("=")
        flag = PEER_FLAGS.get(name)
        if flag is None:
            raise _unknown(name, own_flags)
        if flag.takes_value and not equals:
            value = rest.pop(0) if rest else ""
        if value not in flag.accepted:
            shown = f"{name} {value}".rstrip()
            hint = f"leave it out, or use {' or '.join(flag.accepted)}" if any(flag.accepted) else "leave it out"
            raise ConfigError(f"{shown} is not available: {flag.reason}", hint=hint, param=name)
        notes.append(f"{f'{name} {value}'.rstrip()}: already so, {flag.reason}")
    if len(models) > 1:
        raise ConfigError(f"one model is served, got {', '.join(models)}", hint="name one folder", param="MODEL")
    return (models[0] if models else None), notes


def _unknown(name: str, own_flags: Iterable[str]) -> ConfigError:
    near = difflib.get_close_matches(name, [*own_flags, *PEER_FLAGS], n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "see talkies serve --help"
    return ConfigError(f"unknown flag {name}", hint=hint, param=name)
