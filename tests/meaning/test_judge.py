"""The judge against clips whose truth is known: rendered by the world, clean and degraded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training import world
from training.judge.verdict import FRAME_MS, Verdict, judge, score

CLIPS_PER_CANVAS = {22: 2, 56: 2, 124: 1}


def truth(num_frames: int, seed: int) -> list[tuple[np.ndarray, np.ndarray, dict[str, str]]]:
    """Clips on every canvas: frames float32 [F, H, W, 3] in 0..1, wave [2, N], attributes."""
    clips = []
    for index, canvas in enumerate(world.CANVASES.values()):
        generator = torch.Generator().manual_seed(seed + index)
        specs = world.sample_specs(CLIPS_PER_CANVAS[num_frames], canvas, generator)
        rendered = world.render(specs, num_frames)
        waves = world.audio_for(specs, rendered.motion, num_frames).numpy()
        videos = rendered.video_B3FHW.permute(0, 2, 3, 4, 1).numpy()
        clips += [(videos[i], waves[i], world.describe(specs, i)) for i in range(len(specs))]
    return clips


def to_uint8(video: np.ndarray) -> np.ndarray:
    return (video.clip(0, 1) * 255).round().astype(np.uint8)


def soften(video: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A blur of about one pixel and grain of 0.03."""
    for axis in (1, 2):
        for _ in range(2):
            video = (np.roll(video, 1, axis) + 2 * video + np.roll(video, -1, axis)) / 4
    return video + rng.normal(0, 0.03, video.shape).astype(np.float32)


