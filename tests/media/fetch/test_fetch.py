"""What a stranger's URL may not do. The only server is a local one, reached because a test says so."""

import base64
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from talkies.errors import ConfigError, MediaError, TooLarge
from talkies.media.fetch.addresses import AllowList, refusal, resolve
from talkies.media.fetch.uri import FetchPolicy, fetch

PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)
LOCAL = FetchPolicy(allow=AllowList(["127.0.0.1"]), timeout_s=5)
Handler = Callable[[str, socket.socket], None]


def answer(body: bytes = PNG, status: str = "200 OK", **headers: str) -> Handler:
    fields = {"Content_Type": "image/png", "Content_Length": str(len(body)), **headers}

    def handle(_: str, sock: socket.socket) -> None:
        lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in fields.items() if v)
        sock.sendall(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)

    return handle


def redirect(to: str, status: str = "302 Found") -> Handler:
    return answer(b"", status, Location=to)


class Server:
    def __init__(self, routes: dict[str, Handler]) -> None:
        self.routes, self.requests = routes, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = sock.recv(65536)
                    if not part:
                        return
                    head += part
                text = head.decode("latin-1")
                self.requests.append(text)
                self.routes[text.split()[1].split("?")[0]](text, sock)
            except OSError:
                return


@contextmanager
def serving(**routes: Handler) -> Iterator[Server]:
    server = Server({f"/{name}": handler for name, handler in routes.items()})
    try:
        yield server
    finally:
        server.listener.close()


def get(url: str, policy: FetchPolicy = LOCAL, kind: str = "image", max_bytes: int = 10_000, **more) -> bytes:
    return fetch(url, policy, kind=kind, max_bytes=max_bytes, name="image_reference", **more)


# --- addresses -------------------------------------------------------------------------------------------------------

FORBIDDEN = [
    "127.0.0.1",
    "127.8.9.1",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.1",
    "192.0.0.8",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "3fff::1",
    "::ffff:192.88.99.1",
    "fe80::1%eth0",
    "fec0::1",
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_no_address_outside_the_public_internet_passes(address):
    assert refusal(address, AllowList()) is not None


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07::1", "64:ff9b::808:808"])
def test_public_addresses_pass(address):
    assert refusal(address, AllowList()) is None


@pytest.mark.parametrize("address", ["fe80::1%eth0", "2606:2800:21f:cb07::1%eth0", "2606:2800:21f:cb07::1%1"])
def test_an_address_of_one_network_card_is_refused_for_that(address):
    """Its scope picks the card, whatever the number in front of it is, and no list of networks speaks of cards."""
    assert refusal(address, AllowList()) == "a scoped address"
    assert refusal(address, AllowList(["fe80::/10", "2606:2800::/32"])) == "a scoped address"
    policy = FetchPolicy(timeout_s=5)
    with pytest.raises(MediaError, match=r"media\.example is a scoped address: refused"):
        fetch(
            "http://media.example/x",
            policy,
            kind="image",
            max_bytes=1000,
            name="image_reference",
            resolver=lambda host, port, timeout_s: ["93.184.215.14", address],
            connect=lambda *_: pytest.fail("connected"),
        )
    with pytest.raises(MediaError, match="it holds forbidden characters"):
        get(f"http://[{address.replace('%', '%25')}]/x", policy)


SPELLINGS = [
    "localhost",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "127.1",
    "0",
    "[::1]",
    "[::ffff:127.0.0.1]",
]


@pytest.mark.parametrize("host", [*SPELLINGS, "127.0.0.1.", "[::ffff:7f00:1]"])
def test_every_spelling_of_this_machine_is_refused_before_anything_is_sent(host):
    with serving(x=answer()) as server:
        with pytest.raises(MediaError) as caught:
            get(f"http://{host}:{server.port}/x", FetchPolicy(timeout_s=5))
        assert server.requests == []
    assert "refused" in caught.value.message or "resolved" in caught.value.message
    assert caught.value.param == "image_reference"


def test_the_operator_can_allow_a_host_or_a_network():
    with serving(x=answer()) as server:
        assert get(f"{server.url}/x", FetchPolicy(allow=AllowList(["127.0.0.0/8"]))) == PNG
        assert get(f"http://localhost:{server.port}/x", FetchPolicy(allow=AllowList(["localhost"]))) == PNG
        with pytest.raises(MediaError, match="is a loopback address: refused"):
            get(f"{server.url}/x", FetchPolicy(allow=AllowList(["10.0.0.0/8", "localhost"])))


def test_a_closed_list_refuses_the_rest_of_the_internet():
    policy = FetchPolicy(allow=AllowList(["media.example", "9.0.0.0/8"]), only_allowed=True, timeout_s=2)
    with pytest.raises(MediaError, match="not on the list of allowed media hosts: refused"):
        get("http://elsewhere.example/x", policy, resolver=lambda *_: ["8.8.8.8"])


@pytest.mark.parametrize("entry", ["", "http://x", "a/b", "*.example", "10.0.0.0/99"])
def test_a_list_entry_that_means_nothing_is_a_configuration_error(entry):
    with pytest.raises(ConfigError):
        AllowList([entry])


def test_one_private_address_among_public_ones_is_enough_to_refuse():
    with pytest.raises(MediaError, match="private address"):
        get("http://mixed.example/x", FetchPolicy(), resolver=lambda *_: ["8.8.8.8", "10.0.0.7"])


def test_the_connection_goes_to_the_checked_address_though_the_name_changes_its_answer():
    answers, contacted = iter([["93.184.215.14"], ["127.0.0.1"], ["127.0.0.1"]]), []
    with serving(x=answer()) as server:

        def connect(address: str, port: int, timeout_s: float) -> socket.socket:
            contacted.append(address)
            return socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)

        data = get("http://rebind.example/x", FetchPolicy(), resolver=lambda *_: next(answers), connect=connect)
        assert data == PNG
        assert contacted == ["93.184.215.14"]
        assert "Host: rebind.example\r\n" in server.requests[0]


