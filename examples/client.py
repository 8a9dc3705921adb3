"""A client of a talkies server that needs httpx alone: make a job, follow it, download its clip.

    talkies serve
    python examples/client.py "a red ball bounces with a bell sound" [OUTPUT] [URL]

With keys, set TALKIES_API_KEY.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx


def events(client: httpx.Client, job: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, data) of each event of a job, until the stream ends."""
    with client.stream("GET", f"/v1/videos/{job}/events", timeout=60) as answer:  # a comment comes every 10 s at least
        name = ""
        for line in answer.raise_for_status().iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def main(prompt: str, output: Path, url: str) -> dict[str, Any]:
    """The finished job, whose clip is at ``output``. Raises ``RuntimeError`` with the server's own words."""
    key = os.environ.get("TALKIES_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers) as client:
        made = client.post("/v1/videos", json={"prompt": prompt})
        if made.is_error:
            raise RuntimeError(made.json()["error"]["message"])
        job: dict[str, Any] = made.json()
        for name, data in events(client, job["id"]):
            if name == "progress":
                print(f"{data['stage']}: {data['progress']} %", file=sys.stderr)
            elif name == "done":
                job = data
        if job["status"] != "completed":
            raise RuntimeError(job["error"]["message"] if job["error"] else "the server stopped: ask for the job again")
        output.write_bytes(client.get(f"/v1/videos/{job['id']}/content").raise_for_status().content)
        return job


if __name__ == "__main__":
    words = [
        *sys.argv[1:],
        *("a red ball bounces with a bell sound", "clip.mp4", "http://127.0.0.1:8000")[len(sys.argv) - 1 :],
    ]
    print(main(words[0], Path(words[1]), words[2])["id"])
