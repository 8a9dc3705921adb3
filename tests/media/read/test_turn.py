import struct

import pytest

from talkies.media.read.readers import read_video
from tests.media import corpus


def tilted(degrees: float) -> bytes:
    """A film whose header asks for a turn of any angle, clockwise."""
    import math

    data = corpus.video(range(12), container="mov")
    a, b = (round(65536 * f(math.radians(degrees))) for f in (math.cos, math.sin))
    at = data.index(b"tkhd") + 44
    return data[:at] + struct.pack(">9i", a, b, 0, -b, a, 0, 0, 0, 1 << 30) + data[at + 36 :]


@pytest.mark.parametrize(("degrees", "size"), [(45, (96, 64)), (30, (96, 64)), (60, (64, 96)), (225, (96, 64))])
def test_a_turn_that_is_no_quarter_turn_is_noted(degrees, size):
    clip = read_video(tilted(degrees), max_seconds=0.5)
    height, width = clip.frames.shape[1:3]
    assert (width, height) == size
    assert clip.notes == (
        f"the file asks for a turn by {degrees} degrees: only quarter turns are done, here the nearest one",
    )


@pytest.mark.parametrize("degrees", [0, 2, 90, 180, 270])
def test_quarter_turns_need_no_note(degrees):
    assert read_video(tilted(degrees), max_seconds=0.5).notes == ()
