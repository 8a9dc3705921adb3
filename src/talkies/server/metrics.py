"""Prometheus text. vLLM-Omni's names where they exist, ``talkies_`` for the rest; one registry per application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from talkies.engine.port.facts import Facts
from talkies.server.metric_help import help_of

# A full-size clip takes minutes: the usual buckets, which end at 10 s, would put everything into the last one.
SECONDS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)
STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30)
CREATE = ("/v1/videos", "/v1/videos/sync")
STAGES = ("prepare", "encode", "denoise", "decode", "mux")


class Metrics:
    """Counters fed by the coordinator; gauges are read when somebody scrapes."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["model_name", *labels], registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, ["model_name", *labels], buckets=buckets, registry=self.registry)

        def told(make: Callable[..., Any], name: str, *more: Any) -> Any:
            return make(name, help_of(name), *more)

        rows = (500, 1e3, 2e3, 5e3, 1e4, 2e4, 4e4, 6e4, 1e5)
        self._jobs: Counter = told(counter, "vllm_omni:requests_success", "finished_reason")
        self._latency: Histogram = told(histogram, "vllm_omni:e2e_request_latency_s", SECONDS)
        self._wait: Histogram = told(histogram, "talkies_queue_wait_seconds", SECONDS)
        self._step: Histogram = told(histogram, "talkies_step_seconds", STEP_SECONDS)
        self._stage: Histogram = told(histogram, "talkies_stage_seconds", SECONDS, "stage")
        self._events: Counter = told(counter, "talkies_job_events", "event")
        self._errors: Counter = told(counter, "talkies_job_errors", "code")
        self._webhooks: Counter = told(counter, "talkies_webhooks", "result")
        self._hits: Counter = told(counter, "talkies_step_cache_hits", "profile")
        self._saved: Counter = told(counter, "talkies_step_cache_saved_seconds", "profile")
        self._rows: Histogram = told(histogram, "talkies_rows", rows)

    def answered(self, method: str, path: str, status: int) -> None:
        """One HTTP answer. A POST that is the client's to mend (4xx) is a refused job; one whose client left is not."""
        if method == "POST" and path in CREATE and 400 <= status < 499:
            self.event("refused")

    def event(self, name: str) -> None:
        self._events.labels(self._model, name).inc()

    def started(self, waited_s: float) -> None:
        self._wait.labels(self._model).observe(waited_s)

    def step(self, seconds: float) -> None:
        self._step.labels(self._model).observe(seconds)

    def webhook(self, result: str) -> None:
        self._webhooks.labels(self._model, result).inc()

    def ended(self, reason: str, *, latency_s: float | None, facts: Facts | None, code: str | None = None) -> None:
        """``reason`` is vLLM's word: stop for a finished clip, abort for a cancelled or failed one."""
        self._jobs.labels(self._model, reason).inc()
        if latency_s is not None:
            self._latency.labels(self._model).observe(latency_s)
        for stage, seconds in (facts.stages_s if facts is not None else {}).items():
            if stage in STAGES:  # the engine may time more; an open set of labels grows without end
                self._stage.labels(self._model, stage).observe(seconds)
        cache = None if facts is None else facts.step_cache
        if cache is not None and "hits" in cache:
            self._hits.labels(self._model, cache["profile"]).inc(cache["hits"])
            self._saved.labels(self._model, cache["profile"]).inc(cache["saved_s"])
        if facts is not None and facts.rows is not None:
            self._rows.labels(self._model).observe(facts.rows)
        if code is not None:
            self._errors.labels(self._model, code).inc()
        if code == "out_of_memory":
            self.event("oom")

    def gauges(self, read: Callable[[], dict[str, dict[str, float]]]) -> None:
        """``read`` gives {metric: {label value or "": number}} at every scrape."""
        self.registry.register(_Gauges(self._model, read))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, model: str, read: Callable[[], dict[str, dict[str, float]]]) -> None:
        self._model, self._read = model, read

    def describe(self) -> Iterator[Metric]:
        return iter(())  # nothing is read while registering

    def collect(self) -> Iterator[Metric]:
        for name, values in self._read().items():
            labels = ["model_name", "kind"] if set(values) != {""} else ["model_name"]
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(name, help_of(name), labels=labels)
            for kind, value in values.items():
                metric.add_metric([self._model, kind] if kind else [self._model], value)
            yield metric


def gauges(
    counts: Mapping[str, int], stored_bytes: int, *, ready: bool, engine: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """{metric: {kind or "": value}} of this moment; ``engine`` is whatever the service measures about itself."""
    found: dict[str, dict[str, float]] = {
        "vllm_omni:num_requests_running": {"": counts.get("in_progress", 0)},
        "vllm_omni:num_requests_waiting": {"": counts.get("queued", 0)},
        "talkies_jobs": {s: counts.get(s, 0) for s in ("queued", "in_progress", "completed", "failed")},
        "talkies_queue_depth": {"": counts.get("queued", 0)},
        "talkies_stored_bytes": {"": stored_bytes},
        "talkies_engine_ready": {"": float(ready)},
    }
    for name, value in engine.items():
        safe = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        found[f"talkies_engine_{safe}"] = {"": float(value)}
    return found
