"""Adapters in the embedded checkpoint: fused whatever the placement is, changed per request, restored bit for bit."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Engine, Target, VideoRequest
from talkies.adapters.named_path import NamedPath
from talkies.engine.config import EngineConfig, embedded_folder
from talkies.engine.load import build, checkpoint
from talkies.engine.pipeline.run import RequestRun
from talkies.engine.pipeline.sinks import ClipSink
from talkies.errors import CheckpointError, ConfigError, InvalidRequest, UnsupportedTask
from talkies.h3 import dit_keys
from talkies.h3.dit_keys import Layout
from talkies.h3.partitions import find_parts
from talkies.media.read.probe import probe
from talkies.model.weights import DiTReader, read_config
from talkies.request import AdapterChoice, Condition
from tests.adapters import files

REQUEST = VideoRequest(prompt="a red ball bounces slowly", num_sigmas=4, target=Target(num_frames=22), seed=5)
FOLDER = find_parts(embedded_folder()).transformers
CONFIG = read_config(FOLDER["fl2va"])
RED, BLUE = files.factors(CONFIG, 4, seed=1, scale=0.15), files.factors(CONFIG, 3, seed=2, scale=0.15)
OFF = REQUEST.replace(adapters=())


def asks(*names, request=REQUEST, **strengths):
    chosen = {**dict.fromkeys(names, 1.0), **strengths}
    return request.replace(adapters=tuple(AdapterChoice(name=name, strength=s) for name, s in chosen.items()))


def digest(clip):
    return hashlib.sha256(clip.frames.tobytes() + clip.audio.tobytes()).hexdigest()


def near(a, b):
    """Mean difference of pixels, 0..255."""
    return float(np.abs(a.frames.astype(float) - b.frames).mean())


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    ref = files.peft(files.port_pairs(RED), prefix="transformer_ref.")
    return {
        "red": files.save(files.peft(files.port_pairs(RED)), folder / "red.safetensors"),
        "blue": files.save(
            files.kohya(files.native_pairs(BLUE, CONFIG, grouped=False), 3.0), folder / "blue.safetensors"
        ),
        "ref": files.save(ref, folder / "ref.safetensors"),
    }


def config(paths, **more):
    given = tuple(NamedPath(name, str(paths[name]), s) for name, s in more.pop("on", {"red": 1.0, "blue": 0.0}).items())
    return EngineConfig(**{"threads": 1, "task_type": "fl2va", "adapters": given, **more})


@pytest.fixture(scope="module")
def engine(paths):
    return Engine.open_config(config(paths))


@pytest.fixture(scope="module")
def plain():
    return Engine.open_config(EngineConfig(threads=1, task_type="fl2va"))


@pytest.fixture(scope="module")
def expected(engine):
    return engine.generate(REQUEST)


def merged(tmp_path, pairs):
    """A checkpoint whose DiT has the dense sum in its file: what an adapter stands for, without one."""
    shutil.copytree(embedded_folder(), tmp_path / "merged")
    folder = tmp_path / "merged" / FOLDER["fl2va"].relative_to(embedded_folder())
    reader = DiTReader(FOLDER["fl2va"])
    layout, weights = reader.layout, {}
    for spec in dit_keys.all_specs(CONFIG):
        tensor, module = reader.tensor(spec.name).float(), spec.name.removesuffix(".weight")
        if spec.name.endswith(".weight") and module in pairs:
            tensor = files.dense(tensor, pairs[module], 1.0)
        weights.update(
            zip(dit_keys.file_keys(spec.name, layout), dit_keys.split(spec, tensor, layout, CONFIG), strict=True)
        )
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    files.save(weights, folder / "diffusion_pytorch_model.safetensors")
    return tmp_path / "merged"


def test_an_adapter_is_the_checkpoint_that_has_it_merged(tmp_path, expected, plain):
    assert DiTReader(FOLDER["fl2va"]).layout is Layout.PORT
    model = str(merged(tmp_path, RED))
    clip = Engine.open_config(EngineConfig(model=model, threads=1, task_type="fl2va")).generate(REQUEST)
    assert near(clip, expected) < 0.01
    assert near(plain.generate(REQUEST), expected) > 1


@pytest.mark.parametrize(
    "how",
    [
        {"offload": "layer"},
        {"offload": "module"},
        {"offload": "layer", "offload_components": ("dit",), "resident_blocks": 2},
    ],
    ids=["layer", "module", "dit"],
)
def test_streamed_weights_have_it_too(paths, how, expected, plain):
    engine = Engine.open_config(config(paths, **how))
    assert digest(engine.generate(REQUEST)) == digest(expected)
    # Changed in host memory, and back.
    assert digest(engine.generate(OFF)) == digest(plain.generate(REQUEST))
    assert digest(engine.generate(REQUEST)) == digest(expected)


def test_fp8_is_made_of_the_sum(tmp_path, paths):
    engine = Engine.open_config(config(paths, quantization="fp8"))
    model = str(merged(tmp_path, RED))
    want = Engine.open_config(EngineConfig(model=model, threads=1, task_type="fl2va", quantization="fp8"))
    clip = engine.generate(REQUEST)
    assert near(clip, want.generate(REQUEST)) < 1
    plain = Engine.open_config(EngineConfig(threads=1, task_type="fl2va", quantization="fp8"))
    assert digest(engine.generate(OFF)) == digest(plain.generate(REQUEST))
    assert digest(engine.generate(REQUEST)) == digest(clip)


@pytest.mark.timeout(180)
def test_two_ranks_have_it_and_change_it_together(paths, expected, plain):
    engine = Engine.open_config(config(paths, tensor_parallel=2))
    try:
        first = engine.generate(REQUEST)
        assert near(first, expected) < 0.5
        assert near(engine.generate(OFF), plain.generate(REQUEST)) < 0.5
        assert digest(engine.generate(REQUEST)) == digest(first)
    finally:
        engine.close()


def test_the_dit_for_references_has_its_own(tmp_path, paths):
    Image.new("RGB", (256, 256), "green").save(tmp_path / "it.png")
    picture = Condition(kind="image", uri=str(tmp_path / "it.png"))
    request = REQUEST.replace(conditions=(picture,), prompt="picture 1 turns")
    given = {"ref": 1.0, "blue": 0.5}
    engine = Engine.open_config(config(paths, task_type="combined", on=given))
    plain = Engine.open_config(EngineConfig(threads=1, task_type="combined"))
    assert near(engine.generate(request), plain.generate(request)) > 0.5
    assert digest(engine.generate(request.replace(adapters=()))) == digest(plain.generate(request))
    with pytest.raises(InvalidRequest, match="adapter ref was trained for ref2va, and this request is t2va"):
        engine.generate(asks("ref"))
    # What is on by default and is not for this DiT is left out, and the clip says what it had.
    assert engine.generate(REQUEST).facts.adapters == ({"name": "blue", "strength": 0.5},)


def test_strength_0_is_no_adapter(paths, engine, plain):
    want = digest(plain.generate(REQUEST))
    assert digest(Engine.open_config(config(paths, on={"red": 0.0})).generate(REQUEST)) == want
    assert digest(engine.generate(asks(red=0.0, blue=0.0))) == want


def test_requests_choose_and_another_changes_nothing_for_good(paths, engine, plain, expected):
    blue = Engine.open_config(config(paths, on={"blue": 1.0})).generate(REQUEST)
    both = Engine.open_config(config(paths, on={"blue": 0.5, "red": -1.0})).generate(REQUEST)
    for request, want in (
        (asks("blue"), blue),
        (OFF, plain.generate(REQUEST)),
        (asks(blue=0.5, red=-1.0), both),
        (REQUEST, expected),
        (asks("red"), expected),
    ):
        assert digest(engine.generate(request)) == digest(want), request.adapters
    assert len({digest(clip) for clip in (blue, both, expected)}) == 3


def test_a_table_of_one_set_is_not_anothers(engine, expected):
    """AdaLN weights are in no DiT: only the table that is made of them differs."""
    engine.components.tables._tables.clear()
    engine.generate(asks("blue"))
    assert digest(engine.generate(REQUEST)) == digest(expected)
    assert len(engine.components.tables._tables) == 2


@pytest.mark.parametrize("turns", ["each", "late"])
def test_interleaved_requests_have_the_bytes_of_separate_runs(engine, turns):
    requests = [asks("red"), asks("blue"), OFF]
    want = [digest(engine.generate(request)) for request in requests]
    sinks, runs = {}, []
    for index, request in enumerate(requests):

        def open_sink(output, state, facts, index=index):
            sinks[index] = ClipSink(engine.components, state, facts)
            return sinks[index]

        runs.append(RequestRun(engine.components, request, open_sink))
    left = list(runs) if turns == "each" else list(reversed(runs))
    while left:
        run = left.pop(0)
        if run.wants_forward:
            run.forward()
        elif run.advance() is None:
            continue
        left.append(run)
    assert [digest(sinks[i].clip(runs[i].results[0])) for i in range(3)] == want


def test_a_change_that_breaks_off_is_done_again_whole(engine, monkeypatch, expected):
    adapted = engine.components.adapted["fl2va"]
    place, calls = adapted._place, []

    def breaks(name, tensor):
        calls.append(name)
        if len(calls) == 5:
            raise CheckpointError("the disk is gone")
        return place(name, tensor)

    engine.generate(REQUEST)
    monkeypatch.setattr(adapted, "_place", breaks)
    with pytest.raises(CheckpointError, match="the disk is gone"):
        engine.generate(asks("blue"))
    monkeypatch.setattr(adapted, "_place", place)
    assert digest(engine.generate(REQUEST)) == digest(expected)


def test_a_wrong_name_is_refused_with_the_list(engine):
    with pytest.raises(InvalidRequest, match=r"no adapter is called 'rde' \(known: red, blue\)") as caught:
        engine.generate(asks("rde"))
    assert caught.value.param == "adapters"


def test_an_engine_without_adapters_says_how_to_load_one(plain):
    with pytest.raises(InvalidRequest, match=r"no adapter is called 'red' \(none is loaded: see --adapter\)"):
        plain.generate(asks("red"))


def test_the_hash_and_the_clip_name_what_was_in_the_weights(tmp_path, paths, engine, plain):
    def made(engine, request, name):
        engine.render(request, [tmp_path / name])
        return probe(str(tmp_path / name)).request

    ours, theirs = engine.components, plain.components
    assert ours.checkpoint_hash == theirs.checkpoint_hash == theirs.model_hash != ours.model_hash
    found = made(engine, asks(blue=0.5), "blue.mp4")
    sha = hashlib.sha256(paths["blue"].read_bytes()).hexdigest()
    assert found["adapters"] == [{"name": "blue", "sha256": sha, "strength": 0.5}]
    assert found["request"]["adapters"] == [{"name": "blue", "strength": 0.5}]
    hashes = {
        made(engine, r, f"{i}.mp4")["model"]["hash"] for i, r in enumerate((asks("red"), asks("blue"), asks(red=0.5)))
    }
    assert len(hashes) == 3
    off = made(engine, OFF, "off.mp4")
    assert "adapters" not in off
    assert off["model"]["hash"] == theirs.model_hash
    assert (tmp_path / "off.mp4").read_bytes() == _rendered(plain, OFF, tmp_path / "plain.mp4")


def _rendered(engine, request, path):
    engine.render(request, [path])
    return path.read_bytes()


def test_files_are_refused_before_weights_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(DiTReader, "__init__", lambda *_, **__: pytest.fail("weights are read"))
    bad = files.factors(CONFIG)
    bad["proj_out"] = (bad["proj_out"][0] * float("nan"), bad["proj_out"][1])
    for tensors, words in (
        (files.peft(files.port_pairs(bad)), "proj_out.lora_B.weight' holds NaN or Inf"),
        ({"other.lora_A.weight": torch.ones(1, 1)}, "no adapter of a MiniMax-H3 DiT"),
    ):
        path = files.save(tensors, tmp_path / "it.safetensors")
        with pytest.raises(CheckpointError, match=words):
            build.load(EngineConfig(adapters=(NamedPath("it", str(path)),)))
    with pytest.raises(CheckpointError, match="does not exist"):
        build.load(EngineConfig(adapters=(NamedPath("it", str(tmp_path / "gone")),)))


def test_a_sum_that_overflows_is_refused(tmp_path):
    path = files.save({"norm_out.norm.diff": torch.full((CONFIG.hidden_size,), 3e38)}, tmp_path / "it.safetensors")
    with pytest.raises(CheckpointError, match=r"norm_out.norm.weight overflows float32 with it"):
        build.load(EngineConfig(adapters=(NamedPath("it", str(path), 100.0),), task_type="fl2va"))


# Steps of a distilled adapter.


def distilled(tmp_path, name="fast", **said):
    path = files.save({"norm_out.norm.diff": torch.zeros(CONFIG.hidden_size)}, tmp_path / f"{name}.safetensors")
    path.with_suffix(".json").write_text(json.dumps(said))
    return NamedPath(name, str(path))


@pytest.fixture(scope="module")
def few_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fast")
    base = {"base_schedule": [0.999, 0.75, 0.5, 0.0], "flow_shift": 10, "audio_flow_shift": 2, "tasks": ["t2va"]}
    even = distilled(folder, "even", num_forwards=2)
    given = (distilled(folder, "fast", **base), NamedPath(even.name, even.path, 0.0))
    return Engine.open_config(EngineConfig(threads=1, task_type="fl2va", adapters=given))


BARE = REQUEST.replace(num_sigmas=None)


def test_a_request_takes_the_adapters_steps(few_steps, plain):
    clip = few_steps.generate(BARE)
    assert clip.facts.num_forwards == 3
    # The adapter adds zeros: the same ladder, written out, is the same clip.
    written = BARE.replace(sigmas=(0.999, 0.75, 0.5, 0.0), video_shift=10.0, audio_shift=2.0)
    assert digest(clip) == digest(plain.generate(written))
    assert few_steps.generate(asks("even", request=BARE)).facts.num_forwards == 2
    again = BARE.replace(num_sigmas=4, video_shift=10.0)  # as needed
    assert digest(few_steps.generate(again)) == digest(clip)
    assert digest(few_steps.generate(OFF)) == digest(plain.generate(OFF))


@pytest.mark.parametrize(
    ("changes", "words", "param"),
    [
        (
            {"num_sigmas": 50},
            r"is 49 forwards, but adapter fast was distilled for 3 \(use num_sigmas=4",
            "num_sigmas",
        ),
        ({"video_shift": 12.0}, r"video_shift=12.0, but adapter fast was distilled for 10.0", "video_shift"),
        ({"audio_shift": 3.0}, r"audio_shift=3.0, but adapter fast was distilled for 2.0", "audio_shift"),
        ({"sigmas": (1.0, 0.5, 0.0)}, r"sigmas=\[1.0, 0.5, 0.0\], but adapter fast", "sigmas"),
        (
            {"adapters": (AdapterChoice(name="fast"), AdapterChoice(name="even"))},
            "adapters fast and even were each distilled for steps of their own",
            "adapters",
        ),
    ],
)
def test_a_request_that_contradicts_it_is_refused_with_the_value(few_steps, changes, words, param):
    with pytest.raises(InvalidRequest, match=words) as caught:
        few_steps.generate(BARE.replace(**changes))
    assert caught.value.param == param


def test_a_task_that_it_was_not_trained_for(tmp_path, few_steps):
    Image.new("RGB", (256, 256), "green").save(tmp_path / "it.png")
    keyframe = (Condition(kind="image", uri=str(tmp_path / "it.png"), role="first"),)
    with pytest.raises(InvalidRequest, match="adapter fast was trained for t2va, and this request is fl2va"):
        few_steps.generate(asks("fast", request=BARE.replace(conditions=keyframe)))
    assert few_steps.generate(REQUEST.replace(conditions=keyframe)).facts.adapters == ()
    with pytest.raises(UnsupportedTask):
        few_steps.generate(BARE.replace(conditions=(Condition(kind="image", uri=str(tmp_path / "it.png")),)))


def test_two_with_steps_of_their_own_are_not_both_on(tmp_path):
    given = (distilled(tmp_path, "a", num_forwards=2), distilled(tmp_path, "b", num_forwards=3))
    with pytest.raises(ConfigError, match=r"a and b were each distilled .* --adapter b=PATH:0"):
        checkpoint.parts_and_limits(EngineConfig(adapters=given))