def block(video: np.ndarray) -> np.ndarray:
    """What a strong video codec does: coarse 8 x 8 cosine coefficients, chroma at half size."""
    index = np.arange(8)
    cosine = np.cos(np.pi * (2 * index[None] + 1) * index[:, None] / 16) * np.where(index, 0.5, 8**-0.5)[:, None]
    luma = video.mean(-1, keepdims=True)
    chroma = video - luma
    frames, height, width = video.shape[:3]
    chroma = chroma.reshape(frames, height // 2, 2, width // 2, 2, 3).mean((2, 4)).repeat(2, 1).repeat(2, 2)
    planes = []
    for plane, step in ((luma, 0.06), (chroma, 0.08)):
        tiles = plane.reshape(frames, height // 8, 8, width // 8, 8, -1)
        spectrum = np.einsum("ui,fyixjc,vj->fyuxvc", cosine, tiles, cosine, optimize=True)
        spectrum = np.round(spectrum / step) * step
        planes.append(np.einsum("ui,fyuxvc,vj->fyixjc", cosine, spectrum, cosine, optimize=True).reshape(plane.shape))
    return (planes[0] + planes[1]).astype(np.float32)


def rates(verdicts: list[Verdict], clips) -> dict[str, float]:
    return {name: rate.share for name, rate in score(verdicts, [attributes for *_, attributes in clips]).rates.items()}


@pytest.mark.parametrize("damage", ["clean", "soft", "blocky"])
@pytest.mark.parametrize("num_frames", [22, 56, 124])
def test_the_judge_reads_the_truth_of_rendered_clips(num_frames, damage):
    rng = np.random.default_rng(num_frames)
    clips = truth(num_frames, seed=31)
    verdicts = []
    for video, wave, _ in clips:
        if damage == "soft":
            video, wave = soften(video, rng), wave + rng.normal(0, 0.01, wave.shape).astype(np.float32)
        elif damage == "blocky":
            video = block(video)
        verdicts.append(judge(to_uint8(video), wave))
    share = rates(verdicts, clips)
    assert min(share[name] for name in ("color", "motion", "background", "sound")) >= 0.99, share
    assert share["shape"] >= 0.98, share
    assert share["size"] >= 0.96, share
    assert share["place"] >= 0.98, share
    assert share["tempo"] >= 0.97, share
    assert share["offset"] >= 0.99, share


def test_a_clip_that_shows_something_else_is_not_what_was_asked_for():
    clips = truth(56, seed=7)
    verdicts = [judge(to_uint8(video), wave) for video, wave, _ in clips]
    share = rates(verdicts, clips[3:] + clips[:3])
    assert share["color"] < 0.4
    assert share["shape"] < 0.7
    assert share["all"] < 0.1


@pytest.mark.parametrize("delay_ms", [-150, -60, 60, 150])
def test_a_shifted_sound_is_heard_as_shifted(delay_ms):
    specs = world.sample_specs(3, world.CANVASES["16:9"], torch.Generator().manual_seed(2))
    specs.attributes["motion"][:] = torch.tensor([world.BOUNCE, world.RIGHT, world.FLASH])
    specs.attributes["tempo"][:] = 1
    specs.attributes["sound"][:] = torch.tensor([0, 1, 2])
    rendered = world.render(specs, 56)
    waves = world.audio_for(specs, rendered.motion, 56).numpy()
    for i in range(3):
        # a hiss before the sound must not draw its start forward
        hiss = np.random.default_rng(i).normal(0, 0.05, waves[i].shape).astype(np.float32)
        wave = np.roll(waves[i], delay_ms * 32, axis=1) + hiss
        verdict = judge(to_uint8(rendered.video_B3FHW[i].permute(1, 2, 3, 0).numpy()), wave)
        heard = [ms for ms, s in zip(verdict.offset_ms, verdict.judged_event_s, strict=True) if 0.2 < s < 2.1]
        assert heard
        assert heard == pytest.approx([delay_ms] * len(heard), abs=15)


def test_an_event_without_a_sound_is_a_miss_and_noise_is_no_timbre():
    video, _, attributes = next(c for c in truth(56, seed=11) if c[2]["motion"] == "bounce" and c[2]["sound"] == "bell")
    silence = np.zeros((2, 74_400), np.float32)
    mute = judge(to_uint8(video), silence)
    assert mute.sound == "silent"
    assert mute.onset_s == ()
    share = rates([mute], [(video, silence, attributes)])
    assert share["sound"] == share["offset"] == 0.0
    noise = np.random.default_rng(0).normal(0, 0.2, silence.shape).astype(np.float32)
    assert judge(to_uint8(video), noise).sound == "unknown"


def test_an_empty_picture_shows_no_object():
    frames = np.full((22, 64, 112, 3), 26, np.uint8)
    verdict = judge(frames, np.zeros((2, 29_600), np.float32))
    assert (verdict.color, verdict.shape, verdict.motion, verdict.sound) == ("unknown", "unknown", "unknown", "silent")
    assert verdict.background == "dark"


def test_only_what_a_prompt_names_is_judged():
    verdict = verdict_of(color="red", motion="bounce", tempo="slow", sound="bell")
    assert score([verdict], [{"color": "red"}]).rates["shape"].total == 0
    assert score([verdict], [{"color": "blue"}]).rates["all"].hits == 0


@pytest.mark.parametrize(
    ("motion", "tempo", "heard", "num_frames", "right"),
    [
        ("left", "slow", "silent", 22, True),  # the wall comes at 1.6 s
        ("left", "slow", "bell", 22, False),
        ("left", "fast", "bell", 22, True),
        ("left", "slow", "silent", 56, False),
        ("bounce", "slow", "bell", 22, True),
        ("stay", "slow", "silent", 56, True),
    ],
)
def test_silence_is_right_where_no_impact_falls_inside_the_clip(motion, tempo, heard, num_frames, right):
    verdict = verdict_of(motion=motion, tempo=tempo, sound=heard, duration_s=num_frames / world.FPS)
    rate = score([verdict], [{"motion": motion, "tempo": tempo, "sound": "bell"}]).rates["sound"]
    assert (rate.hits, rate.total) == (int(right), 1)


def test_silence_of_a_clip_that_ends_at_its_first_impact_is_not_judged():
    verdict = verdict_of(motion="left", tempo="slow", sound="silent", duration_s=39 / world.FPS)
    assert score([verdict], [{"motion": "left", "tempo": "slow", "sound": "bell"}]).rates["sound"].total == 0


def test_an_offset_of_one_frame_counts_as_in_sync():
    late = verdict_of(onset_s=(0.5, 1.6), pan=(0.5, 0.5), offset_ms=(FRAME_MS - 1, 100.0), sound="bell")
    rate = score([late], [{"sound": "bell"}]).rates["offset"]
    assert (rate.hits, rate.total) == (1, 2)


def verdict_of(**changes) -> Verdict:
    values = {
        "color": "red", "shape": "ball", "size": "medium", "background": "dark", "motion": "bounce", "tempo": "slow",
        "place": "middle", "sound": "bell", "event_s": (0.5, 1.5), "onset_s": (), "offset_ms": (), "pan": (),
        "event_x": (0.5, 0.5), "duration_s": 56 / world.FPS,
    }  # fmt: skip
    return Verdict(**{**values, **changes})
