"""From one published disk layout to the other, tensor by tensor; bits and dtypes are kept.

docs/model.md, Checkpoint layouts, has what differs.

port      transformer/ transformer_ref/ vae/ audio_vae/ text_encoder/ tokenizer/ processor/ scheduler/ ...
original  FL2VA/ and Ref2VA/, each with transformer/ video_vae/source/ audio_vae/ text_encoder/ ...
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from talkies.codecs.video.config import VideoVAEConfig
from talkies.errors import CheckpointError, ConfigError, OutputError
from talkies.files.json_files import read_json
from talkies.files.tensor_files import TensorFiles
from talkies.h3 import dit_keys, vae_keys
from talkies.h3.config import ORIGINAL_KEYS
from talkies.h3.partitions import PARTITION_TASKS, Parts, find_parts
from talkies.h3.release_schedule import read_schedule
from talkies.h3.rope import inverse_frequencies
from talkies.model.weights import DiTReader

SHARD_BYTES = 4_900_000_000  # the release's shard size
ORIGINAL_FOLDER = {"fl2va": "FL2VA", "ref2va": "Ref2VA"}
PORT_FOLDER = {"fl2va": "transformer", "ref2va": "transformer_ref"}
DIT_CLASS = {"port": "MiniMaxH3Transformer3DModel", "original": "MiniMaxH3DiTModel"}
ROOT_EXTRAS = ("talkies.json", "modular_model_index.json", "README.md")
COPIED = ("text_encoder", "tokenizer", "processor")

LayoutName = Literal["port", "original"]


def convert(source: Path, target: Path, *, to: LayoutName) -> list[Path]:
    """Writes ``target`` anew; returns the folders made. ``target`` appears whole or not at all.

    Raises ``CheckpointError`` for a source that is not a checkpoint, ``ConfigError`` if it already has the layout,
    ``OutputError`` when the disk refuses.
    """
    parts = find_parts(source)
    if parts.layout == to:
        raise ConfigError(f"{source} already has the {to} layout", hint="nothing to convert", param="to")
    if target.exists():
        raise ConfigError(f"{target} already exists", hint="name a folder that does not", param="target")
    work = target.with_name(f".{target.name}.converting")
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        made = (_to_original if to == "original" else _to_port)(parts, work)
        for name in ROOT_EXTRAS:
            if (parts.root / name).is_file():
                shutil.copyfile(parts.root / name, work / name)
        work.rename(target)
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror or error}", param="target") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [target / path.relative_to(work) for path in made]


def _to_original(parts: Parts, work: Path) -> list[Path]:
    made = []
    schedule = read_schedule(parts)
    for partition, folder in parts.transformers.items():
        root = work / ORIGINAL_FOLDER[partition]
        _dit(folder, root / "transformer", dit_keys.Layout.ORIGINAL)
        _vae_to_original(VideoVAEConfig.read(parts.video_vae), root / "video_vae")
        _audio_to_original(parts.audio_vae, root / "audio_vae")
        _copy_shared(parts, root)
        stated: dict[str, Any] = {
            "schema_version": 1,
            "partition": partition,
            "tasks": list(PARTITION_TASKS[partition]),
            "task_aliases": {},
            "sigma_shift_scales": {"video": schedule.video_shift, "audio": schedule.audio_shift},
        }
        if schedule.base is not None:
            stated["base_schedule"] = list(schedule.base)
        _write_json(root / "model_index.json", {"scheduler": None, "_minimax_h3": stated})
        made.append(root)
    return made


def _to_port(parts: Parts, work: Path) -> list[Path]:
    schedule = read_schedule(parts)
    made = []
    for partition, folder in parts.transformers.items():
        made.append(work / PORT_FOLDER[partition])
        _dit(folder, made[-1], dit_keys.Layout.PORT)
    _vae_to_port(VideoVAEConfig.read(parts.video_vae), work / "vae")
    _audio_to_port(parts.audio_vae, work / "audio_vae")
    _copy_shared(parts, work)
    for name, shift in (("scheduler", schedule.video_shift), ("audio_scheduler", schedule.audio_shift)):
        _write_json(work / name / "scheduler_config.json", {"_class_name": "MiniMaxH3Scheduler", "shift": shift})
    index: dict[str, Any] = {"_class_name": "MiniMaxH3ModularPipeline"}
    if schedule.base is not None:
        index["_minimax_h3"] = {"base_schedule": list(schedule.base)}
    _write_json(work / "model_index.json", index)
    return [*made, work / "vae", work / "audio_vae", *(work / n for n in COPIED if (work / n).is_dir())]


def _dit(source: Path, target: Path, layout: dit_keys.Layout) -> None:
    reader = DiTReader(source)
    config = reader.config

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for spec in dit_keys.all_specs(config):
            # As stored: an island that a file keeps in 16 bits stays in 16 bits, and the round trip bit-equal.
            stored = [reader.files.tensor(key) for key in dit_keys.file_keys(spec.name, reader.layout)]
            ours = dit_keys.join(spec, stored, reader.layout, config)
            parts = dit_keys.split(spec, ours, layout, config)
            yield from zip(dit_keys.file_keys(spec.name, layout), parts, strict=True)
        if layout is not dit_keys.Layout.PORT:
            yield dit_keys.ROPE_KEY, inverse_frequencies(config.rope_freq_dim, config.rope_theta)

    _write_shards(target, "diffusion_pytorch_model", tensors())
    raw = read_json(source / "config.json")
    to_port = layout is dit_keys.Layout.PORT
    spelling = ORIGINAL_KEYS if to_port else {port: original for original, port in ORIGINAL_KEYS.items()}
    out = {spelling.get(key, key): value for key, value in raw.items()}
    out["_class_name"] = DIT_CLASS["port" if to_port else "original"]
    _write_json(target / "config.json", out)


def _vae_to_original(config: VideoVAEConfig, target: Path) -> None:
    weights = config.weights()
    heads = int(config.arch["decoder_num_attention_heads"])
    lazy = _Lazy({key: partial(weights.read, key) for key in weights.keys})
    converted = vae_keys.convert_video_vae(lazy, "original", num_heads=heads)
    source = target / "source"
    source.mkdir(parents=True)
    _save(converted, source / "model.safetensors")
    _write_json(source / "config.json", _plain(config.arch))
    wrapper = {
        "vae_clip_length": config.arch["clip_length"],
        "vae_token_drop": config.arch["token_drop"],
        "vae_tile_size": config.tile_pixels,
        "vae_tile_overlap_min": config.min_overlap_pixels,
        "source_path": "source",
        "source_safetensors_path": "model.safetensors",
        "latents_mean": list(config.stats.mean),
        "latents_std": list(config.stats.std),
    }
    _write_json(target / "config.json", wrapper)


def _vae_to_port(config: VideoVAEConfig, target: Path) -> None:
    weights = config.weights()
    heads = int(config.arch["decoder_num_attention_heads"])
    tensors: dict[str, Tensor] = {}
    for key in weights.keys:
        tensors.update(vae_keys.to_port(key, partial(weights.read, key), heads))
    target.mkdir(parents=True)
    _save(tensors, target / "diffusion_pytorch_model.safetensors")
    stats = {"latents_mean": list(config.stats.mean), "latents_std": list(config.stats.std)}
    _write_json(target / "config.json", {"_class_name": "AutoencoderKLMiniMaxH3", **_plain(config.arch), **stats})


def _audio_to_original(source: Path, target: Path) -> None:
    config = read_json(source / "config.json")
    stats = {key: config.pop(key) for key in ("latents_mean", "latents_std")}
    _copy_weights(source, target, "model.safetensors")
    rate = config.pop("sampling_rate", 32_000)
    kwargs = {k: v for k, v in config.items() if not k.startswith("_")}
    _write_json(target / "config.json", {"sample_rate": rate, **stats})
    _write_json(target / "metadata.json", {"kwargs": {**kwargs, "sample_rate": rate}})


def _audio_to_port(source: Path, target: Path) -> None:
    config = read_json(source / "config.json")
    path = source / "metadata.json"
    metadata = read_json(path) if path.is_file() else {}
    merged = {**metadata.get("kwargs", metadata), **config}
    merged["sampling_rate"] = merged.pop("sample_rate", merged.get("sampling_rate", 32_000))
    _copy_weights(source, target, "diffusion_pytorch_model.safetensors")
    _write_json(target / "config.json", {"_class_name": "AutoencoderKLMiniMaxH3Audio", **merged})


def _copy_weights(source: Path, target: Path, name: str) -> None:
    files = TensorFiles(source)
    target.mkdir(parents=True)
    _save({key: files.tensor(key) for key in files.keys}, target / name)


def _copy_shared(parts: Parts, root: Path) -> None:
    for name, folder in zip(COPIED, (parts.text_encoder, parts.tokenizer, parts.processor), strict=True):
        if folder is not None:
            shutil.copytree(folder, root / name)


def _write_shards(folder: Path, stem: str, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """One file, or shards with an index, holding no more than one shard in memory."""
    folder.mkdir(parents=True)
    pending: dict[str, Tensor] = {}
    size, total = 0, 0
    shards: list[tuple[Path, list[str]]] = []

    def flush() -> None:
        nonlocal pending, size
        path = folder / f".{stem}-{len(shards)}"
        _save(pending, path)
        shards.append((path, list(pending)))
        pending, size = {}, 0

    for key, tensor in tensors:
        if pending and size + tensor.nbytes > SHARD_BYTES:
            flush()
        pending[key] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    flush()
    if len(shards) == 1:
        shards[0][0].rename(folder / f"{stem}.safetensors")
        return
    weight_map = {}
    for i, (path, keys) in enumerate(shards, 1):
        name = f"{stem}-{i:05d}-of-{len(shards):05d}.safetensors"
        path.rename(folder / name)
        weight_map.update(dict.fromkeys(keys, name))
    _write_json(
        folder / f"{stem}.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )


class _Lazy(Mapping[str, Tensor]):
    """Tensors read when looked at, so that converting holds one copy and not two."""

    def __init__(self, readers: Mapping[str, Any]) -> None:
        self._readers = readers

    def __getitem__(self, key: str) -> Tensor:
        return self._readers[key]()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._readers))

    def __len__(self) -> int:
        return len(self._readers)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file({key: t.contiguous() for key, t in tensors.items()}, path, metadata={"format": "pt"})
    except Exception as error:  # safetensors raises its own type for every disk error
        if isinstance(error, (CheckpointError, KeyboardInterrupt)):
            raise
        raise OSError(str(error)) from error


def _plain(arch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in arch.items()}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
