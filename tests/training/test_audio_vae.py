import torch

from training import world
from training.codecs import audio_vae


def signal_to_noise_db(reference, estimate):
    return float(10 * torch.log10(reference.square().mean() / (reference - estimate).square().mean()))


@torch.no_grad()
def test_decoder_and_encoder_invert_each_other_on_the_worlds_sounds():
    vae = audio_vae.build()
    specs = world.sample_specs(12, world.CANVASES["16:9"], torch.Generator().manual_seed(2))
    sound = world.audio_for(specs, world.trajectory(specs, 39), 39)
    latents = audio_vae.project(sound, *audio_vae.basis())
    decoded = vae.decode(latents.flatten(0, 1)).sample
    assert signal_to_noise_db(sound.flatten(0, 1)[:, None], decoded) > 40
    encoded = vae.encode(decoded).latent_dist.mode()
    assert signal_to_noise_db(latents.flatten(0, 1), encoded) > 45
