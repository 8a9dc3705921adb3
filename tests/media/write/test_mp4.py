import os
import re
import stat
import struct
import subprocess
import sys
import textwrap
import threading
from fractions import Fraction

import av
import numpy as np
import pytest

from talkies.errors import Cancelled, InvalidRequest, NumericsError, OutputError
from talkies.media.read.metadata import pack_metadata
from talkies.media.read.probe import probe
from talkies.media.read.readers import read_video
from talkies.media.write.destination import check_writable
from talkies.media.write.mp4 import Mp4Writer, write_mp4
from tests.media import clips

SILENCE = np.zeros((2, 32_000), np.float32)


def picture(num_frames: int = 24, width: int = 112, height: int = 64) -> np.ndarray:
    ramp = np.linspace(0, 255, width, dtype=np.uint8)
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    for i in range(num_frames):
        frames[i] = np.roll(ramp, 3 * i)[None, :, None]
    return frames


def noise(num_frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (num_frames, 128, 160, 3), dtype=np.uint8)


def decode(path) -> tuple[list[Fraction], np.ndarray, Fraction, np.ndarray]:
    with av.open(str(path)) as container:
        pictures = [(f.pts * f.time_base, f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
    with av.open(str(path)) as container:
        sounds = [(f.pts * f.time_base, f.to_ndarray()) for f in container.decode(audio=0)]
    return (
        [t for t, _ in pictures],
        np.stack([p for _, p in pictures]),
        sounds[0][0],
        np.concatenate([s for _, s in sounds], axis=1),
    )


def leftovers(folder) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_both_streams_start_at_zero_and_frames_are_evenly_spaced(tmp_path):
    marks = [0.0, 0.25, 1.0, 2.5, 4.75]
    frames = picture(124)
    for mark in marks:
        frames[round(mark * 24)] = 255
    write_mp4(tmp_path / "clip.mp4", frames, clips.wave_with(marks, 124 / 24, np.ones(320, np.float32) * 0.8))
    times, pictures, audio_start, wave = decode(tmp_path / "clip.mp4")
    assert times == [Fraction(i, 24) for i in range(124)]
    assert audio_start == 0
    for mark in marks:
        assert pictures[round(mark * 24)].mean() > 240
        around = np.abs(wave[0, max(0, round((mark - 0.05) * 32_000)) :][:4000])
        heard = max(0.0, mark - 0.05) + np.argmax(around > 0.4) / 32_000
        assert heard == pytest.approx(mark, abs=1e-3)


def test_streams_are_what_players_expect(tmp_path):
    write_mp4(tmp_path / "clip.mp4", picture(), SILENCE)
    with av.open(str(tmp_path / "clip.mp4")) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        frame = next(container.decode(video))
        assert (video.codec_context.name, frame.format.name, video.average_rate) == ("h264", "yuv420p", 24)
        # 1 = BT.709 (matrix, primaries, transfer) and limited range
        assert (frame.colorspace, frame.color_primaries, frame.color_trc, frame.color_range) == (1, 1, 1, 1)
        assert (audio.codec_context.name, audio.codec_context.sample_rate) == ("aac", 32_000)
        assert audio.codec_context.layout.name == "stereo"
        assert audio.duration * audio.time_base == 1
        assert "creation_time" not in container.metadata
    data = (tmp_path / "clip.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # starts to play before it is whole


@pytest.mark.parametrize("num_frames", [22, 39, 56, 124])
def test_the_files_two_tracks_last_as_long_as_each_other_to_one_sample(tmp_path, num_frames):
    """As headers have it: the stream, its edit list (behind the codec's priming) and the whole film."""
    wanted = round(num_frames / 24 * 32_000)
    write_mp4(tmp_path / "clip.mp4", picture(num_frames), np.full((2, wanted), 0.1, np.float32))
    sample = Fraction(1, 32_000)
    with av.open(str(tmp_path / "clip.mp4")) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert video.duration * video.time_base == Fraction(num_frames, 24)
        assert audio.duration * audio.time_base == wanted * sample
        assert abs(Fraction(container.duration, 1_000_000) - Fraction(num_frames, 24)) <= sample
    data = (tmp_path / "clip.mp4").read_bytes()
    clock = struct.unpack(">I", data[data.index(b"mvhd") + 16 :][:4])[0]
    edits = [struct.unpack(">IIi", data[at.start() + 8 :][:12]) for at in re.finditer(b"elst", data)]
    assert [count for count, _, _ in edits] == [1, 1]
    assert [begin for _, _, begin in edits][1] == 1024  # samples of AAC's priming, which no player plays
    assert [Fraction(length, clock) for _, length, _ in edits] == [Fraction(num_frames, 24), wanted * sample]
    clip = read_video(tmp_path / "clip.mp4", max_seconds=20)
    assert abs(clip.audio.shape[1] - wanted) <= 1
    assert np.abs(clip.audio[:, 2000:-2000] - 0.1).max() < 0.02


def test_colours_survive_to_a_few_levels(tmp_path):
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (200, 120, 40), (128, 128, 128)]
    frames = np.stack([np.full((64, 112, 3), c, np.uint8) for c in colors])
    write_mp4(tmp_path / "clip.mp4", frames, SILENCE, crf=1)
    _, pictures, _, _ = decode(tmp_path / "clip.mp4")
    assert np.abs(pictures.astype(int) - frames).max() <= 4


@pytest.mark.parametrize("threads", [1, 2])
def test_same_input_gives_the_same_bytes_however_it_is_handed_in(tmp_path, threads):
    frames, wave = noise(56), clips.wave_with([0.5, 1.5], 56 / 24)
    write_mp4(tmp_path / "whole.mp4", frames, wave, metadata={"seed": 1}, threads=threads)
    with Mp4Writer(tmp_path / "parts.mp4", width=160, height=128, metadata={"seed": 1}, threads=threads) as writer:
        for start in range(0, 56, 17):
            writer.write_frames(frames[start : start + 17])
        writer.write_wave(wave)
    assert (tmp_path / "whole.mp4").read_bytes() == (tmp_path / "parts.mp4").read_bytes()


@pytest.mark.parametrize(
    "prompt",
    ["é漢字🎬=;#\\\"'\n\t\0" * 500 + "end", "a" * 7000, "🎬" * 7000, "lone \ud83d surrogate", ""],
    ids=["escapes", "ascii", "emoji", "surrogate", "empty"],
)
def test_the_whole_request_reads_back(tmp_path, prompt):
    request = {"prompt": prompt, "seed": -(2**63), "nested": {"fit": ["crop", None, True, 0.1]}}
    write_mp4(tmp_path / "clip.mp4", picture(3), None, metadata=request)
    assert probe(tmp_path / "clip.mp4").request == request


def test_metadata_is_compact():
    assert pack_metadata({"a": 1, "b": "ü"}) == '{"a":1,"b":"ü"}'


def test_no_wave_means_no_audio_stream(tmp_path):
    write_mp4(tmp_path / "mute.mp4", picture(), None)
    assert probe(tmp_path / "mute.mp4").audio is None


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((3, 64, 112, 3), np.float32),
        np.zeros((3, 3, 64, 112), np.uint8),
        np.zeros((3, 112, 64, 3), np.uint8),
        np.zeros((64, 112, 3), np.uint8),
    ],
    ids=["float", "channels first", "transposed", "one frame"],
)
def test_frames_of_another_shape_or_type_are_never_guessed_at(tmp_path, frames):
    with (
        pytest.raises(OutputError, match=r"uint8 \[f, 64, 112, 3\]"),
        Mp4Writer(tmp_path / "clip.mp4", width=112, height=64, sample_rate_hz=None) as writer,
    ):
        writer.write_frames(frames)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "not finite"), (np.inf, "not finite"), (1.5, "peaks at 1.5"), (-1.01, "1.01")]
)
def test_a_wave_that_no_codec_makes_is_refused(tmp_path, value, message):
    wave = SILENCE.copy()
    wave[1, 77] = value
    with pytest.raises(NumericsError, match=message):
        write_mp4(tmp_path / "clip.mp4", picture(), wave)
    assert leftovers(tmp_path) == []


