import io
import wave as wavefile
from fractions import Fraction

import av
import numpy as np
import pytest

from talkies.errors import MediaError
from talkies.media.read.audio import read_audio, resample
from tests.media import clips, corpus


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
        (wav(np.zeros((1, 8000), np.float32), 8000), 3.0, "start_time_s=3 is outside"),
        (wav(np.zeros((1, 0), np.float32), 8000), 0, "voice"),
    ],
    ids=["empty", "riff", "text", "late start", "no samples"],
)
def test_refusals_name_the_file_and_the_reason(data, start_s, message):
    with pytest.raises(MediaError, match=message):
        read_audio(data, max_seconds=5, start_time_s=start_s, name="voice")


def with_gap(gap_s: float, container: str = "matroska", codec: str = "pcm_s16le") -> bytes:
    """A tone of 0.5 s, nothing for ``gap_s``, and the tone again for 0.5 s."""
    rate, out = 32_000, io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="stereo")
        for part in range(2):
            for start in range(0, 16_000, 1000):
                block = np.stack([tone(500, rate)[start : start + 1000]] * 2)
                frame = av.AudioFrame.from_ndarray(
                    (block * 32767).round().astype(np.int16).T.reshape(1, -1), format="s16", layout="stereo"
                )
                frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
                frame.pts = start + part * round((0.5 + gap_s) * rate)
                file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


@pytest.mark.parametrize("gap_s", [0.05, 0.2, 1.0])
def test_a_gap_in_the_sound_stays_a_gap(gap_s):
    out = read_audio(with_gap(gap_s), max_seconds=5)
    gap = round(gap_s * 32_000)
    assert out.shape[1] == pytest.approx(32_000 + gap, abs=40)  # the clock of Matroska counts milliseconds
    assert np.abs(out[:, 15_900:15_990]).max() > 0.4
    assert not out[:, 16_040 : 15_960 + gap].any()
    assert np.abs(out[:, 16_040 + gap : 16_200 + gap]).max() > 0.4


def test_steps_of_a_coarse_clock_are_no_gaps():
    """1,000 samples last 31.25 ms, which the clock of Matroska calls 31 or 32."""
    out = read_audio(with_gap(0.0), max_seconds=5)
    assert np.array_equal(out[0], out[1])
    assert level_db(out) == pytest.approx(0, abs=0.01)
    assert out.shape[1] == 32_000


@pytest.mark.parametrize("container", ["mpeg", "vob", "mpegts", "matroska"])
def test_a_start_is_exact_where_only_some_packets_are_stamped(container):
    rate = 48_000
    ramp = np.stack([np.repeat(0.5 * np.sin(np.arange(100) ** 1.5), rate // 10)] * 2).astype(np.float32)
    data = encoded(ramp, rate, codec="mp2", container=container, layout="stereo", form="s16")
    whole = read_audio(data, max_seconds=20)
    part = read_audio(data, max_seconds=1, start_time_s=5.5)
    assert np.abs(part[:, 1000:-1000] - whole[:, 177_000:207_000]).max() < 1e-3


@pytest.mark.parametrize(("peak", "dbfs"), [(1.5, "+3.5"), (8.0, "+18.1"), (32768.0, "+90.3")])
def test_a_float_wav_over_full_scale_is_scaled_down_and_not_cut_off(peak, dbfs):
    samples = np.stack([tone(500, 32_000, level=peak)] * 2)
    notes: list[str] = []
    out = read_audio(corpus.float_wav(samples, 32_000), max_seconds=5, notes=notes)
    assert np.abs(out - samples / samples.max()).max() < 1e-6
    assert notes == [f"the sound peaks at {dbfs} dBFS: it is scaled down to full scale"]


def test_single_peaks_of_a_lossy_codec_are_cut_off_without_a_word():
    samples = np.stack([tone(500, 32_000)] * 2)
    samples[:, ::4000] = 1.2
    notes: list[str] = []
    out = read_audio(corpus.float_wav(samples, 32_000), max_seconds=5, notes=notes)
    assert np.array_equal(out, np.clip(samples, -1, 1))
    assert notes == []


def test_a_video_without_sound_is_refused_as_sound(tmp_path):
    from talkies.media.write.mp4 import write_mp4

    write_mp4(tmp_path / "mute.mp4", clips.bouncing(24)[0], None)
    with pytest.raises(MediaError, match=r"mute\.mp4 has no audio stream"):
        read_audio(tmp_path / "mute.mp4", max_seconds=5)
