"""Checkpoints on the hub: which files are fetched, and what a plan reads of them. The hub is a folder here."""

from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.utils import SafetensorsFileMetadata, TensorInfo, filter_repo_objects
from typer.testing import CliRunner

from talkies.cli import app
from talkies.engine.config import EngineConfig
from talkies.engine.load import checkpoint
from talkies.errors import CheckpointError, ConfigError
from talkies.files.tensor_files import TensorFiles, raw_header
from talkies.h3.partitions import find_parts, needed_files

PORT = [
    "README.md",
    "model_index.json",
    "assets/picture.png",
    "vae/config.json",
    "audio_vae/a.safetensors",
    "text_encoder/model.safetensors",
    "text_encoder/pytorch_model.bin",
    "tokenizer/tokenizer.json",
    "scheduler/scheduler_config.json",
    "transformer/a.safetensors",
    "transformer_ref/a.safetensors",
]
ORIGINAL = [
    f"{folder}/{name}"
    for folder in ("FL2VA", "Ref2VA")
    for name in (
        "model_index.json",
        "video_vae/a.safetensors",
        "text_encoder/a.safetensors",
        "transformer/a.safetensors",
    )
]


def test_one_partition_of_one_layout_is_needed():
    files = [*PORT, *ORIGINAL]
    with pytest.raises(ConfigError, match="task_type=ref2va, but the checkpoint has fl2va"):
        needed_files([name for name in PORT if "_ref" not in name], "ref2va")
    single = [name.removeprefix("Ref2VA/") for name in ORIGINAL if name.startswith("Ref2VA")]
    assert needed_files(single, "ref2va") == needed_files(single, "combined") == single
    assert needed_files(ORIGINAL, "ref2va") == [name for name in ORIGINAL if name.startswith("Ref2VA")]
    assert needed_files(ORIGINAL, "combined") == [
        *(name for name in ORIGINAL if name.startswith("FL2VA")),
        "Ref2VA/model_index.json",
        "Ref2VA/transformer/a.safetensors",
    ]
    of_port = [name for name in PORT if name not in ("assets/picture.png", "text_encoder/pytorch_model.bin")]
    assert needed_files(PORT, "combined") == of_port
    assert needed_files(PORT, "fl2va") == [name for name in of_port if not name.startswith("transformer_ref/")]
    # Both layouts: the one that is found first in the folder.
    assert needed_files(files, "fl2va") == ["README.md", "model_index.json", *needed_files(ORIGINAL, "fl2va")]


@pytest.mark.parametrize("task_type", ["combined", "fl2va", "ref2va"])
def test_without_a_list_the_patterns_take_what_the_list_would(task_type):
    for files in (PORT, ORIGINAL):
        taken = set(filter_repo_objects(files, allow_patterns=needed_files([], task_type)))
        assert taken >= set(needed_files(files, task_type))
        weights = [name for name in taken if name.endswith(".safetensors")]
        assert task_type != "fl2va" or not any(name.startswith(("Ref2VA", "transformer_ref")) for name in weights)


@pytest.fixture(scope="module")
def both(tiny_folder, tmp_path_factory):
    """A checkpoint with both partitions."""
    folder = tmp_path_factory.mktemp("both") / "tiny"
    shutil.copytree(tiny_folder, folder)
    shutil.copytree(folder / "transformer", folder / "transformer_ref")
    return folder


