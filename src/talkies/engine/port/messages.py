"""What an executor and its worker say to each other. Plain picklable values, no torch: both ends import this."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from talkies.capacity.admission import MemoryModel
from talkies.capacity.cost import CostModel
from talkies.engine.port.policy import check_policy
from talkies.engine.port.service import Job, JobEvent, ServiceInfo
from talkies.errors import TalkiesError

if TYPE_CHECKING:  # importing it costs the import of torch, seconds that a server's start does not have
    from talkies.engine.config import EngineConfig
    from talkies.engine.worker.scheduler import Entry


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Everything that a worker is told at its start."""

    config: EngineConfig
    policy: str = "shortest-remaining"
    max_num_seqs: int = 1
    max_step_rows: int | None = None  # None: found at warm-up
    media_root: Path | None = None  # of jobs that name none themselves
    save_every_s: float = 3.0  # between two saves of a running request
    preview_every_s: float = 1.0

    def __post_init__(self) -> None:
        check_policy(self.policy)  # in the process that was told: a worker would die of it at every start


# Executor -> worker.


@dataclass(frozen=True, slots=True)
class Submit:
    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    job_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Save what runs, and leave."""


# Worker -> executor.


@dataclass(frozen=True, slots=True)
class Hello:
    """Sent before any weight is read."""

    info: ServiceInfo


@dataclass(frozen=True, slots=True)
class Loading:
    """What is read next: a start that never ends should say where it stands."""

    stage: str


@dataclass(frozen=True, slots=True)
class Line:
    """For the log: a worker has none of its own."""

    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    cost: CostModel
    memory: MemoryModel | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """The free memory has changed."""

    memory: MemoryModel


@dataclass(frozen=True, slots=True)
class Learned:
    cost: CostModel


@dataclass(frozen=True, slots=True)
class At:
    """The jobs whose unit begins now: who is to blame if the worker does not come back from it."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Books:
    """The scheduler's, whenever the order of its jobs has changed: what it would do next can be told from them."""

    entries: tuple[Entry, ...] = ()
    work: float = 0.0
    room: float = float("inf")
    max_step_rows: int = 1


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life; ``expected_s`` are the predicted seconds of a unit that begins, None within one."""

    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Names ending in ``_total`` count since the worker's start; the others are values of now."""

    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fatal:
    """The worker cannot start, and neither could another one, unless one could before."""

    error: TalkiesError


Command: TypeAlias = Submit | Cancel | Stop
Message: TypeAlias = Hello | Loading | Line | Ready | Room | Learned | At | Books | Beat | Stats | Fatal | JobEvent
