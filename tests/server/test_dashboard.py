"""The Grafana dashboard asks for metrics that the server has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.server.conftest import Server
from tests.server.jobs.test_lifecycle import until

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
OF_THE_WORKER = {"talkies_engine_worker_restarts_total", "talkies_engine_rows_total", "talkies_engine_forwards_total"}
OF_THE_WORKER |= {"talkies_engine_rss_bytes"}


def test_every_panel_has_its_metric(server: Server) -> None:
    for prompt in ("a ball", "oom"):
        server.wait(server.create(prompt)["id"])
    until(lambda: "talkies_job_errors_total{" in server.http.get("/metrics").text)
    text = server.http.get("/metrics").text
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {name for panel in panels for target in panel["targets"]
             for name in re.findall(r"(?:talkies|vllm_omni)[a-z_:0-9]+", target["expr"])}  # fmt: skip
    assert len(asked) > 12
    assert [name for name in sorted(asked - OF_THE_WORKER) if f"\n{name}{{" not in text] == []
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_what_was_chosen_can_be_read(server: Server) -> None:
    text = server.http.get("/metrics").text
    for name in ("talkies_attention", "talkies_text_attention"):
        assert re.search(rf'^{name}{{.*kind="sdpa".*}} 1\.0$', text, re.MULTILINE)
