"""A server from its settings: the socket, the engine behind it, and the process until it is told to stop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talkies.cli.common import say
from talkies.errors import ConfigError, TalkiesError

if TYPE_CHECKING:
    from talkies.engine.config import EngineConfig
    from talkies.engine.port.service import EngineService
    from talkies.server.app import HttpServer
    from talkies.server.config import ServerConfig
    from talkies.server.starting import Starting


def build(engine: dict[str, Any], *, data_dir: Path, **options: Any) -> EngineService:
    """The engine over worker processes; imported here, since it brings torch."""
    from talkies.engine.service.executor import Executor

    # Every reference is copied below uploads/ before a job is accepted, so the engine reads nothing else.
    return Executor(engine_config(engine), media_root=data_dir / "uploads", **options)


def engine_config(engine: dict[str, Any]) -> EngineConfig:
    """Raises ``ConfigError``."""
    from talkies.engine.config import EngineConfig

    return EngineConfig.of(engine)


def run(
    make_service: Callable[[], EngineService], settings: ServerConfig, listener: socket.socket, begun: float
) -> None:
    """Listens, answers from then on, and makes the engine meanwhile. Raises what keeps it from being made."""
    from talkies.server.app import HttpServer, create_app
    from talkies.server.starting import Starting

    starting = Starting(make_service, lambda service: create_app(service, settings))
    server = HttpServer(starting, settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    failed = threading.Event()
    scheme = "http" if settings.ssl_certfile is None else "https"
    address = f"{scheme}://{shown}:{port}{settings.root_path}"
    threading.Thread(target=_announce, args=(starting, server, address, begun, failed), daemon=True).start()
    server.run(sockets=[listener])
    if starting.failure is not None:
        raise starting.failure
    if failed.is_set() or not server.started:
        if starting.service is not None and starting.service.fatal is not None:
            raise starting.service.fatal
        raise TalkiesError("the engine did not start", hint="its error is in the lines above")


def _announce(starting: Starting, server: HttpServer, address: str, begun: float, failed: threading.Event) -> None:
    """Says where the server is and when requests are served, and ends one whose engine never came up."""
    while starting.app is None and not server.should_exit:
        time.sleep(0.02)
    if starting.app is None or starting.service is None:
        return
    service = starting.service
    say(f"talkies: {address}  {starting.app.state.coordinator.model_name}, loading")
    while service.state == "loading" or not (starting.serves or server.should_exit):
        time.sleep(0.02)
    if service.state == "ready":
        say(f"talkies: ready after {time.monotonic() - begun:.1f} s")
    elif not server.should_exit:
        failed.set()
        server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Bound before anything is loaded: a taken port is known at once. It is opened by whoever answers on it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another --port or --host",
            param="port",
        ) from None
    listener.set_inheritable(False)
    return listener
