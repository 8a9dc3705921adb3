from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from talkies.codecs.limits import limits_of
from talkies.errors import CheckpointError
from talkies.h3.partitions import find_parts
from tests.codecs import tiny
from tests.tiny_checkpoint import AUDIO_VAE, VAE

DIT = {"in_channels": 4, "audio_in_channels": 8, "patch_size": [1, 2, 2]}


def read_limits(folder):
    return limits_of(find_parts(folder))


@pytest.fixture
def port(tmp_path):
    """Configs alone: limits need no weight."""
    tiny.write_json(tmp_path / "vae" / "config.json", VAE)
    tiny.write_json(tmp_path / "audio_vae" / "config.json", AUDIO_VAE)
    tiny.write_json(tmp_path / "transformer" / "config.json", DIT)
    for name in ("text_encoder", "tokenizer"):
        (tmp_path / name).mkdir()
    return tmp_path


def original(root, folder, partition, tasks):
    base = root / folder
    tiny.write_json(base / "model_index.json", {"_minimax_h3": {"partition": partition, "tasks": tasks}})
    tiny.save_original_video_vae(tiny.video_vae(), base / "video_vae")
    rates = {k: v for k, v in AUDIO_VAE.items() if not k.startswith("latents") and k != "sampling_rate"}
    statistics = {k: AUDIO_VAE[k] for k in ("latents_mean", "latents_std")}
    tiny.write_json(base / "audio_vae" / "metadata.json", rates)
    tiny.write_json(base / "audio_vae" / "config.json", {"sample_rate": 32000, **statistics})
    tiny.write_json(base / "transformer" / "config.json", {"latents_dim": 4, "audio_latents_dim": 8})
    for name in ("text_encoder", "tokenizer", "processor"):
        (base / name).mkdir()
    return base


def test_limits_follow_from_the_configs(port):
    limits = read_limits(port)
    assert (limits.spatial_factor, limits.patch_size, limits.canvas_multiple) == (16, 2, 32)
    assert (limits.clip_frames, limits.tail_frames, limits.clip_latents, limits.tail_latents) == (17, 5, 5, 2)
    assert (limits.sample_rate_hz, limits.audio_hop) == (32_000, 800)
    assert limits.tasks == ("t2va", "fl2va")
    assert limits.vision.multiple == 32


def test_a_ladder_in_the_release_is_the_default_number_of_sigmas(port):
    assert read_limits(port).default_num_sigmas == 50
    tiny.write_json(port / "model_index.json", {"_minimax_h3": {"dmd_denoising_steps": [1000, 750, 500, 250]}})
    assert read_limits(port).default_num_sigmas == 5


def test_other_strides_give_another_canvas_multiple(port):
    tiny.write_json(port / "vae" / "config.json", tiny.VAE_FACTOR_8)
    assert read_limits(port).canvas_multiple == 16


def test_a_second_transformer_adds_ref2va(port):
    tiny.write_json(port / "transformer_ref" / "config.json", DIT)
    assert read_limits(port).tasks == ("t2va", "fl2va", "ref2va")
    shutil.rmtree(port / "transformer")
    assert read_limits(port).tasks == ("ref2va",)


def test_the_settings_file_has_the_last_word(port):
    tiny.write_json(port / "modular_model_index.json", {"canvas_short_edge": 128, "reference_image_short_edge": 96})
    settings = {
        "default_num_frames": 56,
        "default_num_sigmas": 20,
        "min_num_frames": 22,
        "max_num_frames": 124,
        "canvas_short_edge": 64,
        "canvas_max_pixels": 9216,
        "canvas_multiple": 32,
        "named_ratios": {"16:9": [112, 64], "5:4": [80, 64]},
        "partition": "fl2va",
        "tasks": ["t2va"],
    }
    tiny.write_json(port / "talkies.json", settings)
    limits = read_limits(port)
    assert (limits.default_num_frames, limits.default_num_frames_ref2va, limits.default_num_sigmas) == (56, 56, 20)
    assert (limits.min_frames, limits.max_frames) == (22, 124)
    assert (limits.canvas_short_edge, limits.canvas_max_pixels, limits.reference_image_short_edge) == (64, 9216, 96)
    assert limits.named_ratios == {"16:9": (16, 9), "5:4": (80, 64)}
    assert limits.tasks == ("t2va",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"default_frames": 3}, "unknown keys default_frames"),
        ({"default_num_frames": 0}, "not a positive integer"),
        ({"canvas_short_edge": "64"}, "not a positive integer"),
        ({"canvas_multiple": 8}, "the configs give 32"),
        ({"tasks": ["t2va", "ref2va"]}, "ref2va have no weights"),
    ],
)
def test_settings_that_cannot_hold_are_refused(port, settings, message):
    tiny.write_json(port / "talkies.json", settings)
    with pytest.raises(CheckpointError, match=message):
        read_limits(port)


@pytest.mark.parametrize("part", ["vae", "audio_vae", "text_encoder", "tokenizer", "transformer"])
def test_a_missing_part_is_named(port, part):
    shutil.rmtree(port / part)
    with pytest.raises(CheckpointError, match=part):
        read_limits(port)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        find_parts(tmp_path / "absent")


def test_a_transformer_for_other_latents_is_refused(port):
    tiny.write_json(port / "transformer" / "config.json", {**DIT, "in_channels": 24})
    with pytest.raises(CheckpointError, match="in_channels is 24"):
        read_limits(port)


def test_a_patch_that_is_not_square_is_refused(port):
    tiny.write_json(port / "transformer" / "config.json", {**DIT, "patch_size": [1, 2, 1]})
    with pytest.raises(CheckpointError, match="patch_size"):
        read_limits(port)


def test_the_original_layout_has_the_same_limits(port, tmp_path):
    root = tmp_path / "original"
    original(root, "FL2VA", "fl2va", ["t2va", "fl2va"])
    assert read_limits(root) == read_limits(port)
    original(root, "Ref2VA", "ref2va", ["ref2va"])
    assert read_limits(root).tasks == ("t2va", "fl2va", "ref2va")
    parts = find_parts(root)
    assert parts.layout == "original"
    assert parts.transformers["ref2va"] == root / "Ref2VA" / "transformer"


def test_one_partition_of_the_original_loads_alone(tmp_path):
    base = original(tmp_path, "Ref2VA", "ref2va", ["ref2va"])
    assert read_limits(base).tasks == ("ref2va",)
    assert find_parts(base).video_vae == base / "video_vae"


def test_a_partition_under_the_wrong_name_is_refused(tmp_path):
    original(tmp_path, "FL2VA", "ref2va", ["ref2va"])
    with pytest.raises(CheckpointError, match="says partition 'ref2va'"):
        find_parts(tmp_path)


def test_no_library_is_imported_for_limits(port):
    code = (
        "import sys; from talkies.codecs.limits import limits_of; from talkies.h3.partitions import find_parts;"
        "limits_of(find_parts(sys.argv[1]));"
        "assert not {'transformers', 'diffusers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(port)], check=True)
