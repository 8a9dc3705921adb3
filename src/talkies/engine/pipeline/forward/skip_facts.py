"""What is told of the forwards that a step cache left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from talkies.engine.pipeline.state import RequestState
from talkies.engine.port.facts import Facts


def never_hit(state: RequestState) -> str:
    """A cache that skips nothing costs what it decides by, and promises what it does not keep."""
    return (
        f"quality={state.request.quality} left out nothing of {state.num_forwards} forwards: the policy "
        f"{state.cache.name} never found two alike; use more steps, or calibrate it"
    )


def with_skips_of(job: Facts, outputs: Sequence[Facts]) -> Facts:
    """The job's facts with those of its outputs: the mean of what was skipped, and the sums."""
    if not outputs:
        return job
    fractions = [facts.skipped_fraction or 0.0 for facts in outputs]
    job = replace(job, skipped_fraction=round(sum(fractions) / len(fractions), 6))
    if job.step_cache is None:
        return job
    each = [facts.step_cache or {} for facts in outputs]
    hits, saved_s = sum(c.get("hits", 0) for c in each), round(sum(c.get("saved_s", 0.0) for c in each), 4)
    warnings = tuple(dict.fromkeys([*job.warnings, *(warning for facts in outputs for warning in facts.warnings)]))
    return replace(job, step_cache={**job.step_cache, "hits": hits, "saved_s": saved_s}, warnings=warnings)
