"""``talkies serve``: the videos API, the page and the metrics over one model, until it is told to stop."""

from __future__ import annotations

import difflib
import os
import socket
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from talkies.cli.common import configure_logs, fail, parse_bytes, reports_errors
from talkies.errors import ConfigError, TalkiesError

if TYPE_CHECKING:
    from talkies.engine.config import EngineConfig
    from talkies.engine.port.service import EngineService
    from talkies.server.app import HttpServer

# Flags that are not ours land in the arguments, where peer_flags accepts or refuses them by name.
CONTEXT = {"ignore_unknown_options": True}


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Keys of the file become defaults: flag > environment > file > default."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        fail(ConfigError(f"cannot read {path}: {error}", hint="see talkies serve --help", param="config"))
    values = values.get("serve", values)
    known = {param.name for param in context.command.params if param.name} - {"arguments", "config"}
    defaults = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "keys are flag names"
            fail(ConfigError(f"unknown key {key!r} in {path}", hint=hint, param="config"))
        defaults[name] = value if isinstance(value, list | bool) else str(value)
    context.default_map = defaults
    return path


@reports_errors
def serve(
    context: typer.Context,
    arguments: list[str] | None = typer.Argument(None, metavar="MODEL", help="Folder or hub id; embedded if absent."),
    model: str | None = typer.Option(
        None, "--model", "--model-path", envvar="TALKIES_MODEL", help="The same as MODEL."
    ),
    config: Path | None = typer.Option(
        None, envvar="TALKIES_CONFIG", callback=_read_config, is_eager=True, help="TOML; keys are flag names."
    ),
    host: str = typer.Option("127.0.0.1", envvar="TALKIES_HOST", help="0.0.0.0 serves every network of this machine."),
    port: int = typer.Option(8000, envvar="TALKIES_PORT", min=0, max=65535, help="0 takes a free one."),
    api_key: list[str] = typer.Option(
        [], envvar=["TALKIES_API_KEY", "VLLM_API_KEY"], help="Bearer key; repeat for more. Jobs belong to their key."
    ),
    served_model_name: str | None = typer.Option(None, envvar="TALKIES_SERVED_MODEL_NAME", help="Name in the API."),
    data_dir: Path | None = typer.Option(
        None,
        envvar=["TALKIES_DATA_DIR", "VLLM_OMNI_SERVER_STORAGE__PATH", "VLLM_OMNI_STORAGE_PATH"],
        help="Jobs and videos; the XDG data folder if absent.",
    ),
    task_type: str = typer.Option(
        "combined", "--task-type", "--model-variant", envvar="TALKIES_TASK_TYPE", help="combined, fl2va or ref2va."
    ),
    policy: str = typer.Option(
        "shortest-remaining", envvar="TALKIES_POLICY", help="fifo, shortest-remaining or fair, between steps."
    ),
    max_num_seqs: int = typer.Option(1, envvar="TALKIES_MAX_NUM_SEQS", min=1, help="Requests in one packed forward."),
    max_queue: int = typer.Option(64, envvar="TALKIES_MAX_QUEUE", help="Waiting jobs before a POST is 429."),
    max_queue_s: float | None = typer.Option(None, envvar="TALKIES_MAX_QUEUE_S", help="The same in predicted seconds."),
    max_jobs_per_key: int | None = typer.Option(None, envvar="TALKIES_MAX_JOBS_PER_KEY", help="Unfinished jobs."),
    max_body_mib: int = typer.Option(64, envvar="TALKIES_MAX_BODY_MIB", min=1, help="Larger bodies are 413."),
    ttl_s: float | None = typer.Option(
        None, envvar=["TALKIES_TTL_S", "VLLM_OMNI_SERVER_STORAGE__FILE_TTL"], help="Ended jobs expire; never if absent."
    ),
    sync_timeout_s: float | None = typer.Option(
        None, envvar=["TALKIES_SYNC_TIMEOUT_S", "VLLM_OMNI_VIDEO_SYNC_TIMEOUT"], help="Of /v1/videos/sync; none."
    ),
    media_root: Path | None = typer.Option(None, envvar="TALKIES_MEDIA_ROOT", help="file:// may read below it."),
    allow_host: list[str] = typer.Option(
        [], envvar="TALKIES_ALLOW_HOST", help="Private host or network that references and webhooks may name."
    ),
    webhook_secret: str | None = typer.Option(None, envvar="TALKIES_WEBHOOK_SECRET", help="Signs webhooks."),
    device: str = typer.Option("auto", envvar="TALKIES_DEVICE", help="auto, cpu, cuda or cuda:N."),
    dtype: str = typer.Option("auto", envvar="TALKIES_DTYPE", help="auto, float32 or bfloat16."),
    attention: str = typer.Option(
        "auto",
        "--attention",
        "--diffusion-attention-backend",
        envvar=["TALKIES_ATTENTION", "DIFFUSION_ATTENTION_BACKEND"],
        help="Attention backend.",
    ),
    kernels: str = typer.Option("auto", envvar="TALKIES_KERNELS", help="auto, triton or reference."),
    quantization: str = typer.Option("none", envvar="TALKIES_QUANTIZATION", help="none, or fp8 while loading."),
    text_attention: str = typer.Option(
        "sdpa", envvar="TALKIES_TEXT_ATTENTION", help="Attention of the text encoder: sdpa or fa3."
    ),
    text_quantization: str = typer.Option(
        "none", envvar="TALKIES_TEXT_QUANTIZATION", help="The same of the text encoder: none or fp8."
    ),
    diffusion_quantization_config: str | None = typer.Option(
        None, "--diffusion-quantization-config", help="A peer's JSON for the same: method, ignored_layers."
    ),
    offload: str = typer.Option(
        "auto", envvar="TALKIES_OFFLOAD", help="auto (planned), none, layer or module; peers' switches are taken."
    ),
    offload_components: str = typer.Option(
        "dit,text,video,audio",
        "--offload-components",
        "--layerwise-offload-components",
        envvar="TALKIES_OFFLOAD_COMPONENTS",
        help="What layer and module are about.",
    ),
    diffusion_offload_config: str | None = typer.Option(
        None, "--diffusion-offload-config", help="A peer's JSON for the same: mode, components, layer_options."
    ),
    resident_blocks: int | None = typer.Option(
        None,
        "--resident-blocks",
        "--dlo-resident-layers",
        "--dit-layerwise-resident-layers",
        envvar="TALKIES_RESIDENT_BLOCKS",
        min=0,
        help="DiT blocks that stay on the GPU; planned if absent.",
    ),
    vram_budget: str | None = typer.Option(
        None, envvar="TALKIES_VRAM_BUDGET", help="Such as 12GiB: the peak stays under it, or start or job is refused."
    ),
    ram_budget: str | None = typer.Option(
        None, envvar="TALKIES_RAM_BUDGET", help="The same of host memory; on a CPU 90 % of what is free if absent."
    ),
    quantization_exclude: list[str] = typer.Option(
        [],
        envvar="TALKIES_QUANTIZATION_EXCLUDE",
        help="Linears that stay as they are, such as blocks.0.* or text_encoder.layers.0.*; repeatable.",
    ),
    cuda_graphs: str = typer.Option(
        "auto",
        envvar="TALKIES_CUDA_GRAPHS",
        help="auto: small forwards on a GPU are replayed; off, or --enforce-eager.",
    ),
    tensor_parallel_size: int | None = typer.Option(
        None,
        "--tensor-parallel-size",
        envvar="TALKIES_TENSOR_PARALLEL_SIZE",
        min=1,
        help="Devices that share the DiT's blocks; or --num-gpus, -tp.",
    ),
    threads: int | None = typer.Option(None, envvar="TALKIES_THREADS", help="CPU threads; all cores when absent."),
    hang_timeout_s: float = typer.Option(
        300.0,
        envvar="TALKIES_HANG_TIMEOUT_S",
        min=1.0,
        help="A busy worker without a sign of life for so long, or 20 predicted steps if that is longer, is replaced.",
    ),
    start_timeout_s: float = typer.Option(
        3600.0,
        envvar="TALKIES_START_TIMEOUT_S",
        min=1.0,
        help="A worker that loads, without a sign of life for so long, is given up.",
    ),
    disable_log_stats: bool = typer.Option(False, "--disable-log-stats", help="No /metrics."),
    log_level: str = typer.Option("info", envvar="TALKIES_LOG_LEVEL", help="debug, info, warning or error."),
    log_json: bool = typer.Option(False, "--log-json", envvar="TALKIES_LOG_JSON", help="One JSON object per line."),
) -> None:
    """Serve a model: POST /v1/videos, a page at /, /metrics. Flags of `vllm serve --omni` are taken where they mean
    something here and refused with the reason where not."""
    begun = time.monotonic()
    from talkies.cli import peer_flags
    from talkies.cli.peer_degrees import take_tensor_parallel
    from talkies.server.config import ServerConfig

    own = [name for param in context.command.params for name in param.opts]
    if diffusion_offload_config is not None:
        offload, named, resident = peer_flags.offload_config(diffusion_offload_config)
        offload_components = named or offload_components
        resident_blocks = resident if resident is not None else resident_blocks
    if diffusion_quantization_config is not None:
        if (quantization, text_quantization, quantization_exclude) != ("none", "none", []):
            raise ConfigError(
                "--diffusion-quantization-config and --quantization, --text-quantization or --quantization-exclude "
                "exclude each other",
                hint="give one",
                param="--diffusion-quantization-config",
            )
        quantization, text_quantization, excluded = peer_flags.quantization_config(diffusion_quantization_config)
        quantization_exclude = list(excluded)
    mode, others = peer_flags.take_offload(arguments or [], offload)
    host_bytes, others = peer_flags.take_pin_budget(others, parse_bytes("ram_budget", ram_budget))
    eager, others = peer_flags.take_eager(others)
    tensor_parallel, others = take_tensor_parallel(others, tensor_parallel_size)
    positional, notes = peer_flags.take(others, own)
    if positional is not None and model is not None and positional != model:
        raise ConfigError(f"MODEL {positional} and --model {model} differ", hint="name one", param="model")
    configure_logs(log_level, as_json=log_json)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    settings = ServerConfig(
        data_dir=(data_dir or _default_data_dir()).expanduser().absolute(),
        served_model_name=served_model_name,
        api_keys=tuple(api_key),
        max_queue=max_queue,
        max_queue_s=max_queue_s,
        max_jobs_per_key=max_jobs_per_key,
        max_body_bytes=max_body_mib << 20,
        ttl_s=ttl_s,
        sync_timeout_s=sync_timeout_s,
        media_root=None if media_root is None else media_root.absolute(),
        allow_hosts=tuple(allow_host),
        webhook_secret=webhook_secret,
        serve_metrics=not disable_log_stats,
    )
    engine = {
        "model": positional or model,
        "device": device,
        "dtype": dtype,
        "attention": attention,
        "kernels": kernels,
        "quantization": quantization,
        "text_attention": text_attention,
        "text_quantization": text_quantization,
        "quantization_exclude": tuple(quantization_exclude),
        "cuda_graphs": "off" if eager else cuda_graphs,
        "tensor_parallel": tensor_parallel,
        "threads": threads,
        "task_type": task_type,
        "offload": mode if mode is not None else offload,
        "offload_components": peer_flags.components(offload_components),
        "resident_blocks": resident_blocks,
        "vram_budget": parse_bytes("vram_budget", vram_budget),
        "ram_budget": host_bytes,
    }
    if not api_key and host not in ("127.0.0.1", "::1", "localhost"):
        print("note: no --api-key: everybody who reaches this port can make, see and delete clips", file=sys.stderr)
    listener = _listen(host, port)
    service = _build(
        engine,
        policy=policy,
        max_num_seqs=max_num_seqs,
        data_dir=settings.data_dir,
        hang_timeout_s=hang_timeout_s,
        start_timeout_s=start_timeout_s,
    )
    _run(service, settings, listener, begun)


