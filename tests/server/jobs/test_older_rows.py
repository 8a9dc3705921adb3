"""A database that an earlier version wrote: its clips are shown, and what waited in it is made."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.server.conftest import serving

# Written by the first version of the job table, letter by letter: a request and its plan, and what its engine added.
REQUEST = (
    '{"prompt":"a ball","task":null,"target":{"width":112,"height":64,"aspect":null,"seconds":1.0,"num_frames":null},'
    '"conditions":[],"seed":42,"num_sigmas":null,"sigmas":null,"video_shift":null,"audio_shift":null,"num_outputs":1,'
    '"fit":"auto","quality":"lossless","audio":true}'
)
PLAN = '{"size":"112x64","frames":39,"seconds":1.625,"fps":24,"task":"t2va","seed":42,"num_forwards":19}'
RESULT = PLAN[:-1] + (
    ',"skipped_fraction":0.0,"warnings":[],"conditions_used":[],"rows":9,"peak_memory_mb":310,'
    '"stages_s":{"encode":0.01,"denoise":0.2}}'
)


def as_written_then(folder: Path, job_id: str, *, status: str, facts: str) -> None:
    with sqlite3.connect(folder / "jobs.sqlite") as db:
        db.execute("UPDATE jobs SET request = ?, facts = ?, status = ? WHERE id = ?", (REQUEST, facts, status, job_id))
    db.close()


def test_a_clip_and_a_queued_job_of_an_earlier_version(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        made = server.wait(server.create("a ball", return_stage_metrics=True)["id"])
        waiting = server.create("slow ball")
        server.wait(waiting["id"], "in_progress")
        server.stop()
    as_written_then(tmp_path, made["id"], status="completed", facts=RESULT)
    as_written_then(tmp_path, waiting["id"], status="queued", facts=PLAN)
    with serving(tmp_path) as server:
        shown = server.http.get(f"/v1/videos/{made['id']}").json()
        assert (shown["status"], shown["size"], shown["num_frames"], shown["duration_s"]) == (
            *("completed", "112x64", 39, 1.625),
        )
        assert (shown["num_forwards"], shown["peak_memory_mb"], shown["stage_durations"]) == (
            *(19, 310, {"encode": 0.01, "denoise": 0.2}),
        )
        # Its engine did not say what it took, so that the two moments of the row are what is known.
        with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
            times = db.execute("SELECT started_at, completed_at FROM jobs WHERE id = ?", (made["id"],)).fetchone()
        db.close()
        assert shown["inference_time_s"] == round(times[1] - times[0], 3)
        assert shown["remixed_from_video_id"] is None
        assert server.http.get(shown["url"].partition("?")[0]).content[4:8] == b"ftyp"
        done = server.wait(waiting["id"])
        assert (done["status"], done["prompt"]) == ("completed", "a ball")
        remade = server.http.post(f"/v1/videos/{made['id']}/remix", json={"prompt": "a cube"})
        assert remade.status_code == 200, remade.text
        assert {job["id"] for job in server.http.get("/v1/videos").json()["data"]} >= {made["id"], waiting["id"]}
