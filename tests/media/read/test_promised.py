"""Half an upload is not taken for a whole one; what a recorder could not say is no promise."""

import struct

import pytest

from talkies.errors import MediaError, TooLarge
from talkies.media.inspect.report import inspect
from talkies.media.read.limits import MediaLimits, check_audio
from talkies.media.read.readers import read_audio, read_video
from talkies.media.read.video import check_decodes
from tests.media import corpus, films

LOOSE = MediaLimits.loose()


def song(container: str, **how) -> bytes:
    """8 s."""
    return corpus.compressed(container, **{"seconds": 8.0, **how})


def wav(size: int | None = None) -> bytes:
    """8 s of 16-bit stereo at 32 kHz, 1,024,000 bytes, of which the header says ``size``."""
    data = corpus.wav(corpus.tone(32_000, 8.0, 0.5)[None].repeat(2, axis=0), 32_000)
    at = data.index(b"data") + 4
    return data if size is None else data[:at] + struct.pack("<I", size) + data[at + 4 :]


SONGS = {
    "constant.mp3": lambda: song("mp3", codec="libmp3lame", rate=44_100),
    "plain.wav": wav,
    "free.flac": lambda: song("flac", codec="flac", form="s16"),
    "tape.aiff": lambda: song("aiff", codec="pcm_s16be", form="s16"),
    "voice.mka": lambda: song("matroska", codec="libopus", rate=48_000),
}


@pytest.mark.parametrize("name", SONGS)
@pytest.mark.parametrize("share", [0.33, 0.9])
def test_a_truncated_sound_is_refused_by_reader_and_check(name, share):
    data = SONGS[name]()
    assert read_audio(data, max_seconds=20, name=name).shape[1] == pytest.approx(8 * 32_000, abs=2000)
    check_audio(data, LOOSE, name=name)
    cut = data[: int(len(data) * share)]
    for read in (lambda: read_audio(cut, max_seconds=20, name=name), lambda: check_audio(cut, LOOSE, name=name)):
        with pytest.raises(MediaError, match=rf"^{name} is (truncated: [0-9.]+ of 8\.0. s|damaged)") as caught:
            read()
        assert caught.value.hint
    with pytest.raises(MediaError, match=r"is (truncated|damaged)"):
        inspect(cut)


def test_a_truncated_mp3_is_told_by_what_its_header_says():
    data = SONGS["constant.mp3"]()
    with pytest.raises(MediaError, match=r"voice is truncated: 2\.6\d of 8\.0\d s of sound can be read"):
        read_audio(data[: len(data) // 3], max_seconds=20, name="voice")


@pytest.mark.parametrize("size", [0, 0x7FFF_F000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFD8, 0xFFFF_FFFF], ids=hex)
def test_a_streamed_wav_of_unknown_length_is_read(size):
    assert read_audio(wav(size), max_seconds=20).shape[1] == 8 * 32_000
    info = check_audio(wav(size), LOOSE, name="voice")
    assert info.audio.duration_s == 8
    assert read_audio(wav(size)[:512_044], max_seconds=20).shape[1] == 4 * 32_000


def test_a_wav_that_lacks_less_than_half_a_second_is_read():
    assert read_audio(wav()[:-50_000], max_seconds=20).shape[1] == pytest.approx(8 * 32_000 - 12_500, abs=1)
    with pytest.raises(MediaError, match=r"truncated: 7\.4\d of 8\.00 s can be read"):
        read_audio(wav()[:-70_000], max_seconds=20)


def test_what_is_not_read_need_not_be_there():
    data = SONGS["constant.mp3"]()
    assert read_audio(data[: len(data) // 3], max_seconds=2).shape[1] == 2 * 32_000


def spoiled(data: bytes, share: float) -> bytes:
    at, length = int(len(data) * share), len(data) // 20
    return data[:at] + bytes(length) + data[at + length :]


FILMS = {
    "noisy.mp4": lambda: corpus.noisy_video("mp4"),
    "old.mp4": lambda: films.numbered_film("mp4", "mpeg4", 48, bit_rate=4_000_000),
    "quiet.mkv": lambda: corpus.video([i % 36 for i in range(48)], container="matroska"),
}


@pytest.mark.parametrize("share", [0.35, 0.6])
@pytest.mark.parametrize("name", FILMS)
def test_damage_in_the_middle_of_a_video_is_found_by_the_check(name, share):
    """Some decoders stop; others paint over what they miss, which no job may take for the user's picture."""
    whole = FILMS[name]()
    check_decodes(whole, max_seconds=2, name=name)
    data = spoiled(whole, share)
    with pytest.raises(MediaError, match=rf"{name} is (damaged|truncated)") as found:
        check_decodes(data, max_seconds=2, name=name)
    with pytest.raises(MediaError) as read:
        read_video(data, max_seconds=2, name=name)
    assert found.value.message == read.value.message


@pytest.mark.parametrize("name", ["constant.mp3", "free.flac"])
def test_damage_in_the_middle_of_a_sound_is_found_by_the_check(name):
    data = spoiled(SONGS[name](), 0.5)
    with pytest.raises(MediaError, match=f"{name} is damaged"):
        check_audio(data, LOOSE, name=name)
    with pytest.raises(MediaError, match=f"{name} is damaged"):
        read_audio(data, max_seconds=8, name=name)


def test_a_broadcast_that_was_tuned_into_is_not_damaged():
    """Its first pictures refer to some that were sent before: they are not shown, and nothing else is missing."""
    data = films.numbered_film("mpegts", "mpeg2video", bit_rate=4_000_000, options={"bf": "2"})
    check_decodes(data[188 * 150 :], max_seconds=2)


def test_the_check_refuses_what_the_reader_refuses_and_takes_what_it_takes():
    for data in (corpus.cut_mp4(), corpus.video([1, 2, 3], sound={}), corpus.headers_only()):
        outcomes = []
        for read in (read_video, check_decodes):
            try:
                read(data, max_seconds=2, start_time_s=0.0, name="film")
                outcomes.append("")
            except MediaError as error:
                outcomes.append(error.message)
        assert outcomes[0] == outcomes[1]
    with pytest.raises(MediaError, match="outside the source duration"):
        check_decodes(corpus.video([1, 2, 3]), max_seconds=2, start_time_s=3.0)


def test_the_check_keeps_no_pixels(monkeypatch):
    monkeypatch.setattr("talkies.media.read.video.MAX_CLIP_BYTES", 100)
    with pytest.raises(TooLarge):
        read_video(corpus.video(range(24)), max_seconds=1)
    check_decodes(corpus.video(range(24)), max_seconds=1)
