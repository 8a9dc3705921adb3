"""The official Node client, where Node and its package are installed: ``npm install openai`` in any folder, and
``OPENAI_NODE_FOLDER`` naming it (or ``npm install --global openai``)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import serving
from tests.server.fakes import mp4_bytes

SCRIPT = Path(__file__).with_name("openai_node.mjs")
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def folder_of_the_package() -> Path:
    """The folder whose node_modules holds it; skips the test with the reason where there is none."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    named = os.environ.get("OPENAI_NODE_FOLDER")
    if named is None and shutil.which("npm") is not None:
        done = subprocess.run(["npm", "root", "--global"], capture_output=True, text=True, check=False, timeout=60)
        named = str(Path(done.stdout.strip()).parent) if done.returncode == 0 else None
    if named is None or not (Path(named) / "node_modules" / "openai").is_dir():
        pytest.skip("the Node package openai is not installed; OPENAI_NODE_FOLDER may name its folder")
    return Path(named)


@pytest.mark.slow
def test_the_official_node_client(tmp_path: Path) -> None:
    folder = folder_of_the_package()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving(tmp_path, webhook_secret=SECRET, allow_hosts=("127.0.0.1",)) as server:
        command = ["node", str(SCRIPT), str(folder), server.url, f"http://127.0.0.1:{port}/done", SECRET]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {"job", "done"} <= set(told.pop("events"))
    assert told == {
        "bytes": len(mp4_bytes()),
        "remix": "completed",
        "cancelled": ["failed", "cancelled"],
        "error": [400, "invalid_request_error", "invalid_request", "seconds"],
        "absent": [501, "not_implemented"],
        "webhook": ["video.completed", True],
    }
