"""What a client may send, and how slowly, before anybody asks who it is."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from talkies.server.edge.wire import WireLimits
from tests.server.conftest import Server, serving
from tests.server.test_events import stream

QUICK = WireLimits(max_head_bytes=4096, head_s=0.4, body_s=0.4, body_bytes=64)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = ("a-key-that-nobody-here-has",)
    with serving(tmp_path_factory.mktemp("data"), wire_limits=QUICK, api_keys=keys) as running:
        yield running


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def rest(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    try:
        while data := sock.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def refusal(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /ping HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n" + b"".join(b"H%d: v\r\n" % i for i in range(900)) + b"\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nA: " + b"a" * 5000,  # without an end
        b"POST /v1/videos HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"a" * 5000 + b"\r\n\r\n",
        b"POST /v1/videos HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 5000,
    ],
    ids=["a long header", "many headers", "a long path", "no end", "trailers", "a chunk's extension"],
)
def test_a_head_over_the_limit_is_refused_before_anybody_looks_at_it(quick: Server, head: bytes) -> None:
    with connect(quick) as sock:
        sock.sendall(head)
        answer = rest(sock)
    status, error = refusal(answer)
    assert status == 431
    assert "exceed 4096 bytes" in error["message"]


def test_a_hundred_megabytes_of_headers_end_at_the_limit(server: Server) -> None:
    sent, line = 0, b"A: " + b"a" * 65_000 + b"\r\n"
    with connect(server) as sock:
        sock.sendall(b"GET /ping HTTP/1.1\r\n")
        try:
            while sent < 100 << 20:
                sent += sock.send(line)
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert sent < 20 << 20  # what was on its way


def test_a_head_of_fair_size_is_taken(quick: Server) -> None:
    assert quick.http.get("/ping", headers={"A": "a" * 3000}).status_code == 200
    for _ in range(5):  # each request of a connection counts for itself
        assert quick.http.get("/ping", headers={"A": "a" * 3000}).status_code == 200


def drip(sock: socket.socket, piece: bytes, every_s: float, limit_s: float = 10.0) -> float:
    """Seconds until the server has had enough."""
    begun = time.monotonic()
    sock.settimeout(every_s)
    while (gone_s := time.monotonic() - begun) < limit_s:
        try:
            sock.sendall(piece)
            sock.recv(65536)  # an answer, or the end
            return gone_s
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            return gone_s
    raise AssertionError("held on")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /ping HTTP/1.1\r\nA: ", b"a"),
        (b"", b"\r\n"),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
        (b"POST /v1/videos HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n", b"a"),
    ],
    ids=["header", "blank lines", "after an answer", "body"],
)
def test_a_byte_now_and_then_holds_no_connection(quick: Server, begin: bytes, piece: bytes) -> None:
    with connect(quick) as sock:
        sock.sendall(begin)
        if b"\r\n\r\n" in begin and b"GET" in begin:
            assert b"200 OK" in sock.recv(65536)
        assert drip(sock, piece, every_s=0.05) < 5.0


def test_who_says_nothing_is_not_waited_for(quick: Server) -> None:
    with connect(quick) as sock:
        assert rest(sock) == b""


def test_a_slow_upload_that_moves_is_waited_for(tmp_path: Path) -> None:
    body = json.dumps({"prompt": "a ball " * 100}).encode()
    with serving(tmp_path, wire_limits=QUICK) as server, connect(server) as sock:
        head = f"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        sock.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
        for i in range(0, len(body), 50):  # 0.7 s in all, longer than a window
            sock.sendall(body[i : i + 50])
            time.sleep(0.05)
        assert b"200 OK" in rest(sock)


def test_a_late_body_is_told_why(tmp_path: Path) -> None:
    with serving(tmp_path, wire_limits=QUICK) as server:
        with connect(server) as sock:
            sock.sendall(b"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            sock.sendall(b'Content-Length: 900\r\n\r\n{"prompt')
            status, error = refusal(rest(sock))
        assert (status, error["param"]) == (408, "body")
        assert "under the 64 that keep it open" in error["message"]
        with connect(server) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHo")
            assert refusal(rest(sock))[0] == 408
        assert server.http.get("/v1/videos").json()["data"] == []


def test_bytes_that_are_no_request_are_a_400_in_the_error_shape(quick: Server) -> None:
    with connect(quick) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert refusal(rest(sock))[0] == 400


def test_long_answers_are_no_slow_requests(tmp_path: Path) -> None:
    with serving(tmp_path, wire_limits=QUICK) as server:
        job = server.create("slow")
        seen = stream(server, job["id"])
        assert next(seen)[0] == "job"
        time.sleep(1.0)  # longer than any of the limits
        server.service.release.set()
        assert list(seen)[-1][0] == "done"
