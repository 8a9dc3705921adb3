"""``talkies jobs`` against what is no server, and a watcher who has seen enough."""

import http.server
import threading

import pytest
from typer.testing import CliRunner

from talkies.cli import app, jobs


@pytest.mark.parametrize("url", ["http://[::1", "localhost:8000", "ftp://localhost", ""])
def test_an_address_that_is_none_is_one_line_and_exit_2(url):
    done = CliRunner().invoke(app, ["jobs", "list", "--url", url])
    assert done.exit_code == 2, done.output
    assert "--url" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_server_that_is_not_there_is_exit_1():
    done = CliRunner().invoke(app, ["jobs", "list", "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "cannot reach http://127.0.0.1:1" in done.stderr


def test_ctrl_c_says_that_the_job_goes_on(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "_followed", interrupted)
    done = CliRunner().invoke(app, ["jobs", "watch", "video_1"])
    assert done.exit_code == 130
    assert "cancelled" not in done.stderr
    assert "the job goes on" in done.stderr


@pytest.fixture(scope="module")
def stranger():
    """Something else on the port: the first letter of the path says what it answers."""
    answers = {"l": b"[]", "o": b"{}", "h": b"<html>", "n": b"null", "d": b'{"detail": "Not Found"}'}
    answers["e"] = b'{"error": "no"}'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = answers[self.path[1]]
            self.send_response(404 if self.path[1] in "de" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("answer", "lohnde")
def test_another_server_on_the_port_is_named_as_one(stranger, answer):
    done = CliRunner().invoke(app, ["jobs", "list", "--url", stranger + answer])
    assert done.exit_code == 1, done.output
    assert "not a talkies server (see --url)" in done.stderr


def test_a_key_that_no_header_can_carry_is_refused():
    done = CliRunner().invoke(app, ["jobs", "list", "--api-key", "schlüssel"])
    assert done.exit_code == 2, done.output
    assert "--api-key" in done.stderr
    assert "schlüssel" not in done.stderr
