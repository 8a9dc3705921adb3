"""Webhooks as the libraries of receivers verify them, and never to a server that nobody vouches for."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import openai
import pytest

from talkies.errors import ConfigError
from talkies.server.config import ServerConfig, signing_key
from talkies.server.jobs import webhook
from tests.server.conftest import serving
from tests.server.jobs.test_lifecycle import until
from tests.server.jobs.test_webhook import receiver  # noqa: F401  # a fixture

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


@pytest.mark.parametrize("secret", [SECRET, "a-secret-of-the-operator"])
@pytest.mark.parametrize(("prompt", "kind"), [("a ball", "video.completed"), ("fail", "video.failed")])
def test_the_official_client_unwraps_it(receiver: Any, tmp_path: Path, secret: str, prompt: str, kind: str) -> None:  # noqa: F811
    url, received = receiver
    with serving(tmp_path, webhook_secret=secret, allow_hosts=("127.0.0.1",)) as server:
        job = server.create(prompt, webhook_url=f"{url}/done")
        until(lambda: received)
    headers, body = received[0]
    client = openai.OpenAI(api_key="any", webhook_secret=secret)
    event = client.webhooks.unwrap(body, headers)
    assert (event.type, event.data.id) == (kind, job["id"])  # type: ignore[comparison-overlap, union-attr]
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, headers, secret="whsec_" + base64.b64encode(bytes(32)).decode())


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of https://github.com/standard-webhooks: its id, timestamp, body and key give its signature."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signed = webhook.sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_of_the_specification_is_decoded() -> None:
    assert signing_key(SECRET) == KEY
    assert signing_key("a-secret-of-the-operator") == b"a-secret-of-the-operator"


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("whsec_not base64!", "base64 does not follow"),
        ("whsec_c2hvcnQ=", "under 16 bytes"),
        ("short", "under 16 characters"),
    ],
)
def test_a_secret_that_signs_nothing_is_refused_at_start(tmp_path: Path, secret: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerConfig(data_dir=tmp_path, webhook_secret=secret)


def test_a_receiver_whose_certificate_nobody_vouches_for_hears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += " -addext subjectAltName=DNS:localhost -keyout key.pem -out certificate.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as sock:
                    request = b""
                    while not request.endswith(b"{}") and (more := sock.recv(65536)):
                        request += more  # head and body may come apart
                    heard.append(request)
                    sock.sendall(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                plain.close()

    threading.Thread(target=accept, daemon=True).start()
    config = ServerConfig(data_dir=tmp_path, webhook_secret=SECRET, allow_hosts=("localhost",))
    monkeypatch.setattr("talkies.media.fetch.addresses.resolve", lambda *_: ["127.0.0.1"])
    url = f"https://localhost:{listener.getsockname()[1]}/done"
    with pytest.raises(ssl.SSLCertVerificationError):
        webhook._post(url, "id", b"{}", config)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    assert webhook._post(url, "id", b"{}", config) == 204  # the very same receiver, once it is trusted
    listener.close()
    assert [request.split(b"\r\n")[0] for request in heard] == [b"POST /done HTTP/1.1"]