def test_full_scale_is_allowed(tmp_path):
    wave = np.sign(np.sin(np.arange(64_000) / 50)).astype(np.float32).reshape(2, -1)
    write_mp4(tmp_path / "clip.mp4", picture(), wave)


@pytest.mark.parametrize(
    ("frames", "waves", "message"),
    [(picture(), [], "no wave"), (None, [SILENCE], "no frame"), (picture(), [SILENCE, SILENCE], "twice")],
    ids=["no wave", "no frame", "two waves"],
)
def test_streams_that_were_promised_must_come_once(tmp_path, frames, waves, message):
    def write() -> None:
        with Mp4Writer(tmp_path / "a.mp4", width=112, height=64) as writer:
            if frames is not None:
                writer.write_frames(frames)
            for wave in waves:
                writer.write_wave(wave)

    with pytest.raises(OutputError, match=message):
        write()
    assert leftovers(tmp_path) == []


def test_odd_sides_are_refused():
    with pytest.raises(OutputError, match="even sides"):
        Mp4Writer("a.mp4", width=113, height=64)


@pytest.mark.parametrize("raised", [Cancelled("stop"), KeyboardInterrupt(), RuntimeError("x")], ids=repr)
def test_whatever_ends_the_block_leaves_nothing_behind(tmp_path, raised):
    (tmp_path / "clip.mp4").write_bytes(b"older")

    def write() -> None:
        with Mp4Writer(tmp_path / "clip.mp4", width=160, height=128, sample_rate_hz=None) as writer:
            for _ in range(4):
                writer.write_frames(noise(17))
            raise raised

    with pytest.raises(type(raised)):
        write()
    assert leftovers(tmp_path) == ["clip.mp4"]
    assert (tmp_path / "clip.mp4").read_bytes() == b"older"


