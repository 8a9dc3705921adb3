import json
from fractions import Fraction

import numpy as np
import pytest

from talkies.errors import MediaError
from talkies.media.inspect.report import inspect
from talkies.media.write.mp4 import write_mp4
from tests.media import clips, corpus

FRAME_MS = 1000 / 24
SCENES = {
    "bouncing": clips.bouncing,
    "between walls": clips.between_walls,
    "stopping": clips.stopping,
    "flashing": clips.flashing,
}


@pytest.mark.parametrize("shift_ms", [0, 125, -90])
@pytest.mark.parametrize("scene", SCENES)
def test_sync_offset_is_right_to_half_a_frame(tmp_path, scene, shift_ms):
    frames, events = SCENES[scene]()
    wave = clips.wave_with([e + shift_ms / 1000 for e in events], len(frames) / 24)
    write_mp4(tmp_path / "clip.mp4", frames, wave)
    offset = inspect(tmp_path / "clip.mp4").sync_offset_ms
    assert offset == pytest.approx(shift_ms, abs=FRAME_MS / 2)


@pytest.mark.parametrize(
    "look",
    [
        {"color": (60, 90, 240), "background": 235},
        {"color": (40, 180, 60), "noise": 3.0},
        {"width": 112, "height": 64, "radius": 8},
        {"width": 640, "height": 360, "radius": 40},
    ],
    ids=["light background", "noise", "tiny", "large"],
)
def test_sync_offset_holds_for_other_looks(tmp_path, look):
    x = np.linspace(0, 1, 60)
    height, radius = look.get("height", 180), look.get("radius", 16)
    phase = np.mod(np.arange(60) / 24 - 0.3, 0.7) / 0.7
    y = height - radius - 4 * 0.5 * height * phase * (1 - phase)
    frames = clips.ball(look.get("width", 320) * (0.3 + 0.4 * x), y, **look)
    wave = clips.wave_with([0.3 + 0.06, 1.0 + 0.06, 1.7 + 0.06, 2.4 + 0.06], 2.5)
    write_mp4(tmp_path / "clip.mp4", frames, wave)
    assert inspect(tmp_path / "clip.mp4").sync_offset_ms == pytest.approx(60, abs=FRAME_MS / 2)


def test_a_two_frame_flash_is_timed_by_its_light_and_not_by_its_end(tmp_path):
    strength = np.zeros(72)
    for on in (12, 36, 60):
        strength[on : on + 2] = 1
    ones = np.ones(72)
    frames = clips.ball(160 * ones, 90 * ones, strength=strength)
    write_mp4(tmp_path / "clip.mp4", frames, clips.wave_with([0.54, 1.54, 2.54], 3.0))
    assert inspect(tmp_path / "clip.mp4").sync_offset_ms == pytest.approx(40, abs=5)


def test_two_objects_are_told_apart(tmp_path):
    t = np.arange(96) / 24
    frames, events = None, []
    for x, first_s, period_s, color in ((80, 0.31, 0.83, (220, 40, 40)), (240, 0.55, 0.97, (40, 90, 230))):
        phase = np.mod(t - first_s, period_s) / period_s
        one = clips.ball(np.full(96, float(x)), 160 - 400 * phase * (1 - phase), color=color)
        frames = one if frames is None else np.where((one != 30).any(-1, keepdims=True), one, frames)
        events += [first_s + k * period_s for k in range(5) if first_s + k * period_s < 3.8]
    wave = clips.wave_with([e + 0.07 for e in events], 4.0)
    write_mp4(tmp_path / "clip.mp4", frames, np.clip(wave, -1, 1))
    assert inspect(tmp_path / "clip.mp4").sync_offset_ms == pytest.approx(70, abs=FRAME_MS / 2)


def test_flashes_of_the_whole_picture_count(tmp_path):
    frames = np.full((72, 90, 160, 3), 20, np.uint8)
    for on, length in ((12, 1), (30, 4), (47, 2)):
        frames[on : on + length] = 230
    write_mp4(tmp_path / "clip.mp4", frames, clips.wave_with([e / 24 - 0.1 for e in (12, 30, 47)], 3.0))
    assert inspect(tmp_path / "clip.mp4").sync_offset_ms == pytest.approx(-100, abs=5)


def test_no_offset_where_nothing_is_audible_or_nothing_happens(tmp_path):
    frames, events = clips.bouncing()
    write_mp4(tmp_path / "silent.mp4", frames, clips.wave_with([], 3.0))
    assert inspect(tmp_path / "silent.mp4").sync_offset_ms is None
    write_mp4(tmp_path / "still.mp4", np.repeat(frames[:1], 72, axis=0), clips.wave_with(events, 3.0))
    assert inspect(tmp_path / "still.mp4").sync_offset_ms is None


