"""How others reach the server: behind a proxy under a path of its own, over HTTPS, and from pages of elsewhere."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from talkies.errors import ConfigError
from talkies.server.config import ServerConfig, origins
from tests.server.conftest import serving

ORIGIN = "https://app.example"


@pytest.mark.parametrize("sent", ["", "/talkies"])
def test_page_and_api_live_under_a_path_of_a_proxy(tmp_path: Path, sent: str) -> None:
    """``sent``: what is left of the path by the time it comes here; a proxy may or may not take it off."""
    with serving(tmp_path, root_path="/talkies") as server:
        page = server.http.get(f"{sent}/")
        assert page.status_code == 200
        assert '="/' not in page.text  # every address in it is relative to where the page is
        for name in ("style.css", "app.js", "stream.js"):
            assert f"web/{name}" in page.text or name == "stream.js"
            answer = server.http.get(f"{sent}/web/{name}")
            assert answer.status_code == 200, name
            assert '"/web/' not in answer.text
        job = server.http.post(f"{sent}/v1/videos", json={"prompt": "a ball"}).json()
        while job["status"] != "completed":
            job = server.http.get(f"{sent}/v1/videos/{job['id']}").json()
        assert job["url"] == f"/talkies/v1/videos/{job['id']}/content"
        assert server.http.get(f"{sent}/v1/videos/{job['id']}/content").headers["content-type"] == "video/mp4"
        assert server.http.get(f"{sent}/openapi.json").json()["servers"] == [{"url": "/talkies"}]
        refused = server.http.put(f"{sent}/v1/videos")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
        assert server.http.get(f"{sent}/nothing").status_code == 404
        without = server.http.get("/talkies")
        assert (without.status_code, without.headers["location"]) == (307, "/talkies/")


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed (apt-get install chromium)")
def test_a_browser_finds_all_of_the_page_under_that_path(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    with serving(tmp_path, root_path="/talkies") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        answers: list[tuple[str, int]] = []
        page.on("response", lambda answer: answers.append((answer.url.removeprefix(server.url), answer.status)))
        with page.expect_response(lambda answer: "/v1/models" in answer.url):
            page.goto(f"{server.url}/talkies")  # without the slash
        browser.close()
    found = {url for url, status in answers if status == 200}
    assert {f"/talkies/{name}" for name in ("", "web/style.css", "web/app.js", "v1/models")} <= found
    assert all(url.startswith(("/talkies", "data:")) and status < 400 for url, status in answers), answers


def test_without_a_proxy_addresses_begin_at_the_root(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        job = server.wait(server.create()["id"])
        assert job["url"] == f"/v1/videos/{job['id']}/content"
        assert server.http.get("/talkies/v1/models").status_code == 404


def test_a_page_from_elsewhere_may_call_where_it_is_allowed(tmp_path: Path) -> None:
    asks = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    with serving(tmp_path / "a", allowed_origins=(ORIGIN,), api_keys=("secret",)) as server:
        preflight = server.http.options("/v1/videos", headers=asks)  # a browser sends no key with it
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        refused = server.http.get("/v1/videos", headers={"Origin": ORIGIN})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN  # or the page could not read why
        other = server.http.options("/v1/videos", headers=asks | {"Origin": "https://other.example"})
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (400, False)
    with serving(tmp_path / "b") as server:
        answer = server.http.get("/v1/videos", headers={"Origin": ORIGIN})
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (200, False)


def test_a_body_that_is_too_large_tells_an_allowed_page(tmp_path: Path) -> None:
    with serving(tmp_path, allowed_origins=("*",), max_body_bytes=1024) as server:
        answer = server.http.post("/v1/videos", content=b"x" * 2000, headers={"Origin": ORIGIN})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (413, "*")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) of localhost, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += " -addext subjectAltName=DNS:localhost -keyout key.pem -out certificate.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    locked = ["openssl", "genrsa", "-aes128", "-passout", "pass:secret", "-out", "locked.pem", "2048"]
    subprocess.run(locked, cwd=folder, check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


def test_with_a_certificate_it_speaks_https(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with serving(tmp_path, ssl_certfile=certificate[0], ssl_keyfile=certificate[1]) as server:
        assert server.url.startswith("https://")
        assert server.wait(server.create()["id"])["status"] == "completed"
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http") + "/health", trust_env=False)
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(server.url + "/health", trust_env=False, verify=ssl.create_default_context())


def test_a_certificate_that_cannot_be_used_is_told_at_the_start(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    (tmp_path / "text.pem").write_text("not a certificate")
    for values, words in (
        ({"ssl_keyfile": key}, "ssl_keyfile needs a certificate"),
        ({"ssl_certfile": tmp_path / "none.pem"}, "No such file"),
        ({"ssl_certfile": chain}, "no certificate in PEM with its unlocked key"),
        ({"ssl_certfile": tmp_path / "text.pem", "ssl_keyfile": key}, "no certificate in PEM"),
        ({"ssl_certfile": chain, "ssl_keyfile": key.parent / "locked.pem"}, "unlocked key"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            ServerConfig(data_dir=tmp_path, **values)
        assert caught.value.param in ("ssl_certfile", "ssl_keyfile")


def test_origins_are_words_or_a_peers_list() -> None:
    assert origins(['["https://a.example", "http://localhost:3000/"]', "https://a.example"]) == (
        "https://a.example",
        "http://localhost:3000",
    )
    assert origins(['["*"]']) == ("*",)
    for wrong in ("app.example", "https://app.example/page", '["*"', "[1]", "ftp://a"):
        with pytest.raises(ConfigError, match="is no origin"):
            origins([wrong])


@pytest.mark.parametrize("path", ["talkies", "/talkies/", "/", "/a b", "/a?b", "//a"])
def test_a_root_path_that_is_none_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"root_path=.* is no path \(for example /talkies"):
        ServerConfig(data_dir=tmp_path, root_path=path)


def test_the_model_answers_to_each_of_its_names(tmp_path: Path) -> None:
    with serving(tmp_path, served_model_name="h3", model_aliases=("MiniMax-H3",)) as server:
        names = [model["id"] for model in server.http.get("/v1/models").json()["data"]]
        assert names == ["h3", "MiniMax-H3"]
        assert server.http.get("/v1/models/MiniMax-H3").json()["id"] == "MiniMax-H3"
        assert server.create(model="MiniMax-H3")["model"] == "h3"
        assert server.http.post("/v1/videos", json={"prompt": "a", "model": "other"}).status_code == 400
        assert server.http.get("/v1/models/other").status_code == 404


def test_the_description_of_the_api_can_be_turned_off(tmp_path: Path) -> None:
    with serving(tmp_path, serve_openapi=False) as server:
        assert server.http.get("/openapi.json").status_code == server.http.get("/docs").status_code == 404
        assert server.create()["object"] == "video"
