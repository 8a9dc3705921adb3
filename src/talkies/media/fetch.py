"""URI -> bytes: ``http(s)://``, ``data:`` and, where the operator names a folder, ``file://``.

Everything a stranger's URL can do to a server is bounded here: which addresses are contacted (``addresses.py``), how
often it may redirect, how long it may take in all, how much it may send. Bodies are taken as they are: no
decompression, so no gzip bomb. Proxies and credentials of the environment are not used.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import re
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, quote, unquote, unquote_to_bytes, urljoin, urlsplit

from talkies.errors import MediaError, TooLarge
from talkies.media.addresses import AllowList, Resolver, refusal, resolve, unwrap

Kind = Literal["image", "video", "audio"]
Connect = Callable[[str, int, float], socket.socket]

_REDIRECTS = (301, 302, 303, 307, 308)
# What storage servers answer when nobody told them the type; the decoder looks at the content in any case.
_UNTYPED = ("application/octet-stream", "binary/octet-stream", "application/mp4", "application/ogg", "")
_CHUNK = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchPolicy:
    """What the operator permits. The defaults reach the public internet only."""

    allow: AllowList = field(default_factory=AllowList)
    only_allowed: bool = False  # nothing but the listed hosts and networks
    media_root: Path | None = None  # the folder that file:// may read; None refuses file://
    max_redirects: int = 3
    timeout_s: float = 30.0  # for a whole fetch, redirects included
    connect_timeout_s: float = 5.0


def fetch(
    uri: str,
    policy: FetchPolicy,
    *,
    kind: Kind,
    max_bytes: int,
    name: str | None = None,
    resolver: Resolver = resolve,
    connect: Connect | None = None,
) -> bytes:
    """The bytes behind ``uri``. ``name`` is the request's field, for messages and ``param``.

    Raises ``MediaError`` (refused or failed, one clear line) and ``TooLarge``. Blocks; call it from a thread.
    """
    name = name or kind
    scheme = uri.split(":", 1)[0].lower() if ":" in uri[:16] else ""
    if scheme == "data":
        return _from_data_url(uri, kind, max_bytes, name)
    if scheme == "file":
        return _from_file(uri, policy, max_bytes, name)
    if scheme in ("http", "https"):
        return _Download(policy, kind, max_bytes, name, resolver, connect or _connect).run(uri)
    raise MediaError(f"{name} must be an http(s) URL or data URL", param=name)


def _from_data_url(uri: str, kind: Kind, max_bytes: int, name: str) -> bytes:
    head, comma, body = uri[5:].partition(",")
    if not comma:
        raise MediaError(f"{name} is not a complete data URL: it has no comma", param=name)
    media_type, *options = head.split(";")
    _check_type(media_type, kind, name)
    if len(body) > 4 * max_bytes + 1024:  # before anything is copied
        raise _too_large(name, max_bytes)
    if any(option.strip().lower() == "base64" for option in options):
        try:
            data = base64.b64decode(re.sub(r"\s+", "", unquote(body)), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise MediaError(f"{name} is not valid base64: {exc}", param=name) from None
    else:
        data = unquote_to_bytes(body)
    if len(data) > max_bytes:
        raise _too_large(name, max_bytes)
    if not data:
        raise MediaError(f"{name} is empty", param=name)
    return data


def _from_file(uri: str, policy: FetchPolicy, max_bytes: int, name: str) -> bytes:
    if policy.media_root is None:
        raise MediaError(
            f"{name}: file:// is not allowed here", hint="upload the file, or name a media root at start", param=name
        )
    parts = urlsplit(uri)
    refused = MediaError(f"{name} is not a file under the media root", param=name)  # says nothing about other folders
    if parts.netloc not in ("", "localhost") or "\0" in unquote(parts.path):
        raise refused
    try:
        path = Path(unquote(parts.path)).resolve(strict=True)  # follows links, so that what they hide is checked
        if not path.is_relative_to(policy.media_root.resolve(strict=True)):
            raise refused
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, RuntimeError, ValueError):
        raise refused from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refused
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise _too_large(name, max_bytes)
    return data


class _Download:
    """One fetch over HTTP: hops, deadline and byte count belong together."""

    def __init__(
        self, policy: FetchPolicy, kind: Kind, max_bytes: int, name: str, resolver: Resolver, connect: Connect
    ) -> None:
        self._policy, self._kind, self._max_bytes, self._name = policy, kind, max_bytes, name
        self._resolver, self._connect = resolver, connect
        self._deadline = time.monotonic() + policy.timeout_s

    def run(self, url: str) -> bytes:
        came_from: str | None = None
        for _ in range(self._policy.max_redirects + 1):
            shown = _shown(url)
            try:
                answer = self._hop(url)
            except MediaError as exc:
                if came_from is None:
                    raise
                raise type(exc)(
                    f"{self._name}: redirected to {shown}: refused: {exc.message}", hint=exc.hint, param=self._name
                ) from None
            if isinstance(answer, bytes):
                return answer
            if url.lower().startswith("https:") and answer.lower().startswith("http:"):
                raise MediaError(f"{self._name}: redirected from https to {_shown(answer)}: refused", param=self._name)
            came_from, url = url, answer
        raise MediaError(
            f"{self._name}: {_shown(url)}: more than {self._policy.max_redirects} redirects, refused", param=self._name
        )

    def _hop(self, url: str) -> bytes | str:
        """The body, or the URL that this one redirects to."""
        parts, host, port = self._parse(url)
        address = self._checked_address(host, port, _shown(url))
        connection = _PinnedConnection(
            host, port, address, parts.scheme == "https", self._connect, lambda: self._left(_shown(url))
        )
        connection.timeout = min(self._policy.connect_timeout_s, self._left(_shown(url)))
        # One read may be many small packets, each within the socket's timeout, so a clock ends the whole.
        clock = threading.Timer(self._left(_shown(url)), connection.cut)
        clock.daemon = True
        clock.start()
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(
                "GET",
                _ascii(target),
                headers={"Accept-Encoding": "identity", "User-Agent": "talkies", "Connection": "close"},
            )
            answer = self._answer(connection.getresponse(), url)
            if connection.was_cut:  # http.client takes our own cut for the end of headers or body
                raise self._timeout(_shown(url))
            return answer
        except (OSError, http.client.HTTPException, ValueError) as exc:
            if connection.was_cut or time.monotonic() >= self._deadline:
                raise self._timeout(_shown(url)) from None
            reason = getattr(exc, "strerror", None) or " ".join(str(exc).split())[:200] or type(exc).__name__
            raise MediaError(f"{self._name}: failed to download {_shown(url)}: {reason}", param=self._name) from exc
        except MediaError:
            if connection.was_cut:
                raise self._timeout(_shown(url)) from None
            raise
        finally:
            clock.cancel()
            connection.close()

    def _answer(self, response: http.client.HTTPResponse, url: str) -> bytes | str:
        shown = _shown(url)
        if response.status in _REDIRECTS:
            location = response.headers.get("Location")
            if not location:
                raise MediaError(f"{self._name}: {shown} redirects to nowhere", param=self._name)
            return urljoin(url, location)
        if response.status != 200:
            raise MediaError(
                f"{self._name}: failed to download {shown}: HTTP {response.status} {response.reason}".rstrip(),
                param=self._name,
            )
        coding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise MediaError(f"{self._name}: {shown} sends its content {coding}-compressed: refused", param=self._name)
        _check_type(response.headers.get("Content-Type", ""), self._kind, self._name)
        declared = response.length
        if declared is not None and declared > self._max_bytes:
            raise _too_large(self._name, self._max_bytes, declared)
        data = bytearray()
        while block := response.read(min(_CHUNK, self._max_bytes + 1 - len(data))):
            data += block
            if len(data) > self._max_bytes:
                raise _too_large(self._name, self._max_bytes)
            self._left(shown)
        if declared is not None and len(data) < declared:
            raise MediaError(
                f"{self._name}: {shown} ended after {len(data)} of {declared} bytes", hint="try again", param=self._name
            )
        if not data:
            raise MediaError(f"{self._name}: {shown} is empty", param=self._name)
        return bytes(data)

    def _parse(self, url: str) -> tuple[SplitResult, str, int]:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as exc:
            raise MediaError(f"{self._name} is not a valid URL: {exc}", param=self._name) from None
        if parts.scheme not in ("http", "https") or not host:
            raise MediaError(f"{self._name} must be an http(s) URL or data URL", param=self._name)
        if "@" in parts.netloc:
            raise MediaError(f"{self._name}: a URL with a user name or password is refused", param=self._name)
        if re.search(r"[\x00-\x20\x7f\\]", url) or "%" in host:
            raise MediaError(f"{self._name} is not a valid URL: it holds forbidden characters", param=self._name)
        return parts, host, port or (443 if parts.scheme == "https" else 80)

    def _checked_address(self, host: str, port: int, shown: str) -> str:
        try:
            addresses = self._resolver(host, port, self._left(shown))
        except TimeoutError:
            raise self._timeout(shown) from None
        except OSError as exc:
            raise MediaError(
                f"{self._name}: {host} cannot be resolved: {exc.strerror or exc}", param=self._name
            ) from None
        if not addresses:
            raise MediaError(f"{self._name}: {host} has no address", param=self._name)
        for address in addresses:
            # One bad address is enough: which of them a client connects to is chance.
            reason = self._reason_against(host, address)
            if reason is not None:
                raise MediaError(
                    f"{self._name}: {host} is {reason}: refused",
                    hint="the operator can list a host or network to allow it",
                    param=self._name,
                )
        return addresses[0]

    def _reason_against(self, host: str, address: str) -> str | None:
        allow = self._policy.allow
        if allow.has_host(host):
            return None
        reason = refusal(address, allow)
        if reason is None and self._policy.only_allowed and not allow.has_address(unwrap(address)):
            return "not on the list of allowed media hosts"
        return reason

    def _left(self, shown: str) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._timeout(shown)
        return left

    def _timeout(self, shown: str) -> MediaError:
        return MediaError(
            f"{self._name}: {shown} took over {self._policy.timeout_s:g} s", hint="upload the file", param=self._name
        )


class _PinnedConnection(http.client.HTTPConnection):
    """Connects to the checked address; the host name is used for the Host header and the certificate only."""

    def __init__(
        self, host: str, port: int, address: str, secure: bool, connect: Connect, left: Callable[[], float]
    ) -> None:
        super().__init__(host, port)
        self._address, self._secure, self._open, self._left = address, secure, connect, left
        self.was_cut = False
        if secure:
            self.default_port = 443  # the Host header names only an unusual port

    def connect(self) -> None:
        self.sock = self._open(self._address, self.port, float(self.timeout or 1.0))
        self.sock.settimeout(self._left())
        if self._secure:
            context = ssl.create_default_context()
            # Two steps, so that `cut` finds the socket while a slow handshake goes on.
            secured = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock = secured
            secured.do_handshake()

    def cut(self) -> None:
        self.was_cut = True
        sock = self.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def _connect(address: str, port: int, timeout_s: float) -> socket.socket:
    return socket.create_connection((address, port), timeout=timeout_s)


def _check_type(content_type: str, kind: Kind, name: str) -> None:
    media_type = content_type.split(";")[0].strip().lower()
    # A soundtrack may be taken from a video.
    families = ("audio/", "video/") if kind == "audio" else (f"{kind}/",)
    if media_type not in _UNTYPED and not media_type.startswith(families):
        raise MediaError(f"{name} is {media_type}, not {'an' if kind[0] in 'ai' else 'a'} {kind}", param=name)


def _too_large(name: str, max_bytes: int, size: int | None = None) -> TooLarge:
    got = f" ({size / 2**20:.1f} MiB)" if size is not None else ""
    limit = f"{max_bytes / 2**20:g} MiB" if max_bytes >= 2**20 else f"{max_bytes} bytes"
    return TooLarge(f"{name} exceeds the {limit} size limit{got}", param=name)


def _shown(url: str) -> str:
    """A URL for messages: without query and user, which may hold keys, and not endless."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    text = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return text if len(text) <= 200 else text[:197] + "..."


def _ascii(target: str) -> str:
    """Percent-encodes what a request line cannot hold and keeps what is encoded already."""
    return quote(target, safe="%/:=&?~#+!$,;'@()*[]|")
