"""``talkies serve``: the videos API, the page and the metrics over one model, until it is told to stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from talkies.cli.common import Refusals, check_log_level, check_range, configure_logs, reports_errors, say
from talkies.cli.engine_flags import takes_engine_options
from talkies.cli.help_page import Command
from talkies.cli.peers.words import one_value_each
from talkies.cli.run_server import build as _build
from talkies.cli.run_server import engine_config as engine_config
from talkies.cli.run_server import listen as _listen
from talkies.cli.run_server import run as _run
from talkies.engine.options import OPTIONS, EngineOptions
from talkies.errors import ConfigError
from talkies.files.home import base_folder, expanded

if TYPE_CHECKING:
    from talkies.engine.port.service import EngineService
    from talkies.server.config import ServerConfig

# Flags that are not ours land in the arguments, where the peers' tables accept or refuse them by name.
CONTEXT = {"ignore_unknown_options": True}
MODEL, MEMORY, SERVER, ADVANCED = "Model", "Memory", "Server", "Advanced"  # panels of --help
SEVERAL = ("--served-model-name", "--api-key")  # a peer takes several words after one of them


class ServeCommand(Command):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, one_value_each(args, SEVERAL, models=("--model", *OPTIONS["model"].peers)))


@reports_errors
@takes_engine_options(without_peers=("tensor_parallel", "ulysses_degree", "ring_degree"))
def serve(
    context: typer.Context,
    arguments: list[str] | None = typer.Argument(
        None, metavar="MODEL", help="A folder or hub id; the embedded checkpoint if absent."
    ),
    diffusion_quantization_config: str | None = typer.Option(
        None,
        "--diffusion-quantization-config",
        metavar="JSON",
        help="A peer's JSON of precisions: method and ignored_layers of transformer and text_encoder.",
        rich_help_panel=MODEL,
    ),
    diffusion_offload_config: str | None = typer.Option(
        None,
        "--diffusion-offload-config",
        metavar="JSON",
        help="A peer's JSON of where weights live: mode, components, layer_options.",
        rich_help_panel=MEMORY,
    ),
    host: str = typer.Option(
        "127.0.0.1",
        envvar="TALKIES_HOST",
        metavar="ADDRESS",
        help="The address to listen on; 0.0.0.0 serves every network of this machine.",
        rich_help_panel=SERVER,
    ),
    port: int = typer.Option(
        8000,
        envvar="TALKIES_PORT",
        metavar="N",
        help="The port to listen on; 0 takes a free one.",
        rich_help_panel=SERVER,
    ),
    root_path: str = typer.Option(
        "",
        envvar="TALKIES_ROOT_PATH",
        metavar="PATH",
        help="The path under which a proxy serves this, such as /talkies.",
        rich_help_panel=SERVER,
    ),
    ssl_keyfile: Path | None = typer.Option(
        None,
        envvar="TALKIES_SSL_KEYFILE",
        metavar="FILE",
        help="The key of --ssl-certfile, in PEM.",
        rich_help_panel=SERVER,
    ),
    ssl_certfile: Path | None = typer.Option(
        None,
        envvar="TALKIES_SSL_CERTFILE",
        metavar="FILE",
        help="A certificate in PEM: the server then speaks HTTPS only.",
        rich_help_panel=SERVER,
    ),
    allowed_origins: list[str] = typer.Option(
        [],
        envvar="TALKIES_ALLOWED_ORIGINS",
        metavar="ORIGIN",
        help="Web pages from elsewhere that may call the API, such as https://app.example; * is all. Repeatable, or a "
        "JSON list.",
        rich_help_panel=SERVER,
    ),
    api_key: list[str] = typer.Option(
        [],
        envvar=["TALKIES_API_KEY", "VLLM_API_KEY"],
        metavar="KEY",
        help="A bearer key that requests must carry; repeat for more. Jobs belong to their key.",
        rich_help_panel=SERVER,
    ),
    protect_all: bool = typer.Option(
        False,
        "--protect-all",
        envvar="TALKIES_PROTECT_ALL",
        help="/metrics, /load, /version and /openapi.json want a key, too; /health, /ping and the page never do.",
        rich_help_panel=SERVER,
    ),
    served_model_name: list[str] = typer.Option(
        [],
        envvar="TALKIES_SERVED_MODEL_NAME",
        metavar="NAME",
        help="The model's name in the API; the first of several is shown, requests may use each.",
        rich_help_panel=SERVER,
    ),
    data_dir: Path | None = typer.Option(
        None,
        envvar=["TALKIES_DATA_DIR", "VLLM_OMNI_SERVER_STORAGE__PATH", "VLLM_OMNI_STORAGE_PATH"],
        metavar="DIR",
        help="The folder of jobs and videos; the XDG data folder if absent.",
        rich_help_panel=SERVER,
    ),
    policy: str = typer.Option(
        "shortest-remaining",
        envvar="TALKIES_POLICY",
        metavar="WORD",
        help="Whose turn it is between two steps: fifo, shortest-remaining or fair.",
        rich_help_panel=SERVER,
    ),
    max_num_seqs: int = typer.Option(
        1, envvar="TALKIES_MAX_NUM_SEQS", metavar="N", help="Requests in one packed forward.", rich_help_panel=SERVER
    ),
    max_queue: int = typer.Option(
        64,
        envvar="TALKIES_MAX_QUEUE",
        metavar="N",
        help="Jobs that may wait before a POST is 429.",
        rich_help_panel=SERVER,
    ),
    max_queue_s: float | None = typer.Option(
        None,
        envvar="TALKIES_MAX_QUEUE_S",
        metavar="SECONDS",
        help="Predicted seconds of work that may wait before a POST is 429.",
        rich_help_panel=SERVER,
    ),
    max_jobs_per_key: int | None = typer.Option(
        None,
        envvar="TALKIES_MAX_JOBS_PER_KEY",
        metavar="N",
        help="Unfinished jobs that one key may have.",
        rich_help_panel=SERVER,
    ),
    max_body_mib: int = typer.Option(
        64, envvar="TALKIES_MAX_BODY_MIB", metavar="N", help="Larger bodies are a 413.", rich_help_panel=SERVER
    ),
    ttl_s: float | None = typer.Option(
        None,
        envvar=["TALKIES_TTL_S", "VLLM_OMNI_SERVER_STORAGE__FILE_TTL"],
        metavar="SECONDS",
        help="Seconds after which an ended job expires; never if absent.",
        rich_help_panel=SERVER,
    ),
    sync_timeout_s: float | None = typer.Option(
        None,
        envvar=["TALKIES_SYNC_TIMEOUT_S", "VLLM_OMNI_VIDEO_SYNC_TIMEOUT"],
        metavar="SECONDS",
        help="Seconds that /v1/videos/sync may take; no limit if absent.",
        rich_help_panel=SERVER,
    ),
    timeout_keep_alive: int = typer.Option(
        5,
        envvar=["TALKIES_TIMEOUT_KEEP_ALIVE", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"],
        metavar="SECONDS",
        help="Seconds that an idle connection is kept.",
        rich_help_panel=SERVER,
    ),
    media_root: Path | None = typer.Option(
        None,
        envvar="TALKIES_MEDIA_ROOT",
        metavar="DIR",
        help="The folder below which file:// references may lie; none may if absent.",
        rich_help_panel=SERVER,
    ),
    allow_host: list[str] = typer.Option(
        [],
        envvar="TALKIES_ALLOW_HOST",
        metavar="HOST",
        help="A private host or network that references and webhooks may name; repeatable.",
        rich_help_panel=SERVER,
    ),
    server_name: list[str] = typer.Option(
        [],
        envvar="TALKIES_SERVER_NAME",
        metavar="HOST",
        help="A public name of a server without --api-key; repeatable.",
        rich_help_panel=SERVER,
    ),
    webhook_secret: str | None = typer.Option(
        None,
        envvar="TALKIES_WEBHOOK_SECRET",
        metavar="TEXT",
        help="What signs webhooks; requests may not ask for one without it.",
        rich_help_panel=SERVER,
    ),
    disable_fastapi_docs: bool = typer.Option(
        False, "--disable-fastapi-docs", help="The server has no /openapi.json.", rich_help_panel=SERVER
    ),
    disable_log_stats: bool = typer.Option(
        False, "--disable-log-stats", help="The server has no /metrics.", rich_help_panel=SERVER
    ),
    hang_timeout_s: float = typer.Option(
        300.0,
        envvar="TALKIES_HANG_TIMEOUT_S",
        metavar="SECONDS",
        help="A busy worker without a sign of life for so long, or 20 predicted steps if that is longer, is replaced.",
        rich_help_panel=ADVANCED,
    ),
    start_timeout_s: float = typer.Option(
        3600.0,
        envvar="TALKIES_START_TIMEOUT_S",
        metavar="SECONDS",
        help="A worker that loads, without a sign of life for so long, is given up.",
        rich_help_panel=ADVANCED,
    ),
    log_level: str = typer.Option(
        "info",
        envvar="TALKIES_LOG_LEVEL",
        metavar="WORD",
        help="Log lines to show: debug, info, warning or error.",
        rich_help_panel=ADVANCED,
    ),
    log_json: bool = typer.Option(
        False, "--log-json", envvar="TALKIES_LOG_JSON", help="Log lines are JSON objects.", rich_help_panel=ADVANCED
    ),
    *,
    engine: dict[str, Any],
) -> None:
    """Serve a model: POST /v1/videos, a page at /, /metrics. Flags of `vllm serve --omni` and `sglang serve` are taken
    where they mean something here and refused with the reason where not."""
    begun = time.monotonic()
    from talkies.cli.peers.line import translate
    from talkies.engine.port.policy import check_policy
    from talkies.server.config import ServerConfig, origins

    refusals = Refusals()
    own = [name for param in context.command.params for name in param.opts]
    said, notes = translate(
        arguments or [],
        engine,
        own,
        offload_json=diffusion_offload_config,
        quantization_json=diffusion_quantization_config,
        refusals=refusals,
    )
    for name, value, low, high in (
        ("port", port, 0, 65535),
        ("max_num_seqs", max_num_seqs, 1, 4096),
        ("max_body_mib", max_body_mib, 1, 1 << 20),
        ("hang_timeout_s", hang_timeout_s, 1, 1e9),
        ("start_timeout_s", start_timeout_s, 1, 1e9),
    ):
        with refusals.kept():
            check_range(name, value, low, high)
    with refusals.kept():
        check_log_level(log_level)
    with refusals.kept():
        check_policy(policy)
    settings: ServerConfig | None = None
    with refusals.kept():
        settings = ServerConfig(
            data_dir=expanded(data_dir or _default_data_dir(), "data_dir").absolute(),
            served_model_name=served_model_name[0] if served_model_name else None,
            model_aliases=tuple(served_model_name[1:]),
            api_keys=tuple(api_key),
            protect_all=protect_all,
            max_queue=max_queue,
            max_queue_s=max_queue_s,
            max_jobs_per_key=max_jobs_per_key,
            max_body_bytes=max_body_mib << 20,
            ttl_s=ttl_s,
            sync_timeout_s=sync_timeout_s,
            media_root=None if media_root is None else media_root.absolute(),
            allow_hosts=tuple(allow_host),
            server_names=(*server_name, host),
            webhook_secret=webhook_secret,
            serve_metrics=not disable_log_stats,
            serve_openapi=not disable_fastapi_docs,
            root_path=root_path,
            allowed_origins=origins(allowed_origins),
            ssl_keyfile=ssl_keyfile,
            ssl_certfile=ssl_certfile,
            timeout_keep_alive_s=timeout_keep_alive,
        )
    if not refusals.errors:
        with refusals.kept():
            EngineOptions.of(said)  # what options mean together, before anything is loaded
    refusals.raise_all()
    assert settings is not None
    configure_logs(log_level, as_json=log_json)
    for note in notes:
        say(f"note: {note}")
    if not api_key and host not in ("127.0.0.1", "::1", "localhost"):
        say("note: no --api-key: everybody who reaches this port can make, see and delete clips")
    listener = _listen(host, port)

    def service() -> EngineService:
        return _build(
            {name: option.default for name, option in OPTIONS.items()} | said,
            policy=policy,
            max_num_seqs=max_num_seqs,
            data_dir=settings.data_dir,
            hang_timeout_s=hang_timeout_s,
            start_timeout_s=start_timeout_s,
        )

    _run(service, settings, listener, begun)


def _default_data_dir() -> Path:
    """Raises ``ConfigError``."""
    base = base_folder("XDG_DATA_HOME", ".local", "share")
    if base is None:
        raise ConfigError(
            "there is no home folder to keep jobs and videos in",
            hint="give --data-dir (TALKIES_DATA_DIR), or set HOME",
            param="data_dir",
        )
    return base / "talkies"
