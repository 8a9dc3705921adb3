"""``talkies serve`` and ``talkies jobs``: flags, environment, file, and a server in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from talkies.cli import jobs, serve
from talkies.cli.peers.take import PEER_FLAGS
from tests.server.conftest import Server
from tests.server.fakes import FakeService

app = typer.Typer(pretty_exceptions_enable=False)
app.command("serve", cls=serve.ServeCommand, context_settings=serve.CONTEXT)(serve.serve)
app.add_typer(jobs.app, name="jobs")
run = CliRunner().invoke


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What serve() would have run."""
    seen: dict[str, Any] = {}

    def build(engine: dict[str, Any], **options: Any) -> FakeService:
        serve.engine_config(engine)
        seen.update(engine=engine, **options)
        return FakeService()

    def start(service: Any, settings: Any, listener: Any, begun: float) -> None:
        listener.close()
        service()
        seen["settings"] = settings

    monkeypatch.setattr(serve, "_build", build)
    monkeypatch.setattr(serve, "_run", start)
    monkeypatch.setattr("talkies.server.logs.configure", lambda **_: None)
    for name in [name for name in os.environ if name.startswith(("TALKIES_", "VLLM_"))]:
        monkeypatch.delenv(name)
    return seen


@pytest.mark.parametrize(
    ("flags", "graphs"),
    [
        ("--omni --enforce-eager", "off"),
        ("--cuda-graphs off", "off"),
        ("--cuda-graphs auto --enforce-eager", "off"),
        ("", "auto"),
    ],
)
def test_a_peers_switch_turns_cuda_graphs_off(started: dict[str, Any], flags: str, graphs: str) -> None:
    result = run(app, ["serve", "--port", "0", *flags.split()])
    assert result.exit_code == 0, result.output
    assert started["engine"]["cuda_graphs"] == graphs
    assert "--enforce-eager" not in PEER_FLAGS  # nobody else takes it and drops it
    assert run(app, ["serve", "--port", "0", "--cuda-graphs", "on"]).exit_code == 2


def test_a_vllm_omni_launch_line_starts_the_same_service(started: dict[str, Any], tmp_path: Path) -> None:
    line = "serve weights/H3 --omni --port 0 --served-model-name MiniMax-H3 --task-type fl2va --max-num-seqs 4"
    line += " --step-execution --usp 1 --tensor-parallel-size=1 --diffusion-attention-backend TORCH_SDPA"
    line += " --vram-budget 1.5GiB --hang-timeout-s 60 --start-timeout-s 900"
    line += f" --api-key one --api-key two --data-dir {tmp_path}"
    result = run(app, line.split())
    assert result.exit_code == 0, result.output
    settings = started["settings"]
    assert started["engine"]["model"] == "weights/H3"
    engine = started["engine"]
    assert (engine["vram_budget"], engine["ram_budget"]) == (3 << 29, None)
    assert (started["hang_timeout_s"], started["start_timeout_s"]) == (60.0, 900.0)
    assert (started["engine"]["attention"], started["max_num_seqs"]) == ("TORCH_SDPA", 4)  # the registry's alias
    assert (settings.served_model_name, settings.api_keys) == ("MiniMax-H3", ("one", "two"))
    assert (started["engine"]["task_type"], settings.data_dir) == ("fl2va", tmp_path)
    assert "note: --step-execution: already so" in result.output


def test_an_sglang_launch_line_starts_the_same_service(started: dict[str, Any]) -> None:
    line = "serve --model-path weights/H3 --model-variant ref2va --num-gpus 2 --tp-size 2 --ulysses-degree 1 --port 0"
    line += " --performance-mode auto --encoder-parallel auto --layerwise-offload-components dit,text_encoder,vae"
    line += " --dit-layerwise-resident-layers 8"
    result = run(app, line.split())
    assert result.exit_code == 0, result.output
    engine = started["engine"]
    assert (engine["model"], engine["task_type"], engine["tensor_parallel"]) == ("weights/H3", "ref2va", 2)
    assert (engine["offload_components"], engine["resident_blocks"]) == (("dit", "text", "video", "audio"), 8)


