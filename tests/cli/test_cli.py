"""The command line as a user meets it: one clear line for an error, the right exit code, nothing half-written."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from talkies.cli import app
from talkies.cli.common import cleans_up, reports_errors
from talkies.media.inspect.report import inspect
from talkies.media.write.mp4 import write_mp4

PROMPT = "a red ball bounces"


def talkies(*args, cwd, limit_bytes=None, **kwargs):
    def limit():
        if limit_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "talkies", *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
        check=False,
        **kwargs,
    )


def hear_ctrl_c():
    """A shell's background job, and so its tests, ignores the signal; a child would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def clip(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    options = ("--model", tiny_folder, "--frames", 22, "--steps", 3, "--seed", 5, "--json")
    done = talkies("generate", PROMPT, "-o", "clip.mp4", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "clip.mp4", json.loads(done.stdout.splitlines()[-1])


def test_json_is_one_object_with_the_documented_keys(clip):
    path, facts = clip
    assert facts.keys() >= {"path", "frames", "seconds", "seed", "task", "num_forwards", "skipped_fraction", "stages_s"}
    assert (facts["frames"], facts["seed"], facts["task"], facts["num_forwards"]) == (22, 5, "t2va", 2)
    assert path.is_file()


def test_the_file_holds_what_was_asked(clip):
    path, _ = clip
    report = inspect(path).to_dict()
    assert report["video"]["codec"] == "h264"
    assert (report["video"]["fps"], report["video"]["frames"]) == (24, 22)
    assert report["audio"]["codec"] == "aac"
    assert (report["audio"]["sample_rate_hz"], report["audio"]["channels"]) == (32_000, 2)
    request = report["request"]["request"]
    assert (request["prompt"], request["seed"], request["num_sigmas"]) == (PROMPT, 5, 3)
    assert report["request"]["model"]["hash"]


def test_from_repeats_the_clip_byte_for_byte(clip, tiny_folder):
    path, _ = clip
    done = talkies("generate", "--from", path, "-o", "again.mp4", "--model", tiny_folder, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    assert (path.parent / "again.mp4").read_bytes() == path.read_bytes()


def test_inspect_json(clip):
    path, _ = clip
    done = talkies("inspect", path, "--json", cwd=path.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"video", "audio", "sync_offset_ms", "flags", "request"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([""], "prompt"),
        (["  "], "prompt"),
        ([], "prompt"),
        ([PROMPT, "--size", "63x64"], "--size: width=63 is not a positive multiple of"),
        ([PROMPT, "--size", "big"], "WIDTHxHEIGHT"),
        ([PROMPT, "--seconds", "99"], "outside"),
        ([PROMPT, "--seed", str(2**63)], "seed"),
        ([PROMPT, "--steps", "1"], "--steps 1 is outside 2..200"),
        ([PROMPT, "--steps", "9", "--forwards", "9"], "forwards"),
        ([PROMPT, "--forwards", "0"], "--forwards 0 is outside 1..199"),
        ([PROMPT, "--threads", "0"], "--threads 0 is outside 1..1024"),
        ([PROMPT, "--first-frame", "text.png", "-o", "text.png"], ".mp4"),
        ([PROMPT, "-n", "99"], "--outputs 99"),
        ([PROMPT, "--audio-flow-shift", "0"], "--audio-flow-shift 0 is outside"),
        ([PROMPT, "--aspect", "40:1"], "(choose one of 21:9"),
        ([PROMPT, "--soundtrack", "text.png", "--redo-sound", "3:1"], "--redo-sound: TO=1 is not after FROM=3"),
        (
            [PROMPT, "--vram-budget", "4GiB"],
            "--vram-budget has no meaning on a CPU (use --ram-budget, or --device cuda",
        ),
        (["-"], "prompt is empty or blank"),
        ([PROMPT, "--device", "cpu:3"], "--device 'cpu:3'"),
        ([PROMPT, "--aspect", "wide"], "--aspect 'wide'"),
        ([PROMPT, "--sigmas", "1,zero"], "sigmas"),
        ([PROMPT, "--task", "t3va"], "task"),
        ([PROMPT, "--device", "cuda:99"], "device"),
        ([PROMPT, "--attention", "magic"], "attention"),
        ([PROMPT, "-tp", "5"], "--tensor-parallel-size 5"),
        ([PROMPT, "--first-frame", "absent.png"], "absent.png"),
        ([PROMPT, "--first-frame", "text.png"], "text.png"),
        ([PROMPT, "--from", "text.png"], "text.png"),
        ([PROMPT, "--reference", "thing.xyz"], "suffix"),
        ([PROMPT, "--reference", "text.png"], "ref2va"),
        ([PROMPT, "--reference", "sound.wav"], "conditions"),
        ([PROMPT, "-o", "clip.avi"], ".mp4"),
        ([PROMPT, "--no-such-flag"], "no-such-flag"),
    ],
)
def test_user_errors_are_one_line_and_exit_2(args, words, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("not a picture")
    done = CliRunner().invoke(app, ["generate", *args, "--model", str(tiny_folder)])
    assert done.exit_code == 2, done.stderr
    assert words in done.stderr
    if "no-such-flag" not in words:
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["text.png"]


def test_broken_weights_are_named(tiny_folder, tmp_path):
    import shutil

    shutil.copytree(tiny_folder, tmp_path / "model")
    weights = tmp_path / "model" / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    done = talkies("generate", PROMPT, "--model", "model", cwd=tmp_path)
    assert done.returncode == 2
    assert "diffusion_pytorch_model.safetensors" in done.stderr
    weights.unlink()
    done = talkies("generate", PROMPT, "--model", "model", cwd=tmp_path)
    assert done.returncode == 2
    assert "transformer" in done.stderr
    done = talkies("generate", PROMPT, "--model", "no/such/model", cwd=tmp_path)
    assert done.returncode == 2
    assert "no/such/model" in done.stderr
    assert not (tmp_path / "clip.mp4").exists()


def test_a_file_size_limit_is_exit_1_and_leaves_nothing(tiny_folder, tmp_path):
    options = ("--model", tiny_folder, "--frames", 22, "--steps", 2)
    done = talkies("generate", PROMPT, *options, cwd=tmp_path, limit_bytes=4096)
    assert done.returncode == 1, done.stderr
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_refused_before_any_work(tiny_folder, tmp_path):
    done = talkies("generate", PROMPT, "--model", tiny_folder, "-o", "no/such/clip.mp4", cwd=tmp_path)
    assert done.returncode == 2  # a flag's fault, as README has it
    assert "mkdir" in done.stderr


FORWARDS_ARE_SAID = """
import sys
from talkies.engine.pipeline import step
velocities = step.velocities
def said(*args, **kwargs):
    print("forward", file=sys.stderr, flush=True)
    return velocities(*args, **kwargs)
step.velocities = said
from talkies.cli import app
app()
"""


@pytest.mark.parametrize("moment", ["imports", "denoising"])
def test_ctrl_c_leaves_no_broken_file(tiny_folder, tmp_path, moment):
    program = ["-m", "talkies"] if moment == "imports" else ["-c", FORWARDS_ARE_SAID]
    command = [sys.executable, *program, "generate", PROMPT, "--model", str(tiny_folder), "--steps", "200"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c)
    assert process.stderr is not None
    if moment == "imports":
        while "libtorch_cpu" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
    else:
        for line in process.stderr:
            if line == "forward\n":
                break
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    # A signal that meets Python inside exec(), as in an import, ends it by that signal however it was handled; a shell
    # calls both 130.
    assert process.returncode in (130, -signal.SIGINT), stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_what_is_half_written(number):
    found = signal.signal(number, signal.SIG_DFL)  # whatever these tests run under, such as nohup
    before = signal.getsignal(number)

    @reports_errors
    def command():
        with cleans_up():
            try:
                os.kill(os.getpid(), number)
                time.sleep(60)
            finally:
                print("cleaned")

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    signal.signal(number, found)


@reports_errors
def _terminated():
    with cleans_up():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)


def test_a_nohup_stays_one(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with cleans_up():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(typer.Exit) as ended:  # but it can be ended
            _terminated()
        assert ended.value.exit_code == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_killed_run_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "talkies", "generate", PROMPT, "--steps", "3", "--seconds", "5"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.iterdir()):
        time.sleep(0.001)  # until the file is begun
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    if process.returncode:  # not done before the signal came
        assert (process.returncode, stderr) == (143, "cancelled\n")
    assert not [path.name for path in tmp_path.iterdir() if path.name != "clip.mp4"]


def test_a_request_is_refused_before_weights_are_read(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("talkies.engine.load.build.load", None)
    for flags, words in {
        ("--first-frame", "none.png"): "first frame none.png does not exist",
        ("--seconds", "99"): "--seconds 99 is outside",
        ("--size", "100x64"): "width=100",
    }.items():
        done = CliRunner().invoke(app, ["generate", PROMPT, *flags])
        assert done.exit_code == 2, done.output
        assert words in done.stderr


def test_what_is_changed_of_a_repeated_clip_is_all_that_changes(clip, tiny_folder, tmp_path, monkeypatch):
    source, _ = clip
    options = ["--model", str(tiny_folder), "--json", "--from"]
    made = {}
    for name, flags in {
        "tall": [str(source), "--aspect", "9:16", "--frames", "39"],
        "shorter": ["tall.mp4", "--frames", "22"],
        "ladder": ["tall.mp4", "--sigmas", "1,0.7,0.5,0.3,0"],  # not as many points as the clip had: 3
        "steps": ["ladder.mp4", "--steps", "2"],
    }.items():
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, ["generate", "-o", f"{name}.mp4", *options, *flags])
        assert done.exit_code == 0, done.stderr
        made[name] = json.loads(done.stdout)
    assert made["shorter"]["size"] == made["tall"]["size"]
    assert (made["tall"]["frames"], made["shorter"]["frames"]) == (39, 22)
    assert (made["tall"]["num_forwards"], made["ladder"]["num_forwards"], made["steps"]["num_forwards"]) == (2, 4, 1)
    assert made["steps"]["frames"] == 39


def test_a_source_is_never_overwritten(clip, tiny_folder, tmp_path, monkeypatch):
    path, _ = clip
    monkeypatch.chdir(path.parent)
    before = path.read_bytes()
    done = CliRunner().invoke(app, ["generate", "--from", "clip.mp4", "--seed", "6", "--model", str(tiny_folder)])
    assert done.exit_code == 2, done.output
    assert "output clip.mp4 is also an input" in done.stderr
    assert path.read_bytes() == before


def test_several_outputs_have_names_and_seeds(tiny_folder, tmp_path):
    options = ("--model", tiny_folder, "--frames", 22, "--steps", 2, "-n", 2, "--seed", 9, "--json")
    done = talkies("generate", PROMPT, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert [(o["path"], o["seed"]) for o in outputs] == [("clip-0.mp4", 9), ("clip-1.mp4", 10)]


def test_no_audio_writes_no_audio_stream(tiny_folder, tmp_path):
    options = ("--model", tiny_folder, "--frames", 22, "--steps", 2, "--no-audio")
    assert talkies("generate", PROMPT, *options, cwd=tmp_path).returncode == 0
    assert inspect(tmp_path / "clip.mp4").to_dict()["audio"] is None


def test_a_keyframe_by_path_is_repeatable(tiny_folder, tmp_path):
    from PIL import Image

    Image.effect_noise((80, 60), 90).convert("RGB").save(tmp_path / "first.png")
    options = ("--model", tiny_folder, "--frames", 22, "--steps", 2)
    done = talkies("generate", PROMPT, "--first-frame", "first.png", "-o", "a.mp4", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = inspect(tmp_path / "a.mp4").to_dict()
    assert report["request"]["effective"]["task"] == "fl2va"
    again = talkies("generate", "--from", "a.mp4", "-o", "b.mp4", "--model", tiny_folder, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_a_reference_without_a_mention_is_noted(tmp_path):
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "it.png")
    options = ("--frames", 22, "--steps", 2, "--reference", "it.png")
    done = talkies("generate", "it bounces", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "note: the prompt never mentions <Picture 1>" in done.stderr
    named = talkies("generate", "the object from picture 1 bounces", *options, cwd=tmp_path)
    assert "note:" not in named.stderr


def test_doctor_reports_and_exits_0(tmp_path):
    done = talkies("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["codecs"]["libx264"]
    assert report["libraries"]["torch"]
    assert report["problems"] == []
    ram = report["ram_gib"]
    assert 0 < ram["free"] <= ram["total"]
    table = talkies("doctor", cwd=tmp_path, env=os.environ | {"COLUMNS": "200"})
    assert f"of {ram['total']} GiB free" in table.stdout


def test_version_is_quick(tmp_path):
    start = time.monotonic()
    done = talkies("--version", cwd=tmp_path, env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""})
    assert done.stdout.startswith("talkies ")
    assert time.monotonic() - start < 60  # hangs only; speed is bench's affair


@pytest.mark.parametrize(
    ("comment", "shown"),
    [
        ({"talkies": "1", "request": {"prompt": "[/] a [red]ball\x1b[2J\n[/red]", "seed": 3}}, "[/] a [red]ball[2J"),
        ({"request": {"prompt": 7}}, "7"),
        ({"request": "text"}, "flags"),
        ({"request": 5}, "flags"),
    ],
)
def test_a_clip_of_anybody_can_be_looked_at(tmp_path, monkeypatch, comment, shown):
    """Brackets are rich's markup, escapes are the terminal's, and metadata can be anything."""
    monkeypatch.chdir(tmp_path)
    write_mp4("a[b].mp4", np.zeros((3, 64, 64, 3), np.uint8), None, metadata=comment)
    done = CliRunner().invoke(app, ["inspect", "a[b].mp4"])
    assert done.exit_code == 0, done.output
    assert "a[b].mp4" in done.stdout
    assert shown in done.stdout
    assert "\x1b[2J" not in done.stdout
    if not isinstance(comment["request"], dict):
        done = CliRunner().invoke(app, ["generate", "--from", "a[b].mp4"])
        assert (done.exit_code, "holds no request of talkies" in done.stderr) == (2, True)


def test_a_name_in_brackets_is_shown_whole(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--model", str(tiny_folder), "--frames", "22", "--steps", "2"]
    done = CliRunner().invoke(app, ["generate", "[/] a ball", "-o", "a[b].mp4", *options])
    assert done.exit_code == 0, done.output
    assert "a[b].mp4" in done.stderr
