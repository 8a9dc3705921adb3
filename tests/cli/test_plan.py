"""``talkies plan`` without a GPU, and the flags that place weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from talkies.cli import app
from talkies.cli.peers import json_configs, offload
from talkies.engine.option_kinds import parse_bytes
from talkies.engine.options import OPTIONS
from talkies.errors import ConfigError


def _run(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


def _json(*arguments):
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_a_described_gpu_gets_a_plan():
    found = _json("--gpu", "24GiB,25GB/s,330TFLOPs,ram=128GiB", "--seconds", "8.7")
    assert found["budget_needed_bytes"] <= 24 * 2**30
    assert found["work_num_frames"] == 209
    assert found["work_num_forwards"] == 49
    assert {c["where"] for c in found["components"]} >= {"streamed"}
    assert found["hardware"]["source"] == "described"


def test_a_budget_is_kept_and_the_embedded_model_fits_anywhere():
    found = _json("--gpu", "h200", "--vram-budget", "12GiB", "--size", "1152x832", "--frames", "209")
    assert found["budget_needed_bytes"] <= 12 * 2**30
    small = _json("h3-tiny", "--gpu", "h200", "--vram-budget", "1GiB")
    assert small["resident_blocks"] == small["num_blocks"]


def test_gpus_that_share_the_dit_have_half_of_it_each():
    one, two = (_json("--gpu", "h200", "--task-type", "fl2va", "--num-gpus", str(n)) for n in (1, 2))
    assert two["shard_degrees"] == {"ulysses": 1, "ring": 1, "tensor": 2}
    halves = [next(c for c in found["components"] if c["name"] == "dit")["device_bytes"] for found in (one, two)]
    assert 0.5 <= halves[1] / halves[0] < 0.53
    assert "1, 2, 4, 7, 8" in _run("--gpu", "h200", "-tp", "3").output


def test_a_plan_counts_the_dits_that_would_be_loaded(monkeypatch):
    from talkies import Engine
    from talkies.engine.load import planning

    counted = []
    sizes_of = planning.sizes_of
    monkeypatch.setattr(planning, "sizes_of", lambda *a, **k: counted.append(sizes_of(*a, **k)) or counted[-1])
    weights = {}
    for task_type, dits in (("combined", 2), ("fl2va", 1), ("ref2va", 1)):
        loaded = Engine.open(threads=1, task_type=task_type).components.dits
        found = _json("h3-tiny", "--gpu", "h200", "--task-type", task_type)
        assert len(loaded) == counted[-1].num_partitions == dits
        weights[task_type] = next(c for c in found["components"] if c["name"] == "dit")["device_bytes"]
    assert weights["combined"] == weights["fl2va"] + weights["ref2va"]
    default = _json("h3-tiny", "--gpu", "h200")  # serve's: both
    assert next(c for c in default["components"] if c["name"] == "dit")["device_bytes"] == weights["combined"]


def test_the_released_model_without_a_file_has_two_dits_as_well():
    one, both = (_json("--gpu", "h200", "--ram-budget", "256GiB", *flags) for flags in (("--task-type", "fl2va"), ()))
    weights = [next(c for c in found["components"] if c["name"] == "dit") for found in (one, both)]
    total = [part["device_bytes"] + part["host_bytes"] for part in weights]
    assert total[1] == pytest.approx(2 * total[0], rel=0.05)
    assert _run("--gpu", "h200", "--task-type", "t2va").exit_code == 2


def test_a_plan_obeys_what_serve_would():
    far = _json("--gpu", "h200", "--offload", "layer", "--offload-components", "text", "--head-groups", "2")
    where = {c["name"]: c["where"] for c in far["components"]}
    assert (where["text"], where["video"], where["dit"]) == ("streamed", "resident", "resident")
    assert far["head_groups"] == 2


def test_the_table_says_that_it_is_a_prediction():
    result = _run("--gpu", "h200", "--resident-blocks", "10", "--vram-budget", "24GiB")
    assert result.exit_code == 0, result.output
    assert "10 of 50" in result.output
    assert "not measured" in result.output


def test_what_cannot_be_is_one_line():
    result = _run("--gpu", "h200", "--vram-budget", "3GiB")
    assert result.exit_code == 2
    assert "at least" in result.output
    assert _run("--gpu", "big").exit_code == 2
    assert _run("--gpu", "h200", "--vram-budget", "a lot").exit_code == 2


@pytest.mark.parametrize(
    ("text", "value"), [("12GiB", 12 << 30), ("12G", 12 << 30), ("0.5 GiB", 1 << 29), ("800MiB", 800 << 20), ("99", 99)]
)
def test_sizes_in_words(text, value):
    assert parse_bytes("x", text) == value


def test_peers_switches_mean_a_mode():
    assert offload.take_offload(["m", "--enable-layerwise-offload"], "auto") == ("layer", ["m"])
    assert offload.take_offload(["--enable-distributed-layerwise-offload"], "auto") == ("layer", [])
    assert offload.take_offload(["--enable-cpu-offload"], "auto") == ("module", [])
    assert offload.take_offload(["m"], "auto") == (None, ["m"])
    with pytest.raises(ConfigError, match="exclude each other"):
        offload.take_offload(["--enable-cpu-offload", "--enable-layerwise-offload"], "auto")
    with pytest.raises(ConfigError, match="exclude each other"):
        offload.take_offload(["--enable-cpu-offload"], "none")


def test_one_way_to_move_weights_is_asked_for():
    with pytest.raises(ConfigError, match="--dlo-use-allgather and --dlo-no-use-allgather exclude each other"):
        offload.take_offload(["--dlo-no-use-allgather", "--dlo-use-allgather"], "auto")


@pytest.mark.parametrize("words", [["--dlo-pin-budget-gb", "40"], ["--dlo-pin-budget-gb=40"]])
def test_a_peers_pin_budget_is_the_ram_budget(words):
    assert offload.take_pin_budget(["m", *words, "--omni"], None) == (40_000_000_000, ["m", "--omni"])
    assert offload.take_pin_budget(words, 40_000_000_000) == (40_000_000_000, [])
    assert offload.take_pin_budget(["m"], 7) == (7, ["m"])
    with pytest.raises(ConfigError, match="--dlo-pin-budget-gb 40 and --ram-budget differ"):
        offload.take_pin_budget(words, 1 << 30)


@pytest.mark.parametrize("value", ["", "all", "-1", "0", "inf", "nan"])
def test_a_pin_budget_that_is_no_size_is_refused(value):
    with pytest.raises(ConfigError, match=f"--dlo-pin-budget-gb {value} is not a size"):
        offload.take_pin_budget(["--dlo-pin-budget-gb", value], None)


def test_peers_names_of_components():
    assert OPTIONS["offload_components"].read("dit,text_encoder,vae") == ("dit", "text", "video", "audio")
    with pytest.raises(ConfigError, match="unet"):
        OPTIONS["offload_components"].read("unet")


def test_a_peers_json_means_the_same():
    text = '{"mode": "layer", "components": ["dit", "text_encoder"], "layer_options": {"dit": {"resident_layers": 12}}}'
    assert json_configs.offload_config(text) == ("layer", "dit,text_encoder", 12)
    for transfer in ("rank-local", "allgather"):
        assert json_configs.offload_config(text.replace('{"resident', f'{{"weight_transfer": "{transfer}", "resident'))
    assert json_configs.offload_config('{"mode": "module"}') == ("module", None, None)
    no_transfer = '{"mode": "layer", "layer_options": {"dit": {"weight_transfer": "pigeon"}}}'
    for bad in ("[]", "{", '{"mode": "disk"}', '{"mode": "layer", "x": 1}', no_transfer):
        with pytest.raises(ConfigError, match="diffusion-offload-config"):
            json_configs.offload_config(bad)


def test_a_quantised_text_encoder_needs_half_the_host_memory():
    arguments = ("--gpu", "24GiB,25GB/s,330TFLOPs,ram=128GiB", "--seconds", "8.7")
    plain, fp8 = _json(*arguments), _json(*arguments, "--text-quantization", "fp8")
    (text, quantised) = (next(c for c in f["components"] if c["name"] == "text") for f in (plain, fp8))
    assert (plain["text_precision"], fp8["text_precision"]) == ("bf16", "fp8")
    assert (plain["precision"], fp8["precision"]) == ("bf16", "bf16")
    # 24.4e9 parameters of the layers lose a byte each.
    assert text["host_bytes"] - quantised["host_bytes"] == pytest.approx(24.4e9, rel=0.01)
    assert _run(*arguments, "--text-quantization", "int3").exit_code == 2


def test_a_peers_json_of_precisions_means_the_same():
    text = """{"transformer": {"method": "fp8", "ignored_layers": ["blocks.0.attn.to_out"]},
               "text_encoder": {"method": "fp8", "ignored_layers": ["layers.49.mlp.down_proj"]}}"""
    excluded = ("blocks.0.attn.to_out", "text_encoder.layers.49.mlp.down_proj")
    assert json_configs.quantization_config(text) == ("fp8", "fp8", excluded)
    assert json_configs.quantization_config('{"text_encoder": {"method": "fp8"}}') == ("none", "fp8", ())
    for bad in ("{", "[]", '{"transformer": "fp8"}', '{"vae": {}}', '{"transformer": {"bits": 8}}'):
        with pytest.raises(ConfigError, match="diffusion-quantization-config"):
            json_configs.quantization_config(bad)
    result = CliRunner().invoke(app, ["serve", "--quantization", "fp8", "--diffusion-quantization-config", text])
    assert result.exit_code == 2
    assert "exclude each other" in result.output


def test_a_card_of_which_only_memory_bus_and_rate_are_known_gets_proposals():
    found = _json("--gpu", "24GiB,25GB/s,150TFLOPs")  # 64 GiB of RAM: bf16 does not fit
    tried = {(p["quantization"], p["text_quantization"], p.get("task_type", "combined")): p for p in found["proposals"]}
    assert "of host memory" in tried["none", "none", "combined"]["missing"]
    assert tried["fp8", "none", "fl2va"]["plan"]["host_bytes"] <= 64 * 2**30
    assert (found["precision"], found["text_precision"]) == ("fp8", "fp8")  # the one that serves all tasks
    assert found["command"] == "talkies serve FOLDER --quantization fp8 --text-quantization fp8"


def test_the_most_exact_of_what_fits_is_taken():
    found = _json("--gpu", "4090,ram=128GiB")
    assert found["precision"] == "bf16"
    assert found["command"] == "talkies serve FOLDER"
    assert [p["plan"]["precision"] for p in found["proposals"]] == ["bf16", "fp8", "fp8"]
    costs = [p["plan"]["total_s"] for p in found["proposals"]]
    assert costs[1] < costs[0]


def test_a_precision_that_was_asked_for_is_planned_alone():
    found = _json("--gpu", "4090,ram=128GiB", "--quantization", "fp8")
    assert found["proposals"] == []
    assert found["command"] == "talkies serve FOLDER --quantization fp8"
    refused = _run("--gpu", "4090", "--quantization", "none")  # 64 GiB of RAM
    assert refused.exit_code == 2
    assert "of host memory" in refused.output


def test_a_card_without_fp8_is_not_offered_it():
    found = _json("--gpu", "a100-40")
    assert found["precision"] == "bf16"
    assert found["command"].endswith("--task-type fl2va")
    assert "e4m3" in found["proposals"][-1]["missing"]


def test_where_nothing_fits_one_line_says_what_comes_nearest():
    result = _run("--gpu", "l4,ram=16GiB")
    assert result.exit_code == 2
    line = " ".join(result.output.split())
    assert "not even with --quantization fp8 --text-quantization fp8 --task-type fl2va" in line
    assert "16.00 GiB are given" in line
    assert "--seconds" in line


def test_the_page_speaks_of_time_as_people_do():
    page = " ".join(_run("--gpu", "4090", "--seconds", "8.7").output.split())
    assert " min " in page
    assert "never ran on one" in page
    assert "assumed" in page
    assert "Weights on disk" in page
    assert "assumed" not in _run("--gpu", "4090,ram=64GiB").output


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.031, "0.03 s"),
        (12.19, "12.2 s"),
        (59.97, "60.0 s"),
        (607.9, "10 min 8 s"),
        (3599.6, "1 h 0 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_seconds_in_words(seconds, words):
    from talkies.cli.plan_page import spoken

    assert spoken(seconds) == words


def test_the_files_of_the_embedded_checkpoint_are_as_large_as_the_plan_says():
    import talkies

    folder = Path(talkies.__file__).parent / "assets" / "h3-tiny"
    files = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    assert _json("h3-tiny", "--gpu", "h200")["checkpoint_bytes"] == pytest.approx(files, rel=0.05)