def test_the_text_encoder_has_a_precision_and_an_attention_of_its_own(started: dict[str, Any]) -> None:
    result = run(app, ["serve", "--text-quantization", "fp8", "--quantization-exclude", "text_encoder.layers.0.*"])
    assert result.exit_code == 0, result.output
    engine = started["engine"]
    assert (engine["quantization"], engine["text_quantization"]) == ("none", "fp8")
    assert (engine["text_attention"], engine["quantization_exclude"]) == ("sdpa", ("text_encoder.layers.0.*",))
    peer = '{"transformer": {"method": "fp8"}, "text_encoder": {"method": "fp8", "ignored_layers": ["layers.1.*"]}}'
    result = run(app, ["serve", "--text-attention", "fa3", "--diffusion-quantization-config", peer])
    assert result.exit_code == 0, result.output
    engine = started["engine"]
    assert (engine["quantization"], engine["text_quantization"]) == ("fp8", "fp8")
    assert (engine["text_attention"], engine["quantization_exclude"]) == ("fa3", ("text_encoder.layers.1.*",))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--enable-layerwise-offload", ("layer", None, None)),
        ("--enable-cpu-offload", ("module", None, None)),
        (
            "--enable-distributed-layerwise-offload --dlo-no-use-allgather --dlo-resident-layers 12"
            " --dlo-chunk-size-mb 64 --dlo-pin-failure-policy fail --dlo-pin-budget-gb 40 --tensor-parallel-size 1",
            ("layer", 12, 40_000_000_000),
        ),
        ("--enable-distributed-layerwise-offload --dlo-use-allgather --num-gpus 1", ("layer", None, None)),
    ],
)
def test_peers_offload_on_one_device_is_ours(started: dict[str, Any], flags: str, expected: tuple[object, ...]) -> None:
    result = run(app, ["serve", "--port", "0", *flags.split()])
    assert result.exit_code == 0, result.output
    engine = started["engine"]
    assert (engine["offload"], engine["resident_blocks"], engine["ram_budget"]) == expected


@pytest.mark.parametrize(
    ("flags", "degree"),
    [
        ("", 1),
        ("--tensor-parallel-size 2", 2),
        ("-tp 2", 2),
        ("--tp-size=4 --num-gpus 4", 4),
        ("--num-gpus 2 --enable-distributed-layerwise-offload --dlo-no-use-allgather", 2),
    ],
)
def test_peers_words_for_several_devices(started: dict[str, Any], flags: str, degree: int) -> None:
    result = run(app, ["serve", "--port", "0", *flags.split()])
    assert result.exit_code == 0, result.output
    assert started["engine"]["tensor_parallel"] == degree


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--allgather-degree 2", "--allgather-degree 2 is not available: several devices share a model by"),
        ("--usp 2 --ulysses-degree 4", "--ulysses-degree 4 and --usp 2 differ (give one of them)"),
        ("--usp 2 --num-gpus 4", "--num-gpus 4 differs from what --usp 2 need, 2"),
        ("--sp-degree 4 --usp 3", "--sp-degree 4 is not the product of the Ulysses and ring degrees"),
        ("--ring none", "--ring none is no number of devices (1 or more)"),
        ("--cache-backend cache_dit", "step caches are chosen by each request"),
        ("--lora-path x.safetensors", "adapters have names here: --adapter NAME=PATH:STRENGTH"),
        ("--diffusion-kv-cache-skip-steps 2", "--attention fa3-fp8 chooses its own steps"),
        ("--enable-layerwise-offload --enable-cpu-offload", "exclude each other"),
        ("--enable-torch-compile true", "nothing is compiled (leave it out, or use false)"),
        ("-tp 4 --num-gpus 2", "--num-gpus 2 differs from what -tp 4 need, 4"),
        ("-tp some", "-tp some is no number of devices (1 or more)"),
        (
            "--tp-size 2 --dlo-use-allgather",
            "gathers whole blocks, and with 2 devices each streams its own weights",
        ),
        ("--dlo-pin-budget-gb 9 --ram-budget 12GiB", "differ"),
        ("--dlo-chunk-size-mb 128", "a block crosses as one copy (leave it out, or use 64)"),
        ("--max-num-sequences 2", "did you mean --max-num-seqs?"),
        ("one two", "one model is served, got one, two"),
        ("one --model two", "differ"),
        ("--ram-budget lots", "--ram-budget 'lots' is not a size (for example 12GiB)"),
        ("--vram-budget 0GiB", "is not a size"),
        ("--task-type t2va", "combined, fl2va or ref2va"),
        ("--max-queue 0", "--max-queue 0 is under 1"),
        ("--webhook-secret short", "under 16 characters"),
        ("--media-root /nowhere/at/all", "not a folder"),
        ("--log-level loud", "debug, info, warning or error"),
    ],
)
def test_flags_without_a_meaning_are_refused_by_name(started: dict[str, Any], flags: str, words: str) -> None:
    result = run(app, ["serve", "--port", "0", *flags.split()])
    assert result.exit_code == 2, result.output
    assert words in result.output.replace("\n", " ")
    assert "settings" not in started


