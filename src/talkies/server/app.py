"""The application: one EngineService, one data folder, the routes, the page.

app = create_app(service, ServerConfig(data_dir=Path("data")))
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn
from anyio import CapacityLimiter
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.websockets import WebSocket

from talkies import __version__
from talkies.engine.port.service import EngineService
from talkies.server import absent, errors, routes
from talkies.server.config import ServerConfig
from talkies.server.edge import page_files
from talkies.server.edge.auth import Keys, ProtectAll
from talkies.server.edge.middleware import BodyLimit, HostGuard, RequestLog, RootPath
from talkies.server.edge.reference_page import REFERENCE_POLICY, reference_page
from talkies.server.edge.wire import GuardedProtocol, WireLimits
from talkies.server.errors import NotFound
from talkies.server.jobs.coordinator import Coordinator
from talkies.server.openapi import without_422
from talkies.server.starting import Starting

MAX_INTAKES = 8  # POSTs whose references are being fetched and checked at one time


def create_app(service: EngineService, config: ServerConfig) -> FastAPI:
    """Raises ``ConfigError`` when another server owns the data folder. The engine starts with the lifespan."""
    coordinator = Coordinator(service, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        coordinator.live.bind(asyncio.get_running_loop())
        # Reading references may mean waiting for other servers; it must not take the threads that answer polls.
        app.state.intake = CapacityLimiter(MAX_INTAKES)
        await asyncio.to_thread(coordinator.start)
        try:
            yield
        finally:
            await asyncio.to_thread(coordinator.close)

    app = FastAPI(
        title="talkies",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere; ours is below
        redoc_url=None,
        openapi_url="/openapi.json" if config.serve_openapi else None,
        generate_unique_id_function=_operation_id,
    )
    app.state.coordinator = coordinator
    app.state.keys = Keys(config.api_keys)
    app.state.created_at = int(time.time())
    errors.install(app, coordinator.private.hide)

    @app.exception_handler(ClientDisconnect)
    async def _left(_: Request, __: Exception) -> Response:
        return errors.error_response(499, "the client left during the upload", param="body")

    app.include_router(absent.router)  # before /v1/videos/{video_id}, which would take their names for ids
    app.include_router(routes.router)
    app.add_api_websocket_route("/v1/realtime/video", _no_websocket)
    _add_page(app)
    if config.serve_openapi:
        _add_reference_page(app)
    if config.protect_all:
        app.add_middleware(ProtectAll, keys=app.state.keys)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    if not config.api_keys:  # with keys a page of another site has none to send
        names = (*config.server_names, socket.gethostname())
        app.add_middleware(HostGuard, names=names, origins=config.allowed_origins)
    if config.allowed_origins:  # around refusals: a browser shows a page their reason only with these headers
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    if config.root_path:
        app.add_middleware(RootPath, root_path=config.root_path)
    app.add_middleware(RequestLog, on_answer=coordinator.metrics.answered)
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        return without_422(generate())

    app.openapi = openapi  # type: ignore[method-assign]
    return app


class HttpServer(uvicorn.Server):
    """uvicorn waits for open answers before it tells the application to stop; event streams have to hear it first."""

    def __init__(
        self,
        app: FastAPI | Starting,
        settings: ServerConfig | None = None,
        *,
        timeout_graceful_shutdown_s: int = 5,
        wire_limits: WireLimits | None = None,
        **options: Any,
    ) -> None:
        if settings is not None:
            options = {
                "ssl_certfile": settings.ssl_certfile,
                "ssl_keyfile": settings.ssl_keyfile,
                "timeout_keep_alive": settings.timeout_keep_alive_s,
                **options,
            }
        protocol: Any = partial(GuardedProtocol, limits=wire_limits or WireLimits())  # uvicorn only calls it
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=timeout_graceful_shutdown_s,
            http=protocol,
            **options,
        )
        super().__init__(config)
        self._application = app
        if isinstance(app, Starting):
            app.ended = self._end

    def _end(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self._application.app if isinstance(self._application, Starting) else self._application
        if app is not None:
            app.state.coordinator.live.close()
        await super().shutdown(sockets)


def _add_reference_page(app: FastAPI) -> None:
    page: list[bytes] = []  # made once: the schema does not change while the server runs

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        if not page:
            page.append(reference_page(app.openapi()).encode())
        headers = {"Content-Security-Policy": REFERENCE_POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(page[0], media_type="text/html", headers=headers)


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _no_websocket(channel: WebSocket) -> None:
    """An error message in the protocol's own form, so that a client shows why it ends."""
    await channel.accept()
    message = "realtime video is not available: use GET /v1/videos/{id}/events and /content"
    await channel.send_json({"type": "error", "message": message, "code": "not_implemented"})
    await channel.close(code=1011)


def _add_page(app: FastAPI) -> None:
    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return page_files.page()

    @app.get("/web/{name}", include_in_schema=False)
    def asset(name: str) -> Response:
        answer = page_files.asset(name)
        if answer is None:
            raise NotFound(f"/web/{name[:40]} does not exist", param="path")
        return answer
