"""What a client reads of a job: the plan at once, and what the engine knows as soon as it tells."""

from __future__ import annotations

from talkies.engine.port.facts import Facts
from talkies.server.jobs.record import encode
from tests.server.conftest import Server


def test_the_plan_is_read_until_the_engine_tells_more(server: Server) -> None:
    job = server.create("slow ball", seed=3, num_frames=39, num_inference_steps=4, return_stage_metrics=True)
    planned = {"size": "112x64", "num_frames": 39, "seconds": "1.625", "duration_s": 1.625, "fps": 24, "task": "t2va"}
    planned |= {"seed": 3, "num_forwards": 3, "num_inference_steps": 4}
    assert {name: job[name] for name in planned} == planned
    unknown = {"stage_durations": {}, "peak_memory_mb": None, "warnings": [], "conditions_used": []}
    assert {name: job[name] for name in unknown} == unknown
    assert job["metrics"] == {"queue_wait_s": None, "stages_s": {}}
    server.service.release.set()
    done = server.wait(job["id"], "completed")
    assert {name: done[name] for name in planned} == planned
    assert done["stage_durations"] == {"encode": 0.01, "denoise": 0.2, "decode": 0.05}
    assert (done["metrics"]["rows"], done["metrics"]["stages_s"]) == (9, done["stage_durations"])
    assert "peak_memory_mb" not in done["metrics"]  # this engine does not know it


def test_facts_are_kept_in_the_form_that_every_version_reads() -> None:
    facts = Facts(task="t2va", size="112x64", frames=39, seconds=1.625, fps=24, seed=3, num_forwards=3)
    assert encode("facts", facts) == (
        '{"task":"t2va","size":"112x64","frames":39,"seconds":1.625,"fps":24,"seed":3,"num_forwards":3,'
        '"warnings":[],"conditions_used":[],"adapters":[],"stages_s":{}}'
    )
