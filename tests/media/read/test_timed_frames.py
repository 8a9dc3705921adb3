"""Where a seek lands is never trusted, and what a stream claims on the way is judged before it is decoded."""

import io

import av
import pytest

from talkies.errors import TooLarge
from talkies.media.inspect.report import inspect
from talkies.media.read.readers import read_video
from tests.media import corpus, films

FILMS = {
    "program-stream.mpg": ("mpeg", "mpeg1video", {"bit_rate": 4_000_000}),
    "mpeg2-with-b-frames.vob": ("vob", "mpeg2video", {"bit_rate": 4_000_000, "options": {"bf": "2"}}),
    "h264-in-a-program-stream.vob": ("vob", "libx264", {"gop": 48}),
    "mpeg2.ts": ("mpegts", "mpeg2video", {"bit_rate": 4_000_000, "options": {"bf": "2"}}),
    "long-groups.ts": ("mpegts", "libx264", {"gop": 250}),
    "open-groups.ts": ("mpegts", "libx264", {"options": {"x264-params": "open-gop=1:keyint=24"}}),
    "short-groups.mp4": ("mp4", "libx264", {}),
    "one-group.mp4": ("mp4", "libx264", {"gop": 250}),
    "open-groups.mp4": ("mp4", "libx264", {"options": {"x264-params": "open-gop=1:keyint=24"}}),
    "groups.mkv": ("matroska", "libx264", {"gop": 60}),
    "mpeg4-with-b-frames.avi": ("avi", "mpeg4", {"bit_rate": 4_000_000, "options": {"bf": "2"}}),
    "h264-with-b-frames.avi": ("avi", "libx264", {}),
    "old.flv": ("flv", "libx264", {}),
}


def shown(clip) -> list[int]:
    return [corpus.number_of(frame) for frame in clip.frames]


@pytest.mark.parametrize("name", FILMS)
def test_a_start_is_exact_in_every_container(name):
    container, codec, how = FILMS[name]
    data = films.numbered_film(container, codec, **how)
    for start_s, first in ((0, 0), (5, 120), (7.5, 180)):
        clip = read_video(data, max_seconds=1, start_time_s=start_s, with_audio=False)
        assert shown(clip) == [(first + i) % 36 for i in range(24)], start_s


@pytest.mark.parametrize("start_s", [9, 15, 19])
def test_a_start_in_groups_that_are_longer_than_what_is_sought_back(start_s):
    """A transport stream has no index: a seek lands at the next group, of which one begins every 10 s."""
    data = films.numbered_film("mpegts", "libx264", num_frames=480, gop=250)
    clip = read_video(data, max_seconds=0.25, start_time_s=start_s, with_audio=False)
    assert shown(clip) == [(24 * start_s + i) % 36 for i in range(6)]


@pytest.fixture(scope="module")
def large() -> bytes:
    """One key frame of 5824x5824, over the limit of 5760 squared, as an H.264 stream."""
    frame = films.flat((100, 128, 128), "yuv420p", matrix=1, full_range=False, size=(5824, 5824))
    return films.encoded([frame], container="mpegts", codec="libx264", options={"preset": "ultrafast"})


def test_a_stream_of_too_many_pixels_is_refused_by_its_header(large):
    with pytest.raises(TooLarge, match=r"^film is 5824x5824 \(scale the video down\)"):
        read_video(large, max_seconds=1, name="film")


def test_a_picture_that_grows_on_the_way_is_not_decoded(large):
    """Each key frame of an H.264 stream states its size: the first one's is small, the one of a second later is not."""
    out = io.BytesIO()
    with (
        av.open(out, "w", format="mpegts") as file,
        av.open(io.BytesIO(films.numbered_film("mpegts", "libx264", 120))) as start,
    ):
        stream = file.add_stream_from_template(start.streams.video[0])
        for packet in start.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                file.mux(packet)
        with av.open(io.BytesIO(large)) as rest:
            for packet in rest.demux(video=0):
                if packet.dts is not None:
                    packet.pts, packet.dts, packet.stream = packet.pts + 540_000, packet.dts + 540_000, stream
                    file.mux(packet)
    assert len(read_video(out.getvalue(), max_seconds=3).frames) == 72
    # The decoder refuses it, and frames that were under way in its threads are lost with it.
    assert 72 <= len(read_video(out.getvalue(), max_seconds=20).frames) <= 120
    assert 72 <= inspect(out.getvalue()).num_frames <= 120
