"""Adapters over the wire: chosen by name, in our words and in vLLM-Omni's, and echoed as they are used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from talkies.request import AdapterChoice
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService

FILM = {"name": "film", "strength": 0.5}


def accepted(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "fields",
    [
        {"adapters": [FILM]},
        {"extra_params": {"adapters": [FILM]}},
        {"lora": {"name": "film", "scale": 0.5}},
        {"lora": json.dumps({"lora_name": "film", "lora_scale": "0.5", "lora_int_id": 3})},
        {"lora": [{"adapter": "film", "scale": 0.5}]},
        {"extra_params": {"lora": {"name": "film", "scale": 0.5}}},
    ],
)
def test_one_adapter_in_every_dialect(server: Server, fields: dict[str, Any]) -> None:
    job = server.create(**fields)
    assert job["adapters"] == [FILM]
    assert job["warnings"] == []
    assert server.service.jobs[job["id"]].request.adapters == (AdapterChoice(name="film", strength=0.5),)


@pytest.mark.parametrize(
    "form",
    [
        {"adapters": json.dumps([FILM])},
        {"adapters[0][name]": "film", "adapters[0][strength]": "0.5"},
        {"adapters[][name]": "film", "adapters[][strength]": "0.5"},
        {"lora[name]": "film", "lora[scale]": "0.5"},
        {"lora": json.dumps({"name": "film", "scale": 0.5})},
    ],
)
def test_forms_carry_them_too(server: Server, form: dict[str, str]) -> None:
    assert accepted(server.http.post("/v1/videos", data={"prompt": "a ball", **form}))["adapters"] == [FILM]


def test_a_name_alone_is_as_it_was_trained_and_order_is_kept(server: Server) -> None:
    job = server.create(adapters=["fast", FILM])
    assert job["adapters"] == [{"name": "fast", "strength": 1.0}, FILM]
    assert server.create(adapters=[])["adapters"] == []
    assert server.create(adapters=[{"name": "film", "strength": 0}])["adapters"] == []
    assert server.create(adapters=None)["adapters"] == server.create()["adapters"] == []


def test_a_path_is_not_opened(server: Server, tmp_path: Path) -> None:
    job = server.create(lora={"name": "film", "path": str(tmp_path / "evil.safetensors"), "scale": 0.5})
    assert job["adapters"] == [FILM]
    assert job["warnings"] == ["lora.path is ignored: adapters are the operator's, and known by their names"]


def test_what_is_on_by_default_is_echoed(tmp_path: Path) -> None:
    service = FakeService()
    film, fast = service.info.limits.adapters
    known = (replace(film, strength=0.8), replace(fast, strength=1.0))
    service.info = replace(service.info, limits=replace(service.info.limits, adapters=known))
    with serving(tmp_path / "data", service) as server:
        job = server.create()
        assert job["adapters"] == [{"name": "film", "strength": 0.8}, {"name": "fast", "strength": 1.0}]
        assert (job["num_forwards"], job["num_inference_steps"]) == (4, 5)
        assert server.create(adapters=[], num_forwards=7)["num_forwards"] == 7
        refused = server.http.post("/v1/videos", json={"prompt": "a ball", "num_forwards": 7})
        assert refused.status_code == 400
        assert "adapter fast was distilled for 4" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        ({}, []),
        ({"num_forwards": 4}, []),
        ({"num_inference_steps": 5, "flow_shift": 12, "audio_flow_shift": 3}, []),  # sigma points, as SGLang counts
        # forwards, as vLLM-Omni counts where an adapter has a ladder of its own
        (
            {"num_inference_steps": 4},
            ["num_inference_steps=4 is read as 4 forwards, which adapter fast was distilled for"],
        ),
    ],
)
def test_steps_of_a_distilled_adapter_are_counted_as_peers_do(
    server: Server, fields: dict[str, Any], notes: Any
) -> None:
    job = server.create(adapters=["fast"], **fields)
    assert (job["num_forwards"], job["num_inference_steps"], job["warnings"]) == (4, 5, notes)


def test_the_model_lists_them(server: Server) -> None:
    (model,) = server.http.get("/v1/models").json()["data"]
    film, fast = model["limits"]["adapters"]
    free = {"num_forwards": None, "flow_shift": None, "audio_flow_shift": None}
    tasks = ["t2va", "fl2va", "ref2va"]
    assert film == {"name": "film", "strength": 0.0, "sha256": "1" * 64, "tasks": tasks, **free}
    steps = {"num_forwards": 4, "flow_shift": 12.0, "audio_flow_shift": 3.0}
    assert fast == {"name": "fast", "strength": 0.0, "sha256": "2" * 64, "tasks": ["t2va"], **steps}


def test_a_remix_keeps_them_and_the_body_replaces_them(server: Server) -> None:
    job = server.create(adapters=[FILM])
    server.service.release.set()
    server.wait(job["id"])
    remix = f"/v1/videos/{job['id']}/remix"
    assert accepted(server.http.post(remix, json={"prompt": "b"}))["adapters"] == [FILM]
    assert accepted(server.http.post(remix, json={"prompt": "b", "adapters": []}))["adapters"] == []
    assert accepted(server.http.post(remix, json={"prompt": "b", "lora": {"name": "fast"}}))["adapters"] == [
        {"name": "fast", "strength": 1.0}
    ]
