"""The page over the embedded checkpoint: a red ball is red in its previews, and so is the clip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from talkies.engine.config import embedded_folder
from tests.server.page.chromium import until
from tests.server.page.test_stage import DONE, make
from tests.server.test_real_engine import serve

COLOUR = """(node) => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [56, 32];
  const context = canvas.getContext("2d");
  context.drawImage(node, 0, 0, 56, 32);
  const { data } = context.getImageData(0, 0, 56, 32);
  const pixels = Array.from({ length: 56 * 32 }, (_, i) => [...data.slice(4 * i, 4 * i + 3)]);
  pixels.sort((a, b) => Math.max(...b) - Math.min(...b) - Math.max(...a) + Math.min(...a));
  const most = pixels.slice(0, 40);
  return [0, 1, 2].map((c) => most.reduce((sum, pixel) => sum + pixel[c], 0) / most.length);
}"""


def test_a_red_ball_is_red_while_it_is_made_and_after(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with serve(embedded_folder(), tmp_path) as http:
        page = open_page(str(http.base_url))
        make(page, "a red ball slides left slowly on a dark background with a bell sound", steps="60", seed="3")
        until(page, "document.querySelector('#frames img')?.naturalWidth > 0", timeout_s=60)
        preview = page.eval_on_selector("#frames img", COLOUR)
        until(page, DONE, timeout_s=120)
        until(page, "document.querySelector('#frames video')?.readyState >= 2")
        clip = page.eval_on_selector("#frames video", COLOUR)
        for red, green, blue in (preview, clip):
            assert red > 120
            assert max(green, blue) < red / 2
