"""A body that is not whole, or not what it seems, is refused."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.server.conftest import Server

HEAD = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na ball\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="input_reference"; filename="a.png"\r\n\r\n'
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize(
    "body",
    [
        HEAD,
        HEAD + b"--b\r\n",
        HEAD + b"--b",
        HEAD + b"--b-",
        HEAD + FILE,
        HEAD + FILE + b"\x89PNG",
        b"--b\r\n",
        b"",
    ],
    ids=["no boundary", "another part", "cut boundary", "half an end", "no data", "cut file", "no part", "nothing"],
)
def test_a_form_without_its_closing_boundary_is_a_400(server: Server, body: bytes) -> None:
    answer = server.http.post("/v1/videos", content=body, headers=FORM)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")
    assert server.http.get("/v1/videos").json()["data"] == []


@pytest.mark.parametrize("end", [b"--b--", b"--b--\r\n", b"--b--\r\nan epilogue\r\n"])
def test_a_whole_form_is_taken(server: Server, end: bytes) -> None:
    answer = server.http.post("/v1/videos", content=HEAD + end, headers=FORM)
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt"] == "a ball"


def test_a_compressed_body_is_a_415(server: Server) -> None:
    body = json.dumps({"prompt": "a ball"}).encode()
    kind = {"Content-Type": "application/json"}
    for encoding, content in (("gzip", gzip.compress(body)), ("br", body), ("gzip, identity", body)):
        answer = server.http.post("/v1/videos", content=content, headers={**kind, "Content-Encoding": encoding})
        assert (answer.status_code, answer.json()["error"]["param"]) == (415, "Content-Encoding")
        assert "send the body as it is" in answer.json()["error"]["message"]
    answer = server.http.post("/v1/videos", content=body, headers={**kind, "Content-Encoding": "identity"})
    assert answer.status_code == 200
