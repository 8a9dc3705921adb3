"""What is known of a job, or of one clip of it, as one type: no torch, so that the server reads it too.

It grows while the job runs: the server knows the plan, the engine what became of the inputs, the end what it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talkies.few_steps import InUse
    from talkies.h3.geometry import Geometry
    from talkies.request import VideoRequest

_RESULT = (
    *("path", "frames", "seconds", "size", "seed", "task", "num_forwards", "skipped_fraction", "stages_s"),
    *("warnings", "conditions_used", "adapters", "step_cache"),
)
_TUPLES = ("warnings", "conditions_used", "adapters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """``None`` means not known yet. ``num_forwards`` is of one output; ``stages_s`` are the seconds of each stage, of
    one clip or of all outputs of a job; ``peak_memory_mb`` is the high-water mark of the whole process."""

    task: str
    size: str  # "112x64", width first
    frames: int
    seconds: float
    fps: int
    seed: int  # of this output; of a job the first one's
    num_forwards: int
    skipped_fraction: float | None = None  # of the compute of the forwards, by a step cache
    # Of a request that is not lossless: profile and policy; at its end hits (forwards of which something was left out)
    # and saved_s.
    step_cache: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    conditions_used: tuple[dict[str, Any], ...] = ()  # what became of each condition: size, crop, rate, length
    adapters: tuple[dict[str, Any], ...] = ()  # in the weights: name and strength of each, in order
    rows: int | None = None  # of the packed sequence
    stages_s: Mapping[str, float] = field(default_factory=dict)
    peak_memory_mb: int | None = None
    path: str | None = None  # the file, where there is one
    queue_wait_s: float | None = None  # of a job, from its acceptance to its first stage
    took_s: float | None = None  # of a job, from its first stage to its end
    remix_of: str | None = None  # the job that this one was made from

    @classmethod
    def of(
        cls, request: VideoRequest, geometry: Geometry, *, num_forwards: int, adapters: tuple[InUse, ...] = ()
    ) -> Facts:
        """The plan: all that follows from a request and the checkpoint's limits."""
        return cls(
            task=str(request.resolved_task),
            size=geometry.size,
            frames=geometry.num_frames,
            seconds=geometry.duration_s,
            fps=geometry.fps,
            seed=request.seed,
            num_forwards=num_forwards,
            adapters=tuple({"name": one.facts.name, "strength": one.strength} for one in adapters),
        )

    def to_dict(self) -> dict[str, Any]:
        """All that is known, as JSON values; :meth:`from_dict` reads it."""
        values = {known.name: getattr(self, known.name) for known in fields(self)}
        values["stages_s"] = {name: round(seconds, 4) for name, seconds in self.stages_s.items()}
        for name in _TUPLES:
            values[name] = list(values[name])
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Facts:
        """What :meth:`to_dict` wrote, perhaps of another version: what is not known here is left out."""
        known = {name: values[name] for name in (each.name for each in fields(cls)) if name in values}
        for name in _TUPLES:
            known[name] = tuple(known.get(name, ()))
        return cls(**known)

    def result(self) -> dict[str, Any]:
        """What ``talkies generate --json`` prints of a clip."""
        values = self.to_dict()
        return {name: values[name] for name in _RESULT if name in values}

    def effective(self) -> dict[str, Any]:
        """What the clip's file says of how its request was understood; none of it may differ from run to run."""
        locks = {used["role"]: used["mode"] for used in self.conditions_used if "mode" in used}
        return {
            "task": self.task,
            "size": self.size,
            "fps": self.fps,
            "frames": self.frames,
            "seconds": round(self.seconds, 6),
            "num_forwards": self.num_forwards,
            "rows": self.rows,
            **({"locks": locks} if locks else {}),
            **self._skipped(),
        }

    def _skipped(self) -> dict[str, Any]:
        """Nothing of a lossless clip."""
        if self.step_cache is None:
            return {}
        same = {name: value for name, value in self.step_cache.items() if name != "saved_s"}
        return {"step_cache": same, "skipped_fraction": self.skipped_fraction}
