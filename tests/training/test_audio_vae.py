import torch

from training import audio_vae, world


@torch.no_grad()
def test_decoder_and_encoder_invert_each_other_on_the_worlds_sounds():
    vae = audio_vae.build()
    specs = world.sample_specs(12, world.CANVASES["16:9"], torch.Generator().manual_seed(2))
    sound = world.audio_for(specs, world.trajectory(specs, 39), 39)
    latents = audio_vae.project(sound, *audio_vae.basis())
    decoded = vae.decode(latents.flatten(0, 1)).sample
    assert audio_vae.signal_to_noise_db(sound.flatten(0, 1)[:, None], decoded) > 40
    encoded = vae.encode(decoded).latent_dist.mode()
    assert audio_vae.signal_to_noise_db(latents.flatten(0, 1), encoded) > 45
