"""A server over a FakeService in a process of its own, to be killed: ``python -m tests.server.fakeserver DIR PORT``."""

from __future__ import annotations

import sys
from pathlib import Path

from talkies.server.app import HttpServer, create_app
from talkies.server.config import ServerConfig
from tests.server.fakes import FakeService, mp4_bytes

if __name__ == "__main__":
    mp4_bytes()
    app = create_app(FakeService(step_s=0.01), ServerConfig(data_dir=Path(sys.argv[1])))
    HttpServer(app, host="127.0.0.1", port=int(sys.argv[2])).run()
