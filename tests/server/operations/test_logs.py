"""The log as JSON: every line, whoever wrote it."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import logging, sys, threading, warnings
import structlog
from talkies.cli.common import configure_logs, fail, say
from talkies.errors import ConfigError
configure_logs("info", as_json=True)
say("a word for the operator")
logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
with structlog.contextvars.bound_contextvars(request_id="req_1", job_id="video_1"):
    logging.getLogger("talkies.access").info("two\\nlines %s", "here")
warnings.warn("this will go away")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("x").exception("while dividing")
def broken():
    raise ValueError("in a thread")
thread = threading.Thread(target=broken, name="t1")
thread.start()
thread.join()
class Odd:
    def __del__(self):
        raise KeyError("nobody catches this")
Odd()
try:
    fail(ConfigError("a bad flag", hint="use another"))
except BaseException:
    pass
raise RuntimeError("the end")
"""


def test_every_line_of_a_json_log_is_json() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    events = [line["event"] for line in lines]
    assert events[0] == "a word for the operator"
    assert events[1] == "Invalid HTTP request received."
    assert (events[2], lines[2]["request_id"], lines[2]["job_id"]) == ("two\nlines here", "req_1", "video_1")
    assert "this will go away" in events[3]
    assert "ZeroDivisionError" in lines[4]["exception"]
    assert (events[5], "in a thread" in lines[5]["exception"]) == ("thread t1 ends by an error", True)
    assert "nobody catches this" in lines[6]["exception"]
    assert (events[7], lines[7]["level"]) == ("error: a bad flag (use another)", "error")
    assert "RuntimeError: the end" in lines[8]["exception"]
    assert len(lines) == 9
