"""A terminal of any encoding: what it cannot print is replaced, in JSON escaped, and the command goes on."""

import http.server
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from talkies.media.write.mp4 import write_mp4

PROMPT = "球が弾む — a ball…"
ENCODINGS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "koi8-r": {"PYTHONIOENCODING": "koi8-r"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def talkies(encoding, *args, **variables):
    """stdout as bytes of a command that has to succeed in silence."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LANG")}
    done = subprocess.run(
        [sys.executable, "-m", "talkies", *map(str, args)],
        env=environ | ENCODINGS[encoding] | variables,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("terminals") / "clip.mp4"
    frames = np.zeros((24, 64, 64, 3), np.uint8)
    write_mp4(path, frames, np.zeros((2, 32_000), np.float32), metadata={"request": {"prompt": PROMPT, "seed": 1}})
    return path


@pytest.fixture(scope="module")
def server():
    """One job, whose prompt no terminal of those can show."""
    job = {"id": "video_1", "status": "completed", "progress": 100, "prompt": PROMPT}
    body = json.dumps({"data": [job]}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    listening = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}", job
    listening.shutdown()
    listening.server_close()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_help_pages_are_printed(encoding):
    page = talkies(encoding, "plan", "--help", COLUMNS="40").decode(encoding)
    assert "--gpu" in page
    assert "?" in page  # the ellipsis of a shortened column


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_inspect_prints_what_the_encoding_has(encoding, clip):
    table = talkies(encoding, "inspect", clip).decode(encoding)
    assert "? a ball?" in table
    assert "64" in table


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_is_the_same_json_in_ascii(encoding, clip):
    out = talkies(encoding, "inspect", "--json", clip)
    assert out.isascii()
    assert json.loads(out)["request"]["request"]["prompt"] == PROMPT


def test_json_holds_characters_as_they_are_where_it_can(clip):
    out = talkies("latin-1", "inspect", "--json", clip, PYTHONIOENCODING="utf-8")
    assert PROMPT in out.decode()


def test_jobs_are_listed(server):
    url, job = server
    line = talkies("koi8-r", "jobs", "list", "--url", url).decode("koi8-r")
    assert line.split()[:2] == ["video_1", "completed"]
    assert "???? ? a ball?" in line
    assert json.loads(talkies("latin-1", "jobs", "list", "--json", "--url", url)) == job
