import copy

import pytest
import torch

from training import world
from training.codecs import video_vae
from training.components import VIDEO_VAE, normalize_pixels


@pytest.fixture(scope="module")
def vae():
    from diffusers import AutoencoderKLMiniMaxH3

    torch.manual_seed(0)
    return AutoencoderKLMiniMaxH3(**VIDEO_VAE).eval()


def pixels(canvas, num_frames):
    specs = world.sample_specs(1, world.CANVASES[canvas], torch.Generator().manual_seed(5))
    return normalize_pixels(world.render(specs, num_frames).video_B3FHW)


@torch.no_grad()
@pytest.mark.parametrize(("canvas", "num_frames"), [("1:1", 22), ("4:3", 39), ("3:4", 1)])
def test_the_two_dimensional_encoder_gives_the_stock_moments(vae, canvas, num_frames):
    x = pixels(canvas, num_frames)
    assert torch.allclose(video_vae.encode(vae, x), vae.encode(x).latent_dist.parameters, atol=3e-4)


@pytest.mark.parametrize(("canvas", "num_frames"), [("1:1", 22), ("3:4", 1)])
def test_the_two_dimensional_encoder_gives_the_stock_gradients(vae, canvas, num_frames):
    vae, x = copy.deepcopy(vae).double(), pixels(canvas, num_frames).double()
    weights = [p for name, p in vae.named_parameters() if name.startswith(("encoder.", "quant_conv."))]
    towards = torch.randn(vae.encode(x).latent_dist.parameters.shape, generator=torch.Generator().manual_seed(2))
    ours, stock = (
        torch.autograd.grad((moments * towards).sum(), weights)
        for moments in (video_vae.encode(vae, x), vae.encode(x).latent_dist.parameters)
    )
    for mine, its in zip(ours, stock, strict=True):
        assert (mine - its).norm() <= 1e-9 * its.norm()


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize(("stride_t", "before", "after"), [(1, 1, 1), (2, 1, 1), (2, 0, 1), (1, 0, 1), (2, 0, 0)])
def test_the_gradient_of_reflected_frame_triples_is_their_numerical_one(frames, stride_t, before, after):
    x = torch.randn(2 * frames, 2, 4, 3, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    assert torch.autograd.gradcheck(video_vae._Windows.apply, (x, 2, stride_t, before, after))


@torch.no_grad()
def test_the_latents_of_a_short_clip_are_a_prefix_of_a_longer_ones(vae):
    long = video_vae.encode(vae, pixels("1:1", 56))
    short = video_vae.encode(vae, pixels("1:1", 22))
    assert torch.allclose(short, long[:, :, :7], atol=1e-4)
    assert torch.allclose(video_vae.encode(vae, pixels("1:1", 22)[:, :, :1]), long[:, :, :1], atol=1e-4)


@torch.no_grad()
def test_one_decoder_window_is_the_stock_decode_of_seven_latents(vae):
    latents = torch.randn(1, 16, 7, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(video_vae.decode_window(vae, latents), vae.decode(latents).sample, atol=1e-5)
