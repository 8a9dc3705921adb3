"""Text and vision conditioning against the stock Qwen3-VL and diffusers' presentation."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from talkies.codecs.text.encoder import Conditioner, TextEncoder
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import EncoderAudio, EncoderImage, EncoderVideo, pixel_rows, present
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.h3.vision import pair_timestamps, sample_indices
from tests.codecs.tiny import pictures, zero_outputs

SMALL = PatchConfig(min_pixels=32 * 32, max_pixels=256 * 256)
PROMPT = "<d>[English] hi</d> a robot dances"
IMAGE = EncoderImage(pictures(0, 64, 96, 3))
VIDEO = EncoderVideo(pictures(1, 30, 64, 64, 3), has_soundtrack=True)
CASES = {
    "text": [],
    "image": [IMAGE],
    "two images": [IMAGE, EncoderImage(pictures(2, 32, 64, 3))],
    "video": [VIDEO],
    "all kinds": [IMAGE, VIDEO, EncoderAudio(), EncoderImage(pictures(3, 96, 32, 3))],
}


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return FolderTokenizer.load(tiny_folder / "tokenizer")


def stock_states(model, presentation, rows):
    """``hidden_states[50]`` of the stock model, called as diffusers calls it."""
    vision = {}
    if rows.images is not None:
        vision |= {
            "pixel_values": torch.from_numpy(rows.images),
            "image_grid_thw": torch.tensor(presentation.image_grids),
        }
    if rows.videos is not None:
        vision |= {
            "pixel_values_videos": torch.from_numpy(rows.videos),
            "video_grid_thw": torch.tensor(presentation.video_grids),
        }
    ids = torch.tensor([presentation.input_ids])
    with torch.no_grad():
        out = model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=torch.tensor([presentation.mm_token_type_ids]),
            use_cache=False,
            output_hidden_states=True,
            **vision,
        )
    return out.hidden_states[50][0]


@pytest.mark.parametrize("case", CASES)
def test_the_states_are_the_stock_models_hidden_states_50(case, tiny_parts, tiny_folder, tokenizer):
    presentation = present(tokenizer, PROMPT, CASES[case], patches=SMALL)
    rows = pixel_rows(CASES[case], patches=SMALL)
    encoder = TextEncoder.load(tiny_folder / "text_encoder")
    condition = encoder.encode(presentation, rows)
    expected = stock_states(tiny_parts["text_encoder"], presentation, rows)
    assert encoder.num_live_layers == 50
    assert condition.states.shape == (len(presentation), 32)
    assert condition.tags.dtype == torch.int8
    torch.testing.assert_close(condition.states, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_live", [0, 1, 2, 5])
@pytest.mark.parametrize("case", ["text", "all kinds"])
def test_skipping_identity_layers_is_bit_equal(case, num_live, tiny_parts, tokenizer, tmp_path):
    stock = zero_outputs(copy.deepcopy(tiny_parts["text_encoder"]), num_live)
    stock.save_pretrained(tmp_path)
    encoder = TextEncoder.load(tmp_path)
    presentation = present(tokenizer, PROMPT, CASES[case], patches=SMALL)
    rows = pixel_rows(CASES[case], patches=SMALL)
    assert encoder.num_live_layers == num_live
    assert len(encoder.model.language_model.layers) == max(num_live, 2)  # two deepstack taps stay where they are
    assert torch.equal(encoder.encode(presentation, rows).states, stock_states(stock, presentation, rows))


def test_a_second_request_does_not_see_the_first(tiny_folder, tokenizer):
    conditioner = Conditioner(tokenizer, SMALL, TextEncoder.load(tiny_folder / "text_encoder"))
    alone = conditioner.encode(PROMPT)
    conditioner.encode(PROMPT, CASES["all kinds"])
    assert torch.equal(conditioner.encode(PROMPT).states, alone.states)


def test_bfloat16_stays_close_to_float32(tiny_folder, tokenizer):
    presentation = present(tokenizer, PROMPT)
    full = TextEncoder.load(tiny_folder / "text_encoder").encode(presentation).states
    half = TextEncoder.load(tiny_folder / "text_encoder", dtype=torch.bfloat16).encode(presentation).states
    assert half.dtype == torch.bfloat16
    assert (half.float() - full).norm() / full.norm() < 0.02


@pytest.mark.parametrize("case", CASES)
def test_ids_and_tags_are_those_of_diffusers(case, tiny_parts, tokenizer):
    from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3Ref2VATextEncoderStep as Step

    presentation = present(tokenizer, PROMPT, CASES[case], patches=SMALL)
    references, stamps = [], []
    for visual in CASES[case]:
        # diffusers reads no more of a reference here than its kind and whether it sounds.
        sounds = isinstance(visual, EncoderAudio) or getattr(visual, "has_soundtrack", False)
        kind = type(visual).__name__.removeprefix("Encoder").lower()
        references.append(SimpleNamespace(kind=kind, has_audio=sounds))
        if isinstance(visual, EncoderVideo):
            stamps.append(Step._sample_video_condition_frames(visual.frames, 24.0, 2.0, 2)[1])
    ids, tags = Step._build_presentation(
        tiny_parts["tokenizer"],
        PROMPT,
        references,
        [h * w // 4 for _, h, w in presentation.image_grids],
        [h * w // 4 for _, h, w in presentation.video_grids],
        stamps,
    )
    assert list(presentation.input_ids) == ids
    assert list(presentation.token_tags) == tags


@pytest.mark.parametrize("num_frames", [13, 22, 24, 25, 37, 124, 209, 362])
def test_sampled_frames_and_timestamps_are_those_of_diffusers(num_frames):
    from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3Ref2VATextEncoderStep as Step

    frames = np.arange(num_frames, dtype=np.int64)[:, None]
    theirs, stamps = Step._sample_video_condition_frames(frames, 24.0, 2.0, 2)
    ours = sample_indices(num_frames, 24.0, SMALL)
    assert ours == [int(frame[0]) for frame in theirs]
    assert pair_timestamps(len(ours), SMALL) == stamps
