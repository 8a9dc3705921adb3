"""What is known of a job is one type, written in one place for everybody who tells it."""

import json
from dataclasses import replace

from talkies.engine.port.facts import Facts

PLAN = Facts(task="t2va", size="112x64", frames=56, seconds=56 / 24, fps=24, seed=7, num_forwards=19)
DONE = replace(
    PLAN,
    skipped_fraction=0.0,
    warnings=("a hint",),
    conditions_used=({"kind": "image", "role": "first"},),
    rows=675,
    stages_s={"prepare": 0.12345678, "denoise": 2.0},
    peak_memory_mb=512,
    path="clip.mp4",
)


def test_what_was_written_is_read_again():
    stored = json.loads(json.dumps(DONE.to_dict()))
    assert Facts.from_dict(stored) == replace(DONE, stages_s={"prepare": 0.1235, "denoise": 2.0})
    assert Facts.from_dict(json.loads(json.dumps(PLAN.to_dict()))) == PLAN


def test_what_another_version_knew_is_left_out():
    assert Facts.from_dict({**PLAN.to_dict(), "tea": "green"}) == PLAN
    bare = {name: value for name, value in PLAN.to_dict().items() if name not in ("warnings", "conditions_used")}
    assert Facts.from_dict(bare) == PLAN


def test_what_is_not_known_is_not_written():
    assert not {"rows", "skipped_fraction", "peak_memory_mb", "path"} & PLAN.to_dict().keys()


def test_a_result_has_the_keys_that_the_command_prints():
    assert list(DONE.result()) == [
        *("path", "frames", "seconds", "size", "seed", "task", "num_forwards", "skipped_fraction", "stages_s"),
        *("warnings", "conditions_used", "adapters"),
    ]
    assert DONE.result()["warnings"] == ["a hint"]


def test_a_files_metadata_does_not_hold_what_differs_from_run_to_run():
    again = replace(DONE, stages_s={"denoise": 9.0}, peak_memory_mb=9, path="other.mp4")
    assert again.effective() == DONE.effective()
    assert DONE.effective() == {
        "task": "t2va",
        "size": "112x64",
        "fps": 24,
        "frames": 56,
        "seconds": 2.333333,
        "num_forwards": 19,
        "rows": 675,
    }
