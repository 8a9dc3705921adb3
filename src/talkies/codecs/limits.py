"""What a checkpoint can make: its :class:`Limits`, from configs alone, without reading a weight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talkies.codecs.audio.vae import AudioVAEConfig
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.video.config import VideoVAEConfig
from talkies.errors import CheckpointError
from talkies.files.card import read_card
from talkies.files.json_files import read_json
from talkies.files.step_caches import read_tiers
from talkies.h3.geometry import Limits
from talkies.h3.partitions import Parts
from talkies.h3.release_schedule import read_schedule
from talkies.values import NAMED_RATIOS, parse_ratio

FPS = 24  # of the model; no config states it
# Limits that talkies.json may set, field by field; the other keys it may hold are read below.
SETTINGS_FIELDS = (
    "default_num_frames",
    "default_num_sigmas",
    "canvas_short_edge",
    "canvas_max_pixels",
    "reference_image_short_edge",
)
SETTINGS_OTHERS = (
    "min_num_frames",
    "max_num_frames",
    "canvas_multiple",
    "default_aspect",
    "named_ratios",
    "partition",
    "tasks",
)


def limits_of(parts: Parts) -> Limits:
    """What a checkpoint can make, from its configs alone; its ``talkies.json`` has the last word.

    Raises ``CheckpointError`` for configs that contradict each other.
    """
    video = VideoVAEConfig.read(parts.video_vae)
    audio = AudioVAEConfig.read(parts.audio_vae)
    patch_size = _patch_size(parts, video.latent_channels, audio.latent_channels)
    temporal = video.temporal
    values: dict[str, Any] = {
        "spatial_factor": video.spatial_factor,
        "patch_size": patch_size,
        "clip_frames": temporal.clip_frames,
        "tail_frames": temporal.overlap_frames,
        "clip_latents": temporal.clip_latents,
        "tail_latents": temporal.overlap_latents,
        "sample_rate_hz": audio.sample_rate_hz,
        "audio_hop": audio.hop,
        "vision": PatchConfig.load(parts.processor).sizes,
        "tasks": parts.tasks,
        "card": read_card(parts.root),
        "tiers": read_tiers(parts.root),
    }
    modular = parts.root / "modular_model_index.json"
    if modular.is_file():
        index = read_json(modular)
        values |= {key: index[key] for key in SETTINGS_FIELDS if isinstance(index.get(key), int)}
    settings = parts.root / "talkies.json"
    if settings.is_file():
        values |= _settings(read_json(settings), settings, parts, video.spatial_factor * patch_size)
    ladder = read_schedule(parts).base
    if ladder is not None:  # a distilled release takes its own steps
        values["default_num_sigmas"] = len(ladder)
    return Limits(**values)


def _settings(found: Mapping[str, Any], path: Path, parts: Parts, canvas_multiple: int) -> dict[str, Any]:
    """Fields of ``Limits`` that ``talkies.json`` sets; unknown keys are refused, never dropped."""
    unknown = sorted(set(found) - set(SETTINGS_FIELDS) - set(SETTINGS_OTHERS))
    if unknown:
        known = ", ".join((*SETTINGS_FIELDS, *SETTINGS_OTHERS))
        raise CheckpointError(f"{path}: unknown keys {', '.join(unknown)}", hint=f"known: {known}", param=str(path))
    values: dict[str, Any] = {}
    for key in (*SETTINGS_FIELDS, "min_num_frames", "max_num_frames", "canvas_multiple"):
        value = found.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{path}: {key} is {value!r}, not a positive integer", param=str(path))
        if key in found and key in SETTINGS_FIELDS:
            values[key] = value
    if "default_aspect" in found:
        if not isinstance(found["default_aspect"], str):
            raise CheckpointError(f"{path}: default_aspect is {found['default_aspect']!r}, not a text", param=str(path))
        parse_ratio(found["default_aspect"])
        values["default_aspect"] = found["default_aspect"]
    if "default_num_frames" in found:
        values["default_num_frames_ref2va"] = found["default_num_frames"]
    if "min_num_frames" in found:
        values["min_seconds"] = found["min_num_frames"] / FPS
    if "max_num_frames" in found:
        values |= {"max_frames": found["max_num_frames"], "max_seconds": found["max_num_frames"] / FPS}
    if found.get("canvas_multiple", canvas_multiple) != canvas_multiple:
        raise CheckpointError(
            f"{path}: canvas_multiple is {found['canvas_multiple']}, the configs give {canvas_multiple}",
            param=str(path),
        )
    if "named_ratios" in found:
        # Known names keep their nominal ratio; the canvas rule finds the pixels. Others bring a canvas as ratio.
        values["named_ratios"] = {
            name: NAMED_RATIOS.get(name, (int(size[0]), int(size[1]))) for name, size in found["named_ratios"].items()
        }
    if "tasks" in found:
        absent = [task for task in found["tasks"] if task not in parts.tasks]
        if absent:
            raise CheckpointError(
                f"{path}: tasks {', '.join(absent)} have no weights here",
                hint="found: " + ", ".join(parts.tasks),
                param=str(path),
            )
        values["tasks"] = tuple(found["tasks"])
    return values


def _patch_size(parts: Parts, video_channels: int, audio_channels: int) -> int:
    """The DiT's spatial patch; its channel counts must be the VAEs'."""
    sizes = set()
    for folder in parts.transformers.values():
        path = folder / "config.json"
        config = read_json(path)
        patch = config.get("patch_size", (1, 2, 2))
        if not isinstance(patch, list | tuple) or len(patch) != 3 or patch[0] != 1 or patch[1] != patch[2]:
            raise CheckpointError(f"{path}: patch_size {patch} is not [1, p, p]", param=str(path))
        sizes.add(int(patch[1]))
        for keys, channels, vae in (
            (("in_channels", "latents_dim"), video_channels, "video VAE"),
            (("audio_in_channels", "audio_latents_dim"), audio_channels, "audio VAE"),
        ):
            stated = next((config[key] for key in keys if key in config), channels)
            if stated != channels:
                raise CheckpointError(
                    f"{path}: {keys[0]} is {stated}, the {vae} has {channels} latent channels", param=str(path)
                )
    if len(sizes) != 1:
        raise CheckpointError(f"{parts.root}: the partitions disagree on patch_size: {sorted(sizes)}", param="model")
    return sizes.pop()
