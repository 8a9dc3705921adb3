"""The endpoints that describe the server: what is behind the key, and a page that needs nothing from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from talkies.files.paths import public_name
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService


def test_the_page_of_the_api_is_our_own_and_whole(server: Server) -> None:
    answer = server.http.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script" not in answer.text
    assert re.findall(r"""(?:href|src)=["']([^"']*)""", answer.text) == ["openapi.json"]
    schema = server.http.get("/openapi.json").json()
    for path, operations in schema["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in answer.text
    fields = schema["paths"]["/v1/videos"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for name in fields:
        assert f"<code>{name}" in answer.text
    assert server.http.head("/docs").status_code == 200
    assert server.http.get("/redoc").status_code == 404


def test_what_is_served_is_told_to_keys_alone(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("a-key-of-somebody",)) as server:
        for path in ("/v1/models", "/v1/models/h3-tiny", "/models"):
            refused = server.http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key"), path
            assert "h3-tiny" not in refused.text
            answer = server.http.get(path, headers={"Authorization": "Bearer a-key-of-somebody"})
            assert answer.status_code == 200, path


def test_a_model_in_a_folder_is_called_by_the_folders_name(tmp_path: Path) -> None:
    service = FakeService()
    folder = "/srv/models/MiniMax-H3/FL2VA"
    service.info = replace(service.info, model_name=folder)
    with serving(tmp_path, service) as server:
        listed = server.http.get("/v1/models").json()["data"][0]
        assert (listed["id"], listed["root"]) == ("MiniMax-H3", "MiniMax-H3")
        assert server.http.get("/models").json()["model_path"] == "MiniMax-H3"
        for name in ("MiniMax-H3", folder):  # what an operator's own scripts name
            assert server.create("a ball", model=name)["model"] == "MiniMax-H3"
        answer = server.http.post("/v1/videos", json={"prompt": "a", "model": "sora-2"})
        assert "/srv" not in answer.text
    assert public_name("MiniMaxAI/MiniMax-H3") == "MiniMaxAI/MiniMax-H3"
    assert (public_name("./h3"), public_name("/h3"), public_name("~/models/x")) == ("h3", "h3", "x")