def test_a_host_of_which_one_address_is_dead_is_still_reached():
    with serving(x=answer()) as server:

        def connect(address: str, port: int, timeout_s: float) -> socket.socket:
            if address.startswith("2606"):
                raise OSError("Network is unreachable")
            return socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)

        addresses = ["2606:2800:21f:cb07::1", "93.184.215.14"]
        assert get("http://both.example/x", FetchPolicy(), resolver=lambda *_: addresses, connect=connect) == PNG
        with pytest.raises(MediaError, match=r"failed to download http://one\.example/x: Network is unreachable"):
            get("http://one.example/x", FetchPolicy(), resolver=lambda *_: addresses[:1], connect=connect)


def test_an_unknown_host_says_so():
    with pytest.raises(MediaError, match=r"nowhere\.invalid cannot be resolved"):
        get("http://nowhere.invalid/x", FetchPolicy())


def test_a_resolver_that_hangs_is_left(monkeypatch):
    answer_now, answered = threading.Event(), threading.Event()

    def hang(*_, **__) -> list:
        answer_now.wait(60)
        answered.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with pytest.raises(TimeoutError):
        resolve("slow.example", 80, 0.1)
    assert not answered.is_set()  # it was left, not waited for
    answer_now.set()
    assert answered.wait(60)


# --- redirects -------------------------------------------------------------------------------------------------------


def test_redirects_are_followed_a_bounded_number_of_times():
    with serving(a=redirect("/b"), b=redirect("c", "307 Temporary Redirect"), c=answer(), loop=redirect("/loop")) as s:
        assert get(f"{s.url}/a") == PNG
        with pytest.raises(MediaError, match="more than 3 redirects, refused"):
            get(f"{s.url}/loop")
        assert len([r for r in s.requests if "/loop" in r]) == 4


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "http://169.254.169.254/latest/meta-data",
            "redirected to http://169.254.169.254/latest/meta-data: 169.254.169.254 is a link-local address: refused",
        ),
        ("http://[::1]/x", "redirected to http://[::1]/x: ::1 is a loopback address: refused"),
        ("http://[::1]:{port}/secret", "is a loopback address"),
        ("http://2130706434:{port}/secret", "is a loopback address"),
        ("file:///etc/passwd", "http"),
        ("data:image/png;base64,AAAA", "http"),
        ("gopher://127.0.0.1/x", "http"),
        ("http://user:word@127.0.0.1:{port}/secret", "user name or password is refused"),
    ],
)
def test_every_hop_is_checked_like_the_first(target, message):
    with serving(a=lambda *_: None, secret=answer()) as server:
        server.routes["/a"] = redirect(target.format(port=server.port))
        with pytest.raises(MediaError) as caught:
            get(f"{server.url}/a")
        assert "redirected to" in caught.value.message
        assert message in caught.value.message
        assert len(server.requests) == 1


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_too_large_is_known_from_the_header_before_the_body():
    message = r"image_reference exceeds the 10000 bytes size limit \(50\.0 MiB\)"
    with serving(x=answer(b"", Content_Length=str(50 << 20))) as server, pytest.raises(TooLarge, match=message):
        get(f"{server.url}/x")


