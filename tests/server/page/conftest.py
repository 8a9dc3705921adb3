"""One chromium per module; each page it opens is watched for script errors and for requests that leave the machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService
from tests.server.page.chromium import CHROMIUM, DESK, PHONE, chromium


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = pytest.mark.skip(reason="chromium is not installed (apt-get install chromium)")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(absent)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """``open_page(url, size=...)``: pages of one call of the test share what a browser remembers."""
    faults: list[str] = []
    outside: list[str] = []
    contexts: list[Any] = []

    def open_(url: str, *, size: dict[str, int] = DESK, **options: Any) -> Any:
        look = {"viewport": size, "color_scheme": "dark" if size == PHONE else "light", "reduced_motion": "reduce"}
        context = browser.new_context(**look, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("request", lambda r: outside.append(r.url) if "127.0.0.1" not in r.url else None)
        page.on("pageerror", lambda e: faults.append(str(e)))
        page.on("console", lambda m: faults.append(m.text) if "Content Security" in m.text else None)
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert faults == []
    assert [url for url in outside if not url.startswith(("data:", "blob:", "about:"))] == []


@pytest.fixture(params=[PHONE, DESK], ids=["390", "1280"])
def size(request: pytest.FixtureRequest) -> dict[str, int]:
    return request.param


class Permits:
    """In place of the fake's ``release``: a ``slow`` job takes one step a permit."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def is_set(self) -> bool:
        return self._permits.acquire(blocking=False)

    def allow(self, steps: int) -> None:
        self._permits.release(steps)


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[tuple[Server, Permits]]:
    """A server whose ``slow`` jobs wait before each step until the test allows it."""
    service, permits = FakeService(), Permits()
    service.release = permits  # type: ignore[assignment]
    with serving(tmp_path / "stepped", service) as server:
        yield server, permits
