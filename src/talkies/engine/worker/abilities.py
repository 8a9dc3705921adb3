"""What a service can do, from configs alone: said before a weight is read."""

from __future__ import annotations

from pathlib import Path

from talkies.engine.config import EMBEDDED, EngineConfig, resolve
from talkies.engine.load.checkpoint import parts_and_limits
from talkies.engine.port.messages import WorkerOptions
from talkies.engine.port.service import ServiceInfo
from talkies.files.location import hash_with, model_hash


def describe_service(options: WorkerOptions) -> ServiceInfo:
    """Raises ``ConfigError`` or ``CheckpointError``."""
    resolved = resolve(options.config)
    parts, limits = parts_and_limits(options.config)
    return ServiceInfo(
        model_name=model_name(options.config),
        model_hash=hash_with(model_hash(parts.root), [(one.sha256, one.strength) for one in limits.adapters]),
        limits=limits,
        device=str(resolved.device),
        attention=resolved.attention,
        policy=options.policy,
        text_attention=resolved.text_attention,
        dtype=str(resolved.dtype).removeprefix("torch."),
        video_dtype=str(resolved.video_dtype).removeprefix("torch."),
        num_devices=resolved.mesh.size,
        tokenizer=parts.tokenizer,
    )


def model_name(config: EngineConfig) -> str:
    """A name for clients: of a folder its last part, since where it lies is nobody's business."""
    if config.model == EMBEDDED or not Path(config.model).expanduser().exists():
        return config.model
    return Path(config.model).expanduser().resolve().name
