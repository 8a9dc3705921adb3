from __future__ import annotations

import numpy as np
import pytest

from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import EncoderAudio, EncoderImage, EncoderVideo, pixel_rows, present
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.errors import InvalidRequest

SMALL = PatchConfig(min_pixels=32 * 32, max_pixels=256 * 256)


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return FolderTokenizer.load(tiny_folder / "tokenizer")


def spelled(tokenizer, presentation) -> str:
    """The presentation as text, runs of pads as their count."""
    names = {tokenizer.token_id(t): t for t in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")}
    characters = {tokenizer.encode(chr(c))[0]: chr(c) for c in range(32, 127)}
    out, pads = "", 0
    for token in presentation.input_ids:
        if names.get(token, "").endswith("_pad|>"):
            pads += 1
            continue
        out += (f"x{pads}" if pads else "") + {"<|vision_start|>": "[", "<|vision_end|>": "]"}.get(
            names.get(token, ""), characters.get(token, "?")
        )
        pads = 0
    return out


def image(height=64, width=96):
    return EncoderImage(np.zeros((height, width, 3), np.uint8))


def video(frames=30, sound=False):
    return EncoderVideo(np.zeros((frames, 64, 64, 3), np.uint8), has_soundtrack=sound)


def test_text_alone_is_the_prompt_verbatim(tokenizer):
    shown = present(tokenizer, "  a robot \n")
    assert list(shown.input_ids) == tokenizer.encode("  a robot \n")
    assert set(shown.token_tags) == {1}
    assert set(shown.mm_token_type_ids) == {0}
    assert len(shown) == len(shown.input_ids)


def test_keyframes_are_pictures_in_order(tokenizer):
    shown = present(tokenizer, "go", [image(), image(32, 32)], patches=SMALL)
    assert spelled(tokenizer, shown) == "<Picture 1>: [x6]<Picture 2>: [x1]go"
    assert shown.image_grids == ((1, 4, 6), (1, 2, 2))


def test_audio_shares_one_counter_and_a_soundtrack_comes_before_its_video(tokenizer):
    visuals = [EncoderAudio(), image(), video(sound=True), video(13), EncoderAudio()]
    shown = present(tokenizer, "go", visuals, patches=SMALL)
    assert spelled(tokenizer, shown) == (
        "<Audio 1>: <Picture 1>: [x6]<Audio 2>: <Video 1>: <0.2 seconds>[x4]<1.0 seconds>[x4]"
        "<Video 2>: <0.2 seconds>[x4]<Audio 3>: go"
    )


def test_a_vision_block_is_tagged_as_video_and_only_its_pads_have_a_kind(tokenizer):
    shown = present(tokenizer, "go", [image(32, 32), video(13)], patches=SMALL)
    tagged = [i for i, tag in enumerate(shown.token_tags) if tag == 0]
    kinds = [shown.mm_token_type_ids[i] for i in tagged]
    assert kinds == [0, 1, 0, 0, 2, 2, 2, 2, 0]


@pytest.mark.parametrize(
    ("prompt", "message"), [("", "empty"), ("a <|image_pad|> b", "reserved"), ("<|vision_end|>", "reserved")]
)
def test_prompts_that_cannot_be_presented_are_refused(tokenizer, prompt, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        present(tokenizer, prompt)
    assert caught.value.param == "prompt"


def test_a_video_of_twelve_frames_is_refused(tokenizer):
    with pytest.raises(InvalidRequest, match="at least 13"):
        present(tokenizer, "go", [video(12)], patches=SMALL)


def test_rows_match_the_grids(tokenizer):
    visuals = [image(), video(), image(32, 64)]
    shown, rows = present(tokenizer, "go", visuals, patches=SMALL), pixel_rows(visuals, patches=SMALL)
    assert rows.images.shape == (sum(t * h * w for t, h, w in shown.image_grids), 1536)
    assert rows.videos.shape == (sum(t * h * w for t, h, w in shown.video_grids), 1536)
    assert pixel_rows([EncoderAudio()]).images is None