def endless(_: str, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n")
    while True:
        sock.sendall(bytes(4096))


def endless_chunks(_: str, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        sock.sendall(b"1000\r\n" + bytes(4096) + b"\r\n")


@pytest.mark.parametrize("handler", [endless, endless_chunks])
def test_an_endless_body_ends_at_the_limit(handler):
    with serving(x=handler) as server, pytest.raises(TooLarge):
        get(f"{server.url}/x", max_bytes=100_000)


def drip(first: bytes, then: bytes) -> Handler:
    def handle(_: str, sock: socket.socket) -> None:
        sock.sendall(first)
        while True:
            time.sleep(0.05)
            sock.sendall(then)

    return handle


@pytest.mark.parametrize(
    "handler",
    [
        drip(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 9000\r\n\r\n", b"x"),
        drip(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n", b"x"),  # http.client lets go of the socket
        drip(b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n", b"1"),
        drip(b"HTTP/1.1 200 OK\r\n", b"X-A: y\r\n"),
        drip(b"HTTP/1.1 ", b"2"),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        lambda _, sock: sock.recv(1),  # until the client goes
    ],
    ids=[
        "slow body",
        "slow body without a length",
        "slow chunk",
        "slow headers",
        "slow status",
        "endless 100s",
        "silence",
    ],
)
def test_a_slow_server_costs_at_most_the_time_limit(handler):
    # None of these ends by itself, and no other limit comes first: far less than a minute is the time limit's work.
    policy = FetchPolicy(allow=AllowList(["127.0.0.1"]), timeout_s=0.6, connect_timeout_s=120)
    with serving(x=handler) as server:
        started = time.monotonic()
        with pytest.raises(MediaError, match=r"took over 0\.6 s|failed to download"):
            get(f"{server.url}/x", policy)
        assert time.monotonic() - started < 30


def test_compressed_bodies_are_refused_and_never_unpacked():
    bomb = gzip.compress(bytes(1 << 20))
    with serving(x=answer(bomb, Content_Encoding="gzip")) as server:
        with pytest.raises(MediaError, match="gzip-compressed: refused"):
            get(f"{server.url}/x")
        assert "Accept-Encoding: identity" in server.requests[0]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (answer(b"<html>", Content_Type="text/html; charset=utf-8"), "image_reference is text/html, not an image"),
        (answer(b"", "404 Not Found"), "HTTP 404 Not Found"),
        (answer(b"", "500 Oops"), "HTTP 500"),
        (answer(b""), "is empty"),
        (answer(PNG[:50], Content_Length="200"), "ended after 50 of 200 bytes|IncompleteRead"),
        (redirect(""), "redirects to nowhere"),
        (lambda _, sock: sock.sendall(b"garbage\r\n\r\n"), "failed to download"),
        (lambda _, sock: sock.sendall(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 5000), "failed to download"),
        (lambda _, sock: sock.sendall(b"HTTP/1.1 200 " + b"x" * 200_000), "failed to download"),
        (lambda _, sock: sock.close(), "failed to download"),
    ],
    ids=["page", "404", "500", "empty", "cut", "no location", "garbage", "many headers", "long line", "hang-up"],
)
def test_answers_that_are_not_the_file_fail_with_one_line(handler, message):
    with serving(x=handler) as server, pytest.raises(MediaError, match=message) as caught:
        get(f"{server.url}/x")
    assert "\n" not in caught.value.message


def test_untyped_content_is_left_to_the_decoder():
    with serving(x=answer(Content_Type=""), y=answer(Content_Type="application/octet-stream")) as server:
        assert get(f"{server.url}/x") == get(f"{server.url}/y") == PNG


def test_messages_do_not_repeat_the_query_where_keys_live():
    with serving(x=answer(b"", "403 Forbidden")) as server, pytest.raises(MediaError) as caught:
        get(f"{server.url}/x?token=SECRET")
    assert "SECRET" not in str(caught.value)
    assert "token=SECRET" in server.requests[0]


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(x=answer()) as server:
        assert get(f"{server.url}/x") == PNG


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/x",
        "x.png",
        "/etc/passwd",
        "http:///x",
        "http://a b/x",
        "http://a\\b/x",
        "http://127.0.0.1:99999/x",
        "http://[::1/x",
        "http://127.0.0.1/\r\nX: y",
        "http://me@127.0.0.1/x",
        "http://[fe80::1%25eth0]/x",
        "concat:a|b",
        "",
    ],
)
def test_what_is_not_a_plain_url_is_refused(url):
    with pytest.raises(MediaError, match="image_reference"):
        get(url)


# --- data: and file: ------------------------------------------------------------------------------------------------


def data_url(data: bytes, head: str = "image/png") -> str:
    return f"data:{head};base64," + base64.b64encode(data).decode()


def test_data_urls_are_decoded_within_the_limit():
    assert get(data_url(PNG)) == PNG
    assert get("data:image/png;base64," + base64.b64encode(PNG).decode().replace("=", "%3D")) == PNG
    assert get("data:image/svg,%41B") == b"AB"
    with pytest.raises(TooLarge):
        get(data_url(bytes(10_001)))
    with pytest.raises(TooLarge):
        get(data_url(bytes(100_000)))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,@@@@", "not valid base64"),
        ("data:text/html;base64,AAAA", "is text/html, not an image"),
        ("data:image/png;base64,", "is empty"),
        ("data:audio/wav;base64,AAAA", "is audio/wav, not an image"),
    ],
)
def test_broken_data_urls_are_refused(url, message):
    with pytest.raises(MediaError, match=message):
        get(url)


