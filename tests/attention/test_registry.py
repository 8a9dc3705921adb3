from __future__ import annotations

import pytest
import torch

from talkies.attention import registry
from talkies.attention.base import Exactness
from talkies.attention.registry import ALIASES, ATTENTION, Machine, create, resolve, resolve_on
from talkies.errors import ConfigError

CPU = Machine(capability=None, dtype=torch.float32)
HOPPER = Machine(capability=(9, 0), dtype=torch.bfloat16)
BLACKWELL = Machine(capability=(10, 0), dtype=torch.bfloat16)
ADA = Machine(capability=(8, 9), dtype=torch.bfloat16)
CONSUMER_BLACKWELL = Machine(capability=(12, 0), dtype=torch.bfloat16)


@pytest.fixture
def installed(monkeypatch):
    """Names of importable packages."""
    modules = set()

    def find(name):
        if name not in modules:
            raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(registry.importlib, "import_module", find)
    return modules


def test_auto_follows_the_machine(installed):
    assert resolve_on("auto", CPU) == "sdpa"
    assert resolve_on("auto", HOPPER) == "cudnn"
    installed.update(backend.module for backend in ATTENTION.values())
    assert resolve_on("auto", HOPPER) == "fa3"
    assert resolve_on("auto", BLACKWELL) == "fa4"
    assert resolve_on("auto", CONSUMER_BLACKWELL) == "cudnn"
    assert resolve_on("auto", ADA) == "sdpa"
    assert resolve_on("auto", Machine(capability=(9, 0), dtype=torch.float32)) == "sdpa"


def test_auto_never_approximates():
    assert not {name for names in registry.PREFERENCE.values() for name in names} & {"fa3-fp8", "sage"}


def test_the_choice_is_logged(installed, caplog):
    with caplog.at_level("INFO", "talkies.attention.registry"):
        resolve_on("auto", HOPPER)
    assert "attention: cudnn" in caplog.text


@pytest.mark.parametrize(
    ("name", "machine", "message"),
    [
        ("fa3", HOPPER, r"fa3 cannot run here: the package fa3-fwd cannot be imported.*can run sdpa.*pip install"),
        ("fa3-fp8", CPU, r"needs a CUDA device"),
        ("fa3", BLACKWELL, r"compute capability 9.0 to below 10.0, this is 10.0"),
        ("cudnn", Machine(capability=(9, 0), dtype=torch.float32), r"runs in torch.float32"),
        ("FLASH_ATTN", HOPPER, r"no flash attention can run here: fa3: .*fa4: "),
        ("TRTLLM_ATTN", HOPPER, r"TensorRT-LLM"),
        ("FASTVIDEO_VSA", HOPPER, r"dense"),
        ("warp", CPU, r"no attention backend is called 'warp'.*auto, flash, .*sdpa"),
    ],
)
def test_what_cannot_run_is_refused_with_the_way_out(installed, name, machine, message):
    with pytest.raises(ConfigError, match=message):
        resolve_on(name, machine)


def test_peers_names_are_taken(installed):
    assert resolve_on("TORCH_SDPA", CPU) == "sdpa"
    assert resolve_on("CUDNN_ATTN", HOPPER) == "cudnn"
    installed.add("fa3_fwd_interface")
    assert resolve_on("FLASH_ATTN", HOPPER) == resolve_on("flash", HOPPER) == "fa3"
    assert set(ALIASES.values()) - {"flash"} <= set(ATTENTION)


def test_a_broken_wheel_is_named(monkeypatch):
    def broken(name):
        raise OSError("undefined symbol: _ZN3c10")

    monkeypatch.setattr(registry.importlib, "import_module", broken)
    assert resolve_on("auto", HOPPER) == "cudnn"
    with pytest.raises(ConfigError, match="undefined symbol"):
        resolve_on("fa3", HOPPER)


def test_create_without_the_package_says_how_to_get_it():
    with pytest.raises(ConfigError, match=r"fa3-fwd.*pip install fa3-fwd"):
        create("fa3")


def test_resolve_on_a_cpu():
    assert resolve("auto", torch.device("cpu"), torch.float32) == "sdpa"
    assert create("sdpa").name == "sdpa"


@pytest.mark.parametrize(
    ("name", "least"), [("cudnn", (8, 0)), ("sage", (8, 0)), ("fa3", (9, 0)), ("fa3-fp8", (9, 0)), ("fa4", (9, 0))]
)
def test_the_oldest_card_of_a_backend(name, least):
    below = (least[0] - 1, 9)
    lacks = ATTENTION[name].lacks
    assert lacks(Machine(capability=least, dtype=torch.bfloat16)) is None
    assert f"capability {least[0]}.{least[1]}" in lacks(Machine(capability=below, dtype=torch.bfloat16))


def test_nothing_is_exact_unless_it_is_said():
    assert not any(Exactness().whole_step(step, 5) for step in range(5))
    assert not Exactness().condition_rows
    ends = Exactness(first_steps=1, last_steps=2)
    assert [ends.whole_step(step, 5) for step in range(5)] == [True, False, False, True, True]
