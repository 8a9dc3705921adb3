"""The video VAE against diffusers' AutoencoderKLMiniMaxH3."""

from __future__ import annotations

import copy

import pytest
import torch

from talkies.codecs.video.vae import PIXEL_MEAN, PIXEL_STD, VideoVAE
from talkies.codecs.video.vit_weights import gather
from tests.codecs import tiny

TOLERANCE = 3e-5  # of a pixel in 0..1; 1e-4 is the bound that design asks for


@pytest.fixture(scope="module")
def stock(tiny_parts):
    return tiny_parts["vae"]


@pytest.fixture(scope="module")
def ours(tiny_folder):
    return VideoVAE.load(tiny_folder / "vae")


@pytest.fixture(scope="module", params=["factor 16", "factor 8"])
def pair(request, stock, ours, tmp_path_factory):
    """(diffusers, ours) with the released strides and with the embedded model's."""
    if request.param == "factor 16":
        return stock, ours
    other = tiny.video_vae(tiny.VAE_FACTOR_8)
    folder = tmp_path_factory.mktemp("factor-8")
    other.save_pretrained(folder)
    return other, VideoVAE.load(folder)


def latents_of(vae, frames, height, width, seed=0):
    factor = vae.spatial_compression_ratio
    shape = (1, vae.config.latent_channels, frames, height // factor, width // factor)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stock_pixels(vae, latents):
    """diffusers' decode step: denormalize, decode, ImageNet back to 0..1."""
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    pixel_mean, pixel_std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
    with torch.no_grad():
        video = vae.decode(latents * std + mean, return_dict=False)[0]
    return (video * pixel_std + pixel_mean).clamp(0, 1)


@pytest.mark.parametrize("length", [64, 256, 272, 320, 512, 768, 1024, 1344, 1536, 2016, 2048])
def test_the_tile_plan_is_diffusers(length, pair):
    stock, ours = pair
    starts, lengths, overlaps = stock._split_tiles(length, 256, 64)
    plan = ours._plan(length, length).x
    assert (list(plan.starts), list(plan.overlaps)) == (starts, overlaps)
    assert set(lengths) == {plan.size}


@pytest.mark.parametrize(("height", "width"), [(64, 320), (512, 64), (320, 768)])
def test_the_stitch_is_bit_equal_to_diffusers(height, width, stock, ours):
    plan = ours._plan(height, width)
    shape = (1, 3, 2, plan.y.size, plan.x.size)
    tiles = [torch.randn(shape) for _ in range(len(plan.y.starts) * len(plan.x.starts))]
    columns = len(plan.x.starts)
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    theirs = stock._stitch_tiles(rows, list(plan.y.overlaps), list(plan.x.overlaps))
    assert torch.equal(plan.stitch(tiles), theirs)


@pytest.mark.parametrize(("latent_frames", "frames"), [(7, 22), (12, 39), (37, 124), (62, 209), (8, None), (10, None)])
def test_whole_decodes_agree_in_length_and_value(latent_frames, frames, pair):
    stock, ours = pair
    z = latents_of(stock, latent_frames, 32, 48)
    expected = stock_pixels(stock, z)
    pixels = ours.decode_float(z)
    assert pixels.shape == expected.shape
    assert frames in (None, pixels.shape[2])
    torch.testing.assert_close(pixels, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("height", "width"), [(320, 64), (64, 288)])
def test_tiled_decodes_agree(height, width, pair):
    stock, ours = pair
    z = latents_of(stock, 7, height, width)
    torch.testing.assert_close(ours.decode_float(z), stock_pixels(stock, z), rtol=0, atol=TOLERANCE)


def test_uint8_chunks_are_diffusers_frames(pair):
    stock, ours = pair
    z = latents_of(stock, 12, 64, 96)
    chunks = list(ours.decode(z))
    assert [len(chunk) for chunk in chunks] == [17, 17, 5]
    assert chunks[0].dtype == torch.uint8
    expected = (stock_pixels(stock, z) * 255).round()[0].permute(1, 2, 3, 0)
    difference = (torch.cat(chunks).float() - expected).abs()
    # A float that lies on .5 may round either way; nothing else may differ.
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 1e-4


@pytest.mark.parametrize(
    ("frames", "height", "width"), [(1, 64, 96), (1, 320, 64), (22, 64, 64), (39, 32, 48), (20, 32, 32), (5, 32, 288)]
)
def test_encoding_a_condition_is_diffusers_recipe(frames, height, width, pair):
    from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition

    stock, ours = pair
    pixels = torch.from_numpy(tiny.pictures(frames, frames, height, width, 3))
    with torch.no_grad():
        expected = encode_vae_condition(stock, pixels.permute(3, 0, 1, 2)[None], PIXEL_MEAN, PIXEL_STD)
    latents = ours.encode(pixels)
    assert latents.dtype == torch.float32
    assert torch.equal(latents, expected)


def test_encoding_is_rounded_to_float16_and_restarts_its_seed(ours):
    pixels = torch.from_numpy(tiny.pictures(0, 1, 64, 64, 3))
    torch.manual_seed(7)
    first = ours.encode(pixels)
    torch.manual_seed(8)
    assert torch.equal(ours.encode(pixels), first)
    z = ours.config.stats.denormalize(first)
    torch.testing.assert_close(z.half().float(), z, rtol=1e-6, atol=1e-6)


def test_the_original_layout_loads_to_the_same_model(tmp_path):
    stock = tiny.video_vae()
    tiny.save_original_video_vae(stock, tmp_path / "video_vae")
    stock.save_pretrained(tmp_path / "vae")
    original, port = VideoVAE.load(tmp_path / "video_vae"), VideoVAE.load(tmp_path / "vae")
    z = latents_of(stock, 7, 32, 64)
    assert torch.equal(original.decode_float(z), port.decode_float(z))
    pixels = torch.from_numpy(tiny.pictures(0, 22, 32, 64, 3))
    assert torch.equal(original.encode(pixels), port.encode(pixels))


def test_weights_stored_in_16_bits_are_upcast(tmp_path):
    stock = tiny.video_vae().bfloat16()
    tiny.write_json(tmp_path / "config.json", dict(stock.config))
    tiny.save_tensors(stock.state_dict(), tmp_path / "diffusion_pytorch_model.safetensors")
    ours = VideoVAE.load(tmp_path)
    z = latents_of(stock, 7, 32, 32)
    torch.testing.assert_close(ours.decode_float(z), stock_pixels(stock.float(), z), rtol=0, atol=TOLERANCE)


def test_low_precision_keeps_its_float32_islands(tiny_folder, stock):
    half = VideoVAE.load(tiny_folder / "vae", dtype=torch.bfloat16)
    kinds = {name: p.dtype for name, p in half.decoder.named_parameters()}
    islands = ("proj_in", "proj_out", "norm", "scale", "register")
    for name, dtype in kinds.items():
        last = name.split(".")[-2] if name.endswith(("weight", "bias")) else name.split(".")[-1]
        wanted = torch.float32 if last.startswith(islands) else torch.bfloat16
        assert dtype == wanted, name
    z = latents_of(stock, 7, 64, 64)
    error = (half.decode_float(z) - stock_pixels(stock, z)).square().mean()
    assert -10 * torch.log10(error) > 40


def test_the_decoder_rounds_where_autocast_rounds(stock, ours):
    """The released recipe is 16-bit autocast around float32 weights, switched off for proj_in and proj_out.

    bfloat16 stands for float16, which a CPU has not. Eight, four and four latents have coordinates that are exact
    in 16 bits, where diffusers keeps float32 and the release does not.
    """
    recipe = copy.deepcopy(stock)
    for name in ("proj_in", "proj_out"):
        getattr(recipe.decoder, name).forward = without_autocast(getattr(recipe.decoder, name))
    cast = copy.deepcopy(ours.decoder)
    cast.compute_dtype = torch.bfloat16
    for name, p in cast.named_parameters():
        p.data = p.data.to(cast.dtype_of(name))
    z = torch.randn(1, 4, 8, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        full = stock.decoder(stock.post_quant_conv(z))
        with torch.autocast("cpu", torch.bfloat16):
            expected = recipe.decoder(recipe.post_quant_conv(z))
        low = cast(z)
    assert low.dtype == expected.dtype == torch.float32
    rounding = (expected - full).norm() / full.norm()
    assert (low - expected).norm() / full.norm() < 0.1 * rounding


def without_autocast(linear):
    """A forward in float32 whose result is rounded to the incoming dtype, then promoted as the release's is."""

    def forward(x):
        with torch.autocast("cpu", enabled=False):
            return torch.nn.functional.linear(x.float(), linear.weight, linear.bias).to(x.dtype).float()

    return forward


def test_fused_matrices_hold_q_k_and_v_in_this_order(stock):
    port = {f"decoder.{key}": tensor for key, tensor in stock.decoder.state_dict().items()}
    fused = gather(port)["transformer_blocks.1.attn.to_qkv.bias"]
    names = [f"decoder.transformer_blocks.1.attn.to_{name}.bias" for name in "qkv"]
    assert torch.equal(fused, torch.cat([port[name] for name in names]))
