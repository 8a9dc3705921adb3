"""Many clips of one command: which ones, under which names, and what becomes of those that are there or fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from talkies.cli import app
from talkies.cli.clips.batch import read_prompts, slug, wanted
from talkies.cli.clips.flags import ClipFlags
from talkies.engine.engine import Engine
from talkies.errors import InvalidRequest, OutputError
from talkies.media.inspect.report import inspect


@pytest.fixture
def talkies(tiny_folder, tmp_path, monkeypatch):
    """Runs a command in an empty folder; returns the exit code, the lines of JSON and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words, stdin=None):
        options = ["--model", str(tiny_folder), "--frames", "22", "--steps", "2", "--json"]
        done = CliRunner().invoke(app, ["generate", *options, *words], input=stdin)
        return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return run


def test_prompts_times_seeds_are_made_with_one_engine_and_kept_the_next_time(talkies, monkeypatch):
    Path("prompts.txt").write_text("a red ball\n# a note\n\na blue box\n")
    opened, real = [], Engine.open_config
    monkeypatch.setattr(Engine, "open_config", lambda config: opened.append(config) or real(config))
    words = ("--prompts", "prompts.txt", "-o", "clips/{index:03}-{seed}-{prompt}.mp4")
    code, lines, _ = talkies(*words, "--seeds", "7..8")
    assert code == 0
    assert [one["path"] for one in lines] == [
        f"clips/{i:03}-{seed}-{name}.mp4" for i, name in enumerate(("a-red-ball", "a-blue-box")) for seed in (7, 8)
    ]
    assert {one["status"] for one in lines} == {"made"}
    assert all(isinstance(one["flags"], list) for one in lines)
    assert len(opened) == 1
    assert opened[0].task_type == "fl2va"  # no clip needs the other DiT
    said = inspect("clips/001-7-a-blue-box.mp4").to_dict()["request"]["request"]
    assert (said["prompt"], said["seed"]) == ("a blue box", 7)

    Path("clips/000-7-a-red-ball.mp4").write_bytes(b"no clip")
    before = Path("clips/001-8-a-blue-box.mp4").stat().st_mtime_ns
    code, lines, _ = talkies(*words, "--seeds", "8,7")
    status = {one["path"]: one["status"] for one in lines}
    assert code == 0
    assert [path for path, word in status.items() if word == "made"] == [
        "clips/000-7-a-red-ball.mp4",
    ]
    assert list(status.values()).count("kept") == 3
    assert Path("clips/001-8-a-blue-box.mp4").stat().st_mtime_ns == before
    _, lines, _ = talkies(*words, "--seeds", "8", "--flow-shift", "5")
    assert {one["status"] for one in lines} == {"made"}  # another request of the same name


def test_json_lines_say_what_differs_from_the_command_line(talkies):
    lines = [
        {"prompt": "a ball", "seed": 3},
        {"prompt": "a box", "frames": 39, "seed": 4, "no-audio": True},
        {"prompt": "a cat", "forwards": 2, "outputs": 2},
    ]
    code, plans, _ = talkies("--prompts", "-", "--dry-run", stdin="\n".join(map(json.dumps, lines)))
    assert code == 0
    assert [(p["paths"], p["frames"], p["num_forwards"], p["seed"]) for p in plans] == [
        (["clip-000-3.mp4"], 22, 1, 3),
        (["clip-001-4.mp4"], 39, 1, 4),
        (["clip-002-42.mp4"], 22, 2, 42),
        (["clip-002-43.mp4"], 22, 2, 43),
    ]
    assert all(p["rows"] > 0 and p["task"] == "t2va" for p in plans)
    assert list(Path().iterdir()) == []


