"""Host memory that a device reads while it works: anonymous or shared, page-locked where there is a GPU.

torch's own pinned allocator rounds to powers of two (a block of 771 MB would take 1 GiB) and cannot share between
processes; here each buffer is a mapping of its own size that is registered with CUDA.
"""

from __future__ import annotations

import mmap
import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from talkies.errors import ConfigError, OutOfMemory

SHM = Path("/dev/shm")
_HOST_REGISTER_PORTABLE = 1


class _Mapping(mmap.mmap):
    """Unlocked before it is unmapped, also when whoever had it never closed it: CUDA would take what the system maps at
    this address next for memory that it knows (error 712)."""

    locked_at = 0  # its address while it is locked

    def unlock(self) -> None:
        if self.locked_at:
            _unregister(self.locked_at)
            self.locked_at = 0

    def __del__(self) -> None:
        with suppress(Exception):  # of a process that ends
            self.unlock()


class HostBuffer:
    """``flat`` is uint8 [num_bytes]. ``close`` gives it back; no view of it may be used after."""

    def __init__(self, mapping: _Mapping, num_bytes: int, *, pin: bool) -> None:
        self._mapping: _Mapping | None = mapping
        self.flat: Tensor = torch.frombuffer(mapping, dtype=torch.uint8, count=num_bytes)
        if pin:
            self.pin()

    @classmethod
    def private(cls, num_bytes: int, *, pin: bool) -> HostBuffer:
        """Memory of this process. Raises ``OutOfMemory``, or ``ConfigError`` where locking is forbidden."""
        try:
            mapping = _Mapping(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise OutOfMemory(f"the host has no {gib(num_bytes)} for weights: {error}", hint="free RAM") from None
        with suppress(OSError, AttributeError, ValueError):
            mapping.madvise(mmap.MADV_HUGEPAGE)  # faulting 40 GB in by pages of 4 KiB takes half a minute
        return cls(mapping, num_bytes, pin=pin)

    @classmethod
    def shared(cls, path: Path, num_bytes: int, *, create: bool, pin: bool) -> HostBuffer:
        """A file of ``/dev/shm`` that several processes map. The creator reserves every page at once: a file system
        that is too small then says so here, and not by a bus error in the middle of a copy."""
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        fd = os.open(path, flags, 0o600)
        try:
            if create:
                os.posix_fallocate(fd, 0, num_bytes)
            mapping = _Mapping(fd, num_bytes)
        except OSError as error:
            if create:
                path.unlink(missing_ok=True)
            raise shm_too_small(num_bytes, str(error)) from None
        finally:
            os.close(fd)
        return cls(mapping, num_bytes, pin=pin)

    def pin(self) -> None:
        """Locks the pages for the GPU. Raises ``ConfigError`` where that is forbidden."""
        assert self._mapping is not None, "closed"
        _register(self.flat)
        self._mapping.locked_at = self.flat.data_ptr()

    @property
    def pinned(self) -> bool:
        return self._mapping is not None and self._mapping.locked_at != 0

    def close(self) -> None:
        """Unlocks it; the memory goes when the last view does."""
        if self._mapping is not None:
            self._mapping.unlock()
        self.flat = torch.empty(0, dtype=torch.uint8)
        self._mapping = None  # unmapped when the last view is gone


def _register(flat: Tensor) -> None:
    code = torch.cuda.cudart().cudaHostRegister(flat.data_ptr(), flat.numel(), _HOST_REGISTER_PORTABLE)
    if int(code) != 0:
        limit = memlock_bytes()
        bound = "" if limit is None else f", the limit of locked memory is {gib(limit)}"
        raise ConfigError(
            f"{gib(flat.numel())} of host memory cannot be locked for the GPU (CUDA error {int(code)}){bound}",
            hint="ulimit -l unlimited, or docker run --ulimit memlock=-1, or fewer streamed blocks",
            param="memlock",
        )


def _unregister(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)


def gib(num_bytes: float) -> str:
    """``num_bytes`` for a reader: ``1.50 GiB``, below one ``700 MiB``."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def memlock_bytes() -> int | None:
    """The soft limit of locked memory; ``None`` when there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_memlock(num_bytes: int) -> None:
    """Lifts the soft limit as far as the hard one allows, if ``num_bytes`` need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and soft < num_bytes:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def shm_free_bytes() -> int | None:
    """What ``/dev/shm`` could still take; ``None`` where it is not there."""
    with suppress(OSError):
        return shutil.disk_usage(SHM).free
    return None


def check_shm(num_bytes: int) -> None:
    """Raises ``ConfigError`` when ``/dev/shm`` cannot hold ``num_bytes``."""
    free = shm_free_bytes()
    if free is None or free < num_bytes:
        raise shm_too_small(num_bytes, "it is not there" if free is None else f"{gib(free)} are free")


def shm_too_small(num_bytes: int, why: str) -> ConfigError:
    """The error of a ``/dev/shm`` that cannot hold ``num_bytes``, with the two ways out."""
    size = -(-num_bytes // 2**30) + 1
    return ConfigError(
        f"/dev/shm must hold {gib(num_bytes)} of shared weights: {why}",
        hint=f"docker run --shm-size={size}g, or mount -o remount,size={size}G /dev/shm",
        param="/dev/shm",
    )


def is_unified(device: torch.device) -> bool:
    """Whether the GPU's memory is the host's: a copy on either side is then a second copy of the same memory."""
    if device.type != "cuda":
        return False
    return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))
