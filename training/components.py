"""The tiny components' configurations. Every geometry that the engine sees is H3's own: clip 17, drop 3, hop 800."""

from __future__ import annotations

import torch
from torch import Tensor

from training.world import constant

LATENT_CHANNELS = 16
AUDIO_CHANNELS = 16
TEXT_DIM = 64
NUM_LIVE_TEXT_LAYERS = 2
NUM_TEXT_LAYERS = 51  # the stock pipeline reads hidden_states[50] and refuses a shorter stack
SPATIAL_FACTOR = 8
PATCH = 2  # latent pixels of a row's side, so a row shows 16 x 16 pixels

VIDEO_VAE = {
    "latent_channels": LATENT_CHANNELS,
    "block_out_channels": (16, 32, 64),
    "layers_per_block": 1,
    "spatial_downsample_factors": (2, 2, 2),
    "temporal_downsample_factors": (1, 2, 2),
    "norm_num_groups": 4,
    "decoder_num_layers": 4,
    "decoder_num_attention_heads": 4,
    "decoder_attention_head_dim": 64,
    "decoder_num_register_tokens": 4,
    "decoder_ffn_mult": 2,
    "latents_mean": (0.0,) * LATENT_CHANNELS,
    "latents_std": (1.0,) * LATENT_CHANNELS,
}
AUDIO_VAE = {
    "encoder_dim": 8,
    "encoder_rates": (160, 5),
    "latent_dim": 64,
    "latent_channels": AUDIO_CHANNELS,
    "num_attention_heads": 2,
    "decoder_dim": 32,
    "decoder_rates": (5, 160),
    "decoder_kernel_sizes": (9, 320),
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1,),),
    "sampling_rate": 32_000,
    "latents_mean": [0.0] * AUDIO_CHANNELS,
    "latents_std": [1.0] * AUDIO_CHANNELS,
}
DIT = {
    "num_attention_heads": 8,  # divisible by 4, so that sequence parallelism can be tested at 2 and 4
    "attention_head_dim": 32,
    "hidden_size": 192,  # not heads * head_dim, as in the released model
    "num_layers": 7,
    "num_refiner_layers": 1,
    "ffn_dim": 384,
    "in_channels": LATENT_CHANNELS,
    "audio_in_channels": AUDIO_CHANNELS,
    "patch_size": (1, PATCH, PATCH),
    "text_dim": TEXT_DIM,
    "freq_dim": 256,
    "time_embed_hidden_dim": 128,
    "time_embed_dim": 40,
    "rope_freq_dim": 5,
    "rope_theta": 1000.0,
}
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)


def pixel_statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """ImageNet mean and standard deviation, [1, 3, 1, 1, 1] each."""
    return constant(PIXEL_MEAN, device).view(1, 3, 1, 1, 1), constant(PIXEL_STD, device).view(1, 3, 1, 1, 1)


def normalize_pixels(video_B3FHW: Tensor) -> Tensor:
    """0..1 -> ImageNet-normalized, the video VAE's pixel space."""
    mean, std = pixel_statistics(video_B3FHW.device)
    return (video_B3FHW - mean) / std


def denormalize_pixels(pixels_B3FHW: Tensor) -> Tensor:
    """The inverse, clamped to 0..1."""
    mean, std = pixel_statistics(pixels_B3FHW.device)
    return (pixels_B3FHW * std + mean).clamp(0, 1)


def text_encoder_config(special_ids: dict[str, int], vocab_size: int, num_layers: int):
    """Qwen3-VL with a one-layer vision tower. `special_ids` maps the vision specials to token ids."""
    from transformers import Qwen3VLConfig

    return Qwen3VLConfig(
        text_config={
            "vocab_size": vocab_size,
            "hidden_size": TEXT_DIM,
            "intermediate_size": 64,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": TEXT_DIM,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=special_ids["<|image_pad|>"],
        video_token_id=special_ids["<|video_pad|>"],
        vision_start_token_id=special_ids["<|vision_start|>"],
        vision_end_token_id=special_ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