def test_one_that_fails_ends_no_others(talkies, monkeypatch):
    real = Engine.render

    def render(self, request, paths, **rest):
        if request.seed == 2:
            raise OutputError("cannot write it: No space left on device")
        return real(self, request, paths, **rest)

    monkeypatch.setattr(Engine, "render", render)
    code, lines, stderr = talkies("a ball", "--seeds", "1..3")
    assert code == 1
    assert [one["status"] for one in lines] == ["made", "failed", "made"]
    assert lines[1]["error"]["code"] == "output_failed"
    assert lines[1]["path"] == "clip-000-2.mp4"
    assert "error: clip-000-2.mp4: cannot write it" in stderr
    assert sorted(path.name for path in Path().iterdir()) == ["clip-000-1.mp4", "clip-000-3.mp4"]


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("--prompts", "-"), "", "- holds no prompt"),
        (("--prompts", "none.txt"), None, "cannot read none.txt"),
        (("--prompts", "-"), '{"prompt": "a"}\nb', "-, line 2 is not JSON"),
        (("--prompts", "-"), '{"prompt": "a"}\n[1]', "-, line 2 is not an object"),
        (("--prompts", "-"), '{"promt": "a"}', "-, line 1: 'promt' is not known"),
        (("--prompts", "-"), '{"prompt": "a", "seed": "7"}', "-, line 1: --seed '7' is not a whole number"),
        (("--prompts", "-"), '{"prompt": "a", "frames": 9999}', "clip-000-42.mp4: --frames gives"),
        (("--prompts", "-"), '{"seed": 7}', "-, line 1: prompt is missing"),
        (("--prompts", "-", "a ball"), "a", "a prompt and --prompts are both given"),
        (("a", "--seeds", "1", "--seed", "1"), None, "--seed and --seeds are both given"),
        (("a", "--seeds", "9..1"), None, "--seeds 9..1 is not a list of seeds"),
        (("a", "--seeds", "1,2", "-o", "x.mp4"), None, "gives x.mp4 to two clips"),
        (("a", "-o", "{seed}-{sead}.mp4"), None, "cannot be filled in: 'sead'"),
        (("a", "-o", "{seed:x%}.mp4"), None, "cannot be filled in"),
        (("a", "-q", "-v"), None, "--quiet and --verbose"),
    ],
)
def test_what_cannot_be_a_batch_is_refused_before_anything_is_made(talkies, words, stdin, said):
    code, lines, stderr = talkies(*words, stdin=stdin)
    assert (code, len(stderr.strip().splitlines())) == (2, 1), stderr
    assert said in stderr
    assert lines[-1]["error"]["message"]
    assert list(Path().iterdir()) == []


def test_a_line_replaces_what_says_the_same_thing_in_another_way(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "seconds": 1, "sigmas": [1, 0.5, 0], "size": "64x64", "reference": "a.png"}\n')
    flags = ClipFlags(frames=22, steps=9, aspect="1:1", fit="crop")
    (one,) = wanted(flags, file, None, None)
    assert one.request.target.seconds == 1.0
    assert one.request.target.num_frames is None
    assert (one.request.target.width, one.request.target.aspect) == (64, None)
    assert (one.request.sigmas, one.request.num_sigmas, one.request.fit) == ((1.0, 0.5, 0.0), None, "crop")
    assert [c.uri for c in one.request.conditions] == ["a.png"]


def test_names_of_prompts_are_short_and_safe():
    assert slug("A red/ball:  bounces… «twice»") == "a-red-ball-bounces-twice"
    assert slug("!?") == "clip"
    assert len(slug("long " * 40)) <= 40


def test_a_file_of_prompts_may_come_from_windows(tmp_path):
    file = tmp_path / "p.txt"
    file.write_bytes("\ufeffa ball\r\na box\r\n".encode())
    assert [said["prompt"] for _, said in read_prompts(file)] == ["a ball", "a box"]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="cannot read"):
        read_prompts(file)


def test_a_prompt_may_stand_on_stdin(talkies):
    code, lines, _ = talkies("-", stdin="a ball\nin two lines\n")
    assert code == 0
    said = inspect(lines[0]["path"]).to_dict()["request"]["request"]
    assert said["prompt"] == "a ball\nin two lines"
