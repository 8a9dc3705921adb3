from __future__ import annotations

import math
import shutil
import subprocess
import sys

import pytest
import torch

from talkies.codecs.video import vae as vae_module
from talkies.codecs.video.vae import VideoVAE, _even
from talkies.codecs.video.vit_decoder import ViTDecoder
from talkies.errors import CheckpointError, ConfigError, NumericsError
from talkies.files.component_folders import WeightFolder
from talkies.kernels import select
from tests.codecs import tiny
from tests.kernels.sets import needs_triton


@pytest.fixture(scope="module")
def vae(tiny_folder):
    return VideoVAE.load(tiny_folder / "vae")


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder / "vae", tmp_path / "vae")


def rewrite(folder, change):
    """Stores the weights again after ``change`` of the mapping."""
    weights = WeightFolder(folder)
    tensors = {key: weights.read(key).clone() for key in weights.keys}
    change(tensors)
    tiny.save_tensors(tensors, folder / "diffusion_pytorch_model.safetensors")


def latents(frames=7, height=4, width=6):
    return torch.randn(1, 4, frames, height, width, generator=torch.Generator().manual_seed(0))


def test_decoding_alone_imports_no_library(tiny_folder):
    code = (
        "import sys, torch; from talkies.codecs.video.vae import VideoVAE;"
        "vae = VideoVAE.load(sys.argv[1]);"
        "assert sum(len(c) for c in vae.decode(torch.zeros(1, 4, 7, 2, 2))) == 22;"
        "assert not {'transformers', 'diffusers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tiny_folder / "vae")], check=True)


def test_chunks_are_decoded_only_when_asked_for(vae, monkeypatch):
    calls, decode_tiles = [], vae.decode_tiles

    def counted(tiles):
        calls.append(len(tiles))
        return decode_tiles(tiles)

    monkeypatch.setattr(vae, "decode_tiles", counted)
    chunks = vae.decode(latents(12))
    assert calls == []
    assert next(chunks).shape == (17, 64, 96, 3)
    assert calls == [1]


def test_tiles_decoded_one_by_one_give_the_same_frames(vae, monkeypatch):
    z = latents(7, 4, 24)  # 384 pixels: two tiles
    decode_tiles = vae.decode_tiles

    def one_by_one(tiles):
        return [decode_tiles([tile])[0] for tile in reversed(tiles)][::-1]

    together = vae.decode_float(z)
    monkeypatch.setattr(vae, "decode_tiles", one_by_one)
    torch.testing.assert_close(vae.decode_float(z), together, rtol=0, atol=1e-5)


def test_a_block_that_begins_by_itself_gives_the_same_bits(vae):
    """As one does whose weights are streamed: the block before it cannot read them."""
    decoder, z = vae.decoder, torch.randn(3, 4, 7, 2, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        x, tables = decoder._embed(decoder.post_quant_conv(z)), decoder.tables(3, 7, 2, 3, vae.device)
        for block in decoder.transformer_blocks:
            x, left = block(x, None, tables, torch.float32, None)
            assert left is None
        pixels = decoder.proj_out(decoder.norm_out(x.unflatten(0, (3, -1))[:, :42]))
        assert torch.equal(decoder._unpatchify(pixels, 7, 2, 3), decoder(z))


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="triton compiles here; see the gpu case")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_kernels_decode_what_their_references_do(vae, dtype):
    """float16 through the interpreter alone: as far from float32 as the references' float16."""
    check_kernels(vae, dtype, "cpu", {torch.float32: 1e-5, torch.float16: 3e-3}[dtype])


@pytest.mark.gpu
@needs_triton
def test_the_kernels_decode_what_their_references_do_on_a_gpu(vae):
    check_kernels(vae, torch.float16, "cuda", 3e-3)


def check_kernels(vae, dtype, device, bound):
    z = torch.randn(2, 4, 7, 2, 3, generator=torch.Generator().manual_seed(2))
    decoded = {}
    for name, kind in (("reference", torch.float32), ("reference", dtype), ("triton", dtype)):
        decoder = ViTDecoder(vae.config.decoder, select.create(name))
        decoder.load_state_dict(vae.decoder.state_dict())
        decoder.compute_dtype = kind
        for parameter_name, parameter in decoder.named_parameters():
            parameter.data = parameter.data.to(device=device, dtype=decoder.dtype_of(parameter_name))
        with torch.no_grad():
            decoded[name, kind] = decoder(z.to(device)).cpu()
    exact = decoded["reference", torch.float32]
    error = (decoded["triton", dtype] - decoded["reference", dtype]).norm() / exact.norm()
    assert error < bound
    if dtype != torch.float32:
        rounding = (decoded["reference", dtype] - exact).norm()
        assert (decoded["triton", dtype] - exact).norm() < 1.2 * rounding


@pytest.mark.parametrize(("count", "at_most"), [(28, 9), (1, 4), (8, 4), (5, 4)])
def test_batches_of_tiles_are_as_even_as_can_be(count, at_most):
    sizes = [stop - start for start, stop in _even(count, at_most)]
    assert sum(sizes) == count
    assert len(sizes) == -(-count // at_most)
    assert max(sizes) - min(sizes) <= 1


def test_a_device_that_is_nearly_full_gets_fewer_tiles_at_a_time(vae, monkeypatch):
    tile = torch.zeros(1, 4, 7, 2, 3)
    tokens = vae.decoder.tokens_of(7, 2, 3)
    monkeypatch.setattr(vae, "device", torch.device("cuda"))
    counts = []
    for tiles in (10**6, 3.5, 0.5):
        room = int(tiles * tokens * vae.decoder.bytes_of_token)
        monkeypatch.setattr(vae_module, "free_device_bytes", lambda device, room=room: room)
        counts.append(vae._tiles_at_once(tile))
    assert counts == [vae_module.TOKENS_PER_BATCH_GPU // tokens, 3, 1]


def test_a_decode_that_is_not_finite_is_named(vae):
    z = latents()
    z[0, 0, 3, 1, 1] = float("nan")
    with pytest.raises(NumericsError, match="video decode"):
        list(vae.decode(z))


def test_results_are_ordinary_tensors(vae):
    z = vae.encode(torch.from_numpy(tiny.pictures(0, 1, 32, 32, 3)))
    z += 1  # an inference-mode tensor would refuse
    frames = next(vae.decode(latents()))
    frames += 1
    assert not z.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("frames", [torch.zeros(1, 32, 32, 3), torch.zeros(1, 3, 32, 32, dtype=torch.uint8)])
def test_frames_of_another_kind_are_refused(vae, frames):
    with pytest.raises(ValueError, match="uint8"):
        vae.encode(frames)


def test_float16_on_a_cpu_is_refused(tiny_folder):
    with pytest.raises(ConfigError, match="float16 on a CPU"):
        VideoVAE.load(tiny_folder / "vae", dtype=torch.float16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("decoder.transformer_blocks.1.attn.to_k.weight"), r"missing weights .*to_qkv\.weight"),
        (lambda t: t.pop("decoder.proj_in.bias"), r"missing weights proj_in\.bias"),
        (lambda t: t.update({"decoder.extra": torch.zeros(1)}), "unknown weights extra"),
        (lambda t: t.update({"stray": torch.zeros(1)}), "unknown weights stray"),
        (lambda t: t.update({"decoder.proj_in.weight": torch.zeros(4, 32)}), r"proj_in\.weight has shape"),
    ],
)
def test_decoder_weights_that_do_not_fit_are_named(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        VideoVAE.load(folder)


def test_encoder_weights_are_read_on_the_first_encode(folder):
    rewrite(folder, lambda t: t.pop("encoder.conv_in.weight"))
    vae = VideoVAE.load(folder)
    with pytest.raises(CheckpointError, match=r"encoder\.conv_in\.weight"):
        vae.load_encoder()


def test_a_config_that_contradicts_itself_is_refused(folder):
    tiny.write_json(folder / "config.json", {**tiny.VAE, "temporal_downsample_factors": [1, 2]})
    with pytest.raises(CheckpointError, match="4 spatial and 2 temporal"):
        VideoVAE.load(folder)


def test_released_sizes_are_what_a_bare_wrapper_means(tmp_path):
    from talkies.codecs.video.config import VideoVAEConfig

    statistics = {"latents_mean": [0.0] * 24, "latents_std": [1.0] * 24}
    tiny.write_json(tmp_path / "config.json", {"source_safetensors_path": "model.safetensors", **statistics})
    config = VideoVAEConfig.read(tmp_path)
    assert config.weights_file == tmp_path / "source" / "model.safetensors"
    assert (config.spatial_factor, config.latent_channels) == (16, 24)
    assert (config.decoder.num_layers, config.decoder.width, config.decoder.rope_dim) == (36, 2048, 48)
    with torch.device("meta"):
        decoder = ViTDecoder(config.decoder)
    # 2,423,530,496 of the decoder and 600 of post_quant_conv.
    assert sum(p.numel() for p in decoder.parameters()) == 2_423_530_496 + 600


@pytest.mark.parametrize(
    ("logvar", "clamped"), [(25.0, 20.0), (20.5, 20.0), (3.0, 3.0), (-31.0, -30.0), (-60.0, -30.0)]
)
def test_the_log_variance_is_clamped_on_both_sides(vae, monkeypatch, logvar, clamped):
    """As the release does: -30 to 20. Half of it is the exponent, and the sample is rounded to float16."""
    monkeypatch.setattr(vae, "_encode_clip", lambda pixels: moments)
    mean = torch.zeros(1, 4, 1, 1, 1)
    moments = torch.cat((mean, torch.full_like(mean, logvar)), dim=1)
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(42))
    want = vae.config.stats.normalize((math.exp(clamped / 2) * noise).half().float())
    got = vae.encode(torch.zeros(1, 16, 16, 3, dtype=torch.uint8))
    torch.testing.assert_close(
        vae.config.stats.denormalize(got), vae.config.stats.denormalize(want), rtol=2e-3, atol=6e-8
    )


def test_pixels_are_in_the_statistics_of_imagenet():
    from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    assert list(vae_module.PIXEL_MEAN) == IMAGENET_DEFAULT_MEAN
    assert list(vae_module.PIXEL_STD) == IMAGENET_DEFAULT_STD


def test_a_batch_on_a_cpu_is_as_many_tiles_as_its_tokens_and_one_at_least(vae, monkeypatch):
    tile = latents()
    tokens = vae.decoder.tokens_of(*tile.shape[-3:])
    for budget, tiles in ((3 * tokens, 3), (4 * tokens - 1, 3), (tokens, 1), (1, 1)):
        monkeypatch.setattr(vae_module, "TOKENS_PER_BATCH_CPU", budget)
        assert vae._tiles_at_once(tile) == tiles
