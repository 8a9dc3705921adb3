"""A server from its settings: the socket, the engine behind it, and the process until it is told to stop."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talkies.errors import ConfigError, TalkiesError

if TYPE_CHECKING:
    from talkies.engine.config import EngineConfig
    from talkies.engine.port.service import EngineService
    from talkies.server.app import HttpServer
    from talkies.server.config import ServerConfig


def build(engine: dict[str, Any], *, data_dir: Path, **options: Any) -> EngineService:
    """The engine over worker processes; imported here, since it brings torch."""
    from talkies.engine.service.executor import Executor

    # Every reference is copied below uploads/ before a job is accepted, so the engine reads nothing else.
    return Executor(engine_config(engine), data_dir=data_dir, media_root=data_dir / "uploads", **options)


def engine_config(engine: dict[str, Any]) -> EngineConfig:
    """Raises ``ConfigError``."""
    from talkies.engine.config import EngineConfig

    return EngineConfig.of(engine)


def run(service: EngineService, settings: ServerConfig, listener: socket.socket, begun: float) -> None:
    from talkies.server.app import HttpServer, create_app

    try:
        app = create_app(service, settings)
    except BaseException:
        service.close(timeout_s=2.0)
        raise
    server = HttpServer(app, settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.ssl_certfile is None else "https"
    address = f"{scheme}://{shown}:{port}{settings.root_path}"
    print(f"talkies: {address}  {app.state.coordinator.model_name}, loading", file=sys.stderr, flush=True)
    failed = threading.Event()
    threading.Thread(target=_announce, args=(service, server, begun, failed), daemon=True).start()
    server.run(sockets=[listener])
    if failed.is_set() or not server.started:
        raise TalkiesError("the engine did not start", hint="its error is in the lines above")


def _announce(service: EngineService, server: HttpServer, begun: float, failed: threading.Event) -> None:
    """Says when requests are served, and ends a server whose engine never came up."""
    while service.state == "loading" or not (server.started or server.should_exit):
        time.sleep(0.02)
    if service.state == "ready":
        print(f"talkies: ready after {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
    elif not server.should_exit:
        failed.set()
        server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Bound before anything is loaded: a taken port is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another --port or --host",
            param="port",
        ) from None
    listener.set_inheritable(False)
    return listener
