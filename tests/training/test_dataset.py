import random

import torch
from tokenizers import Tokenizer

from training import tokenizer, world
from training.dit import dataset


def test_pairs_of_one_draw_share_their_length_and_belong_to_their_clips(tmp_path):
    tokenizer.build(tmp_path)
    raw = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    _, texts = dataset.plan(world.CANVASES["1:1"], 40, 7, None)
    count = dataset.NUM_PROMPTS["t2va"]
    clips = [i for i in range(40) for _ in range(count)]
    pairs = dataset.tokenize(texts["t2va"], clips, raw, "cpu")
    ids, clip = pairs.draw(11, random.Random(1))
    written = {tuple(raw.encode(t, add_special_tokens=False).ids): c for t, c in zip(texts["t2va"], clips, strict=True)}
    assert ids.shape[0] == 11
    for row, owner in zip(ids, clip, strict=True):
        assert (
            world.describe(dataset.plan(world.CANVASES["1:1"], 40, 7, None)[0], written[tuple(row.tolist())])["motion"]
            == world.describe(dataset.plan(world.CANVASES["1:1"], 40, 7, None)[0], int(owner))["motion"]
        )


def test_the_frame_that_a_latent_covers():
    table = dataset._latent_of_frame("cpu")
    assert table[:23].tolist() == [0, *[1] * 4, *[2] * 4, *[3] * 4, *[4] * 4, 5, *[6] * 4, 7]
    assert len(table) == 124
    assert torch.equal(table.unique(), torch.arange(37))
