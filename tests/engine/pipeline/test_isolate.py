"""``isolate``: with ``modality`` neither sound nor words reach the picture, nor the picture the sound."""

from dataclasses import replace

import pytest
import torch

from talkies import Engine, Target, VideoRequest
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.sampling import noise as sampling_noise

REQUEST = VideoRequest(prompt="a red ball bounces", num_sigmas=3, target=Target(num_frames=22))


def moves(engine, prompt=REQUEST.prompt, scale=1.0):
    """What the first step adds to (video, audio) rows; ``scale`` multiplies the sound's noise."""
    components = engine.components
    encoded = pipeline.encode(components, pipeline.prepare(components, REQUEST.replace(prompt=prompt)))
    drawn = {}
    draw = sampling_noise.draw

    def noticed(*args, **values):
        drawn["noise"] = draw(*args, **values)
        return drawn["noise"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling_noise, "draw", noticed)
        pipeline.pack(components, encoded)
    changed = replace(drawn["noise"], audio_rows=drawn["noise"].audio_rows * scale)
    state = pipeline.pack(components, encoded, noise=changed)
    before = state.video_rows.clone(), state.audio_rows.clone()
    denoise_step(components, state)
    return state.video_rows - before[0], state.audio_rows - before[1]


def test_isolated_modalities_do_not_see_each_other():
    together = Engine.open(threads=1)
    apart = Engine.open(threads=1, isolate="modality")
    for engine, same in ((together, False), (apart, True)):
        video, audio = moves(engine)
        louder, other = moves(engine, scale=1.5)
        assert torch.equal(video, louder) == same
        assert not torch.equal(audio, other)
        told, _ = moves(engine, prompt="a blue square slides")
        assert torch.equal(video, told) == same


def test_an_isolated_clip_is_whole_and_another_one():
    clip = Engine.open(threads=1, isolate="modality").generate(REQUEST)
    plain = Engine.open(threads=1).generate(REQUEST)
    assert clip.frames.shape == plain.frames.shape
    assert (clip.frames != plain.frames).any()
    assert torch.isfinite(torch.from_numpy(clip.audio)).all()