@pytest.fixture
def hub(both, tmp_path, monkeypatch):
    """``owner/tiny``: names of what was fetched whole; ``asked`` are revisions."""
    tiny_folder = both
    fetched: list[str] = []
    asked: set[str | None] = set()

    def files():
        return sorted(p.relative_to(tiny_folder).as_posix() for p in tiny_folder.rglob("*") if p.is_file())

    def snapshot_download(repo, *, revision, allow_patterns, local_dir=tmp_path / "cache"):
        asked.add(revision)
        for name in filter_repo_objects(files(), allow_patterns=allow_patterns):
            fetched.append(name)
            (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tiny_folder / name, local_dir / name)
        return str(local_dir)

    def list_repo_files(self, repo, *, revision):
        asked.add(revision)
        return files()

    def parse(self, repo, name, *, revision):
        header = raw_header(tiny_folder / name)[0]
        tensors = {
            key: TensorInfo(dtype=one["dtype"], shape=one["shape"], data_offsets=tuple(one["data_offsets"]))
            for key, one in header.items()
            if key != "__metadata__"
        }
        return SafetensorsFileMetadata(metadata={}, tensors=tensors)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", list_repo_files)
    monkeypatch.setattr(huggingface_hub.HfApi, "parse_safetensors_file_metadata", parse)
    return fetched, asked


def test_what_is_fetched_is_the_partition_that_is_used(hub):
    fetched, asked = hub
    config = EngineConfig(model="owner/tiny", task_type="ref2va", revision="v1")
    parts, limits = checkpoint.parts_and_limits(config)
    assert (tuple(parts.transformers), limits.tasks) == (("ref2va",), ("ref2va",))
    assert asked == {"v1"}
    assert {name.partition("/")[0] for name in fetched} >= {"transformer_ref", "vae", "audio_vae", "text_encoder"}
    assert not any(name.startswith("transformer/") for name in fetched)


def test_a_clip_asks_headers_before_it_fetches(hub, tmp_path):
    fetched, _ = hub
    assert checkpoint.for_task(EngineConfig(model="owner/tiny"), "t2va").task_type == "fl2va"
    assert not any(name.endswith(".safetensors") for name in fetched)
    assert not (tmp_path / "cache").exists()


def test_a_plan_reads_configs_and_headers_only(hub, both):
    fetched, _ = hub
    words = ["plan", "--gpu", "4090", "--frames", "22", "--json"]
    done = CliRunner().invoke(app, [*words[:1], "owner/tiny", *words[1:]])
    assert done.exit_code == 0, done.output
    assert not any(name.endswith(".safetensors") for name in fetched)
    local = CliRunner().invoke(app, [*words[:1], str(both), *words[1:]])
    assert done.stdout == local.stdout.replace(str(both), "owner/tiny")

    folder = checkpoint.locate("owner/tiny", headers_only=True)
    sparse, whole = TensorFiles(folder / "transformer"), TensorFiles(both / "transformer")
    assert {k: (e.shape, e.dtype) for k, e in sparse.keys.items()} == {
        k: (e.shape, e.dtype) for k, e in whole.keys.items()
    }
    assert find_parts(folder).tasks == find_parts(both).tasks


def test_a_dry_run_reads_no_weights(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["generate", "a ball", "--model", "owner/tiny", "--seeds", "1,2", "--frames", "22", "--dry-run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("2 clips would be made")
    assert not any(name.endswith(".safetensors") for name in hub[0])


def test_the_hub_says_no_in_one_line(hub, monkeypatch):
    def refuse(repo, **_):
        raise OSError("403: the repository is gated\nask for access")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    for headers_only in (False, True):
        with pytest.raises(CheckpointError, match=r"owner/tiny is not a local folder.*gated") as caught:
            checkpoint.locate("owner/tiny", headers_only=headers_only)
        assert "\n" not in str(caught.value)


def test_without_an_answer_the_cache_is_asked(hub, monkeypatch):
    fetched, _ = hub

    def silent(self, repo, **_):
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", silent)
    known = checkpoint.checkpoint_of(EngineConfig(model="owner/tiny", task_type="ref2va"), headers_only=True)
    assert tuple(known.parts.transformers) == ("ref2va",)
    assert not any(name.startswith("transformer/") and name.endswith(".safetensors") for name in fetched)


def test_only_the_hub_has_revisions(tiny_folder):
    for model in (str(tiny_folder), "h3-tiny"):
        with pytest.raises(ConfigError, match="revision=v1, but"):
            checkpoint.locate(model, revision="v1")
    assert checkpoint.locate(str(tiny_folder)) == Path(tiny_folder)