def _build(engine: dict[str, Any], *, data_dir: Path, **options: Any) -> EngineService:
    """The engine over worker processes; imported here, since it brings torch."""
    from talkies.engine.service.executor import Executor

    # Every reference is copied below uploads/ before a job is accepted, so the engine reads nothing else.
    return Executor(engine_config(engine), data_dir=data_dir, media_root=data_dir / "uploads", **options)


def engine_config(engine: dict[str, Any]) -> EngineConfig:
    """Raises ``ConfigError``."""
    from talkies.engine.config import EMBEDDED, EngineConfig

    absent: dict[str, Any] = {"model": EMBEDDED, "threads": "auto"}
    values: dict[str, Any] = {name: absent.get(name) if value is None else value for name, value in engine.items()}
    return EngineConfig(**values)


def _run(service: EngineService, settings: Any, listener: socket.socket, begun: float) -> None:
    from talkies.server.app import HttpServer, create_app

    try:
        app = create_app(service, settings)
    except BaseException:
        service.close(timeout_s=2.0)
        raise
    server = HttpServer(app)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"talkies: http://{shown}:{port}  {app.state.coordinator.model_name}, loading", file=sys.stderr, flush=True)
    failed = threading.Event()
    threading.Thread(target=_announce, args=(service, server, begun, failed), daemon=True).start()
    server.run(sockets=[listener])
    if failed.is_set() or not server.started:
        raise TalkiesError("the engine did not start", hint="its error is in the lines above")


def _announce(service: EngineService, server: HttpServer, begun: float, failed: threading.Event) -> None:
    """Says when requests are served, and ends a server whose engine never came up."""
    while service.state == "loading" or not (server.started or server.should_exit):
        time.sleep(0.02)
    if service.state == "ready":
        print(f"talkies: ready after {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
    elif not server.should_exit:
        failed.set()
        server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Bound before anything is loaded: a taken port is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another --port or --host",
            param="port",
        ) from None
    listener.set_inheritable(False)
    return listener


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return Path(base) / "talkies" if base else Path.home() / ".local" / "share" / "talkies"
