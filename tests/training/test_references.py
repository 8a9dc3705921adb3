"""A batch of ref2va requests is what the engine makes of the same request: tokens, text rows, layout, velocities."""

import numpy as np
import pytest
import torch

from talkies.codecs.text.encoder import Conditioner
from talkies.codecs.text.encoder import TextEncoder as EngineTextEncoder
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import EncoderAudio, EncoderImage, EncoderVideo
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.h3.packing import build_layout
from talkies.h3.timesteps import step_plan
from tests.dit_files import load_dit
from training import assemble, tokenizer, world
from training.components import DIT
from training.dit import batched, text
from training.ref2va import references
from training.ref2va.references import Reference

PROMPT = "Continuing video 1, the object bounces, with the sound of audio 1."
WIDE, TALL, SQUARE = (world.CANVASES[name] for name in ("16:9", "3:4", "1:1"))
IMAGE = Reference(canvas=TALL)
SOUND = Reference(num_audio_latents=41)
FILM = Reference(canvas=WIDE, num_frames=39, num_audio_latents=65)
SILENT_FILM = Reference(canvas=TALL, num_frames=22)
LONG_FILM = Reference(canvas=WIDE, num_frames=56, num_audio_latents=94)  # its picture is shorter than its sound
CASES = {
    "image": (IMAGE,),
    "sound": (SOUND,),
    "image and sound": (IMAGE, SOUND),
    "sound and image": (SOUND, Reference(canvas=WIDE)),
    "film with sound": (FILM,),
    "silent film": (SILENT_FILM,),
    "odd pair": (LONG_FILM,),
    "unresized": (
        Reference(canvas=SQUARE),
        Reference(canvas=SQUARE, num_frames=56, num_audio_latents=93),
        Reference(canvas=SQUARE),
    ),
    "all": (SILENT_FILM, SOUND, LONG_FILM, IMAGE),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    from diffusers import MiniMaxH3Transformer3DModel

    folder = tmp_path_factory.mktemp("parts")
    torch.manual_seed(0)
    tok = tokenizer.build(folder / "tokenizer")
    encoder = text.TextEncoder(tok).eval()
    torch.nn.init.normal_(encoder.stock.model.visual.pos_embed.weight, std=0.5)
    text.expand(encoder.stock, tok).save_pretrained(folder / "text_encoder")
    dit = MiniMaxH3Transformer3DModel(**DIT | {"num_layers": 2}).eval()
    dit.save_pretrained(folder / "transformer")
    patches = PatchConfig(
        min_pixels=assemble.IMAGE_PIXELS["shortest_edge"],
        max_pixels=assemble.IMAGE_PIXELS["longest_edge"],
        min_volume=assemble.VIDEO_PIXELS["shortest_edge"],
        max_volume=assemble.VIDEO_PIXELS["longest_edge"],
    )
    conditioner = Conditioner(
        FolderTokenizer.load(folder / "tokenizer"), patches, EngineTextEncoder.load(folder / "text_encoder")
    )
    engine_dit = load_dit(folder / "transformer", dtype=torch.float32)
    return tok, encoder, dit, conditioner, engine_dit


def seen_by_the_engine(reference, generator):
    if reference.canvas is None:
        return EncoderAudio()
    shape = (reference.num_frames, reference.canvas.height, reference.canvas.width, 3)
    # coarse noise: the two bicubic resizes agree on it to a grey level
    coarse = generator.random((shape[0], shape[1] // 16, shape[2] // 16, 3)).repeat(16, 1).repeat(16, 2)
    frames = (coarse * 255).astype("uint8")
    if reference.is_video:
        return EncoderVideo(frames=frames, has_soundtrack=reference.num_audio_latents > 0)
    return EncoderImage(pixels=frames[0])


def features_of(encoder, reference, visual):
    """What `train_ref_dit` precomputes: (tokens, DeepStack) of all pads of one reference, [1, V, C]."""
    if isinstance(visual, EncoderImage):
        still = torch.from_numpy(visual.pixels).permute(2, 0, 1)[None].float() / 255
        return encoder.vision(still, reference.canvas)
    picked = torch.from_numpy(visual.frames[reference.sampled_frames]).permute(0, 3, 1, 2).float() / 255
    tokens, deep = encoder.vision_of_pairs(picked.unflatten(0, (-1, 2)), reference.canvas)
    return tokens.flatten(0, 1)[None], deep.flatten(0, 1)[None]


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_batch_equals_the_engine(parts, case):
    tok, encoder, dit, conditioner, engine_dit = parts
    refs = CASES[case]
    visuals = [seen_by_the_engine(r, np.random.default_rng(i)) for i, r in enumerate(refs)]
    theirs = conditioner.encode(PROMPT, visuals)
    expected = conditioner.present(PROMPT, visuals)

    presentation = references.present(tok, refs)
    prompt = tok(PROMPT, add_special_tokens=False)["input_ids"]
    assert (*presentation.ids, *prompt) == expected.input_ids
    features = [features_of(encoder, r, v) for r, v in zip(refs, visuals, strict=True) if r.canvas]
    joined = tuple(torch.cat(part, 1) for part in zip(*features, strict=True)) if features else None
    rows = encoder(presentation, torch.tensor([prompt]), joined)
    # where a side is no multiple of 32 the resize is torch's here and Pillow's there: a grey level apart
    resized = any(r.canvas not in (None, SQUARE) for r in refs)
    assert torch.allclose(rows[0], theirs.states, atol=0.05 if resized else 1e-5)

    canvas = world.CANVASES["1:1"]
    base = references.layout_of(canvas, 39, refs, presentation)
    placed = batched.Placer(dit.rope.inv_freq, torch.float32)(base, len(prompt))
    layout = placed.layout
    packed = build_layout(
        text_tags=theirs.tags,
        conditions=[r.condition() for r in refs],
        latent_frames=12,
        latent_height=8,
        latent_width=8,
        audio_latents=65,
        patch_size=(1, 2, 2),
    )
    assert torch.equal(packed.positions, layout.positions())
    assert layout.num_rows == packed.num_rows

    generator = torch.Generator().manual_seed(3)
    blocks = [
        torch.randn(1, s.stop - s.start, 64 if s.role.value.startswith("video") else 16, generator=generator)
        for s in packed.segments[1:]
    ]
    *conditions, audio, video = blocks
    condition_video = [b[0] for b in conditions if b.shape[-1] == 64]
    condition_audio = [b[0] for b in conditions if b.shape[-1] == 16]
    for tv, ta in ((0.3, 0.55), (0.9995, 0.99)):
        tv, ta = torch.tensor([tv]), torch.tensor([ta])
        ours = batched.forward(dit, placed, rows, conditions, audio, video, tv, ta)
        engine = engine_dit(
            torch.cat([*condition_video, video[0]]),
            torch.cat([*condition_audio, audio[0]]),
            rows[0],
            packed,
            step_plan(packed, tv[0], ta[0]),
        )
        assert torch.allclose(ours[0][0], engine[0][packed.num_condition_video_rows :], atol=1e-5)
        assert torch.allclose(ours[1][0], engine[1][packed.num_condition_audio_rows :], atol=1e-5)
