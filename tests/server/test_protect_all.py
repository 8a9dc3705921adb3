"""With ``--protect-all`` only probes and the page's own files answer without a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from talkies.errors import ConfigError
from talkies.server.config import ServerConfig
from tests.server.conftest import serving

KEY = {"Authorization": "Bearer secret"}
HELD = ("/metrics", "/load", "/version", "/openapi.json", "/docs", "/models", "/v1/models", "/v1/videos", "/nothing")
OPEN = ("/health", "/ping", "/", "/web/app.js")


@pytest.mark.parametrize("root_path", ["", "/talkies"])
def test_nothing_but_probes_and_the_page_answers_without_a_key(tmp_path: Path, root_path: str) -> None:
    with serving(tmp_path, api_keys=("secret",), protect_all=True, root_path=root_path) as server:
        for path in HELD:
            answer = server.http.get(root_path + path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert server.http.get(root_path + path, headers={"Authorization": "Bearer other"}).status_code == 401
            with_key = server.http.get(root_path + path, headers=KEY).status_code
            assert with_key == (404 if path == "/nothing" else 200), path
        for path in OPEN:
            assert server.http.get(root_path + path).status_code == 200, path


def test_without_the_flag_what_monitors_need_stays_open(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("secret",)) as server:
        for path in ("/metrics", "/load", "/version", "/openapi.json"):
            assert server.http.get(path).status_code == 200, path
        assert server.http.get("/models").status_code == 401


def test_the_flag_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="protect_all without an API key"):
        ServerConfig(data_dir=tmp_path, protect_all=True)
