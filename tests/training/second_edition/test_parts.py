"""The second edition's parts: within their bytes, equal to the stock modules, trained in parts that go on."""

from __future__ import annotations

import json
import math

import pytest
import torch

from talkies.files.card import read_card
from training import assemble, tokenizer
from training.codecs import audio_vae, train_video_vae, video_vae
from training.components import normalize_pixels
from training.dit import text, train_dit
from training.resume import Part
from training.second_edition import run, world
from training.second_edition.components import SECOND, VOCAB_SIZE

BUDGET_BYTES, STUDENT_BYTES = 28_000_000, 2_000_000


def num_values(module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return tokenizer.build(tmp_path_factory.mktemp("tokenizer"), run.corpus(1_500), VOCAB_SIZE)


def test_all_weights_and_a_student_stay_under_the_bytes_in_git(tokens, tmp_path):
    models = train_dit.Models(tokens, SECOND)
    assemble.halve(models.dit)
    models.dit.save_pretrained(tmp_path / "transformer")
    whole = text.expand(models.text.stock, tokens).bfloat16()
    whole.save_pretrained(tmp_path / "text_encoder")
    assemble.shrink_identities(tmp_path / "text_encoder" / "model.safetensors", SECOND.num_live_text_layers)
    # the whole vocabulary, which a short corpus does not fill
    spare = (VOCAB_SIZE - len(tokens)) * models.text.stock.config.text_config.hidden_size * 2
    sizes = {path.parent.name: path.stat().st_size for path in tmp_path.rglob("*.safetensors")}
    sizes["text_encoder"] += spare
    sizes["vae"] = 2 * num_values(train_video_vae.build("cpu", SECOND))
    sizes["audio_vae"] = 4 * num_values(audio_vae.build())
    total = sizes["transformer"] + sum(sizes.values()) + STUDENT_BYTES  # two DiTs
    assert total < BUDGET_BYTES, sizes


@torch.no_grad()
@pytest.mark.parametrize(("canvas", "latents"), [("1:1", (8, 8)), ("3:4", (10, 8))])
def test_a_factor_of_16_encodes_like_the_stock_vae_and_decodes_to_the_same_canvas(canvas, latents):
    torch.manual_seed(0)
    vae = train_video_vae.build("cpu", SECOND).eval()
    clip = world.render(world.sample_specs(1, world.CANVASES[canvas], torch.Generator().manual_seed(1)), 22)
    pixels = normalize_pixels(clip.video_B3FHW)
    moments = video_vae.encode(vae, pixels)
    assert moments.shape == (1, 48, 7, *latents)
    assert torch.allclose(moments, vae.encode(pixels).latent_dist.parameters, atol=3e-4)
    assert video_vae.decode_window(vae, moments[:, :24]).shape == pixels.shape


@torch.no_grad()
def test_a_canvas_wider_than_a_tile_is_encoded_in_the_engines_tiles():
    torch.manual_seed(0)
    vae = train_video_vae.build("cpu", SECOND).eval()
    pixels = torch.randn(1, 3, 1, 128, 288)
    tiled = video_vae.encode_tiles(vae, pixels)
    left, right = (video_vae.encode(vae, pixels[..., at : at + 256]) for at in (0, 32))
    assert tiled.shape[-2:] == (8, 18)
    assert torch.equal(tiled[..., :2], left[..., :2])
    assert torch.equal(tiled[..., 16:], right[..., 14:])
    narrow = pixels[..., :224]
    assert torch.equal(video_vae.encode_tiles(vae, narrow), video_vae.encode(vae, narrow))


def quadratic(num_steps: int, part: Part) -> tuple[torch.Tensor, int]:
    """A stage in small: an optimizer, an average, and the part's own rules."""
    weight = torch.nn.Parameter(torch.full((4, 4), 3.0))
    averages, optimizer = [weight.detach().clone()], torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
    part.begin([weight], averages, optimizer)
    step = part.step_before
    while step < num_steps and not part.is_over(step, float(step)):
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        averages[0].lerp_(weight.detach(), 0.5)
        step += 1
    part.keep([weight], averages, optimizer, step, float(step), now=True)
    return weight.detach(), step


def test_a_stage_in_three_parts_ends_like_one_in_one(tmp_path):
    whole, steps = quadratic(9, Part(tmp_path / "whole.pt"))
    assert steps == 9
    file = tmp_path / "parts.pt"
    assert Part(file).peek() == 0
    for expected in (4, 8, 9):
        weight, step = quadratic(9, Part(file, limit_steps=4))
        assert step == expected == Part(file).peek()
    assert torch.allclose(weight, whole, atol=0.02)  # moments are kept in bfloat16
    assert not list(tmp_path.glob("*.new"))


def test_a_part_of_another_model_is_refused(tmp_path):
    quadratic(2, Part(tmp_path / "part.pt"))
    other = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(SystemExit, match="another model"):
        Part(tmp_path / "part.pt").begin([other], [other.detach()], torch.optim.AdamW([other]))


def test_a_part_without_a_file_keeps_nothing_and_never_ends():
    part = Part()
    assert not part.is_over(10**9, 1e9)
    assert part.limit_s == math.inf
    part.keep([], [], None, 3, 1.0, now=True)


def test_the_settings_are_the_second_editions():
    settings = assemble.settings_of(SECOND)
    assert settings["named_ratios"]["16:9"] == [224, 128]
    assert (settings["canvas_multiple"], settings["canvas_short_edge"]) == (32, 128)
    assert settings["canvas_max_pixels"] == 288 * 128


def test_the_card_lists_words_that_are_not_rare():
    words = run.known_words(["a red ball"] * 5_000 + ["a blue ball, blue"] * 3 + ["a rde ball"] * 2)
    assert sorted(words) == ["a", "ball", "blue", "red"]


def test_an_unknown_stage_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="allowed: tokenizer, audio_vae, video_vae, dit"):
        run.main(["--out", str(tmp_path), "--stages", "dots"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_stage_runs_on_a_cpu_in_parts(tmp_path):
    out = str(tmp_path / "out")
    run.main(["--out", out, "--smoke", "--stages", "tokenizer,audio_vae,video_vae", "--part-steps", "3"])
    with pytest.raises(SystemExit, match="run it again first"):
        run.main(["--out", out, "--smoke", "--stages", "dit"])
    run.main(["--out", out, "--smoke", "--stages", "video_vae", "--part-steps", "3"])
    for _ in range(2):
        run.main(["--out", out, "--smoke", "--stages", "dit", "--part-steps", "2"])
    figures = json.loads((tmp_path / "out" / "figures" / "figures_0.json").read_text())
    assert figures["t2va_22"]["sampled"]["clips"] == 2
    assert (tmp_path / "out" / "talkies.json").exists()
    assert {"red", "bounces"} <= read_card(tmp_path / "out").words
    assert 0 < json.loads((tmp_path / "out" / "figures" / "vae.json").read_text())["1:1"]["first_median_db"] < 60
