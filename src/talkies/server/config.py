"""What a server is told. Frozen; every number's unit is in its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from talkies.errors import ConfigError
from talkies.media.fetch.addresses import AllowList

PIPELINE_CLASS = "MiniMaxH3Pipeline"  # peers' name for what serves this model


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """``data_dir`` holds jobs.sqlite, artifacts/, uploads/ and resume/; one server at a time owns it."""

    data_dir: Path
    served_model_name: str | None = None  # None: the service's own name
    api_keys: tuple[str, ...] = ()  # empty: no authentication, one anonymous owner
    max_queue: int = 64  # jobs waiting; above it a POST is 429
    max_jobs_per_key: int | None = None  # waiting and running jobs of one key
    max_queue_s: float | None = None  # predicted seconds of all waiting jobs
    max_body_bytes: int = 64 << 20
    ttl_s: float | None = None  # None: a finished job is kept until it is deleted
    sweep_interval_s: float = 30.0
    media_root: Path | None = None  # file:// references must lie below it; None refuses them
    allow_hosts: tuple[str, ...] = ()  # hosts that references and webhooks may name although they are private
    webhook_secret: str | None = None  # None refuses webhook_url
    sync_timeout_s: float | None = None  # None: no deadline
    serve_metrics: bool = True

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
        if self.webhook_secret is not None and len(self.webhook_secret) < 16:
            raise ConfigError(
                "webhook_secret has under 16 characters", hint="use a long random secret", param="webhook_secret"
            )
        if self.media_root is not None and not self.media_root.is_dir():
            raise ConfigError(
                f"media_root {self.media_root} is not a folder", hint="name one that exists", param="media_root"
            )
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
