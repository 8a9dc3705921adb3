"""Every option of the table is reached in every way: flags, environment, TOML and ``Engine.open``, with one meaning."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from talkies import Engine
from talkies.adapters.named_path import NamedPath
from talkies.cli import app, generate, serve
from talkies.engine.config import EngineConfig, embedded_folder
from talkies.engine.load import build, checkpoint
from talkies.engine.options import OPTIONS
from talkies.errors import ConfigError
from tests.server.fakes import FakeService

# (as typed, as the engine has it, what is wrong) of each option
SAMPLES = {
    "model": ("h3-tiny", "h3-tiny", None),
    "task_type": ("fl2va", "fl2va", "t2va"),
    "quantization": ("fp8", "fp8", "int4"),
    "text_quantization": ("fp8", "fp8", "int4"),
    "quantization_exclude": ("blocks.0.*", ("blocks.0.*",), None),
    "adapters": ("film=a,b.safetensors:0.5", (NamedPath("film", "a,b.safetensors", 0.5),), "film"),
    "step_caches": ("caches.json", "caches.json", None),
    "offload": ("layer", "layer", "disk"),
    "offload_components": ("dit,vae", ("dit", "video", "audio"), "unet"),
    "resident_blocks": ("2", 2, "-1"),
    "vram_budget": ("12GiB", 12 << 30, "lots"),
    "ram_budget": ("800MiB", 800 << 20, "0GiB"),
    "mlp_rows": ("128", 128, "3"),
    "head_groups": ("2", 2, "0"),
    "device": ("cpu", "cpu", ""),
    "num_gpus": ("2", 2, "65"),
    "tensor_parallel": ("2", 2, "65"),
    "text_tensor_parallel": ("2", 2, "65"),
    "ulysses_degree": ("2", 2, "0"),
    "ring_degree": ("2", 2, "65"),
    "threads": ("3", 3, "0"),
    "dtype": ("float32", "float32", "float16"),
    "attention": ("sdpa", "sdpa", None),
    "revision": ("v1.0", "v1.0", ""),
    "text_attention": ("sdpa", "sdpa", None),
    "kernels": ("reference", "reference", None),
    "cuda_graphs": ("off", "off", "on"),
    "isolate": ("modality", "modality", "all"),
}
# What means nothing alone: an exclusion, and a share of the encoder without other devices.
BESIDE = {"quantization_exclude": ("--quantization", "fp8"), "text_tensor_parallel": ("--ulysses-degree", "2")}


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Runs a command until it would load: (exit code, what it says, the engine's config)."""
    for name in [name for name in os.environ if name.startswith(("TALKIES_", "VLLM_", "DIFFUSION_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(generate, "make", lambda config, *_, **__: seen.append(config))
    monkeypatch.setattr(serve, "_build", lambda engine, **_: seen.append(serve.engine_config(engine)) or FakeService())
    monkeypatch.setattr(checkpoint, "locate", lambda *_, **__: embedded_folder())  # the embedded one has no revisions
    monkeypatch.setattr(serve, "_listen", lambda *_: None)
    monkeypatch.setattr(serve, "_run", lambda service, *_: service())
    monkeypatch.setattr("talkies.server.logs.configure", lambda **_: None)

    def run(command, *words, env=None):
        seen.clear()
        first = ["generate", "a ball"] if command == "generate" else ["serve", "--data-dir", str(tmp_path / "data")]
        done = CliRunner().invoke(app, [*first, *words], env=env)
        return done, (seen[0] if seen else None)

    return run


def test_there_is_a_sample_of_each():
    assert SAMPLES.keys() == OPTIONS.keys()


@pytest.mark.parametrize("command", ["generate", "serve"])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_reached_by_flag_environment_and_file(started, tmp_path, command, name):
    option, (typed, value, _) = OPTIONS[name], SAMPLES[name]
    beside = BESIDE.get(name, ())
    done, config = started(command, option.flag, typed, *beside)
    assert done.exit_code == 0, done.output
    assert getattr(config, name) == value
    for variable in option.environment:
        done, config = started(command, *beside, env={variable: typed})
        assert done.exit_code == 0, done.output
        assert getattr(config, name) == value, variable
    file = tmp_path / "talkies.toml"
    for text in (f"{option.flag[2:]} = {json.dumps(typed)}", f"[{command}]\n{name} = {json.dumps(typed)}"):
        file.write_text(text)
        done, config = started(command, "--config", str(file), *beside)
        if option.flag[2:].replace("-", "_") != name and text.startswith("["):
            continue  # keys are flag names
        assert done.exit_code == 0, done.output
        assert getattr(config, name) == value, text
    for peer in option.peers:
        done, config = started(command, peer, typed, *beside)
        assert done.exit_code == 0, (peer, done.output)
        assert getattr(config, name) == value, peer


@pytest.mark.parametrize("name", OPTIONS)
def test_engine_open_takes_it_with_the_same_default(monkeypatch, name):
    opened = []
    monkeypatch.setattr(build, "load", lambda config: opened.append(config))
    typed, value, _ = SAMPLES[name]
    flag, other = BESIDE.get(name, ("", None))
    beside = {flag.removeprefix("--").replace("-", "_"): other} if flag else {}
    Engine.open(**{name: typed}, **beside)
    Engine.open(**{name: value}, **beside)
    Engine.open(**{name: None})
    assert [getattr(config, name) for config in opened] == [value, value, OPTIONS[name].default]
    parameter = inspect.signature(Engine.open).parameters[name]
    assert parameter.default == (None if name == "model" else OPTIONS[name].default)


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_nothing_said_is_the_default_everywhere(started, command):
    done, config = started(command)
    assert done.exit_code == 0, done.output
    loads = "fl2va" if command == "generate" else "combined"  # one clip needs one DiT
    assert config == EngineConfig(task_type=loads)


@pytest.mark.parametrize("name", [name for name in OPTIONS if SAMPLES[name][2] is not None])
def test_a_wrong_value_is_refused_in_the_same_words_everywhere(started, tmp_path, name):
    option, wrong = OPTIONS[name], SAMPLES[name][2]
    with pytest.raises(ConfigError) as caught:
        Engine.open(**{name: wrong})
    assert caught.value.param == name
    words = str(caught.value).replace(f"{name}=", f"{option.flag} ")  # the flag is what a command line calls it
    file = tmp_path / "talkies.toml"
    file.write_text(f"{option.flag[2:]} = {json.dumps(wrong)}")
    for command in ("generate", "serve"):
        ways = [((f"{option.flag}={wrong}",), None), (("--config", str(file)), None)]
        if wrong:  # an empty variable is none
            ways.append(((), {option.environment[0]: wrong}))
        for flags, env in ways:
            done, config = started(command, *flags, env=env)
            assert (done.exit_code, config) == (2, None), (command, flags, env, done.output)
            assert words in done.stderr, (command, flags, env)
            assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_flag_beats_environment_beats_file_beats_default(started, tmp_path):
    (tmp_path / "t.toml").write_text('threads = 2\nport = 9\n[generate]\nthreads = 3\n[serve]\nthreads = "4"\n')
    config = "--config", "t.toml"
    env = {"TALKIES_THREADS": "5"}
    assert started("generate", *config, "--threads", "6", env=env)[1].threads == 6
    assert started("generate", *config, env=env)[1].threads == 5
    assert started("generate", *config)[1].threads == 3
    assert started("serve", *config)[1].threads == 4
    assert started("generate", env={"TALKIES_CONFIG": "t.toml"})[1].threads == 3  # port is serve's, not unknown
    (tmp_path / "t.toml").write_text("[generate]\nport = 9\n")
    done, _ = started("generate", *config)
    assert done.exit_code == 2
    assert "unknown key 'port'" in done.stderr


@pytest.mark.parametrize("words", [["serve"], ["generate"], ["plan"], ["bench", "forward"], ["bench", "e2e"]])
def test_help_has_panels_and_cuts_no_name_in_80_columns(words):
    env = os.environ | {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "talkies", *words, "--help"], capture_output=True, text=True, env=env, check=True
    )
    assert "…" not in done.stdout
    command = app_command(words)
    for param in command.params:
        if param.param_type_name == "option":
            long = next(flag for flag in param.opts if flag.startswith("--"))
            assert f" {long} " in done.stdout, long
    panels = [line.split("─ ")[1].split(" ─")[0] for line in done.stdout.splitlines() if line.startswith("╭─ ")]
    expected = {
        "serve": ["Model", "Memory", "Server", "Devices", "Advanced"],
        "generate": ["Request", "Several clips", "Conditions", "Advanced", "Model", "Memory", "Devices"],
        "plan": ["Devices", "Request", "Conditions", "Advanced", "Model", "Memory"],
    }
    if words[0] in expected:
        assert set(panels) - {"Arguments", "Options"} == set(expected[words[0]])
    assert max(map(len, done.stdout.splitlines())) <= 80


def app_command(words):
    import typer

    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return command


def test_a_bench_takes_the_engines_options(monkeypatch):
    seen = {}
    monkeypatch.setattr("talkies.benchmarks.report.e2e", lambda **values: seen.update(values) or {})
    done = CliRunner().invoke(app, ["bench", "e2e", "--offload", "layer", "--vram-budget", "12GiB", "--json"])
    assert done.exit_code == 0, done.output
    assert (seen["offload"], seen["vram_budget"]) == ("layer", "12GiB")


def test_generate_loads_the_dit_of_its_task(monkeypatch, tmp_path):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64), "red").save("it.png")
    opened = []
    load = build.load
    monkeypatch.setattr(build, "load", lambda *args, **more: opened.append(load(*args, **more)) or opened[-1])
    for flags, dits in (
        ((), ["fl2va"]),
        (("--reference", "it.png"), ["ref2va"]),
        (("--task-type", "combined"), ["fl2va", "ref2va"]),
    ):
        done = CliRunner().invoke(app, ["generate", "picture 1", "--frames", "22", "--steps", "2", *flags])
        assert done.exit_code == 0, done.output
        assert list(opened[-1].dits) == dits
    done = CliRunner().invoke(app, ["generate", "a ball", "--task-type", "ref2va"])
    assert done.exit_code == 2, done.output
    assert "t2va" in done.stderr


def test_the_command_line_starts_without_torch():
    code = "import sys, talkies.cli, talkies.engine.options, talkies.cli.peers.line; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert Path(serve.__file__).is_file()