def test_report_is_the_documented_json(tmp_path):
    frames, events = clips.bouncing()
    wave = clips.wave_with(events, 3.0)
    request = {"prompt": "a red ball", "seed": 7}
    write_mp4(tmp_path / "clip.mp4", frames, wave, metadata=request)
    report = json.loads(json.dumps(inspect(tmp_path / "clip.mp4").to_dict()))
    assert set(report) == {"video", "audio", "sync_offset_ms", "flags", "request"}
    assert report["video"] == {"codec": "h264", "width": 320, "height": 180, "fps": 24, "frames": 72, "duration_s": 3.0}
    audio = report["audio"]
    assert set(audio) == {"codec", "sample_rate_hz", "channels", "duration_s", "rms_dbfs"}
    assert (audio["codec"], audio["sample_rate_hz"], audio["channels"]) == ("aac", 32_000, 2)
    assert audio["duration_s"] == pytest.approx(3.0, abs=1e-3)
    assert audio["rms_dbfs"] == pytest.approx(10 * np.log10(np.mean(wave**2)), abs=0.3)
    assert report["flags"] == []
    assert report["request"] == request


def test_faults_become_flags(tmp_path):
    frames, events = clips.bouncing()
    dark = np.zeros_like(frames)
    write_mp4(tmp_path / "black.mp4", dark, clips.wave_with([], 3.0))
    assert inspect(tmp_path / "black.mp4").flags == ("black", "silent")

    held = frames.copy()
    held[24:48] = held[24]
    held[60:66] = 0
    write_mp4(tmp_path / "held.mp4", held, clips.wave_with(events, 3.0))
    flags = inspect(tmp_path / "held.mp4").flags
    assert "frozen:1.000-2.000" in flags
    assert "black:2.500-2.750" in flags

    loud = np.clip(np.sin(np.arange(96_000) / 10) * 4, -1, 1).astype(np.float32)
    write_mp4(tmp_path / "loud.mp4", frames, np.stack([loud, loud]))
    assert "clipped" in inspect(tmp_path / "loud.mp4").flags

    write_mp4(tmp_path / "fast.mp4", frames, clips.wave_with(events, 3.0), fps=30)
    assert {"fps:30", "duration_mismatch:+0.600"} <= set(inspect(tmp_path / "fast.mp4").flags)


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        # 0.25 s less the encoder's delay of 1,024 samples, which this file does not hide
        (lambda: corpus.video(range(36), sound={"begins_s": 0.25, "seconds": 1.25}), ["audio_starts:+0.218"]),
        (lambda: corpus.video(range(36), sound={}, container="matroska"), []),
        (
            lambda: corpus.video(range(5), times_s=[Fraction(n, 100) for n in (0, 4, 9, 12, 30)], container="matroska"),
            ["vfr", "no_audio"],
        ),
    ],
    ids=["late sound", "matroska", "uneven"],
)
def test_timing_faults_of_other_peoples_files_are_flagged(make, flags):
    found = [flag for flag in inspect(make(), name="clip").flags if not flag.startswith(("fps", "duration"))]
    assert found == flags


def test_missing_streams_are_null_and_flagged(tmp_path):
    frames, _ = clips.bouncing()
    write_mp4(tmp_path / "mute.mp4", frames, None)
    report = inspect(tmp_path / "mute.mp4").to_dict()
    assert report["audio"] is None
    assert report["sync_offset_ms"] is None
    assert report["flags"] == ["no_audio"]


def test_a_file_that_is_not_whole_media_is_refused_by_name(tmp_path):
    frames, events = clips.bouncing()
    write_mp4(tmp_path / "clip.mp4", frames, clips.wave_with(events, 3.0))
    data = (tmp_path / "clip.mp4").read_bytes()
    cases = {
        "half.mp4": (data[: len(data) // 2], "half.mp4 is truncated"),
        "head.mp4": (data[:500], "head.mp4 is not a media file"),
        "text.mp4": (b"hello world\n" * 50, "text.mp4 is not a media file"),
        "empty.mp4": (b"", "empty.mp4 is empty"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MediaError, match=message):
            inspect(tmp_path / name)
    with pytest.raises(MediaError, match=r"gone\.mp4 does not exist"):
        inspect(tmp_path / "gone.mp4")
