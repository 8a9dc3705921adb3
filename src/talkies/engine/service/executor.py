"""EngineService over a worker process: starts it, feeds it, watches it, and outlives it.

    submit, cancel ... -> ledger -> [pump thread] -> pipe -> worker        one pump thread per executor: it alone
    on_event           <- ledger <- [pump thread] <- pipe <- worker        talks to the worker and calls on_event

When the worker dies, or hangs and is killed, the jobs it was working on are tried once more from their last saved
step, and fail if it dies over them again; all others are simply handed to the next worker. This file imports no
torch, and neither does what it imports: the process that serves starts in a moment.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from talkies.capacity.admission import MemoryModel, check_fits
from talkies.capacity.cost import CostModel, predict
from talkies.capacity.demand import CountTokens, Demand, demand_of, estimated_tokens
from talkies.engine.port.messages import (
    At,
    Beat,
    Books,
    Fatal,
    Hello,
    Learned,
    Line,
    Loading,
    Message,
    Ready,
    Room,
    Stats,
    Submit,
    WorkerOptions,
)
from talkies.engine.port.service import Job, JobEvent, OnEvent, OnOrder, ServiceInfo
from talkies.engine.service.ledger import Ledger
from talkies.engine.service.lifetime_totals import LifetimeTotals
from talkies.engine.service.liveness import HANG_TIMEOUT_S, MAX_FAILED_STARTS, START_TIMEOUT_S, Liveness, Starts
from talkies.engine.service.queue_order import OrderTeller
from talkies.engine.service.worker_link import Bell, Link
from talkies.errors import NotReady, TalkiesError, WorkerDied, WorkerHung
from talkies.request import VideoRequest

if TYPE_CHECKING:
    from talkies.engine.config import EngineConfig

log = logging.getLogger(__name__)


class Executor:
    """See :class:`talkies.engine.port.service.EngineService`."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        hang_timeout_s: float = HANG_TIMEOUT_S,
        start_timeout_s: float = START_TIMEOUT_S,
        **options: Any,  # of WorkerOptions
    ) -> None:
        self._options = WorkerOptions(config=config, **options)
        self._hang_timeout_s, self._start_timeout_s = hang_timeout_s, start_timeout_s
        self._lock = threading.RLock()
        self._ledger = Ledger()
        self._starts = Starts()
        self._state: Literal["loading", "ready", "dead"] = "loading"
        self._stage: str | None = None
        self._fatal: TalkiesError | None = None
        self._unable: TalkiesError | None = None  # why the last worker could not start
        self._served = False  # a worker was ready once
        self._info: ServiceInfo | None = None
        self._info_known = threading.Event()
        self._cost: CostModel | None = None
        self._memory: MemoryModel | None = None
        self._at: tuple[str, ...] = ()
        self._totals = LifetimeTotals()
        self._order = OrderTeller(self._options)
        self._load_s: float | None = None  # what the last worker took to be ready
        self._link: Link | None = None
        self._watch = Liveness(hang_timeout_s, 0.0)
        self._hung: WorkerHung | None = None
        self._closing: float | None = None  # when patience with the worker ends
        self._bell = Bell()
        self._pump = threading.Thread(target=self._run, name="executor", daemon=True)

    @cached_property
    def info(self) -> ServiceInfo:
        """The worker says it before it reads a weight; starts one if there is none. Waits for as long as a model hub
        needs to send the model.

        Raises ``ConfigError`` or ``CheckpointError`` for a model that cannot be served, ``NotReady`` otherwise.
        """
        self._begin()
        self._info_known.wait()
        if self._info is not None:
            return self._info
        raise self._fatal or NotReady("the worker did not say what it serves", hint="see the log for its errors")

    def start(self, on_event: OnEvent, on_order: OnOrder | None = None) -> None:
        self._ledger.on_event, self._order.on_order = on_event, on_order
        self._begin()

    @property
    def state(self) -> Literal["loading", "ready", "dead"]:
        return self._state

    @property
    def fatal(self) -> TalkiesError | None:
        return self._fatal

    @property
    def loading_stage(self) -> str | None:
        return self._stage if self._state == "loading" else None

    @property
    def worker_pid(self) -> int | None:
        link = self._link
        return None if link is None else link.pid

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._state == "dead" or self._closing is not None:
                reason = str(self._fatal) if self._fatal else "it was closed"
                raise NotReady(f"the engine is not running: {reason}", hint="restart the server")
            self._ledger.add(job)
        self._say_order()  # the worker may be in the middle of a long unit; who asks should not read an older truth
        self._bell.ring()

    def cancel(self, job_id: str) -> None:
        self._ledger.cancel(job_id, worker_listens=self._state == "ready")
        self._bell.ring()

    def demand_of(self, request: VideoRequest) -> Demand:
        return demand_of(request, self.info.limits, count_tokens=self._count_tokens)

    @cached_property
    def _count_tokens(self) -> CountTokens:
        """By the checkpoint's own tokenizer, read when the first request comes."""
        from talkies.codecs.text.tokens import FolderTokenizer

        folder = self.info.tokenizer
        return estimated_tokens if folder is None else FolderTokenizer.load(folder).count

    def predict_seconds(self, demand: Demand) -> float | None:
        return predict(self._cost, demand)

    def check_fits(self, request: VideoRequest, demand: Demand) -> None:
        if self._info is not None:
            check_fits(self._memory, request, demand, self._info.limits)

    def metrics(self) -> dict[str, float]:
        values = self._totals.values() | {"jobs": float(len(self._ledger))}
        if self._cost is not None:
            values["step_fixed_seconds"] = self._cost.step_s
            values["step_row_seconds"] = self._cost.row_s
        if self._memory is not None and self._memory.room is not None:
            values["room_bytes"] = float(self._memory.room)
        return values

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Lets the current unit end and running jobs be saved; after ``timeout_s`` the process is killed."""
        with self._lock:
            began = self._pump.ident is not None
            if self._closing is None:
                self._closing = time.monotonic() + timeout_s
                self._ledger.stop()
        self._bell.ring()
        if not began:
            self._state = "dead"
            self._info_known.set()
            self._bell.close()
            return
        if threading.current_thread() is self._pump:
            return  # called from on_event: the pump ends by itself
        self._pump.join(timeout_s)
        if self._pump.is_alive():
            link = self._link
            if link is not None:
                link.kill()  # also frees a pump that is stuck in a write
            self._pump.join(5.0)

    def _say_order(self) -> None:
        limits = None if self._info is None else self._info.limits
        self._order.tell(self._ledger.open_jobs, limits, ready_in_s=self._ready_in_s())

    def _ready_in_s(self) -> float | None:
        if self._state == "ready":
            return 0.0
        if self._load_s is None:
            return None  # the first start: nothing of this machine is known
        link = self._link
        if link is not None:
            return max(0.0, self._load_s - link.age_s)
        return max(0.0, self._starts.at - time.monotonic()) + self._load_s

    def _begin(self) -> None:
        with self._lock:
            if self._pump.ident is None and self._closing is None:
                self._pump.start()

    # Everything below runs in the pump thread.

    def _run(self) -> None:
        while True:
            try:
                if not self._turn():
                    break
            except Exception:  # one bad event must not leave all jobs without an owner
                log.exception("executor")
                time.sleep(0.1)
        self._state = "dead"
        self._info_known.set()
        self._ledger.give_up(WorkerDied("the engine was closed", hint="it goes on after the next start"))
        self._bell.close()

    def _turn(self) -> bool:
        """One round: start, write, wait, read, judge, bury. False ends the thread."""
        link = self._link
        if link is None:
            if self._closing is not None:
                return False
            delay = self._starts.at - time.monotonic()
            if self._state == "dead" or delay > 0:
                self._bell.wait([], None if self._state == "dead" else delay)
            else:
                self._start_worker()
            self._ledger.deliver_own()
            if self._order.changed:
                self._say_order()
            return True
        while (order := self._ledger.next_order()) is not None:
            if not link.send(order):
                break  # it is dead: the next one gets everything anew
            if isinstance(order, Submit) and self._state == "ready":
                self._watch.asked(time.monotonic())
        timeout = self._patience(link)
        self._bell.wait(link.waitables(), timeout)
        alive = link.alive()  # asked before reading: whatever a dead one said is then already here
        for message in link.receive():
            self._handle(message)
        self._ledger.deliver_own()
        if self._order.changed:
            self._say_order()
        silent_s = self._watch.silent_s(time.monotonic(), waited_s=timeout or 0.0)
        if not alive:
            self._bury(link)
        elif silent_s is not None and self._hung is None:
            self._kill_hung(link, silent_s)
        return True

    def _patience(self, link: Link) -> float | None:
        """How long to wait for the worker's next word."""
        now = time.monotonic()
        left_s = self._watch.left_s(now)
        timeout = None if left_s is None or self._hung is not None else max(0.0, left_s)
        if self._closing is None:
            return timeout
        closing_s = self._closing - now
        if closing_s <= 0 or self._state != "ready":
            link.kill()  # one that still loads has nothing to save
            return 1.0
        return closing_s if timeout is None else min(timeout, closing_s)

    def _start_worker(self) -> None:
        self._ledger.renew_orders()
        self._at, self._hung, self._unable = (), None, None
        self._watch = Liveness(self._hang_timeout_s, time.monotonic(), start_timeout_s=self._start_timeout_s)
        try:
            self._link = Link(self._options)
        except (OSError, RuntimeError) as error:  # no memory, process or thread left for now
            self._plan_start(f"cannot start a worker: {error}", was_ready=False, age_s=0.0)

    def _handle(self, message: Message) -> None:
        self._watch.heard(time.monotonic())
        match message:
            case JobEvent():
                self._ledger.deliver(message)
            case At(job_ids=ids):
                self._at = ids
                self._watch.heard(time.monotonic(), busy=bool(ids))
            case Beat(expected_s=expected_s):
                self._watch.heard(time.monotonic(), expected_s=expected_s)
            case Books():
                self._order.heard(message)
            case Stats(values=values):
                self._totals.said(values)
            case Learned(cost=cost):
                self._cost = cost
                self._starts.proved()
            case Hello(info=info):
                self._watch.loads(time.monotonic(), True)
                self._info = info
                self._info_known.set()
            case Loading(stage=stage):
                self._stage = stage
                log.info("loading: %s", stage)
            case Line(text=text):
                log.info("worker: %s", text)
            case Room(memory=memory):
                self._memory = memory
            case Ready(cost=cost, memory=memory):
                self._watch.loads(time.monotonic(), False)
                self._cost, self._memory = self._cost or cost, memory
                self._starts.worked()
                self._state, self._served = "ready", True
                self._load_s = self._link.age_s if self._link else None
                self._order.changed = True
                log.info("the worker is ready after %.1f s", self._link.age_s if self._link else 0.0)
            case Fatal(error=error):
                self._unable = error
                if not self._served:  # what ran before may run again: memory comes back, a folder is put in place
                    self._die(error)

    def _kill_hung(self, link: Link, silent_s: float) -> None:
        """It is alive and says nothing: its end is then seen as any other."""
        self._totals.hung()
        what = f"the worker gave no sign of life for {silent_s:.0f} s and was killed"
        if self._state == "loading":
            what = f"{what} while it loaded: {self._stage or 'nothing said yet'}"
            self._hung = WorkerHung(what, hint="if the machine is that slow, raise --start-timeout-s")
            log.error("%s", what)
        else:
            self._hung = WorkerHung(what, hint="if the machine is that slow, raise --hang-timeout-s")
            log.error("%s while at %s", what, ", ".join(self._at) or "no job")
        link.kill()
        if self._state == "loading" and not self._served:
            self._die(self._hung)

    def _bury(self, link: Link) -> None:
        """The worker is gone: settle its jobs, and plan the next one."""
        age_s, code = link.age_s, link.end()
        self._link = None
        self._order.heard(Books())
        self._totals.ended()
        if self._closing is not None or self._state == "dead":
            return
        died = WorkerDied(f"the worker died (exit code {code})", hint="a shorter or smaller clip may need less memory")
        error = self._unable or self._hung or died
        log.error("%s while at %s", error.message, ", ".join(self._at) or "no job")
        self._totals.replaced()
        self._plan_start(error.message, was_ready=self._state == "ready", age_s=age_s)
        self._ledger.settle_death(self._at, error)

    def _plan_start(self, what: str, *, was_ready: bool, age_s: float) -> None:
        """Later after each failure; gives up where no start ever works."""
        self._state = "loading"
        failed = self._starts.ended(time.monotonic(), was_ready=was_ready, age_s=age_s)
        if failed >= MAX_FAILED_STARTS:
            died = WorkerDied(f"{what}, {failed} starts in a row", hint="see the log for its errors")
            self._die(self._unable or died)

    def _die(self, error: TalkiesError) -> None:
        """There will be no worker any more."""
        log.error("the engine is dead: %s", error)
        with self._lock:
            self._state, self._fatal = "dead", error
            self._ledger.drop_orders()
        self._info_known.set()
        self._ledger.give_up(error)
