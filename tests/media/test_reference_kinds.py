"""One judgement of what a reference is, and of what a prompt says about it."""

import pytest

from talkies.media.prompt_hints import prompt_hints
from talkies.media.reference_kinds import kind_of_file, kind_of_head, kind_of_uri


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("a.PNG", "image"),
        ("/photos/IMG_1.HEIC", "image"),
        ("x.mov", "video"),
        ("x.mkv", "video"),
        ("x.m4a", "audio"),
        ("phone.3gp", "video"),
        ("phone.3g2", "video"),
        ("camera/00001.MTS", "video"),
        ("camera/00001.m2ts", "video"),
        ("memo.caf", "audio"),
        ("x.flac", "audio"),
        ("https://example.com/a.wav?token=b.png#c.mp4", "audio"),
        ("data:image/avif;base64,AAAA", "image"),
        ("data:audio/wav,x", "audio"),
        ("DATA:video/mp4;base64,AAAA", "video"),
        ("data:;base64,AAAA", None),
        ("no-suffix", None),
        ("notes.txt", None),
        ("what?.png", "image"),
    ],
)
def test_names_say_what_a_reference_is(uri, kind):
    assert kind_of_uri(uri) == kind


def test_the_mime_type_wins_over_the_suffix():
    assert kind_of_file("audio/mpeg", "x.png") == "audio"
    assert kind_of_file("application/octet-stream", "x.png") == "image"
    assert kind_of_file(None, None) is None


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image"),
        (b"\xff\xd8\xff\xe0", "image"),
        (b"RIFF\0\0\0\0WEBP", "image"),
        (b"GIF89a", "image"),
        (b"\0\0\0\x18ftypheic", "image"),
        (b"\0\0\0\x18ftypisom", "video"),
        (b"\0\0\0\x18ftypM4A ", "audio"),
        (b"RIFF\0\0\0\0WAVE", "audio"),
        (b"\xff\xfb\x90\x64", "audio"),
        (b"ID3\x04", "audio"),
        (b"RIFF\0\0\0\0AVI ", None),
        (b"hello", None),
        (b"", None),
    ],
)
def test_bytes_say_what_a_nameless_file_is(head, kind):
    assert kind_of_head(head) == kind


@pytest.mark.parametrize(
    ("prompt", "references", "hints"),
    [
        ("<Picture 1> walks", [("image", False)], []),
        ("picture 1 walks", [("image", False)], []),
        ("it walks", [("image", False)], ["the prompt never mentions <Picture 1>"]),
        ("<Picture 2>", [("image", False), ("image", False)], ["the prompt never mentions <Picture 1>"]),
        ("<Picture 1> <Video 2>", [("image", False), ("video", False)],
         ["the prompt never mentions <Video 1>", "the prompt mentions <Video 2>, but there is none"]),
        ("<Video 1>, <Audio 2> sings", [("video", True), ("audio", True)], []),  # the soundtrack is <Audio 1>
        ("<Video 1>, <Audio 1> sings", [("video", True), ("audio", True)], ["the prompt never mentions <Audio 2>"]),
        ("<Video 1>, <Audio 1> sings", [("video", False), ("audio", True)], []),
        ("video 2 of a series", [], []),  # prose
        ("<Audio 1> sings", [], ["the prompt mentions <Audio 1>, but there is none"]),
    ],
)  # fmt: skip
def test_hints(prompt, references, hints):
    assert prompt_hints(prompt, references) == hints


def test_keyframes_need_no_mention():
    assert prompt_hints("a ball", [("image", False)], need_roles=False) == []
    assert prompt_hints("<Picture 1> to <Picture 2>", [("image", False)], need_roles=False) == [
        "the prompt mentions <Picture 2>, but there is none"
    ]
