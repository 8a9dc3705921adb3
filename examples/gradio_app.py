"""A web page of your own over a talkies server.

pip install gradio
talkies serve
python examples/gradio_app.py [URL]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import httpx

URL = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else "http://127.0.0.1:8000"


def make(prompt: str, seed: float, url: str = URL) -> str:
    """The path of a clip. Raises ``RuntimeError`` with the server's own words; Gradio shows them."""
    body = {"prompt": prompt, "seed": int(seed)}
    answer = httpx.post(f"{url}/v1/videos/sync", json=body, timeout=None)
    if answer.is_error:
        raise RuntimeError(answer.json()["error"]["message"])
    path = Path(tempfile.mkdtemp()) / "clip.mp4"
    path.write_bytes(answer.content)
    return str(path)


def page() -> object:
    import gradio

    return gradio.Interface(
        make,
        inputs=[gradio.Textbox(label="What happens in the clip"), gradio.Number(42, label="Seed", precision=0)],
        outputs=gradio.Video(label="The clip"),
        title="talkies",
        flagging_mode="never",
    )


if __name__ == "__main__":
    page().launch()  # type: ignore[attr-defined]
