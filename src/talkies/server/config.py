"""What a server is told. Frozen; every number's unit is in its name."""

from __future__ import annotations

import base64
import json
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from talkies.errors import ConfigError
from talkies.media.fetch.addresses import AllowList

SECRET_PREFIX = "whsec_"  # of Standard Webhooks: what follows is the key in base64
PIPELINE_CLASS = "MiniMaxH3Pipeline"  # peers' name for what serves this model


def signing_key(secret: str) -> bytes:
    """The key of a webhook secret. Raises ``ConfigError`` for a ``whsec_`` that is not followed by base64."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raise ConfigError(
            f"webhook_secret begins with {SECRET_PREFIX}, but base64 does not follow",
            hint=f'make one: echo "{SECRET_PREFIX}$(openssl rand -base64 32)"',
            param="webhook_secret",
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """``data_dir`` holds jobs.sqlite, artifacts/, uploads/ and resume/; one server at a time owns it."""

    data_dir: Path
    served_model_name: str | None = None  # None: the service's own name
    model_aliases: tuple[str, ...] = ()  # other names that a request may call the model
    api_keys: tuple[str, ...] = ()  # empty: no authentication, one anonymous owner
    protect_all: bool = False  # all but /health, /ping and the page wants a key
    max_queue: int = 64  # jobs waiting; above it a POST is 429
    max_jobs_per_key: int | None = None  # waiting and running jobs of one key
    max_queue_s: float | None = None  # predicted seconds of all waiting jobs
    max_body_bytes: int = 64 << 20
    ttl_s: float | None = None  # None: a finished job is kept until it is deleted
    sweep_interval_s: float = 30.0
    media_root: Path | None = None  # file:// references must lie below it; None refuses them
    allow_hosts: tuple[str, ...] = ()  # hosts that references and webhooks may name although they are private
    server_names: tuple[str, ...] = ()  # that browsers may know a server without keys by, besides local ones
    webhook_secret: str | None = None  # None refuses webhook_url
    sync_timeout_s: float | None = None  # None: no deadline
    serve_metrics: bool = True
    serve_openapi: bool = True  # /openapi.json
    root_path: str = ""  # where a proxy serves this: "/talkies", without a slash at its end
    allowed_origins: tuple[str, ...] = ()  # web pages from elsewhere that may call; "*" is all, none by default
    ssl_certfile: Path | None = None  # with it the server speaks HTTPS only
    ssl_keyfile: Path | None = None  # None: the certificate's file holds the key, too
    timeout_keep_alive_s: int = 5  # of an idle connection

    def __post_init__(self) -> None:
        for name, low in (("max_queue", 1), ("max_jobs_per_key", 1), ("max_body_bytes", 1024)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name}={value} is under {low}", hint="choose a larger value", param=name)
        for name in ("max_queue_s", "ttl_s", "sync_timeout_s", "sweep_interval_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value} is not positive", hint="leave it out to turn it off", param=name)
        if any(not key.strip() or not key.isascii() for key in self.api_keys):
            raise ConfigError("an API key is empty or not ASCII", hint="use a long random ASCII key", param="api_key")
        if self.protect_all and not self.api_keys:
            raise ConfigError("protect_all without an API key", hint="give --api-key, too", param="protect_all")
        if self.webhook_secret is not None and len(signing_key(self.webhook_secret)) < 16:
            unit = "bytes" if self.webhook_secret.startswith(SECRET_PREFIX) else "characters"
            raise ConfigError(
                f"webhook_secret has under 16 {unit}", hint="use a long random secret", param="webhook_secret"
            )
        if self.media_root is not None and not self.media_root.is_dir():
            raise ConfigError(
                f"media_root {self.media_root} is not a folder", hint="name one that exists", param="media_root"
            )
        check_address(self)
        AllowList(self.allow_hosts)  # an entry that names nothing is the operator's fault, not that of every request

    @property
    def database(self) -> Path:
        return self.data_dir / "jobs.sqlite"

    @property
    def artifacts(self) -> Path:
        return self.data_dir / "artifacts"

    @property
    def uploads(self) -> Path:
        return self.data_dir / "uploads"

    @property
    def resume(self) -> Path:
        return self.data_dir / "resume"


def origins(words: Sequence[str]) -> tuple[str, ...]:
    """Web origins, each once: words, or a peer's JSON lists of them. Raises ``ConfigError``."""
    found: list[str] = []
    for word in words:
        names = [word]
        if word.lstrip().startswith("["):
            try:
                names = json.loads(word)
            except ValueError:
                names = [word]
        if not all(isinstance(name, str) and _is_origin(name.rstrip("/")) for name in names):
            raise ConfigError(
                f"allowed_origins={word!r} is no origin",
                hint="for example https://app.example, or *",
                param="allowed_origins",
            )
        found += [name.rstrip("/") for name in names if name.rstrip("/") not in found]
    return tuple(found)


def _is_origin(name: str) -> bool:
    return name == "*" or re.fullmatch(r"https?://[^/?#@\s]+", name) is not None


def check_address(config: ServerConfig) -> None:
    """What browsers and proxies will see, before anything is loaded. Raises ``ConfigError``."""
    if config.root_path and re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", config.root_path) is None:
        raise ConfigError(
            f"root_path={config.root_path!r} is no path",
            hint="for example /talkies, without a slash at its end",
            param="root_path",
        )
    if not all(_is_origin(origin) for origin in config.allowed_origins):
        origins(config.allowed_origins)
    if config.timeout_keep_alive_s < 1:
        raise ConfigError(f"timeout_keep_alive={config.timeout_keep_alive_s} is under 1", param="timeout_keep_alive")
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None:
            raise ConfigError("ssl_keyfile needs a certificate", hint="give --ssl-certfile, too", param="ssl_keyfile")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")
    except OSError as error:
        reason = (
            error.strerror if not isinstance(error, ssl.SSLError) else "no certificate in PEM with its unlocked key"
        )
        raise ConfigError(
            f"ssl_certfile {config.ssl_certfile} and its key cannot be used: {reason}",
            hint="give two files in PEM that belong together; the key without a password",
            param="ssl_certfile",
        ) from None
