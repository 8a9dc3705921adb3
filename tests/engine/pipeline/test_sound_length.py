"""The sound is as long as the picture, whatever the audio latents of 25 ms make of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from talkies.engine.pipeline import path
from talkies.h3.geometry import Limits, geometry_of

LIMITS = Limits(canvas_short_edge=64, canvas_max_pixels=9_216, spatial_factor=8)


@pytest.mark.parametrize(
    ("num_frames", "decoded", "wanted"),
    [(22, 29_600, 29_333), (39, 52_000, 52_000), (56, 74_400, 74_667), (73, 97_600, 97_333), (124, 165_600, 165_333)],
)
def test_the_wave_is_cut_or_filled_to_the_pictures_duration(monkeypatch, num_frames, decoded, wanted):
    geometry = geometry_of(112, 64, num_frames, LIMITS)
    assert (geometry.num_samples, geometry.clip_samples) == (decoded, wanted)
    assert abs(wanted / 32_000 - num_frames / 24) < 1 / 32_000
    wave = torch.from_numpy(np.linspace(0.1, 0.9, 2 * decoded, dtype=np.float32).reshape(2, decoded))
    components = SimpleNamespace(
        audio=SimpleNamespace(decode=lambda latents: wave), residency=SimpleNamespace(enter=lambda name: None)
    )
    monkeypatch.setattr(path, "target_latents", lambda state: (None, torch.zeros(2, 4, geometry.audio_latents)))
    sound = path.decode_audio(components, SimpleNamespace(geometry=geometry, given=()))
    assert sound.shape == (2, wanted)
    assert sound.dtype == np.float32
    kept = min(decoded, wanted)
    assert np.array_equal(sound[:, :kept], wave.numpy()[:, :kept])
    assert not sound[:, kept:].any()


def test_joined_clips_do_not_drift():
    """Sixty clips of 56 frames: half a second of lead or lag before, a sample for each third of a clip now."""
    geometry = geometry_of(112, 64, 56, LIMITS)
    assert abs(60 * geometry.clip_samples / 32_000 - 60 * 56 / 24) < 0.001
