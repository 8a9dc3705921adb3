"""One worker process and the pipe to it; and the bell that wakes whoever waits for both."""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from talkies.engine.port.messages import Command, Message, WorkerOptions
from talkies.engine.worker import main as worker_main

log = logging.getLogger(__name__)
# Spawn, never fork: a forked child inherits CUDA contexts, locks and the server's sockets.
_SPAWN = multiprocessing.get_context("spawn")


class Link:
    """Started when made. Used by one thread, but for :meth:`kill`.

    Orders are written by a thread of their own: a worker that hangs reads nothing, a pipe holds little, and whoever
    waits for it to read more could not notice that it hangs.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self._errors, their_errors = _SPAWN.Pipe(duplex=False)
        self.process = _SPAWN.Process(
            target=worker_main.main, args=(theirs, options, their_errors), name="talkies-worker", daemon=True
        )
        self.started_at = time.monotonic()
        try:
            self.process.start()
        finally:
            theirs.close()  # or the end of the worker would not be the end of the pipe
            their_errors.close()
        self._broken = False
        self._outbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="orders", daemon=True)
        self._writer.start()
        self._listener = threading.Thread(target=self._log_output, name="worker-output", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int | None:
        return self.process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started_at

    def waitables(self) -> list[Connection | int]:
        """What becomes ready when it says something or dies."""
        return [self.connection, self.process.sentinel]

    def send(self, command: Command) -> bool:
        """Returns at once; False when nobody listens any more."""
        self._outbox.put(command)
        return not self._broken

    def receive(self) -> list[Message]:
        """Everything that it has said and nobody has read."""
        messages: list[Any] = []
        try:
            while self.connection.poll():
                messages.append(self.connection.recv())
        except (EOFError, OSError):
            pass  # the rest was never written; the sentinel tells
        return messages

    def alive(self) -> bool:
        return self.process.is_alive()

    def end(self) -> int | None:
        """After its death: reaps it, closes the pipe, returns its exit code."""
        self.process.join()
        self._outbox.put(None)
        self._writer.join(5.0)  # a write to the dead fails at once
        self._listener.join(1.0)  # its own children may hold the other end for a moment longer
        code = self.process.exitcode
        self.connection.close()
        self.process.close()
        return code

    def kill(self) -> None:
        """At once, from any thread."""
        with suppress(ValueError):  # already reaped
            self.process.kill()

    def _log_output(self) -> None:
        """Line by line what the worker and its libraries print: warnings, tracebacks, the stacks of a crash."""
        source = self._errors.fileno()
        with suppress(OSError), self._errors, open(source, errors="replace", newline="\n", closefd=False) as lines:
            for line in lines:
                text = line.rstrip().rpartition("\r")[2]  # the last word of a progress bar
                if text.strip():
                    log.warning("worker: %s", text)

    def _write(self) -> None:
        while (command := self._outbox.get()) is not None:
            try:
                self.connection.send(command)
            except OSError:
                self._broken = True
                return
            except Exception:  # an order that cannot be pickled must not cost those behind it
                log.exception("order %s", type(command).__name__)


class Bell:
    """Lets any thread wake the one that waits for a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._closed = False

    def ring(self) -> None:
        with self._lock:  # the number of a closed file soon belongs to somebody else
            if not self._closed:
                with suppress(BlockingIOError):  # it is full of calls already
                    os.write(self._write, b"\0")

    def wait(self, others: Sequence[Connection | int], timeout_s: float | None) -> None:
        """Until one of ``others`` is ready, somebody rings, or the time is up."""
        wait([*others, self._read], timeout_s)
        with suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
