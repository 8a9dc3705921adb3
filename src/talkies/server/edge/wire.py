"""HTTP as it comes from the network, before anybody is asked who they are: what a client may send, and how slowly.

uvicorn has no limit for headers with httptools and no deadline but that of an idle connection, which every byte
renews. Both are kept here, one level below ASGI, where bytes are still seen one read at a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from talkies.server.errors import error_response, phrase

CHUNK_HEAD_BYTES = 32  # of each chunk of a chunked body: its size, and no extension worth the name


@dataclass(frozen=True, kw_only=True, slots=True)
class WireLimits:
    """``max_head_bytes``: request line, headers and trailers of one request. The whole head has ``head_s``, from its
    first byte or from the connection on; a body must bring ``body_bytes`` or end in every ``body_s``."""

    max_head_bytes: int = 64 << 10
    head_s: float = 20.0
    body_s: float = 30.0
    body_bytes: int = 30 << 10


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Refusals have the error shape and end it: what follows on it cannot be told apart any more."""

    def __init__(self, *args: Any, limits: WireLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._in_head, self._in_body = True, False
        self._read_bytes = self._head_bytes = self._body_bytes = self._window_bytes = 0
        self._allowed_bytes = limits.max_head_bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_head and not self._in_body:
            self._in_head = True  # the next request begins, if only by blank lines
            self._wait_for_head()
        self._read_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing() or not (self._in_head or self._in_body):
            return
        if self._read_bytes - self._body_bytes > self._allowed_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        if self._timer is None:
            self._wait_for_head()
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._cancel()
        self._in_head, self._in_body = False, True
        self._window_bytes, self._body_bytes = 0, 0
        self._timer = self.loop.call_later(self._limits.body_s, self._look_at_body)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._allowed_bytes += CHUNK_HEAD_BYTES

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._window_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._cancel()
        self._in_body = False
        self._read_bytes = self._body_bytes = 0
        self._allowed_bytes = self._limits.max_head_bytes
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._cancel()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Also what uvicorn calls when a callback of the parser has raised."""
        if not self.transport.is_closing():
            self._answer(400, "the bytes are no HTTP/1.1 request", param="request")

    def _wait_for_head(self) -> None:
        self._cancel()
        self._timer = self.loop.call_later(self._limits.head_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._read_bytes == 0:
            self.transport.close()  # nobody has asked for anything
        else:
            self._answer(408, f"the headers took over {self._limits.head_s:g} s", param="headers")

    def _look_at_body(self) -> None:
        # Reading is paused while the application is busy with what came: then the client is not the slow one.
        if self._window_bytes >= self._limits.body_bytes or self.flow.read_paused:
            self._window_bytes = 0
            self._timer = self.loop.call_later(self._limits.body_s, self._look_at_body)
            return
        self._timer = None
        came = f"{self._window_bytes} bytes of the body came in {self._limits.body_s:g} s"
        self._answer(408, f"{came}, under the {self._limits.body_bytes} that keep it open", param="body")

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.max_head_bytes:
            self._refuse_head()
            raise ValueError("the head is too large")  # the parser stops and goes to send_400_response

    def _refuse_head(self) -> None:
        limit = self._limits.max_head_bytes
        self._answer(431, f"request line and headers exceed {limit} bytes (send large values in the body)", "headers")

    def _answer(self, status: int, message: str, param: str) -> None:
        """Writes to the connection itself: there is no request yet, or it will never be whole."""
        self._cancel()
        if self.transport.is_closing():
            return
        # A request that is being answered cannot be given a second answer; the end of the connection must do.
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            answer = error_response(status, message, param=param, headers={"Connection": "close"})
            lines = [f"HTTP/1.1 {status} {phrase(status)}".encode()]
            lines += [name + b": " + value for name, value in answer.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
