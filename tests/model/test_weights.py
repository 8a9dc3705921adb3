from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from talkies.errors import CheckpointError
from talkies.files.location import model_hash, resolve_checkpoint
from talkies.h3 import dit_keys as keys
from talkies.h3.dit_keys import Layout
from talkies.h3.timesteps import step_plan
from talkies.model.modulation import build_table
from talkies.model.weights import DiTReader, read_config
from tests.dit_files import convert_dit, load_dit
from tests.model.tiny import CONFIG, tiny_dit, tiny_layout, tiny_rows

LAYOUTS = list(Layout)


def _tensors(layout=Layout.PORT):
    """A file's tensors of the tiny model, block tensors bfloat16."""
    ours = dict(tiny_dit(dtype=torch.bfloat16).state_dict())
    port = {}
    for spec in keys.all_specs(CONFIG):
        parts = keys.split(spec, ours[spec.name], Layout.PORT, CONFIG)
        port.update(zip(keys.file_keys(spec.name, Layout.PORT), parts, strict=True))
    return port if layout is Layout.PORT else convert_dit(port, CONFIG, source=Layout.PORT, target=layout)


def _save(folder, tensors, shards=1):
    folder.mkdir(exist_ok=True)
    config = {**dataclasses.asdict(CONFIG), "_class_name": "MiniMaxH3Transformer3DModel"}
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
        return folder
    names, weight_map = sorted(tensors), {}
    for i in range(shards):
        file = f"diffusion_pytorch_model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({k: tensors[k] for k in names[i::shards]}, folder / file)
        weight_map.update(dict.fromkeys(names[i::shards], file))
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads_the_same_model(layout, shards, tmp_path):
    folder = _save(tmp_path, _tensors(layout), shards)
    reader = DiTReader(folder, layout=Layout.REPACKED if layout is Layout.REPACKED else None)
    want = tiny_dit(dtype=torch.bfloat16).state_dict()
    got = dict(reader.top())
    for i in range(CONFIG.num_layers):
        got.update({f"blocks.{i}.{name}": tensor for name, tensor in reader.block(i).items()})
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_islands_stay_float32(dtype, tmp_path):
    # The embedded checkpoint stores everything in 16 bits; islands come back as float32 all the same.
    folder = _save(tmp_path, {k: v.bfloat16() for k, v in _tensors().items()})
    dit = load_dit(folder, dtype=dtype)
    islands = {spec.name for spec in keys.all_specs(CONFIG) if spec.island}
    assert islands
    for name, parameter in dit.named_parameters():
        assert parameter.dtype == (torch.float32 if name in islands else dtype), name
        assert not parameter.requires_grad


def test_a_model_without_adaln_runs_from_the_readers_table(tmp_path):
    folder = _save(tmp_path, _tensors())
    whole = load_dit(folder, dtype=torch.float32)
    lean = load_dit(folder, dtype=torch.float32, adaln=False)
    layout = tiny_layout()
    plan = step_plan(layout, torch.tensor(0.3), torch.tensor(0.6))
    table = build_table(DiTReader(folder, dtype=torch.float32), [plan])
    rows = tiny_rows(layout)
    for got, want in zip(lean(*rows, layout, table.step(0)), whole(*rows, layout, plan), strict=True):
        assert torch.equal(got, want)
    assert sum(p.numel() for p in lean.parameters()) < sum(p.numel() for p in whole.parameters())


