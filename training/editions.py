"""What differs between the editions of the embedded checkpoint: world, prompts, and the sizes of the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from training import world
from training.components import DIT, NUM_LIVE_TEXT_LAYERS, VIDEO_VAE


@dataclass(frozen=True, kw_only=True)
class Edition:
    """`world` has CANVASES, sample_specs, render and audio_for; `prompt(attributes, rng, kind)` begins with a text.

    `video_vae` and `dit` are the stock classes' arguments; the text encoder has `num_live_text_layers` of 51.
    """

    world: ModuleType
    prompt: Callable[..., tuple]
    video_vae: dict[str, Any]
    dit: dict[str, Any]
    num_live_text_layers: int


FIRST = Edition(
    world=world, prompt=world.prompt, video_vae=VIDEO_VAE, dit=DIT, num_live_text_layers=NUM_LIVE_TEXT_LAYERS
)
