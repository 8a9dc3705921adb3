"""HTTP to bytes with every cost bounded: hops, addresses, seconds, bytes. See ``fetch.py`` for the door in front."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from talkies.errors import MediaError, TooLarge
from talkies.media.fetch.addresses import AllowList, Resolver, refusal, unwrap

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


class Download:
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
                detail = exc.message.removeprefix(self._name).removeprefix(":").lstrip()  # not of ::1
                raise MediaError(
                    f"{self._name}: redirected to {shown}: {detail}", hint=exc.hint, param=self._name
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
        addresses = self._checked_addresses(host, port, _shown(url))
        connection = _PinnedConnection(
            host, port, addresses, parts.scheme == "https", self._connect, lambda: self._left(_shown(url))
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
        check_type(response.headers.get("Content-Type", ""), self._kind, self._name)
        declared = response.length
        if declared is not None and declared > self._max_bytes:
            raise too_large(self._name, self._max_bytes, declared)
        data = bytearray()
        while block := response.read(min(_CHUNK, self._max_bytes + 1 - len(data))):
            data += block
            if len(data) > self._max_bytes:
                raise too_large(self._name, self._max_bytes)
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

    def _checked_addresses(self, host: str, port: int, shown: str) -> Sequence[str]:
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
                    hint="download it and give the file; the operator of a server can list a host or network",
                    param=self._name,
                )
        return addresses

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
    """Connects to the first checked address that answers; the name serves the Host header and the certificate only."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[str],
        secure: bool,
        connect: Connect,
        left: Callable[[], float],
    ) -> None:
        super().__init__(host, port)
        self._addresses, self._secure, self._open, self._left = addresses, secure, connect, left
        self.was_cut = False
        self._opened: socket.socket | None = None  # http.client forgets `sock` once it reads a body to the end
        if secure:
            self.default_port = 443  # the Host header names only an unusual port

    def connect(self) -> None:
        for last, address in enumerate(self._addresses, start=1 - len(self._addresses)):
            try:
                self.sock = self._opened = self._open(address, self.port, min(float(self.timeout or 1.0), self._left()))
                break
            except OSError:  # often an IPv6 address on a machine without a route for it
                if last == 0:
                    raise
        self.sock.settimeout(self._left())
        if self._secure:
            context = ssl.create_default_context()
            # Two steps, so that `cut` finds the socket while a slow handshake goes on.
            secured = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock = self._opened = secured
            secured.do_handshake()

    def cut(self) -> None:
        self.was_cut = True
        if self._opened is not None:
            try:
                self._opened.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def connect_to(address: str, port: int, timeout_s: float) -> socket.socket:
    return socket.create_connection((address, port), timeout=timeout_s)


def check_type(content_type: str, kind: Kind, name: str) -> None:
    media_type = content_type.split(";")[0].strip().lower()
    # A soundtrack may be taken from a video.
    families = ("audio/", "video/") if kind == "audio" else (f"{kind}/",)
    if media_type not in _UNTYPED and not media_type.startswith(families):
        raise MediaError(f"{name} is {media_type}, not {'an' if kind[0] in 'ai' else 'a'} {kind}", param=name)


def too_large(name: str, max_bytes: int, size: int | None = None) -> TooLarge:
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
