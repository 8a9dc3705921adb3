"""What a key of an adapter's file is about: which tensor of the DiT, and what is done to it.

Trainers and distillers write the same few things under many names. Whatever the names, a key says three: a module of
the DiT, in the names of diffusers' port or of MiniMax's release (``h3/dit_keys.py``); its role there; and, where a
prefix says so, which of the two DiTs is meant. docs/adapters.md lists the layouts and where each is documented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from talkies.errors import CheckpointError
from talkies.h3 import dit_keys
from talkies.h3.config import DiTConfig
from talkies.h3.dit_keys import Layout, Spec

PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer_ref.", "transformer.")
FLATTENED = "lora_unet_"  # kohya's: every dot of the module's path is an underscore
_LOW_RANK = re.compile(
    r"(?P<module>.+)\.lora_(?P<side>A|B|down|up)(?:\.(?P<infix>(?!weight$|bias$)[^.]+))?(?:\.weight)?"
)
_SUFFIXES = {
    ".alpha": ("alpha", ".weight"),
    ".diff_b": ("add", ".bias"),
    ".diff": ("add", ".weight"),
    ".set_weight": ("set", ".weight"),
    ".set_bias": ("set", ".bias"),
    ".weight": ("set", ".weight"),
    ".bias": ("set", ".bias"),
}
# Words of a key -> why it cannot be used, and what can be done instead.
_UNSUPPORTED = (
    (
        "to_gate_compress",
        "is a gate of a sparse attention (VSA), and attention here is dense",
        "use the dense variant of the release: FastH3 publishes dense-datafree/adapter_model.safetensors beside it",
    ),
    ("dora_scale", "is of a DoRA, which is not a sum of matrices", "merge it with its trainer into whole weights"),
    ("lora_magnitude_vector", "is of a DoRA, which is not a sum of matrices", "merge it with its trainer"),
    ("hada_w", "is of a LoHa adapter", "convert it to low rank, or merge it with its trainer"),
    ("lokr_w", "is of a LoKr adapter", "convert it to low rank, or merge it with its trainer"),
    ("oft_", "is of an OFT adapter", "convert it to low rank, or merge it with its trainer"),
    ("text_encoder", "is of the text encoder, whose weights are not adapted", "leave these keys out of the file"),
    ("lora_te", "is of the text encoder, whose weights are not adapted", "leave these keys out of the file"),
)


class Role(Enum):
    """What a key's tensor is to the tensor that it is about."""

    DOWN = "down"  # [rank, inputs]
    UP = "up"  # [outputs, rank]
    ALPHA = "alpha"  # one number: the product counts alpha / rank
    ADD = "add"  # added
    SET = "set"  # taken instead


@dataclass(frozen=True, slots=True)
class Target:
    """The ``part``-th tensor of a checkpoint in some layout that makes up our tensor ``spec``."""

    spec: Spec
    part: int


@dataclass(frozen=True, slots=True)
class Meaning:
    """``stored`` is the checkpoint's key that is meant; ``component`` is ``transformer`` or ``transformer_ref`` where
    a prefix said so; ``infix`` is the adapter's name within PEFT (``default``), where the key has one."""

    key: str
    stored: str
    role: Role
    component: str | None
    infix: str | None


def meanings(keys: Iterable[str], where: str) -> list[Meaning]:
    """One for each key. Raises ``CheckpointError`` naming the first key that has none, and saying why."""
    return [_meaning(key, where) for key in keys]


def stored_keys(config: DiTConfig, layout: Layout) -> Mapping[str, Target]:
    """Every key of a checkpoint in ``layout``, as adapters may mean them; kohya's flattened modules, too."""
    found: dict[str, Target] = {}
    for spec in dit_keys.all_specs(config):
        for part, key in enumerate(dit_keys.file_keys(spec.name, layout)):
            found[key] = Target(spec, part)
            module, _, leaf = key.rpartition(".")
            if leaf in ("weight", "bias"):
                found[f"{FLATTENED}{module.replace('.', '_')}.{leaf}"] = Target(spec, part)
    return found


def _meaning(key: str, where: str) -> Meaning:
    for word, what, way_out in _UNSUPPORTED:
        if word in key:
            raise CheckpointError(f"{where}: {key!r} {what}", hint=way_out, param=key)
    name, component = key, None
    while (prefix := next((p for p in PREFIXES if name.startswith(p)), None)) is not None:
        name = name.removeprefix(prefix)
        if prefix.startswith("transformer"):
            component = prefix[:-1]
    if (match := _LOW_RANK.fullmatch(name)) is not None:
        role = Role.DOWN if match["side"] in ("A", "down") else Role.UP
        return Meaning(key, match["module"] + ".weight", role, component, match["infix"])
    for suffix, (role_name, leaf) in _SUFFIXES.items():
        if name.endswith(suffix):
            return Meaning(key, name.removesuffix(suffix) + leaf, Role(role_name), component, None)
    return Meaning(key, name, Role.SET, component, None)  # a checkpoint's own key, such as a block's attn.norm_q
