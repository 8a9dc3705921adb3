"""The codecs on a GPU: the released float16 recipe, and conditions that do not depend on the device."""

from __future__ import annotations

import copy

import pytest
import torch

from talkies.codecs.audio.vae import AudioVAE
from talkies.codecs.video.vae import VideoVAE
from tests.codecs import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def autocast_reference(vae, z, device):
    """The recipe as the release states it: float16 autocast, off for both projections, float32 registers."""
    recipe = copy.deepcopy(vae).to(device)

    def full_precision(linear):
        def forward(x):
            with torch.autocast("cuda", enabled=False):
                return torch.nn.functional.linear(x.float(), linear.weight, linear.bias).to(x.dtype).float()

        return forward

    for name in ("proj_in", "proj_out"):
        getattr(recipe.decoder, name).forward = full_precision(getattr(recipe.decoder, name))
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        return recipe.decoder(recipe.post_quant_conv(z.to(device)))


def test_float16_rounds_where_autocast_rounds(tiny_parts, tiny_folder):
    stock = tiny_parts["vae"]
    ours = VideoVAE.load(tiny_folder / "vae", dtype=torch.float16, device="cuda")
    z = torch.randn(1, 4, 8, 4, 4, generator=torch.Generator().manual_seed(1))
    expected = autocast_reference(stock, z, "cuda").float().cpu()
    pixels = ours.decode_tiles([z])[0].cpu()
    with torch.no_grad():
        full = stock.decoder(stock.post_quant_conv(z))
    rounding = (expected - full).norm()
    assert (pixels - expected).norm() < 0.5 * rounding
    assert (pixels - full).norm() < 2 * rounding


def test_condition_latents_agree_with_the_cpu(tiny_folder):
    frames = torch.from_numpy(tiny.pictures(0, 22, 64, 288, 3))
    here = VideoVAE.load(tiny_folder / "vae").encode(frames)
    there = VideoVAE.load(tiny_folder / "vae", device="cuda").encode(frames)
    assert there.device.type == "cpu"
    # Both are rounded to float16, so a last bit may differ: 2**-10 of the value.
    torch.testing.assert_close(there, here, rtol=4e-3, atol=4e-3)
    assert ((there - here).abs() > 1e-6).float().mean() < 0.02


def test_audio_agrees_with_the_cpu_and_repeats(tiny_folder):
    here = AudioVAE.load(tiny_folder / "audio_vae")
    there = AudioVAE.load(tiny_folder / "audio_vae", device="cuda")
    wave = torch.rand(2, 32_001, generator=torch.Generator().manual_seed(0)) * 2 - 1
    z = there.encode(wave)
    torch.testing.assert_close(z, here.encode(wave), rtol=1e-4, atol=1e-4)
    assert torch.equal(there.encode(wave), z)
    torch.testing.assert_close(there.decode(z), here.decode(z), rtol=1e-3, atol=1e-3)
