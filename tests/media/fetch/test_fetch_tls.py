"""HTTPS: a certificate that nobody vouches for ends the fetch, by name, before a request is sent."""

import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from talkies.errors import MediaError
from talkies.media.fetch.addresses import AllowList
from talkies.media.fetch.uri import FetchPolicy, fetch

PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)
POLICY = FetchPolicy(allow=AllowList(["127.0.0.1", "localhost"]), timeout_s=5)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(certificate, key) of localhost, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += " -addext subjectAltName=DNS:localhost -keyout key.pem -out certificate.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture
def server(certificate):
    """(port, request lines) of an HTTPS server that answers everything with a picture."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    listener, heard = socket.create_server(("127.0.0.1", 0)), []

    def accept():
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as sock:
                    heard.append(sock.recv(65536).split(b"\r\n")[0])
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: {len(PNG)}\r\n\r\n"
                    if b" /down" in heard[-1]:
                        head = "HTTP/1.1 302 Found\r\nLocation: http://localhost:9/a.png\r\nContent-Length: 0\r\n\r\n"
                    sock.sendall(head.encode() + (b"" if b" /down" in heard[-1] else PNG))
            except OSError:
                plain.close()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1], heard
    listener.close()


def get(url):
    return fetch(url, POLICY, kind="image", max_bytes=10_000, name="image_reference")


def test_a_certificate_of_its_own_making_is_refused_by_name(server):
    port, heard = server
    with pytest.raises(MediaError, match=r"image_reference: failed to download https://localhost:\d+/a\.png: .*certif"):
        get(f"https://localhost:{port}/a.png")
    assert heard == []


def test_a_trusted_certificate_must_also_have_the_right_name(server, certificate, monkeypatch):
    port, heard = server
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    assert get(f"https://localhost:{port}/a.png") == PNG
    with pytest.raises(MediaError, match="certif"):
        get(f"https://127.0.0.1:{port}/b.png")  # not in the certificate
    assert heard == [b"GET /a.png HTTP/1.1"]


def test_a_redirect_never_leaves_https(server, certificate, monkeypatch):
    port, _ = server
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with pytest.raises(MediaError, match=r"redirected from https to http://localhost:9/a\.png: refused"):
        get(f"https://localhost:{port}/down")