KEY = "transformer_blocks.1.attn.to_k.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(KEY), f"lacks the key '{KEY}'"),
        (lambda t: t.update({KEY + "_extra": t[KEY].clone()}), f"unknown key '{KEY}_extra'"),
        (lambda t: t.update({KEY: t[KEY][:-1].contiguous()}), r"has shape \[31, 24\], the config asks for \[32, 24\]"),
        (lambda t: t.update({KEY: t[KEY].to(torch.int8)}), "torch.int8, not a float"),
        (lambda t: t.update({"adaln_t_table": t[KEY].clone()}), "unknown key 'adaln_t_table'"),
    ],
)
def test_a_wrong_key_is_refused_by_name(change, message, tmp_path):
    tensors = _tensors()
    change(tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        DiTReader(_save(tmp_path, tensors))
    assert str(tmp_path) in str(caught.value)


def test_another_models_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no MiniMax-H3 DiT"):
        DiTReader(_save(tmp_path, {"model.layers.0.weight": torch.zeros(3)}))


@pytest.mark.parametrize("keep", [0, 5, 8, 300, -1, -4000])
def test_a_truncated_file_is_refused(keep, tmp_path):
    file = _save(tmp_path, _tensors()) / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        DiTReader(tmp_path)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"<html>not found</html>" * 9, b"\x02" + b"\0" * 7 + b"[]"])
def test_a_file_that_is_no_safetensors_is_refused(garbage, tmp_path):
    file = _save(tmp_path, _tensors()) / "diffusion_pytorch_model.safetensors"
    file.write_bytes(garbage)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        DiTReader(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        DiTReader(tmp_path / "nowhere", CONFIG)
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        DiTReader(tmp_path, CONFIG)
    folder = _save(tmp_path / "sharded", _tensors(), shards=3)
    gone = folder / "diffusion_pytorch_model-00002-of-00003.safetensors"
    gone.unlink()
    with pytest.raises(CheckpointError, match=gone.name):
        DiTReader(folder)
    whole = _save(tmp_path / "whole", _tensors())
    (whole / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_dit(whole, dtype=torch.float32)


def test_an_index_cannot_leave_its_folder(tmp_path):
    folder = _save(tmp_path / "in", _tensors())
    index = {"weight_map": {"proj_in.weight": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not a file of its folder"):
        DiTReader(folder)


def test_the_hash_is_stable_and_sees_changes(tmp_path):
    folder = _save(tmp_path / "a", _tensors())
    first = model_hash(folder)
    assert first == model_hash(_save(tmp_path / "b", _tensors()))
    tensors = _tensors()
    tensors[KEY] = tensors[KEY] + 1
    assert first != model_hash(_save(tmp_path / "c", tensors))
    (folder / "config.json").write_text("{}")
    assert first != model_hash(folder)


def test_a_local_checkpoint_resolves_to_itself(tmp_path):
    assert resolve_checkpoint(tmp_path) == tmp_path
    assert resolve_checkpoint(str(tmp_path)) == tmp_path
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        resolve_checkpoint(tmp_path / "gone" / "deep")


def test_a_hub_id_without_network_is_one_clear_line(monkeypatch):
    import huggingface_hub

    def offline(*args, **kwargs):
        raise OSError("connection refused\nwith a long trace")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint("owner/name")
    assert "\n" not in str(caught.value)
    assert "owner/name is not a local folder" in str(caught.value)


def test_a_block_opens_only_the_files_that_hold_it(tmp_path):
    tensors = _tensors()
    of_block = {k: v for k, v in tensors.items() if k.startswith("transformer_blocks.1.")}
    rest = {k: v for k, v in tensors.items() if k not in of_block}
    folder = _save(tmp_path, rest)
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / "a.safetensors")
    save_file(of_block, folder / "b.safetensors")
    weight_map = {**dict.fromkeys(rest, "a.safetensors"), **dict.fromkeys(of_block, "b.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    reader = DiTReader(folder)
    (folder / "a.safetensors").write_bytes(b"")
    assert reader.block(1)["norm1.weight"].shape == (CONFIG.hidden_size,)
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        reader.block(0)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"note": "x" * 13}])
def test_tensors_are_aligned_wherever_they_lie_in_the_file(metadata, tmp_path):
    _save(tmp_path, _tensors())
    save_file(_tensors(), tmp_path / "diffusion_pytorch_model.safetensors", metadata=metadata)
    reader = DiTReader(tmp_path)
    assert all(reader.tensor(name).data_ptr() % 64 == 0 for name in reader.specs)


@pytest.mark.parametrize("text", ["[]", '"a config"', "3"])
def test_a_config_that_is_no_object_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="does not hold a JSON object"):
        read_config(tmp_path)
