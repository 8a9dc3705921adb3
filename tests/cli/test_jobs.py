"""``talkies jobs`` against what is no server, and a watcher who has seen enough."""

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
