"""Flags that no option of ours took: each is answered from the peers' tables, or unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from talkies.cli.peers.kinds import ANY, NO, YES, PeerFlag
from talkies.cli.peers.sglang import SGLANG
from talkies.cli.peers.vllm_http import VLLM_HTTP
from talkies.cli.peers.vllm_omni import VLLM_OMNI
from talkies.errors import ConfigError

PEER_FLAGS: Mapping[str, PeerFlag] = {**SGLANG, **VLLM_HTTP, **VLLM_OMNI}


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a line's other words are: models, notes for stderr, and what is wrong with the rest, all of it."""

    models: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[ConfigError] = field(default_factory=list)


def take(arguments: Sequence[str], own_flags: Iterable[str]) -> Taken:
    """Reads every word; a flag is known by its name before the first dot (``--component-paths.vae``)."""
    taken = Taken()
    rest, own = list(arguments), tuple(own_flags)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            taken.models.append(token)
            continue
        name, equals, value = token.partition("=")
        flag = PEER_FLAGS.get(name) or PEER_FLAGS.get(name.split(".")[0])
        if flag is None:
            taken.refusals.append(_unknown(name, own))
            if not equals and rest and not rest[0].startswith("-"):
                rest.pop(0)  # most likely its value, and no model
            continue
        if not equals:
            value = _value(flag, rest)
        _answer(taken, name, flag, value)
    if len(taken.models) > 1 and not taken.refusals:
        taken.refusals.append(
            ConfigError(f"one model is served, got {', '.join(taken.models)}", hint="name one folder", param="MODEL")
        )
    return taken


def _value(flag: PeerFlag, rest: list[str]) -> str:
    """The words that belong to a flag, taken off ``rest``."""
    match flag.takes:
        case "one":
            return rest.pop(0) if rest else ""
        case "maybe":
            return rest.pop(0) if rest and rest[0].lower() in (*YES, *NO) else ""
        case "several":
            words = []
            while rest and not rest[0].startswith("-"):
                words.append(rest.pop(0))
            return " ".join(words)
    return ""


def _answer(taken: Taken, name: str, flag: PeerFlag, value: str) -> None:
    shown = f"{name} {value}".rstrip()
    match flag.answer(value.lower() if flag.takes == "maybe" else value):
        case "accepted":
            taken.notes.append(f"{shown}: already so, {flag.reason}")
        case "noted":
            taken.notes.append(f"{shown}: without effect, {flag.reason}")
        case "refused":
            allowed = [word for word in flag.accepted if word and flag.accepted != ANY]
            if flag.takes == "maybe" and allowed:
                allowed = allowed[:1]
            hint = f"leave it out, or use {' or '.join(allowed)}" if allowed else "leave it out"
            taken.refusals.append(ConfigError(f"{shown} is not available: {flag.reason}", hint=hint, param=name))


def _unknown(name: str, own_flags: Sequence[str]) -> ConfigError:
    near = difflib.get_close_matches(name, [*own_flags, *PEER_FLAGS], n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "see talkies serve --help"
    return ConfigError(f"unknown flag {name}", hint=hint, param=name)
