"""The shape of a DiT checkpoint, in either spelling of its config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Self

from talkies.errors import CheckpointError

# Tags of rows, and the order of a timestep's AdaLN rows.
TAG_VIDEO, TAG_TEXT, TAG_AUDIO = 0, 1, 2
NUM_MODALITIES = 3

# Spelling of the original checkpoint -> of the port, where they differ.
ORIGINAL_KEYS: Mapping[str, str] = {
    "token_refiner_num_layers": "num_refiner_layers",
    "ffn_hidden_size": "ffn_dim",
    "latents_dim": "in_channels",
    "audio_latents_dim": "audio_in_channels",
    "timestep_input_dim": "freq_dim",
    "time_embed_hidden_size": "time_embed_hidden_dim",
    "rope_inv_freq_len": "rope_freq_dim",
}
# Derived sizes that a file may state: checked, not stored.
DERIVED_KEYS = ("adaln_out_features", "final_adaln_out_features")
# Written by other libraries' savers; they say nothing about the network.
IGNORED_KEYS = frozenset({"architectures", "dtype", "model_type", "torch_dtype", "transformers_version"})


@dataclass(frozen=True, kw_only=True, slots=True)
class DiTConfig:
    """Sizes and constants of the network; the defaults are the released model's."""

    hidden_size: int = 5376
    num_layers: int = 50
    num_refiner_layers: int = 2
    num_attention_heads: int = 56
    attention_head_dim: int = 128
    ffn_dim: int = 14336
    in_channels: int = 24
    audio_in_channels: int = 32
    patch_size: tuple[int, int, int] = (1, 2, 2)  # latents per row along t, h, w
    text_dim: int = 5120
    freq_dim: int = 256
    time_embed_hidden_dim: int = 5376
    time_embed_dim: int = 2688
    rope_freq_dim: int = 16
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    final_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if 6 * self.rope_freq_dim > self.attention_head_dim:
            raise CheckpointError(
                f"rope_freq_dim={self.rope_freq_dim} turns {6 * self.rope_freq_dim} channels, "
                f"but attention_head_dim is {self.attention_head_dim}",
                hint="3 axes x 2 channels x rope_freq_dim must fit in a head",
                param="rope_freq_dim",
            )
        if self.patch_size[0] != 1:
            raise CheckpointError(
                f"patch_size={list(self.patch_size)} packs several latent frames in a row",
                hint="the first value must be 1",
                param="patch_size",
            )
        if self.freq_dim % 2:
            raise CheckpointError(
                f"freq_dim={self.freq_dim} is odd", hint="cosines and sines come in pairs", param="freq_dim"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From a config file's keys, port or original spelling or both. Keys that start with ``_`` are ignored.

        Raises ``CheckpointError`` naming a key that is unknown, of the wrong kind, or given twice with two values.
        """
        kinds = {f.name: type(f.default) for f in dataclasses.fields(cls)}
        found: dict[str, Any] = {}
        for key, value in values.items():
            if key.startswith("_") or key in IGNORED_KEYS or key in DERIVED_KEYS:
                continue
            name = ORIGINAL_KEYS.get(key, key)
            if name not in kinds:
                raise CheckpointError(
                    f"the DiT config has an unknown key {key!r}",
                    hint="this model is not one that talkies knows; known keys: " + ", ".join(sorted(kinds)),
                    param=key,
                )
            value = _checked(key, value, kinds[name])
            if found.setdefault(name, value) != value:
                raise CheckpointError(f"the DiT config gives {name} twice: {found[name]} and {value}", param=key)
        config = cls(**found)
        for key in DERIVED_KEYS:
            if key in values and values[key] != getattr(config, key):
                raise CheckpointError(
                    f"the DiT config says {key}={values[key]}, but its sizes give {getattr(config, key)}", param=key
                )
        return config

    @property
    def inner_dim(self) -> int:
        """Attention width; larger than ``hidden_size`` in the released model."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def video_row_dim(self) -> int:
        return self.in_channels * prod(self.patch_size)

    @property
    def adaln_out_features(self) -> int:
        """Outputs of a block's AdaLN: modality (outer) x six parameters (inner) x hidden."""
        return NUM_MODALITIES * 6 * self.hidden_size

    @property
    def final_adaln_out_features(self) -> int:
        return 2 * self.hidden_size

    @property
    def num_angles(self) -> int:
        return 3 * self.rope_freq_dim


def _checked(key: str, value: Any, kind: type) -> Any:
    """``value`` as ``kind``, or ``CheckpointError``: a string or a list in place of a number is never guessed at."""
    if kind is tuple:
        if isinstance(value, list | tuple) and len(value) == 3 and all(_positive_int(v) for v in value):
            return tuple(value)
    elif kind is int:
        if _positive_int(value) or (key == "num_refiner_layers" and value == 0):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    wanted = {tuple: "three positive integers", int: "a positive integer", float: "a positive number"}[kind]
    raise CheckpointError(f"the DiT config has {key}={value!r}, which is not {wanted}", param=key)


def _positive_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
