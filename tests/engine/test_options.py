"""The table of options: what is declared once agrees with the rooms that the options are about."""

import re
from dataclasses import fields

import pytest

from talkies import Engine
from talkies.attention.registry import ATTENTION
from talkies.codecs.text.attention import TEXT_ATTENTION
from talkies.engine.config import EngineConfig, resolve
from talkies.engine.options import OPTIONS, PARTS, TEXT_PREFIX, EngineOptions
from talkies.errors import ConfigError
from talkies.h3.partitions import PARTITION_TASKS
from talkies.kernels.select import KERNELS
from talkies.model.chunking import ROW_MULTIPLE
from talkies.placement import quantize
from talkies.placement.components import COMPONENTS


def test_the_table_is_what_a_config_holds():
    assert [one.name for one in fields(EngineConfig)] == list(OPTIONS)
    config = EngineConfig()
    assert {name: getattr(config, name) for name in OPTIONS} == {name: one.default for name, one in OPTIONS.items()}


def test_words_of_the_table_are_those_of_the_rooms():
    assert tuple(COMPONENTS) == PARTS
    assert TEXT_PREFIX == quantize.TEXT_PREFIX
    assert OPTIONS["quantization"].choices == OPTIONS["text_quantization"].choices == quantize.METHODS
    assert OPTIONS["task_type"].choices == ("combined", *PARTITION_TASKS)
    assert OPTIONS["mlp_rows"].low == ROW_MULTIPLE
    for option, known in (("attention", ATTENTION), ("text_attention", TEXT_ATTENTION), ("kernels", KERNELS)):
        words = set(re.findall(r"[\w-]+", OPTIONS[option].help))
        assert set(known) <= words, (option, set(known) - words)


def test_flags_and_variables_are_nobody_elses():
    flags = [flag for one in OPTIONS.values() for flag in (one.flag, *one.peers)]
    variables = [name for one in OPTIONS.values() for name in one.environment]
    assert len(set(flags)) == len(flags)
    assert len(set(variables)) == len(variables)
    assert all(one.environment[0].startswith("TALKIES_") for one in OPTIONS.values())


@pytest.mark.parametrize("name", OPTIONS)
def test_help_is_a_sentence_that_stands_alone(name):
    text = OPTIONS[name].help
    assert text[0].isupper()
    assert text.endswith(".")
    assert "the same" not in text.lower()
    assert len(text.split()) >= 5


def test_an_unknown_option_has_its_nearest_name():
    with pytest.raises(ConfigError, match=r"no option is called 'ofload' \(did you mean offload\?\)"):
        Engine.open(ofload="layer")
    with pytest.raises(ConfigError, match="options are model, task_type"):
        EngineConfig.of({"zzz": 1})


def test_nothing_said_is_the_default():
    assert EngineConfig.of({"threads": None, "model": None, "vram_budget": None}) == EngineConfig()
    assert resolve(EngineConfig(device="cpu")).isolate is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"threads": True}, "threads=True is not a whole number"),
        ({"threads": 2.5}, "threads=2.5 is not a whole number"),
        ({"head_groups": "two"}, "head_groups='two' is not a whole number"),
        ({"head_groups": 0}, r"head_groups=0 is under 1 \(1 or more\)"),
        ({"mlp_rows": 63}, r"mlp_rows=63 is under 64 \(64 or more\)"),
        ({"device": 3}, r"device=3 is unknown \(use auto, cpu, cuda or cuda:N\)"),
        ({"vram_budget": 1.5}, "vram_budget=1.5 is not a size"),
        ({"offload_components": 7}, "offload_components=7 is not a list of names"),
        ({"isolate": "all"}, r"isolate='all' is unknown \(use none or modality\)"),
        ({"dtype": "float16"}, "float16 overflows in the DiT"),
        ({"resident_blocks": 2, "offload": "module"}, "exclude each other"),
    ],
)
def test_a_wrong_value_names_itself_and_the_way_out(values, words):
    with pytest.raises(ConfigError, match=words) as caught:
        EngineConfig(**values)
    assert caught.value.param in values


def test_values_may_be_given_as_they_are_typed():
    config = EngineConfig.of(
        {
            "vram_budget": "1.5GiB",
            "threads": "3",
            "offload_components": "vae,dit",
            "quantization": "fp8",
            "quantization_exclude": ["blocks.0.*"],
        }
    )
    assert (config.vram_budget, config.threads) == (3 << 29, 3)
    assert config.offload_components == ("video", "audio", "dit")
    assert config.quantization_exclude == ("blocks.0.*",)
    assert isinstance(config, EngineOptions)


@pytest.mark.parametrize(("said", "threads"), [("1", 1), ("3,2", 3), ("", None), ("0", None), ("many", None)])
def test_threads_are_those_of_omp_num_threads_unless_said_otherwise(monkeypatch, said, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert resolve(EngineConfig(device="cpu")).threads == (threads or 6)
    assert resolve(EngineConfig(device="cpu", ulysses_degree=2)).threads == (threads or 3)
    assert resolve(EngineConfig(device="cpu", threads=5)).threads == 5
