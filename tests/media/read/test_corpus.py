import numpy as np
import pytest

from talkies.errors import MediaError, TooLarge
from talkies.media.inspect.report import inspect
from talkies.media.read.readers import read_audio, read_image, read_video
from tests.media import corpus

CASES = corpus.cases()


def test_there_are_enough_of_them():
    assert len(CASES) >= 60
    assert len({(case.kind, case.name) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name}")
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_right_content_or_one_clear_refusal(case, tmp_path):
    path = tmp_path / case.name
    path.write_bytes(case.make())
    read = {"image": check_image, "video": check_video, "audio": check_audio}[case.kind]
    if case.refusal is None:
        read(path, case.expect)
        return
    with pytest.raises((MediaError, TooLarge), match=case.refusal) as caught:
        read(path, {})
    assert case.name in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.http_status in (400, 413)
    assert caught.value.hint, "each refusal has a way out"


def check_image(path, expect):
    pixels = read_image(path)
    assert np.array_equal(pixels, read_image(path.read_bytes()))
    assert pixels.dtype == np.uint8
    width, height = expect.get("size", (48, 32))
    assert pixels.shape == (height, width, 3)
    if expect["colors"] is not None:
        assert_corners(pixels, expect["colors"], expect["tolerance"])


def assert_corners(pixels, colors, tolerance):
    height, width = pixels.shape[:2]
    places = [(height // 4, width // 4), (height // 4, width * 3 // 4)]
    places += [(height * 3 // 4, width // 4), (height * 3 // 4, width * 3 // 4)]
    for (y, x), color in zip(places, colors, strict=True):
        if color is not None:
            assert np.abs(pixels[y, x].astype(int) - color).max() <= tolerance, (y, x, pixels[y, x], color)


def check_video(path, expect):
    clip = read_video(path, max_seconds=20)
    frames, (width, height) = clip.frames, expect["size"]
    assert frames.dtype == np.uint8
    assert frames.shape[1:] == (height, width, 3)
    if "count" in expect:
        assert len(frames) == expect["count"]
        if expect["corners"]:
            assert_corners(frames[0], expect["corners"], 12)
    else:
        shown = [corpus.number_of(frame) for frame in frames]
        # A last frame of unknown length may be held a little shorter or longer.
        tail = expect.get("tail", 0)
        wanted = expect["frames"]
        assert shown[: len(wanted) - tail] == wanted[: len(wanted) - tail]
        if tail:
            assert set(shown[len(wanted) - tail :]) == {wanted[-1]}
        else:
            assert len(shown) == len(wanted)
        assert_corners(frames[0], (corpus.RED, corpus.GREEN, None, None), 16)
    if "sound_at" in expect:
        assert clip.audio is not None
        assert clip.audio.shape[1] <= -(-len(frames) * 32_000 // 24)
        check_tone(clip.audio, expect["sound_at"], expect.get("slack_s", 0.002))
    else:
        assert clip.audio is None
    assert inspect(path).num_frames > 0


def check_audio(path, expect):
    wave = read_audio(path, max_seconds=20)
    assert wave.dtype == np.float32
    assert wave.shape[0] == 2
    assert wave.shape[1] / 32_000 == pytest.approx(expect["seconds"], abs=max(expect["slack_s"], 1 / 32_000))
    check_tone(wave, expect["sound_at"], expect["slack_s"])


def check_tone(wave, at_s, slack_s):
    for channel in wave:
        assert np.argmax(np.abs(channel) > 0.25) / 32_000 == pytest.approx(at_s + 0.0003, abs=slack_s)
        later = channel[round((at_s + 0.1) * 32_000) : round((at_s + 0.3) * 32_000)]
        assert np.sqrt(np.mean(later**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.12)


@pytest.mark.parametrize("seed", range(6))
def test_a_video_with_damaged_bytes_gives_whole_frames_or_one_error(seed):
    data = corpus.damaged(corpus.video(range(36), sound={}), seed)
    try:
        clip = read_video(data, max_seconds=5)
    except (MediaError, TooLarge):
        return
    assert clip.frames.shape[1:] == (64, 96, 3)
