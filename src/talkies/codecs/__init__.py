"""Tensors <-> latents: text and vision conditioning, the video VAE, the audio VAE.

The only room that uses transformers and diffusers, and it imports them inside functions: a request that needs no
picture encoder never pays for it. Media bytes stay in ``talkies.media``; rows and steps stay in ``talkies.model``.
"""
