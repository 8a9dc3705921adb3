"""Byte-level BPE trained on the world's prompts, with the vision specials; saved as a Qwen2 tokenizer.

Normalizer and pre-tokenizer are Qwen2's own: the class brings them along on loading, whatever the file says.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch

from training import world

SPECIALS = ("<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<d>", "</d>")
LABELS = (*(f"<{kind} {i}>: " for kind in ("Picture", "Audio", "Video") for i in (1, 2, 3)), "<0.2 seconds>")


def corpus(num_clips: int = 16_000) -> list[str]:
    """Prompts of all three kinds and the presentation's labels."""
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    specs = world.sample_specs(num_clips, world.CANVASES["16:9"], generator)
    kinds = ("t2va", "t2va", "fl2va", "ref2va")
    texts = [world.prompt(world.describe(specs, i), rng, kinds[i % 4])[0] for i in range(num_clips)]
    return texts + list(LABELS) * 300


def build(folder: Path, texts: list[str] | None = None, vocab_size: int = 1024):
    """Trains the tokenizer on `texts`, the first edition's corpus if left out, and saves it; returns it loaded."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import Qwen2TokenizerFast
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIALS),
        min_frequency=20,
        show_progress=False,
    )
    raw.train_from_iterator(corpus() if texts is None else texts, trainer)
    tokenizer = Qwen2TokenizerFast(
        tokenizer_object=raw, unk_token=None, pad_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    return load(folder)


def load(folder: Path):
    from transformers import Qwen2TokenizerFast

    return Qwen2TokenizerFast.from_pretrained(folder)


def special_ids(tokenizer) -> dict[str, int]:
    return {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIALS}