def test_the_file_appears_only_when_it_is_whole(tmp_path):
    with Mp4Writer(tmp_path / "clip.mp4", width=160, height=128, sample_rate_hz=None) as writer:
        writer.write_frames(noise(17))
        assert not (tmp_path / "clip.mp4").exists()
    assert leftovers(tmp_path) == ["clip.mp4"]


def test_places_that_cannot_be_written_are_named_with_the_reason(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path, reason in {
        tmp_path / "none" / "clip.mp4": "No such file or directory",
        tmp_path / "file" / "clip.mp4": "Not a directory",
        tmp_path: "it is a folder",
        tmp_path / ("x" * 300 + ".mp4"): "name too long",
    }.items():
        with pytest.raises(OutputError) as caught:
            write_mp4(path, picture(2), None)
        assert str(path) in caught.value.message
        assert reason in caught.value.message
    assert leftovers(tmp_path) == ["file"]


def test_a_sound_handed_in_after_more_than_ten_seconds_is_interleaved(tmp_path):
    """FFmpeg writes what it has when one stream is so far ahead: all pictures would lie before the sound."""
    frames, wave = picture(12 * 24, 16, 16), np.zeros((2, 12 * 32_000), np.float32)
    with Mp4Writer(tmp_path / "last.mp4", width=16, height=16, threads=1) as writer:
        writer.write_frames(frames)
        writer.write_wave(wave)
    write_mp4(tmp_path / "first.mp4", frames, wave, threads=1)
    assert (tmp_path / "last.mp4").read_bytes() == (tmp_path / "first.mp4").read_bytes()
    with av.open(str(tmp_path / "last.mp4")) as container:
        packets = sorted((p.pos, p.stream.type) for p in container.demux() if p.size)
    kinds = "".join(kind[0] for _, kind in packets)
    assert "vvvvvvvv" not in kinds


def test_the_encoder_leaves_out_what_is_not_repeatable(tmp_path):
    write_mp4(tmp_path / "clip.mp4", picture(), SILENCE)
    assert b" mbtree=0 " in (tmp_path / "clip.mp4").read_bytes()  # x264 writes its options into the stream


@pytest.mark.parametrize("limit", [100, 60_000, "last bytes"])
def test_a_full_disk_or_size_limit_fails_cleanly_at_every_point(tmp_path, limit):
    """RLIMIT_FSIZE acts like a full disk (EFBIG in place of ENOSPC); it is set in a child so that pytest can write."""
    if limit == "last bytes":
        write_mp4(tmp_path / "clip.mp4", noise(40), SILENCE)
        limit = (tmp_path / "clip.mp4").stat().st_size - 100
        (tmp_path / "clip.mp4").unlink()
    script = f"""
        import resource, sys
        from tests.media.write.test_mp4 import SILENCE, noise, write_mp4
        from talkies.errors import OutputError
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        try:
            write_mp4({str(tmp_path / "clip.mp4")!r}, noise(40), SILENCE)
        except OutputError as exc:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            print(exc.message)
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert child.stdout.strip() == f"cannot write {tmp_path / 'clip.mp4'}: File too large", child.stderr
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full") or os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        with pytest.raises(OutputError, match="No space left on device"):
            write_mp4(disk / "clip.mp4", noise(40), SILENCE)
        assert leftovers(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_no_thread_outlives_the_writer(tmp_path):
    before = threading.active_count()
    write_mp4(tmp_path / "clip.mp4", picture(), SILENCE)
    with pytest.raises(NumericsError):
        write_mp4(tmp_path / "clip.mp4", picture(), SILENCE + np.nan)
    assert threading.active_count() == before


def test_a_link_leads_to_the_file_that_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old.mp4").write_bytes(b"older")
    for name, target in {"clip.mp4": "there/old.mp4", "new.mp4": "there/new.mp4"}.items():
        (tmp_path / name).symlink_to(target)
        write_mp4(tmp_path / name, picture(2), None)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).stat().st_size > 1000
    assert leftovers(tmp_path / "there") == ["new.mp4", "old.mp4"]


def test_nothing_but_a_file_is_ever_replaced(tmp_path):
    """The last step is a rename, and root may rename over /dev/null."""
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "pipe-link.mp4").symlink_to("pipe.mp4")
    (tmp_path / "round.mp4").symlink_to("round.mp4")
    for name, reason in {"pipe.mp4": "pipe", "pipe-link.mp4": "pipe", "round.mp4": "symbolic links"}.items():
        with pytest.raises(OutputError, match=rf"{name}: .*{reason}"):
            write_mp4(tmp_path / name, picture(2), None)
        with pytest.raises(InvalidRequest, match=rf"{name}: .*{reason}"):
            check_writable(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe.mp4").stat().st_mode)


def test_places_are_judged_before_any_work(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"older")
    (tmp_path / "link.mp4").symlink_to("clip.mp4")
    check_writable(tmp_path / "clip.mp4")
    for path, words in {
        tmp_path / "none" / "clip.mp4": "mkdir -p",
        tmp_path / "clip.mp4" / "clip.mp4": "Not a directory",
        tmp_path / ("x" * 300 + ".mp4"): "choose a shorter name",
        tmp_path / "zero\0.mp4": "null",
    }.items():
        with pytest.raises(InvalidRequest, match=words):
            check_writable(path)
    with pytest.raises(InvalidRequest, match="also an input"):
        check_writable(tmp_path / "link.mp4", inputs=[tmp_path / "other.png", tmp_path / "clip.mp4"])


def test_a_file_has_its_name_only_when_the_disk_has_it(tmp_path, monkeypatch):
    """A network disk reports that it is full at fsync and not before."""
    real, seen = os.fsync, []

    def synced(descriptor):
        seen.append((tmp_path / "clip.mp4").exists())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    write_mp4(tmp_path / "clip.mp4", picture(), SILENCE)
    assert seen == [False]


def test_a_disk_that_is_full_at_its_end_leaves_no_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="space"):
        write_mp4(tmp_path / "clip.mp4", picture(), SILENCE)
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "clip.mp4").exists()
