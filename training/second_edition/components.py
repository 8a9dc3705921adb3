"""The second edition's parts: a VAE of factor 16 like the release's, and what keeps all weights under 28 MB.

Where they differ from `training.components`; README.md has the split of the bytes.
"""

from __future__ import annotations

from training.components import DIT, VIDEO_VAE
from training.editions import Edition
from training.second_edition import world
from training.second_edition.prompts.compose import prompt

LATENT_CHANNELS = 24  # the release's; a latent covers 16 x 16 pixels of four frames
NUM_LIVE_TEXT_LAYERS = 4  # of 51: plain English needs more than a fixed grammar; an identity layer stored is as big
VOCAB_SIZE = 1600
SECOND_VIDEO_VAE = VIDEO_VAE | {
    "latent_channels": LATENT_CHANNELS,
    "block_out_channels": (8, 16, 24, 32),
    "spatial_downsample_factors": (2, 2, 2, 2),
    "temporal_downsample_factors": (1, 2, 2, 1),
    "decoder_num_layers": 3,
    # The last layer makes the 3,072 pixel values of a token from the width, so the width bounds what it can draw: of
    # patches of this world 160 principal components leave 37.8 dB, 256 leave 39.9.
    "decoder_num_attention_heads": 8,
    "decoder_attention_head_dim": 32,
    "decoder_ffn_mult": 1,
    "latents_mean": (0.0,) * LATENT_CHANNELS,
    "latents_std": (1.0,) * LATENT_CHANNELS,
}
SECOND_DIT = DIT | {"in_channels": LATENT_CHANNELS}
SECOND = Edition(
    world=world,
    prompt=prompt,
    video_vae=SECOND_VIDEO_VAE,
    dit=SECOND_DIT,
    num_live_text_layers=NUM_LIVE_TEXT_LAYERS,
)
