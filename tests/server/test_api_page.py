"""docs/api.md names everything that the server answers to and with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from talkies.server import absent, routes
from talkies.server.intake import fields
from talkies.server.jobs.view import VideoJob

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
REQUESTS = (DOCS / "requests.md").read_text(encoding="utf-8")


def names(text):
    """What stands between backticks, split at all that no name has."""
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[\w{}/:.-]+", code)}


def paths(router):
    return sorted({re.sub(r"\{\w+(:\w+)?\}", "{id}", route.path) for route in router.routes})


@pytest.mark.parametrize("path", paths(routes.router) + paths(absent.router))
def test_every_path_is_there(path):
    assert path in names(API), f"docs/api.md does not name {path}"


@pytest.mark.parametrize("name", sorted({*fields.TOP_LEVEL, *fields.NO_EFFECT, *fields.TARGET, *fields.CONDITION}))
def test_every_field_of_a_request_is_there(name):
    assert name in names(API) | names(REQUESTS)


@pytest.mark.parametrize("name", sorted(VideoJob.model_fields))
def test_every_field_of_a_job_is_there(name):
    table = API[API.index("## Job object") : API.index("## Failed jobs")]
    assert name in names(table)
