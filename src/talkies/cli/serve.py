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
        None,
        metavar="MODEL",
        help="The checkpoint to serve: a folder or a hub id. The default is the small checkpoint inside the package.",
    ),
    diffusion_quantization_config: str | None = typer.Option(
        None,
        "--diffusion-quantization-config",
        metavar="JSON",
        help="Precisions as vLLM-Omni writes them in JSON: method and ignored_layers of transformer and "
        "text_encoder. By default --quantization and --text-quantization say them.",
        rich_help_panel=MODEL,
    ),
    diffusion_offload_config: str | None = typer.Option(
        None,
        "--diffusion-offload-config",
        metavar="JSON",
        help="Where weights live, as vLLM-Omni writes it in JSON: mode, components and layer_options. By default "
        "--offload says it.",
        rich_help_panel=MEMORY,
    ),
    host: str = typer.Option(
        "127.0.0.1",
        envvar="TALKIES_HOST",
        metavar="ADDRESS",
        help="The address to listen on. With 0.0.0.0 every network of this machine can reach the server.",
        rich_help_panel=SERVER,
    ),
    port: int = typer.Option(
        8000,
        envvar="TALKIES_PORT",
        metavar="N",
        help="The port to listen on. With 0 the server takes a free one.",
        rich_help_panel=SERVER,
    ),
    root_path: str = typer.Option(
        "",
        envvar="TALKIES_ROOT_PATH",
        metavar="PATH",
        help="The path under which a proxy offers this server, such as /talkies. By default it is the root.",
        rich_help_panel=SERVER,
    ),
    ssl_keyfile: Path | None = typer.Option(
        None,
        envvar="TALKIES_SSL_KEYFILE",
        metavar="FILE",
        help="The file with the private key of --ssl-certfile, in PEM. It is required beside that option only; by "
        "default the server speaks HTTP.",
        rich_help_panel=SERVER,
    ),
    ssl_certfile: Path | None = typer.Option(
        None,
        envvar="TALKIES_SSL_CERTFILE",
        metavar="FILE",
        help="The file with a certificate in PEM. With it the server speaks HTTPS only; by default it speaks HTTP.",
        rich_help_panel=SERVER,
    ),
    allowed_origins: list[str] = typer.Option(
        [],
        envvar="TALKIES_ALLOWED_ORIGINS",
        metavar="ORIGIN",
        help="An origin whose web pages may call the API, such as https://app.example, or * for all. The option may be "
        "repeated, or take a JSON list. By default no other site's pages may.",
        rich_help_panel=SERVER,
    ),
    api_key: list[str] = typer.Option(
        [],
        envvar=["TALKIES_API_KEY", "VLLM_API_KEY"],
        metavar="KEY",
        help="A key that requests must carry as a bearer token. Whoever sends a key sees the jobs of that key "
        "only. The option may be repeated; by default no key is asked for.",
        rich_help_panel=SERVER,
    ),
    protect_all: bool = typer.Option(
        False,
        "--protect-all",
        envvar="TALKIES_PROTECT_ALL",
        help="Asks for a key at /metrics, /load, /version and /openapi.json, too. /health, /ping and the page "
        "never ask for one.",
        rich_help_panel=SERVER,
    ),
    served_model_name: list[str] = typer.Option(
        [],
        envvar="TALKIES_SERVED_MODEL_NAME",
        metavar="NAME",
        help="The name of the model in the API. Of several names the first is shown and requests may use each. By "
        "default it is the checkpoint's.",
        rich_help_panel=SERVER,
    ),
    data_dir: Path | None = typer.Option(
        None,
        envvar=["TALKIES_DATA_DIR", "VLLM_OMNI_SERVER_STORAGE__PATH", "VLLM_OMNI_STORAGE_PATH"],
        metavar="DIR",
        help="The folder for jobs and videos. By default it is talkies in the XDG data folder.",
        rich_help_panel=SERVER,
    ),
    policy: str = typer.Option(
        "shortest-remaining",
        envvar="TALKIES_POLICY",
        metavar="WORD",
        help="The policy by which the next job is chosen after each step: fifo, shortest-remaining or fair.",
        rich_help_panel=SERVER,
    ),
    max_num_seqs: int = typer.Option(
        1,
        envvar="TALKIES_MAX_NUM_SEQS",
        metavar="N",
        help="How many requests may share one forward.",
        rich_help_panel=SERVER,
    ),
    max_queue: int = typer.Option(
        64,
        envvar="TALKIES_MAX_QUEUE",
        metavar="N",
        help="How many jobs may wait. While so many do, a new one is answered with 429.",
        rich_help_panel=SERVER,
    ),
    max_queue_s: float | None = typer.Option(
        None,
        envvar="TALKIES_MAX_QUEUE_S",
        metavar="SECONDS",
        help="How many predicted seconds of work may wait. While so many do, a new job is answered with 429. By "
        "default there is no limit.",
        rich_help_panel=SERVER,
    ),
    max_jobs_per_key: int | None = typer.Option(
        None,
        envvar="TALKIES_MAX_JOBS_PER_KEY",
        metavar="N",
        help="How many unfinished jobs one key may have. By default there is no limit.",
        rich_help_panel=SERVER,
    ),
    max_body_mib: int = typer.Option(
        64,
        envvar="TALKIES_MAX_BODY_MIB",
        metavar="N",
        help="The largest body of a request in MiB. A larger one is answered with 413.",
        rich_help_panel=SERVER,
    ),
    ttl_s: float | None = typer.Option(
        None,
        envvar=["TALKIES_TTL_S", "VLLM_OMNI_SERVER_STORAGE__FILE_TTL"],
        metavar="SECONDS",
        help="How many seconds an ended job and its files are kept. By default they are kept for ever.",
        rich_help_panel=SERVER,
    ),
    sync_timeout_s: float | None = typer.Option(
        None,
        envvar=["TALKIES_SYNC_TIMEOUT_S", "VLLM_OMNI_VIDEO_SYNC_TIMEOUT"],
        metavar="SECONDS",
        help="How many seconds a request to /v1/videos/sync may take. By default there is no limit.",
        rich_help_panel=SERVER,
    ),
    timeout_keep_alive: int = typer.Option(
        5,
        envvar=["TALKIES_TIMEOUT_KEEP_ALIVE", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"],
        metavar="SECONDS",
        help="How many seconds an idle connection is kept open.",
        rich_help_panel=SERVER,
    ),
    media_root: Path | None = typer.Option(
        None,
        envvar="TALKIES_MEDIA_ROOT",
        metavar="DIR",
        help="The folder below which references by file:// may lie. By default they are refused.",
        rich_help_panel=SERVER,
    ),
    allow_host: list[str] = typer.Option(
        [],
        envvar="TALKIES_ALLOW_HOST",
        metavar="HOST",
        help="A private host or network that references and webhooks may reach. The option may be repeated; by "
        "default they reach public addresses only.",
        rich_help_panel=SERVER,
    ),
    server_name: list[str] = typer.Option(
        [],
        envvar="TALKIES_SERVER_NAME",
        metavar="HOST",
        help="A public name under which a server without --api-key answers. The option may be repeated; by "
        "default it answers to local names.",
        rich_help_panel=SERVER,
    ),
    webhook_secret: str | None = typer.Option(
        None,
        envvar="TALKIES_WEBHOOK_SECRET",
        metavar="TEXT",
        help="The secret with which webhooks are signed. By default there is none, and requests for webhooks are "
        "refused.",
        rich_help_panel=SERVER,
    ),
    disable_fastapi_docs: bool = typer.Option(
        False,
        "--disable-fastapi-docs",
        help="Takes /openapi.json and /docs away from the server.",
        rich_help_panel=SERVER,
    ),
    disable_log_stats: bool = typer.Option(
        False, "--disable-log-stats", help="Takes /metrics away from the server.", rich_help_panel=SERVER
    ),
    hang_timeout_s: float = typer.Option(
        300.0,
        envvar="TALKIES_HANG_TIMEOUT_S",
        metavar="SECONDS",
        help="After how many seconds without a sign of life a busy worker is replaced. If 20 predicted steps are "
        "longer, they count.",
        rich_help_panel=ADVANCED,
    ),
    start_timeout_s: float = typer.Option(
        3600.0,
        envvar="TALKIES_START_TIMEOUT_S",
        metavar="SECONDS",
        help="After how many seconds without a sign of life a worker that loads is given up.",
        rich_help_panel=ADVANCED,
    ),
    log_level: str = typer.Option(
        "info",
        envvar="TALKIES_LOG_LEVEL",
        metavar="WORD",
        help="The log lines to show: debug, info, warning or error.",
        rich_help_panel=ADVANCED,
    ),
    log_json: bool = typer.Option(
        False,
        "--log-json",
        envvar="TALKIES_LOG_JSON",
        help="Writes each log line as one JSON object.",
        rich_help_panel=ADVANCED,
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
