"""What the start asks of torch and of the measurement; no GPU is there, so both are stood in for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from talkies.attention import registry
from talkies.capacity.hardware import GIB, H200
from talkies.cli import app
from talkies.engine.config import EngineConfig
from talkies.engine.load import planning

CUDA = torch.device("cuda", 0)


class Properties:
    total_memory = 100 * GIB


@pytest.fixture
def device(monkeypatch):
    """A device that notes what it is told."""
    told = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, d: told.append((share, d)))
    for name in planning.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return told


def test_the_allocator_is_set_by_the_new_entry_where_there_is_one(monkeypatch, device):
    old = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", device.append, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", old.append, raising=False)
    planning.cap(CUDA, 25 * GIB)
    assert device == ["expandable_segments:True", (0.25, CUDA)]
    assert not old


def test_the_allocator_is_set_by_the_old_entry_otherwise(monkeypatch, device):
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", device.append, raising=False)
    planning.cap(CUDA, 25 * GIB)
    assert device == ["expandable_segments:True", (0.25, CUDA)]


def test_without_an_entry_the_budget_is_kept_and_the_log_says_so(monkeypatch, device, caplog):
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
    monkeypatch.delattr(torch.cuda.memory, "_set_allocator_settings", raising=False)
    planning.cap(CUDA, 25 * GIB)
    assert device == [(0.25, CUDA)]
    assert "cannot change its allocator" in caplog.text


@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_settings_of_the_operator_stay(monkeypatch, device, variable):
    monkeypatch.setenv(variable, "max_split_size_mb:512")
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", device.append, raising=False)
    planning.cap(CUDA, 25 * GIB)
    assert device == [(0.25, CUDA)]


@pytest.fixture
def asked(monkeypatch):
    """Backends that were measured on a card with 120 GiB free."""
    asked = []

    def measured(device, cache, attention):
        asked.append(attention)
        return H200

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (120 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(registry, "resolve", lambda name, device, dtype: f"{name} on {device}")
    monkeypatch.setattr(planning.measure, "of_device", measured)
    return asked


@pytest.mark.parametrize(
    ("options", "wished", "forward_s"), [((), "auto", (10, 12)), (("--fp8-attention",), "fa3-fp8", (8, 10))]
)
def test_a_plan_is_made_with_the_rates_of_the_backend_that_will_run(asked, options, wished, forward_s):
    arguments = ("plan", "--size", "1152x832", "--frames", "209", "--task-type", "fl2va", "--json", *options)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert asked == [f"{wished} on cuda"]
    found = json.loads(result.output.splitlines()[-1])
    assert forward_s[0] < found["forward_s"] < forward_s[1]


def test_the_start_plans_with_the_backend_that_it_resolved(asked, embedded_engine):
    c = embedded_engine.components
    resolved = replace(c.config, device=CUDA, attention="fa3-fp8")
    placement = planning.decide(EngineConfig(), resolved, c.parts, c.limits)
    assert asked == ["fa3-fp8"]
    assert placement.wishes.fp8_attention
    assert placement.plan is not None
