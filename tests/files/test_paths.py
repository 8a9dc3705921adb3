"""Paths that are no files: each is refused by one line, at once, and none is opened."""

import os

import pytest

from talkies.errors import MediaError
from talkies.files.paths import local_path
from talkies.media.inspect.report import inspect
from talkies.media.read.container import open_media
from talkies.media.read.image import read_image
from talkies.media.read.limits import MediaLimits, check_audio, check_image, check_video

READERS = {
    "image": lambda path: read_image(path),
    "check_image": lambda path: check_image(path, MediaLimits.loose(), name=f"first frame {path}"),
    "check_video": lambda path: check_video(path, MediaLimits.loose(), name=f"reference 1 {path}"),
    "check_audio": lambda path: check_audio(path, MediaLimits.loose(), name=f"reference 1 {path}"),
    "open_media": lambda path: open_media(path).__enter__(),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_no_file_is_named_and_never_opened(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.png")  # opening one waits for a writer, for ever
    os.mkdir("folder.png")
    for path, words in {
        "pipe.png": "pipe.png is not a file but a device, a pipe or a socket",
        "/dev/zero": "zero is not a file but a device",
        "folder.png": "folder.png is not a file but a folder",
        ".": r"\. is not a file but a folder",
        "none.png": "none.png does not exist",
        "a\0b.png": "null",
        "x" * 300: "too long",
        "s3://bucket/a.png": r"s3:// is not fetched \(use http",
    }.items():
        with pytest.raises(MediaError, match=words):
            reader(path)


def test_a_folder_to_inspect_has_a_name_in_the_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MediaError, match=r"^\. is not a file but a folder"):
        inspect(".")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("my pictures/50%25.png", "my pictures/50%25.png"),
        ("file:///tmp/my%20picture.png", "/tmp/my picture.png"),
        ("FILE://localhost/tmp/a%23b.png", "/tmp/a#b.png"),
        ("file:a.png", "a.png"),
        ("file://elsewhere/a.png", "file://elsewhere/a.png"),
    ],
)
def test_file_urls_name_local_paths(uri, path):
    assert local_path(uri) == path
