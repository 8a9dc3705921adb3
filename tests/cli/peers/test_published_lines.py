"""Every published start line either starts the service that it means, or hears at once all that stands against it."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from talkies.cli import serve
from tests.cli.peers.published import SGLANG_DIFFUSION, VLLM_OMNI
from tests.server.fakes import FakeService

app = typer.Typer(pretty_exceptions_enable=False)
app.command("serve", cls=serve.ServeCommand, context_settings=serve.CONTEXT)(serve.serve)
app.command("other")(lambda: None)

LINES = {("vLLM-Omni", name): line for name, line in VLLM_OMNI.items()} | {
    ("SGLang", name): line for name, line in SGLANG_DIFFUSION.items()
}
# What stands against a line; the others start.
REFUSED = {
    "H3, FastH3": {"--lora-path"},
    "H3, attention of two roles": {"--diffusion-attention-config"},
    "H3 A100, replicas": {"--data-parallel-size", "--num-gpus"},
    "cookbook, FSDP": {"--use-fsdp-inference"},
    "sequence parallelism, two machines": {"--nnodes", "--dist-init-addr"},
    "components in files of their own": {
        "--component-weights-paths.transformer",
        "--component-weights-paths.text_encoder",
    },
    "sparse attention": {"--component-attention-backends", "--attention-backend-config"},
}


@pytest.fixture
def start(monkeypatch, tmp_path):
    for name in ("TALKIES_MODEL", "TALKIES_CONFIG", "VLLM_API_KEY", "DIFFUSION_ATTENTION_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    seen = {}

    def build(engine, **options):
        serve.engine_config(engine)
        seen.update(engine=engine, **options)
        return FakeService()

    monkeypatch.setattr(serve, "_build", build)
    monkeypatch.setattr(serve, "_listen", lambda host, port: None)

    def ready(service, settings, listener, begun):
        service()
        seen.update(settings=settings)

    monkeypatch.setattr(serve, "_run", ready)
    monkeypatch.setattr("talkies.server.logs.configure", lambda **_: None)

    def run(line):
        seen.clear()
        result = CliRunner().invoke(app, ["serve", *shlex.split(line), "--data-dir", str(tmp_path)])
        return result, seen

    return run


def refused(output):
    """The flags of all refusals."""
    flags = set()
    for line in output.splitlines():
        if line.startswith("error: "):
            flags.add(re.search(r"-{1,2}[a-z][\w.-]*", line)[0])
    return flags


@pytest.mark.parametrize(("peer", "name"), LINES)
def test_a_published_line_starts_or_hears_everything(start, peer, name):
    result, seen = start(LINES[peer, name])
    against = REFUSED.get(name, set())
    assert refused(result.output) == against, result.output
    assert result.exit_code == (2 if against else 0), (result.output, result.exception)
    assert ("engine" in seen) == (not against)


def test_what_is_refused_is_a_line():
    assert REFUSED.keys() <= {name for _, name in LINES}


@pytest.mark.parametrize(
    ("peer", "name", "expected"),
    [
        ("vLLM-Omni", "H3, one GPU by layers", {"offload": "layer", "offload_components": ("dit", "text")}),
        ("vLLM-Omni", "H3, one GPU by layers", {"task_type": "fl2va", "cuda_graphs": "off", "attention": "FLASH_ATTN"}),
        ("vLLM-Omni", "H3, one GPU by modules", {"offload": "module", "tensor_parallel": 1}),
        ("vLLM-Omni", "H3, two GPUs of 24 or 32 GB", {"tensor_parallel": 2, "offload": "layer", "resident_blocks": 20}),
        ("vLLM-Omni", "H3, fp8 of the DiT", {"quantization": "fp8", "text_quantization": "none"}),
        ("vLLM-Omni", "H3, VAEs in host memory", {"offload_components": ("dit", "text", "video", "audio")}),
        ("vLLM-Omni", "H3, four GPUs and the encoder on four", {"tensor_parallel": 1, "ulysses_degree": 4}),
        ("vLLM-Omni", "H3 H20-3e, eight GPUs", {"tensor_parallel": 2, "ulysses_degree": 4, "ring_degree": 1}),
        ("SGLang", "cookbook, quality", {"tensor_parallel": 1, "ulysses_degree": 4, "ring_degree": 1}),
        ("SGLang", "cookbook, four H100", {"tensor_parallel": 2, "ulysses_degree": 2, "ring_degree": 1}),
        ("vLLM-Omni", "four L40S (issue 5700)", {"tensor_parallel": 4, "offload": "module"}),
        ("SGLang", "cookbook, TP4", {"tensor_parallel": 4, "offload": "auto", "task_type": "fl2va"}),
        ("SGLang", "cookbook, two RTX 5090", {"tensor_parallel": 2, "offload": "layer", "resident_blocks": 20}),
        ("SGLang", "one GPU (a user's)", {"offload": "layer", "tensor_parallel": 1}),
    ],
)
def test_a_line_that_starts_means_the_same_here(start, peer, name, expected):
    _, seen = start(LINES[peer, name])
    assert {key: seen["engine"][key] for key in expected} == expected


def test_several_names_after_one_flag_are_names(start):
    result, seen = start(LINES["vLLM-Omni", "profiled, with patience (a user's)"])
    assert seen["engine"]["model"] == "MiniMaxAI/MiniMax-H3"
    assert (seen["settings"].served_model_name, seen["settings"].model_aliases) == ("h3", ("MiniMax-H3",))
    assert "note: --init-timeout 3600: without effect" in result.output
    assert "note: --uvicorn-log-level warning: without effect, uvicorn's own lines follow --log-level" in result.output
    _, seen = start("--served-model-name h3 weights/H3")  # nothing else on the line can be the model
    assert (seen["engine"]["model"], seen["settings"].served_model_name) == ("weights/H3", "h3")
    _, seen = start("--served-model-name h3 also weights/H3 --port 1")
    assert (seen["engine"]["model"], seen["settings"].model_aliases) == ("weights/H3", ("also",))
    _, seen = start("--model weights/H3 --served-model-name h3 also --api-key one two")
    assert (seen["settings"].model_aliases, seen["settings"].api_keys) == (("also",), ("one", "two"))


def test_all_that_is_wrong_is_told_at_once(start):
    result, seen = start(
        "one --usp some --max-queue 0 --lora-path a b --ram-budget lots --bad x --policy any --port 70000"
    )
    assert (result.exit_code, seen) == (2, {})
    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    for words in (
        "--usp some",
        "--max-queue 0",
        "--lora-path a b",
        "--ram-budget 'lots'",
        "--bad",
        "--policy 'any'",
        "--port 70000",
    ):
        assert sum(words in line for line in errors) == 1, (words, errors)
    assert len(errors) == 7


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--boundary-ratio 0.875", "each task has one DiT"),
        ("""--default-sampling-params '{"0":{"num_inference_steps":50}}'""", "requests say what they want"),
        ("--middleware my.Own", "put a proxy before it"),
        ("--ssl-ca-certs ca.pem", "clients are known by --api-key"),
        ("--allow-credentials", "keys travel in the Authorization header"),
        ("""--allowed-methods '["GET"]'""", """leave it out, or use * or ["*"]"""),
        ("--h11-max-header-count 64", "bound headers"),
        ("--gpu-memory-utilization 0.9", "use --vram-budget"),
        ("--dit-offload-prefetch-size 4", "one block is on its way while one computes (leave it out, or use 1"),
        ("--performance-mode speedy", "the planner takes the fastest placement that fits"),
        ("--performance-mode memory --offload none", "exclude each other"),
        ("--text-encoder-cpu-offload --offload none", "exclude each other"),
        ("--model-type llm", "picture and sound"),
        ("--uds /tmp/s", "--host and --port"),
        ("--lora-nickname x", "adapters have names here"),
    ],
)
def test_what_is_not_taken_has_its_reason(start, flags, words):
    result, _ = start(flags)
    assert result.exit_code == 2, result.output
    assert words in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--text-encoder-cpu-offload", ("module", ("text",))),
        ("--text-encoder-cpu-offload true --vae-cpu-offload", ("module", ("text", "video", "audio"))),
        ("--dit-layerwise-offload true --text-encoder-cpu-offload false", ("layer", ("dit",))),
        ("--vae-cpu-offload false", ("auto", ("dit", "text", "video", "audio"))),
        ("--performance-mode memory", ("layer", ("dit", "text", "video", "audio"))),
        ("--performance-mode=memory --enable-cpu-offload", ("module", ("dit", "text", "video", "audio"))),
        ("--performance-mode speed", ("auto", ("dit", "text", "video", "audio"))),
        ("--layerwise-offload-components dit --offload layer --vae-cpu-offload", ("layer", ("dit", "video", "audio"))),
    ],
)
def test_sglangs_words_for_where_weights_live(start, flags, expected):
    result, seen = start(flags)
    assert result.exit_code == 0, result.output
    assert (seen["engine"]["offload"], seen["engine"]["offload_components"]) == expected


@pytest.mark.parametrize(
    "flags",
    [
        "--enable-torch-compile false",
        "--trust-remote-code",
        "--sp-attention-mode ulysses",
        "--allowed-methods '[\"*\"]'",
        "--ssl-cert-reqs 0",
        "--disable-log-requests",
        "--dp-size 1",
        "--pin-cpu-memory",
        "--model-type auto",
    ],
)
def test_what_is_already_so_is_a_note(start, flags):
    result, _ = start(flags)
    assert result.exit_code == 0, result.output
    assert f"note: {shlex.split(flags)[0]}" in result.output
    assert "already so" in result.output


PAGE = Path(__file__).parents[3] / "docs" / "start-lines.md"


def test_the_documents_say_what_becomes_of_every_line(start):
    """The rows of the table in docs/start-lines.md, made anew."""
    text = PAGE.read_text()
    for (peer, name), line in LINES.items():
        result, _ = start(line)
        against = ", ".join(f"`{flag}`" for flag in sorted(refused(result.output)))
        becomes = f"refused: {against}" if against else f"starts{_notes(result.output)}"
        assert f"| {peer} | {name} | {becomes} |" in text, (peer, name, becomes)


def _notes(output):
    names = [found[1] for found in re.finditer(r"^note: (\S+).*: without effect", output, re.MULTILINE)]
    return f"; without effect: {', '.join(f'`{name}`' for name in names)}" if names else ""
