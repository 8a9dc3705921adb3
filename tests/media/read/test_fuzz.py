"""Mutated files: every reader gives a result or one of our refusals, in bounded time and memory.

The short run mutates in this process. The long one runs in a child that notes its input before it reads it, so that a
crash of a decoder leaves the file that caused it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talkies.errors import MediaError, TooLarge
from talkies.media.inspect.report import inspect
from talkies.media.read.probe import probe
from talkies.media.read.readers import read_audio, read_image, read_video
from tests.fuzzing import FUZZ_SECONDS
from tests.media import corpus

LIMIT_S = 5.0
READERS: dict[str, Callable[[bytes], object]] = {
    "image": lambda data: read_image(data, max_pixels=1_000_000),
    "video": lambda data: read_video(data, max_seconds=2, size_of=lambda w, h: (32, 32)),
    "audio": lambda data: read_audio(data, max_seconds=2),
    "probe": probe,
    "inspect": inspect,
}
SEEDS = {
    "image": [
        "exif-6.jpg",
        "mpo.jpg",
        "palette-transparent.png",
        "grey16.png",
        "animated.webp",
        "exif-6.heic",
        "exif-6.avif",
    ],
    "video": [
        "plain.mp4",
        "fragments.mp4",
        "turned-90.mov",
        "vfr.mkv",
        "sound-opus.mkv",
        "stream.ts",
        "mpeg4.avi",
        "old.flv",
    ],
    "audio": [
        "pcm-16.wav",
        "float.wav",
        "constant.mp3",
        "apple.m4a",
        "free.flac",
        "voice.opus",
        "raw.aac",
        "cover-art.mp3",
    ],
}


@cache
def seeds(kind: str) -> tuple[bytes, ...]:
    found = tuple(case.make() for case in corpus.cases() if case.kind == kind and case.name in SEEDS[kind])
    assert len(found) == len(SEEDS[kind])
    return found


def mutate(data: bytes, seed: int) -> bytes:
    """A few bytes changed, a piece moved, removed or repeated; mostly near the front, where headers are."""
    rng = np.random.default_rng(seed)
    values = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        reach = len(values) if rng.random() < 0.5 else min(len(values), 400)
        if reach < 4:
            break
        at = int(rng.integers(0, reach))
        length = int(rng.integers(1, 1 + min(64, len(values) - at)))
        action = int(rng.integers(0, 5))
        if action == 0:
            values[at] = int(rng.integers(0, 256))
        elif action == 1:
            values[at : at + length] = bytes(rng.choice([0, 255], length).astype(np.uint8))
        elif action == 2:
            del values[at : at + length]
        elif action == 3:
            values[at:at] = values[at : at + length]
        else:
            del values[max(4, at) :]
    return bytes(values)


def survives(reader: str, data: bytes) -> None:
    started = time.monotonic()
    message = "read"
    try:
        READERS[reader](data)
    except (MediaError, TooLarge) as exc:
        message = exc.message
    assert message
    assert "\n" not in message
    assert time.monotonic() - started < LIMIT_S


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SEEDS)
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_files_never_break_a_reader(kind, data):
    content = mutate(data.draw(st.sampled_from(seeds(kind))), data.draw(st.integers(0, 2**32 - 1)))
    survives(kind, content)
    if kind != "image":
        survives(data.draw(st.sampled_from(["probe", "inspect"])), content)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    content=st.binary(max_size=300),
    head=st.sampled_from([b"", b"\xff\xd8\xff", b"\0\0\0\x18ftypheic", b"RIFF\0\0\0\0WAVE"]),
)
def test_arbitrary_bytes_never_break_a_reader(content, head):
    for reader in READERS:
        survives(reader, head + content)


@pytest.mark.slow
@pytest.mark.timeout(FUZZ_SECONDS + 300)
def test_mutated_files_for_a_while(tmp_path):
    script = f"""
        import sys, time, warnings
        import numpy as np
        from tests.media.read.test_fuzz import READERS, SEEDS, mutate, seeds, survives
        warnings.simplefilter("ignore")
        rng = np.random.default_rng(int(time.time()))
        end, count = time.monotonic() + {FUZZ_SECONDS}, 0
        while time.monotonic() < end:
            kind = list(SEEDS)[int(rng.integers(0, 3))]
            files = seeds(kind)
            data = mutate(files[int(rng.integers(0, len(files)))], int(rng.integers(0, 2**63)))
            open({str(tmp_path / "last-input")!r}, "wb").write(data)
            for reader in (kind, *(() if kind == "image" else ("probe", "inspect"))):
                survives(reader, data)
            count += 1
        print(count)
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=FUZZ_SECONDS + 200,
        check=False,
    )
    assert child.returncode == 0, f"input kept in {tmp_path / 'last-input'}\n{child.stderr[-3000:]}"
    assert int(child.stdout.split()[-1]) > FUZZ_SECONDS / 3
