"""The deployment that is published for four GPUs, word for word, on four CPU ranks: every task through one port."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from PIL import Image

from tests.engine.load.test_ranks import _alive, _followers_of
from tests.server.test_real_engine import post, running, whole

LINE = (
    "--num-gpus 4 --usp 4 --ring 1 --text-encoder-tp-size 4 --vae-patch-parallel-size 4 --vae-parallel-mode tile "
    "--vae-use-tiling --task-type combined"
)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_line_for_four_gpus_serves_every_task(tmp_path: Path) -> None:
    Image.new("RGB", (224, 128), "teal").save(tmp_path / "p.png")
    uri = "data:image/png;base64," + base64.b64encode((tmp_path / "p.png").read_bytes()).decode()
    common = {"num_inference_steps": 4, "extra_params": {"duration": 1}, "seed": 5}
    picture = {"type": "image", "uri": uri}
    tasks = {
        "t2va": {},
        "fl2va": {"conditions": [{**picture, "role": "keyframe", "frame_index": 0}]},
        "ref2va": {"conditions": [{**picture, "role": "reference"}]},
    }
    with running(Path("h3-tiny"), tmp_path / "data", *LINE.split()) as (http, pid):
        jobs = {task: post(http, **common, **fields) for task, fields in tasks.items()}
        for task, job in jobs.items():
            assert job["task"] == task
            info = whole(http, job, tmp_path / f"{task}.mp4")
            assert info.video.frames >= 22
        assert http.get("/models").json()["num_gpus"] == 4
        workers = _children(pid)
        ranks = [rank for worker in workers for rank in _followers_of(worker)]
        assert len(ranks) == 3
    assert not any(_alive(rank) for rank in ranks)  # none outlives its server


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
