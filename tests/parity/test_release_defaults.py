"""Where a config says nothing, a component is the released one: our defaults are those of diffusers' classes."""

from __future__ import annotations

import dataclasses
import inspect
import json

import pytest
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel

from talkies.capacity.sizes import VideoSizes
from talkies.codecs.audio import vae as audio_vae
from talkies.codecs.video import config as video_config
from talkies.h3.config import DiTConfig

STATISTICS = {"latents_mean", "latents_std"}  # each checkpoint has its own


def defaults_of(cls) -> dict[str, object]:
    """Of a constructor, without those that are a checkpoint's."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in {"self", *STATISTICS}}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (audio_vae.RELEASE, AutoencoderKLMiniMaxH3Audio),
        (video_config.RELEASE, AutoencoderKLMiniMaxH3),
        (dataclasses.asdict(DiTConfig()), MiniMaxH3Transformer3DModel),
    ],
    ids=["audio VAE", "video VAE", "DiT"],
)
def test_a_silent_config_is_the_release(ours, theirs):
    assert json.loads(json.dumps(dict(ours))) == json.loads(json.dumps(defaults_of(theirs)))


def test_a_plan_without_a_file_counts_the_released_decoder():
    theirs, sizes = defaults_of(AutoencoderKLMiniMaxH3), VideoSizes()
    assert sizes.width == theirs["decoder_num_attention_heads"] * theirs["decoder_attention_head_dim"]
    assert (sizes.num_layers, sizes.ffn_mult) == (theirs["decoder_num_layers"], theirs["decoder_ffn_mult"])
    assert (sizes.latent_channels, sizes.clip_frames) == (theirs["latent_channels"], theirs["clip_length"])
