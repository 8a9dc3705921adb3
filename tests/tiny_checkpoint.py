"""A random-weight checkpoint of every component, a few hundred kB, in the port layout, made from the public classes.

The geometry is the released one (spatial factor 16, clips of 17, 800 samples a latent), the widths are tiny.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXT_DIM = 32
DIT: dict[str, Any] = {
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "hidden_size": 48,
    "num_layers": 2,
    "num_refiner_layers": 1,
    "ffn_dim": 64,
    "in_channels": 4,
    "audio_in_channels": 8,
    "patch_size": (1, 2, 2),
    "text_dim": TEXT_DIM,
    "freq_dim": 16,
    "time_embed_hidden_dim": 48,
    "time_embed_dim": 24,
    "rope_freq_dim": 2,
}
VAE: dict[str, Any] = {
    "latent_channels": 4,
    "block_out_channels": (8, 8, 8, 8),
    "layers_per_block": 1,
    "spatial_downsample_factors": (2, 2, 2, 2),
    "temporal_downsample_factors": (1, 2, 2, 1),
    "norm_num_groups": 4,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_attention_head_dim": 16,
    "decoder_num_register_tokens": 2,
    "decoder_ffn_mult": 2,
    "latents_mean": (0.1, -0.2, 0.3, 0.0),
    "latents_std": (1.5, 0.8, 1.1, 2.0),
}
AUDIO_VAE: dict[str, Any] = {
    "encoder_dim": 2,
    "encoder_rates": (2, 4, 4, 5, 5),
    "latent_dim": 32,
    "latent_channels": 8,
    "num_attention_heads": 2,
    "decoder_dim": 16,
    "decoder_rates": (5, 5, 4, 8),
    "decoder_kernel_sizes": (9, 9, 8, 16),
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1,),),
    "sampling_rate": 32000,
    "latents_mean": [0.05 * i for i in range(8)],
    "latents_std": [1.0 + 0.1 * i for i in range(8)],
}
SPECIALS = ["<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<d>", "</d>"]


def tokenizer() -> Any:
    """Byte-level, one token per byte, plus the special tokens."""
    from transformers import Qwen2TokenizerFast

    vocab = {ch: i for i, ch in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True) for t in SPECIALS])
    return Qwen2TokenizerFast(tokenizer_object=raw, unk_token=None, pad_token=SPECIALS[0], eos_token=SPECIALS[0])


def components(seed: int = 0) -> dict[str, Any]:
    """Diffusers' and transformers' modules with reproducible random weights."""
    from diffusers import (
        AutoencoderKLMiniMaxH3,
        AutoencoderKLMiniMaxH3Audio,
        MiniMaxH3Scheduler,
        MiniMaxH3Transformer3DModel,
    )
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tok = tokenizer()
    ids = {t: tok.convert_tokens_to_ids(t) for t in SPECIALS}
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tok),
            "hidden_size": TEXT_DIM,
            "intermediate_size": 48,
            "num_hidden_layers": 51,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "rope_parameters": rope,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": TEXT_DIM,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    g = torch.Generator().manual_seed(seed)
    return {
        "tokenizer": tok,
        "processor": Processor(tok),
        "text_encoder": _randomize(Qwen3VLForConditionalGeneration(config), 0.05, g),
        "transformer": _randomize(MiniMaxH3Transformer3DModel(**DIT), 0.1, g),
        "vae": _randomize(AutoencoderKLMiniMaxH3(**VAE), 0.1, g),
        "audio_vae": _randomize(AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE), 0.1, g),
        "scheduler": MiniMaxH3Scheduler(shift=12.0),
        "audio_scheduler": MiniMaxH3Scheduler(shift=3.0),
    }


def save(folder: Path, parts: dict[str, Any]) -> Path:
    """The folder that ``diffusers`` would write, readable by talkies. Canvases: short edge 64, up to 96x64."""
    for name in ("tokenizer", "text_encoder", "transformer", "vae", "audio_vae", "scheduler", "audio_scheduler"):
        parts[name].save_pretrained(folder / name)
    # Pixel bounds so small that a 64x64 keyframe reaches the text encoder as it is.
    bounds = {"shortest_edge": 32 * 32, "longest_edge": 16_777_216}
    (folder / "processor").mkdir()
    processor = {"size": bounds, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(processor))
    index = {"_class_name": "MiniMaxH3ModularPipeline"}
    (folder / "model_index.json").write_text(json.dumps(index))
    limits = {"canvas_short_edge": 64, "canvas_max_pixels": 64 * 96, "reference_image_short_edge": 64}
    (folder / "talkies.json").write_text(json.dumps(limits | {"default_num_frames": 124, "min_num_frames": 22}))
    return folder


def pipeline(parts: dict[str, Any]) -> Any:
    """Diffusers' modular pipeline over the same modules: the oracle of whole runs."""
    from diffusers.modular_pipelines import MiniMaxH3Blocks

    pipe = MiniMaxH3Blocks().init_pipeline()
    pipe.update_components(**parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _randomize(module: torch.nn.Module, scale: float, generator: torch.Generator) -> torch.nn.Module:
    with torch.no_grad():
        for _, p in sorted(module.named_parameters()):
            noise = torch.randn(p.shape, generator=generator) * scale
            # Norm weights stay near one, or nothing gets through.
            p.copy_(1.0 + noise if p.ndim == 1 and bool((p == 1).all()) else noise)
    return module.eval()


class Processor:
    """Stand-in for ``Qwen3VLProcessor``, which insists on torchvision: the calls that diffusers' H3 blocks make."""

    class _Images:
        merge_size = 2

        def __call__(self, images: Any, return_tensors: str = "pt") -> dict[str, torch.Tensor]:
            rows, grids = [], []
            for image in images:
                x = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 127.5 - 1.0
                c, h, w = x.shape
                gh, gw = h // 16, w // 16
                x = x[None].expand(2, -1, -1, -1).reshape(1, 2, c, gh // 2, 2, 16, gw // 2, 2, 16)
                rows.append(x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(gh * gw, c * 2 * 16 * 16))
                grids.append([1, gh, gw])
            return {"pixel_values": torch.cat(rows), "image_grid_thw": torch.tensor(grids)}

    class _Videos:
        merge_size = temporal_patch_size = 2

        def __call__(
            self, videos: Any, do_sample_frames: bool = False, return_tensors: str = "pt"
        ) -> dict[str, torch.Tensor]:
            rows, grids = [], []
            for frames in videos:
                x = torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2).float() / 127.5 - 1.0
                x = torch.cat([x, x[-1:]]) if x.shape[0] % 2 else x
                t, c, h, w = x.shape
                gh, gw = h // 16, w // 16
                x = x.reshape(t // 2, 2, c, gh // 2, 2, 16, gw // 2, 2, 16).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
                rows.append(x.reshape(-1, c * 2 * 16 * 16))
                grids.append([t // 2, gh, gw])
            return {"pixel_values_videos": torch.cat(rows), "video_grid_thw": torch.tensor(grids)}

    def __init__(self, tok: Any) -> None:
        self.image_processor, self.video_processor = self._Images(), self._Videos()
        self._ids = [tok.convert_tokens_to_ids(t) for t in ("<|image_pad|>", "<|video_pad|>")]

    def create_mm_token_type_ids(self, batch: Any) -> list[list[int]]:
        return [[1 if t == self._ids[0] else 2 if t == self._ids[1] else 0 for t in row] for row in batch]
