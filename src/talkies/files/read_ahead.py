"""Weights on their way from a disk while those before them are placed.

Files stay memory-mapped: what is read ahead goes into the system's page cache, not into memory of ours, and the reader
then maps pages that are there. So the order of the tensors, their values and their number of copies are what they were.
At most two groups (of the size of a block) are in work: the one that the reader asks for and the next.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from talkies.errors import CheckpointError

# Requests a disk sees at once. One did as well on local disks (LOG.md); networked ones want several.
THREADS = 4
CHUNK_BYTES = 4 << 20
GROUP_BYTES = 512 << 20  # of tensors that have no blocks to be grouped by


class Span(NamedTuple):
    """Bytes ``start .. stop`` of ``file``, those of the tensor ``key``."""

    key: str
    file: Path
    start: int
    stop: int


class ReadAhead:
    """``begin(now, then)``: returns when the bytes of ``now`` are in the page cache, and those of ``then`` are coming.

    Raises ``CheckpointError`` naming the tensor that cannot be read. ``bytes_read`` counts what was not there before.
    """

    def __init__(self) -> None:
        self._coming: _Group | None = None
        self.bytes_read = 0

    def begin(self, now: Sequence[Span], then: Sequence[Span] = ()) -> None:
        group = self._coming
        self._coming = None
        if group is None or group.spans != tuple(now):
            if group is not None:
                group.stop()
            group = _Group(tuple(now))
        self.bytes_read += group.wait()
        if then:
            self._coming = _Group(tuple(then))


class _Group:
    """Spans being read by some threads, in order. Threads end with the group."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self.spans = spans
        self._chunks = _chunks(spans)
        self._lock = threading.Lock()
        self._error: CheckpointError | None = None
        self._bytes_read = 0
        num_chunks = sum(-(-(s.stop - s.start) // CHUNK_BYTES) for s in spans)
        self._workers = [
            threading.Thread(target=self._run, name="read-ahead", daemon=True) for _ in range(min(THREADS, num_chunks))
        ]
        for worker in self._workers:
            worker.start()

    def wait(self) -> int:
        """Bytes that came from the disk; raises what a thread met."""
        for worker in self._workers:
            worker.join()
        if self._error is not None:
            raise self._error
        return self._bytes_read

    def stop(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._chunks = iter(())

    def _run(self) -> None:
        files: dict[Path, int] = {}
        scratch: memoryview | None = None
        try:
            while (chunk := self._next()) is not None:
                try:
                    if chunk.file not in files:
                        files[chunk.file] = os.open(chunk.file, os.O_RDONLY)
                    if not _is_cached(files[chunk.file], chunk.start):
                        scratch = scratch or memoryview(bytearray(CHUNK_BYTES))
                        self._read(files[chunk.file], chunk, scratch)
                except FileNotFoundError:
                    return  # deleted under us: what is mapped is still there, and what is not is missed by its reader
                except OSError as error:
                    self._fail(chunk, str(error))
        finally:
            for fd in files.values():
                os.close(fd)

    def _next(self) -> Span | None:
        with self._lock:
            return next(self._chunks, None)

    def _read(self, fd: int, chunk: Span, scratch: memoryview) -> None:
        position = chunk.start
        while position < chunk.stop:
            # Through a scratch buffer that is thrown away: the bytes stay in the page cache.
            count = os.preadv(fd, [scratch[: chunk.stop - position]], position)
            if not count:
                self._fail(chunk, "the file ends before it")
                return
            position += count
        with self._lock:
            self._bytes_read += chunk.stop - chunk.start

    def _fail(self, chunk: Span, why: str) -> None:
        with self._lock:
            self._chunks = iter(())
            self._error = self._error or CheckpointError(
                f"{chunk.file}: {chunk.key!r} cannot be read: {why}", hint="check the disk", param=chunk.key
            )


def _chunks(spans: Sequence[Span]) -> Iterator[Span]:
    for span in spans:
        for start in range(span.start, span.stop, CHUNK_BYTES):
            yield span._replace(start=start, stop=min(start + CHUNK_BYTES, span.stop))


def _is_cached(fd: int, start: int) -> bool:
    """Whether a chunk's first page is there, which nearly always speaks for the chunk: what is wrong costs time only.

    Without it a second start would copy every weight once for nothing.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        return os.preadv(fd, [bytearray(1)], start, os.RWF_NOWAIT) == 1
    except OSError:  # not there, or a file system that cannot say
        return False


def grouped(sizes: Sequence[tuple[str, int]], group_bytes: int = GROUP_BYTES) -> list[list[str]]:
    """Keys in their order, in groups of about ``group_bytes``; ``sizes`` are keys with their bytes."""
    groups: list[list[str]] = []
    room = 0
    for key, num_bytes in sizes:
        if not groups or num_bytes > room:
            groups.append([])
            room = group_bytes
        groups[-1].append(key)
        room -= num_bytes
    return groups
