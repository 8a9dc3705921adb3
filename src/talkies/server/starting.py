"""The server before there is anything to serve: it answers from the moment its port is open.

Building the application waits for the worker to say what it serves, which takes seconds, or minutes where a model is
downloaded. Until then the page is there, and every other request gets a 503 with the stage at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from talkies.engine.port.service import EngineService
from talkies.errors import NotReady
from talkies.server.edge import page_files
from talkies.server.edge.middleware import RequestLog
from talkies.server.errors import Json, response_of


class Starting:
    """An ASGI application that becomes the real one. ``make_service`` and ``make_app`` run in a thread of their own.

    ``service`` and ``app`` are there once made, and ``serves`` is true while requests reach them; ``failure`` is what
    kept them from it, and ``ended`` is called then.
    """

    def __init__(self, make_service: Callable[[], EngineService], make_app: Callable[[EngineService], FastAPI]) -> None:
        self.service: EngineService | None = None
        self.app: FastAPI | None = None
        self.failure: BaseException | None = None
        self.ended: Callable[[], None] = lambda: None
        self._make_service, self._make_app = make_service, make_app
        self.serves = False
        self._stopping = asyncio.Event()
        self._closed = threading.Event()
        self._early = RequestLog(self._not_yet)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self.serves and self.app is not None:
            await self.app({**scope, "app": self.app}, receive, send)
        elif scope["type"] == "http":
            await self._early(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1013, "reason": "the server is starting"})

    async def _not_yet(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/ping":
            await Json({"status": "ok"})(scope, receive, send)
            return
        page = page_files.of_path(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        if page is not None:  # which asks /health and shows the stage
            await page(scope, receive, send)
            return
        stage = (self.service.loading_stage if self.service is not None else None) or "starting the worker"
        error = NotReady(f"engine is loading: {stage}", hint="wait", param="engine")
        await response_of(error)(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """uvicorn's lifespan: begun at once, while the real application's begins when there is one."""
        assert (await receive())["type"] == "lifespan.startup"
        life = asyncio.create_task(self._open())
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        self._stopping.set()
        if self.app is None:
            await asyncio.to_thread(self._close_service)  # or whoever waits for the worker's first word waits on
        await life
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        try:
            app = self.app = await asyncio.to_thread(self._make)
            async with app.router.lifespan_context(app):
                self.serves = True
                await self._stopping.wait()
        except BaseException as error:
            if not self._stopping.is_set():
                self.failure = error
                await asyncio.to_thread(self._close_service)
                self.ended()
        finally:
            self.serves = False

    def _make(self) -> FastAPI:
        self.service = self._make_service()
        if self._closed.is_set():
            self._close_service()  # told to stop while it was made
        return self._make_app(self.service)

    def _close_service(self) -> None:
        self._closed.set()
        if self.service is not None:
            self.service.close(timeout_s=2.0)
