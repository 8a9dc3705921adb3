"""Debian's chromium under playwright: the tests of the page and its screenshots share it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

CHROMIUM = shutil.which("chromium")
PHONE = {"width": 390, "height": 800}
DESK = {"width": 1280, "height": 900}
_QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_QUIET)
        yield browser
        browser.close()


def until(page: Any, expression: str, *, timeout_s: float = 10.0) -> None:
    """Playwright's own waiting evaluates inside the page, which its Content-Security-Policy forbids."""
    for _ in range(round(timeout_s / 0.025)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never true: {expression}")
