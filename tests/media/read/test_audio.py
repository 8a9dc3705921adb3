import io
import wave as wavefile

import av
import numpy as np
import pytest

from talkies.errors import MediaError
from talkies.media.read.audio import read_audio, resample
from tests.media import clips


def tone(hz: float, rate: int, seconds: float = 2.0, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def wav(samples: np.ndarray, rate: int) -> bytes:
    """16-bit WAV of [C, N]."""
    out = io.BytesIO()
    with wavefile.open(out, "wb") as file:
        file.setnchannels(samples.shape[0])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples.T, -1, 1) * 32767).round().astype("<i2").tobytes())
    return out.getvalue()


def encoded(samples: np.ndarray, rate: int, *, codec: str, container: str, layout: str, form: str) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        for start in range(0, samples.shape[1], 1024):
            block = np.ascontiguousarray(samples[:, start : start + 1024]).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, start
            for converted in av.AudioResampler(format=form, layout=layout, rate=rate).resample(frame):
                file.mux(stream.encode(converted))
        file.mux(stream.encode(None))
    return out.getvalue()


def level_db(samples: np.ndarray, reference: float = 0.5) -> float:
    middle = samples[..., 8000:-8000]
    return float(20 * np.log10(np.sqrt((middle**2).mean()) / (reference / np.sqrt(2)) + 1e-12))


@pytest.mark.parametrize("hz", [100, 1000, 9000, 14_000, 15_000])
def test_resampling_from_44_1_khz_is_flat_in_the_band(hz):
    assert level_db(resample(np.stack([tone(hz, 44_100)] * 2), 44_100)) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("hz", [16_500, 17_000, 20_000])
def test_resampling_folds_nothing_back(hz):
    assert level_db(resample(np.stack([tone(hz, 44_100)] * 2), 44_100)) < -95


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 32_000, 44_100, 48_000, 96_000, 192_000])
@pytest.mark.parametrize("seconds", [1.0, 0.3337])
def test_any_rate_gives_the_right_length_and_no_delay(rate, seconds):
    samples = np.zeros((2, round(rate * seconds)), np.float32)
    at = round(0.2 * rate)
    samples[:, at : at + rate // 100] = 0.5 * np.hanning(rate // 100)
    out = resample(samples, rate)
    assert out.shape == (2, -(-samples.shape[1] * 32_000 // rate))
    assert abs(np.argmax(out[0]) / 32_000 - (0.2 + 0.005)) < 0.0004


def test_mono_is_duplicated_at_full_level():
    out = read_audio(wav(tone(440, 32_000)[None], 32_000), max_seconds=5)
    assert np.array_equal(out[0], out[1])
    assert level_db(out) == pytest.approx(0, abs=0.01)


def test_5_1_keeps_its_sides_apart_and_never_clips():
    samples = np.zeros((6, 64_000), np.float32)  # FL FR FC LFE BL BR
    samples[0] = tone(440, 32_000)
    out = read_audio(encoded(samples, 32_000, codec="flac", container="flac", layout="5.1", form="s16"), max_seconds=5)
    assert level_db(out[:1]) > -9
    assert np.abs(out[1]).max() < 1e-3
    samples[:] = 0.99
    loud = read_audio(encoded(samples, 32_000, codec="flac", container="flac", layout="5.1", form="s16"), max_seconds=5)
    assert np.abs(loud).max() <= 1
    assert len(np.unique(loud[:, 1000:-1000].round(2))) == 1


@pytest.mark.parametrize(
    ("codec", "container", "form"),
    [("libmp3lame", "mp3", "fltp"), ("aac", "adts", "fltp"), ("libvorbis", "ogg", "fltp"), ("flac", "flac", "s16")],
)
def test_compressed_files_read_in_place_and_in_length(codec, container, form):
    if codec == "libvorbis" and "libvorbis" not in av.codecs_available:
        codec = "libopus"
    rate = 48_000
    samples = np.stack([np.zeros(rate * 2, np.float32)] * 2)
    samples[:, rate : rate + 4800] = tone(1000, rate, 0.1)
    out = read_audio(
        encoded(samples, rate, codec=codec, container=container, layout="stereo", form=form), max_seconds=10
    )
    slack = 0.08 if container == "adts" else 0.03  # raw AAC cannot say how much of its ends is padding
    assert out.shape[1] / 32_000 == pytest.approx(2.0, abs=slack)
    assert np.argmax(np.abs(out[0]) > 0.2) / 32_000 == pytest.approx(1.0, abs=slack)


def test_an_mp4_ends_where_its_sound_ends_and_not_with_the_codec_block():
    samples = np.stack([tone(440, 44_100, 0.777)] * 2)
    data = encoded(samples, 44_100, codec="aac", container="ipod", layout="stereo", form="fltp")
    assert read_audio(data, max_seconds=5).shape[1] == pytest.approx(0.777 * 32_000, abs=4)


def test_length_and_start_are_cut_at_the_files_own_rate():
    samples = np.stack([np.arange(44_100, dtype=np.float32) / 44_100] * 2)
    out = read_audio(wav(samples, 44_100), max_seconds=124 / 24 / 10, start_time_s=0.25)
    assert out.shape[1] == -(-int(124 / 240 * 44_100) * 32_000 // 44_100)
    assert out[0, 1600] == pytest.approx(0.25 + 0.05, abs=1e-3)


@pytest.mark.parametrize(
    ("data", "start_s", "message"),
    [
        (b"", 0, "voice is empty"),
        (b"RIFF....", 0, "voice is not a media file"),
        (b"hello " * 100, 0, "voice is not a media file"),
        (wav(np.zeros((1, 8000), np.float32), 8000), 3.0, "start_time_seconds=3 is outside"),
        (wav(np.zeros((1, 0), np.float32), 8000), 0, "voice"),
    ],
    ids=["empty", "riff", "text", "late start", "no samples"],
)
def test_refusals_name_the_file_and_the_reason(data, start_s, message):
    with pytest.raises(MediaError, match=message):
        read_audio(data, max_seconds=5, start_time_s=start_s, name="voice")


def test_a_video_without_sound_is_refused_as_sound(tmp_path):
    from talkies.media.write.mp4 import write_mp4

    write_mp4(tmp_path / "mute.mp4", clips.bouncing(24)[0], None)
    with pytest.raises(MediaError, match=r"mute\.mp4 has no audio stream"):
        read_audio(tmp_path / "mute.mp4", max_seconds=5)