def test_files_are_read_under_the_media_root_only(tmp_path: Path):
    root, outside = tmp_path / "root", tmp_path / "outside.png"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a b.png").write_bytes(PNG)
    outside.write_bytes(PNG)
    (root / "link.png").symlink_to(outside)
    (root / "big.png").write_bytes(bytes(10_001))
    policy = FetchPolicy(media_root=root)
    assert get(f"file://{root}/sub/a%20b.png", policy) == PNG
    for uri in (
        f"file://{outside}",
        f"file://{root}/../outside.png",
        f"file://{root}/%2e%2e/outside.png",
        f"file://{root}/link.png",
        f"file://{root}/none.png",
        f"file://{root}/sub",
        f"file://other{root}/sub/a%20b.png",
        f"file://{root}/a%00b",
        "file:///dev/zero",
        "file:///proc/self/environ",
    ):
        with pytest.raises(MediaError, match="is not a file under the media root"):
            get(uri, policy)
    with pytest.raises(TooLarge):
        get(f"file://{root}/big.png", policy)
    with pytest.raises(MediaError, match="file:// is not allowed here"):
        get(f"file://{root}/sub/a%20b.png", FetchPolicy())


def test_base64_of_a_data_url_needs_no_padding_and_may_be_url_safe():
    data = bytes(range(256))  # its text has + and /
    plain = base64.b64encode(data).decode()
    safe = base64.urlsafe_b64encode(data).decode()
    assert plain != safe
    assert plain.endswith("=")
    for text in (plain, safe, plain.rstrip("="), safe.rstrip("="), plain.replace("+", "%2B")):
        assert get(f"data:image/png;base64,{text}") == data
    for length in range(1, 5):
        assert get("data:image/png;base64," + base64.b64encode(data[:length]).decode().rstrip("=")) == data[:length]
    with pytest.raises(MediaError, match="not valid base64"):
        get("data:image/png;base64,AAAAA")  # one letter more than bytes can have
