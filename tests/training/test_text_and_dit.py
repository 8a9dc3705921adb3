"""The training forwards equal the stock ones on the stock presentation and layout."""

import pytest
import torch

from training import tokenizer, world
from training.components import DIT
from training.dit import batched, text

PROMPT = "A red ball bounces, with a bell."
KEYFRAMES = [(), ("first",), ("last",), ("first", "last")]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    from diffusers import MiniMaxH3Transformer3DModel

    torch.manual_seed(0)
    tok = tokenizer.build(tmp_path_factory.mktemp("tokenizer"))
    encoder = text.TextEncoder(tok).eval()
    torch.nn.init.normal_(encoder.stock.model.visual.pos_embed.weight, std=0.5)
    dit = MiniMaxH3Transformer3DModel(**DIT | {"num_layers": 2}).eval()
    return tok, encoder, text.expand(encoder.stock, tok), dit


@torch.no_grad()
@pytest.mark.parametrize(("canvas", "num_frames"), [("16:9", 22), ("3:4", 39)])
@pytest.mark.parametrize("keyframes", KEYFRAMES)
def test_text_rows_and_velocities_equal_the_stock_models(parts, keyframes, canvas, num_frames):
    from diffusers.modular_pipelines.minimax_h3.before_denoise import (
        MiniMaxH3PrepareLayoutStep,
        MiniMaxH3SetTimestepsStep,
    )

    tok, encoder, stock_encoder, dit = parts
    canvas = world.CANVASES[canvas]
    presentation = text.present(tok, canvas, len(keyframes))
    prompt = tok(PROMPT, add_special_tokens=False)["input_ids"]
    ids = [*presentation.ids, *prompt]
    images = torch.rand(len(keyframes), 3, canvas.height, canvas.width)
    features, vision = None, {}
    if keyframes:
        features = tuple(x.flatten(0, 1)[None] for x in encoder.vision(images, canvas))
        size = text.encoder_image_size(canvas)
        grid = torch.tensor([[1, size[0] // 16, size[1] // 16]] * len(keyframes))
        vision = {
            "pixel_values": text.pair_to_patches(torch.stack((images, images), 1), size).flatten(0, 1),
            "image_grid_thw": grid,
        }
    rows = encoder(presentation, torch.tensor([prompt]), features)
    pad = tokenizer.special_ids(tok)["<|image_pad|>"]
    stock_rows = stock_encoder.model(
        input_ids=torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        mm_token_type_ids=torch.tensor([[int(i == pad) for i in ids]]),
        output_hidden_states=True,
        use_cache=False,
        **vision,
    ).hidden_states[50]
    assert torch.allclose(rows, stock_rows, atol=1e-5)

    base = batched.Layout(canvas, num_frames, keyframes, presentation.is_vision)
    placed = batched.Placer(dit.rope.inv_freq, torch.float32)(base, len(prompt))
    layout = placed.layout
    tags = torch.where(torch.tensor(layout.text_is_vision), 0, 1)
    latents = batched.num_latent_frames(num_frames)
    position, row_tags, video_i, audio_i, text_i, num_conditions, _ = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        tags, latents, *layout.latent_size, world.num_audio_latents(num_frames), (1, 2, 2), 2, 2, 0, keyframes
    )
    assert torch.allclose(position, layout.positions(), atol=1e-9)
    times, time_i = MiniMaxH3SetTimestepsStep.build_row_timesteps(
        video_i, audio_i, num_conditions, 0, len(ids), 0.3, 0.55, 0.999, 1.0
    )
    condition = torch.randn(1, layout.num_condition_rows, 64)
    audio, video = torch.randn(1, layout.num_audio_rows, 16), torch.randn(1, layout.num_video_rows, 64)
    stock = dit(
        torch.cat([condition, video], 1), audio, rows, times, time_i, row_tags, position, video_i, audio_i, text_i
    )
    ours = batched.forward(dit, placed, rows, condition, audio, video, torch.tensor([0.3]), torch.tensor([0.55]))
    assert torch.allclose(ours[0], stock.sample[:, num_conditions:], atol=1e-5)
    assert torch.allclose(ours[1], stock.audio_sample, atol=1e-5)


def test_rows_survive_patchify():
    latents = torch.randn(2, 16, 7, 8, 14)
    assert torch.equal(batched.unpatchify(batched.patchify(latents), (8, 14)), latents)


def test_a_saved_tokenizer_reads_the_same_under_every_loader(tmp_path):
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    ours = tokenizer.build(tmp_path)
    raw, auto = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), AutoTokenizer.from_pretrained(tmp_path)
    for line in tokenizer.corpus(50)[:50]:
        ids = raw.encode(line, add_special_tokens=False).ids
        assert ids == ours(line, add_special_tokens=False)["input_ids"]
        assert ids == auto(line, add_special_tokens=False)["input_ids"]