def test_flag_beats_environment_beats_file(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talkies.toml"
    file.write_text(
        '[serve]\nport = 0\nmax-queue = 7\nttl_s = 60\npolicy = "fair"\napi-key = ["a", "b"]\n'
        f'data-dir = "{tmp_path}"\n'
    )
    monkeypatch.setenv("TALKIES_TTL_S", "90")
    monkeypatch.setenv("VLLM_API_KEY", "from-env")
    result = run(app, ["serve", "--config", str(file), "--max-queue", "9"])
    assert result.exit_code == 0, result.output
    settings = started["settings"]
    assert (settings.max_queue, settings.ttl_s, started["policy"]) == (9, 90.0, "fair")
    assert settings.api_keys == ("from-env",)
    monkeypatch.delenv("VLLM_API_KEY")
    assert run(app, ["serve", "--config", str(file)]).exit_code == 0
    assert (started["settings"].api_keys, started["settings"].max_queue) == (("a", "b"), 7)
    file.write_text("max_que = 1\n")
    result = run(app, ["serve", "--config", str(file)])
    assert (result.exit_code, "did you mean max_queue?" in result.output) == (2, True)


def test_a_taken_port_is_told_before_anything_loads(started: dict[str, Any], server: Server) -> None:
    result = run(app, ["serve", "--port", server.url.rpartition(":")[2]])
    assert (result.exit_code, "cannot listen" in result.output) == (2, True)


def test_jobs_list_watch_and_cancel(server: Server) -> None:
    made = [server.create("a ball"), server.create("fail"), server.create("slow")]
    assert run(app, ["jobs", "watch", made[0]["id"], "--url", server.url]).exit_code == 0
    failed = run(app, ["jobs", "watch", made[1]["id"], "--url", server.url])
    assert (failed.exit_code, "failed" in failed.output) == (1, True)
    listed = run(app, ["jobs", "list", "--json", "--limit", "2", "--url", server.url])
    assert [json.loads(line)["id"] for line in listed.output.splitlines()] == [made[2]["id"], made[1]["id"]]
    assert made[2]["id"] in run(app, ["jobs", "list", "--url", server.url]).output
    cancelled = run(app, ["jobs", "cancel", made[2]["id"], "--url", server.url])
    assert (cancelled.exit_code, "deleted" in cancelled.output) == (0, True)
    gone = run(app, ["jobs", "cancel", made[2]["id"], "--url", server.url])
    assert (gone.exit_code, "Video not found" in gone.output) == (2, True)
    nobody = run(app, ["jobs", "list", "--url", "http://127.0.0.1:9"])
    assert (nobody.exit_code, "cannot reach http://127.0.0.1:9" in nobody.output) == (1, True)


def test_a_listed_prompt_is_one_line_that_a_terminal_cannot_obey(server: Server) -> None:
    job = server.create("a red\r\nball \x1b[31m\u202ewith a bell")
    lines = run(app, ["jobs", "list", "--url", server.url]).output.splitlines()
    assert [line.startswith(job["id"]) for line in lines] == [True]
    assert lines[0].endswith("a red ball [31mwith a bell")


def test_an_id_stays_inside_its_path(server: Server) -> None:
    result = run(app, ["jobs", "cancel", "../../health", "--url", server.url])
    assert (result.exit_code, "DELETE /v1/videos/../../health" in result.output) == (2, True)


SCRIPT = """
from talkies.cli import serve
from tests.server.fakes import FakeService
from tests.server.test_cli import app
serve._build = lambda engine, **options: FakeService()
app()
"""


def test_the_process_announces_itself_serves_and_stops(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, "serve", "--port", "0", "--data-dir", str(tmp_path), "--log-json"]
    child = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        # a shell's background job ignores the signal, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # type: ignore[arg-type,return-value]
    try:
        assert child.stderr is not None
        lines = []
        while not any("ready after" in line for line in lines):
            lines.append(child.stderr.readline())
            assert lines[-1], lines
        url = re.search(r"http://[^\s\"]+", "".join(lines))
        assert url
        watched = run(app, ["jobs", "list", "--url", url[0]])
        assert (watched.exit_code, watched.output) == (0, "")
    finally:
        begun = time.monotonic()
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=10)[1]
    assert child.returncode == 130
    assert time.monotonic() - begun < 5
    said = [json.loads(line) for line in (*lines, *rest.splitlines())]
    assert all({"event", "level", "timestamp"} <= set(line) for line in said)
    events = [line["event"] for line in said]
    assert events[-1] == "cancelled"
    assert any("GET /v1/videos 200" in event for event in events)


def test_the_server_process_imports_no_torch() -> None:
    code = "import sys, talkies.cli.serve, talkies.cli.jobs; assert 'httpx' not in sys.modules; "
    code += "import talkies.server.app; "
    code += "print([m for m in ('torch', 'transformers', 'diffusers', 'av', 'numpy', 'PIL') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
