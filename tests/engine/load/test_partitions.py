"""Which DiTs are in memory: one or both by ``task_type``, and everything else once."""

import gc
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from talkies import Engine
from talkies.codecs.audio.vae import AudioVAE
from talkies.codecs.text.encoder import TextEncoder
from talkies.codecs.video.vae import VideoVAE
from talkies.engine.config import EngineConfig
from talkies.engine.load import build
from talkies.engine.port.messages import WorkerOptions
from talkies.engine.worker.abilities import describe_service
from talkies.errors import ConfigError, UnsupportedTask
from talkies.files.tensor_files import TensorFiles
from talkies.request import Condition, Target, VideoRequest

SHORT = {"num_sigmas": 3, "target": Target(num_frames=22)}


@pytest.fixture(scope="module")
def both(tiny_folder, tmp_path_factory):
    """A checkpoint of two partitions; the second has its own file of weights."""
    root = tmp_path_factory.mktemp("both") / "model"
    shutil.copytree(tiny_folder, root)
    shutil.copytree(root / "transformer", root / "transformer_ref")
    return root


@pytest.fixture
def read_from(monkeypatch):
    """Folders of which a tensor was read, with how many."""
    seen = Counter()
    read = TensorFiles.tensor

    def spy(self, key):
        seen[self.file_of(key).parent.name] += 1
        return read(self, key)

    monkeypatch.setattr(TensorFiles, "tensor", spy)
    return seen


def config(folder, task_type):
    return EngineConfig(model=str(folder), threads=1, task_type=task_type)


def held_files():
    """Files that this process has open or mapped."""
    names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return names + Path("/proc/self/maps").read_text().split()


@pytest.mark.parametrize(
    ("task_type", "folder", "other", "tasks"),
    [
        ("fl2va", "transformer", "transformer_ref", ("t2va", "fl2va")),
        ("ref2va", "transformer_ref", "transformer", ("ref2va",)),
    ],
)
def test_one_partition_neither_reads_nor_keeps_the_other(both, read_from, tmp_path, task_type, folder, other, tasks):
    gc.collect()
    before = Counter(held_files())  # an engine of another test may still be there
    engine = Engine.open_config(config(both, task_type))
    assert list(engine.components.dits) == list(engine.components.readers) == [task_type]
    assert engine.limits.tasks == tasks
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "a.png")
    role = "first" if task_type == "fl2va" else "reference"
    picture = Condition(kind="image", uri=str(tmp_path / "a.png"), role=role)
    engine.generate(VideoRequest(prompt="<Picture 1>", conditions=(picture,), **SHORT))
    assert read_from[folder] > 0
    assert read_from[other] == 0
    assert not [name for name in Counter(held_files()) - before if f"{both}/{other}/" in name]
    assert [name for name in Counter(held_files()) - before if f"{both}/{folder}/" in name]
    refused = (
        VideoRequest(prompt="a", **SHORT)
        if task_type == "ref2va"
        else VideoRequest(prompt="a", conditions=(Condition(kind="image", uri="x.png"),), task="ref2va", **SHORT)
    )
    with pytest.raises(UnsupportedTask, match="is not served by this checkpoint"):
        engine.generate(refused)


def test_both_share_one_text_encoder_and_one_of_each_vae(both, read_from, monkeypatch, tmp_path):
    loads = Counter()
    for owner in (TextEncoder, AudioVAE, VideoVAE):
        load = owner.load.__func__

        def counted(cls, *args, _load=load, **kwargs):
            loads[cls.__name__] += 1
            return _load(cls, *args, **kwargs)

        monkeypatch.setattr(owner, "load", classmethod(counted))
    stages = []
    components = build.load(config(both, "combined"), on_stage=stages.append)
    assert stages == ["weights of fl2va", "weights of ref2va", "text encoder", "audio VAE"]
    assert set(components.dits) == {"fl2va", "ref2va"}
    assert components.dits["fl2va"] is not components.dits["ref2va"]
    parts = id(components.text), id(components.audio), id(components.video)
    engine = Engine(components)
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "a.png")
    picture = str(tmp_path / "a.png")
    engine.generate(VideoRequest(prompt="a", **SHORT))
    engine.generate(VideoRequest(prompt="a", conditions=(Condition(kind="image", uri=picture, role="first"),), **SHORT))
    engine.generate(VideoRequest(prompt="a <Picture 1>", conditions=(Condition(kind="image", uri=picture),), **SHORT))
    assert loads == Counter(TextEncoder=1, AudioVAE=1, VideoVAE=1)
    assert (id(components.text), id(components.audio), id(components.video)) == parts
    assert read_from["transformer"] > 0
    assert read_from["transformer_ref"] > 0


def test_a_partition_that_is_not_there_is_a_configuration_error(tiny_folder):
    with pytest.raises(ConfigError, match=r"task_type=ref2va, but the checkpoint has fl2va"):
        build.load(config(tiny_folder, "ref2va"))
    with pytest.raises(ConfigError, match="combined, fl2va or ref2va"):
        config(tiny_folder, "t2va")


def test_what_a_service_offers_is_known_before_a_weight_is_read(both, read_from):
    offer = describe_service(WorkerOptions(config=config(both, "ref2va")))
    assert offer.limits.tasks == ("ref2va",)
    assert offer.num_devices == 1
    assert (offer.dtype, offer.video_dtype) in {("float32", "float32"), ("bfloat16", "float16")}  # CPU, GPU
    assert describe_service(WorkerOptions(config=config(both, "combined"))).limits.tasks == ("t2va", "fl2va", "ref2va")
    assert not read_from
