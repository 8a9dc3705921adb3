"""Page-locked host memory: given back by ``close``, and by whoever drops it without."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from talkies.errors import ConfigError
from talkies.placement.stream import host_memory as host
from talkies.placement.stream.host_memory import HostBuffer

SIZE = 1 << 20


class Driver:
    """CUDA's list of locked memory. Like it, refuses what it knows already."""

    def __init__(self) -> None:
        self.locked: set[int] = set()
        self.mapped_when_unlocked: list[bool] = []

    def register(self, flat):
        assert flat.data_ptr() not in self.locked
        self.locked.add(flat.data_ptr())

    def unregister(self, address):
        self.locked.remove(address)
        self.mapped_when_unlocked.append(_is_mapped(address))


def _is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as lines:
        spans = [line.split()[0].split("-") for line in lines]
    return any(int(a, 16) <= address < int(b, 16) for a, b in spans)


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(host, "_register", driver.register)
    monkeypatch.setattr(host, "_unregister", driver.unregister)
    return driver


def make(kind, folder):
    if kind == "private":
        return HostBuffer.private(SIZE, pin=True)
    return HostBuffer.shared(folder / "buffer", SIZE, create=True, pin=True)


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_memory_that_was_dropped_is_unlocked_before_it_is_unmapped(kind, driver, tmp_path):
    buffer = make(kind, tmp_path)
    assert buffer.pinned
    address, view = buffer.flat.data_ptr(), buffer.flat[:8]
    del buffer
    gc.collect()
    assert driver.locked == {address}  # a view still reads it
    del view
    gc.collect()
    assert driver.locked == set()
    assert driver.mapped_when_unlocked == [True]


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_a_closed_buffer_is_unlocked_once(kind, driver, tmp_path):
    buffer = make(kind, tmp_path)
    buffer.close()
    assert driver.locked == set()
    assert not buffer.pinned
    buffer.close()
    del buffer
    gc.collect()
    assert driver.mapped_when_unlocked == [True]


def test_what_was_never_locked_is_not_unlocked(driver):
    buffer = HostBuffer.private(mmap.PAGESIZE, pin=False)
    assert not buffer.pinned
    buffer.close()
    assert driver.mapped_when_unlocked == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_dropped_memory_can_be_locked_again():
    addresses = []
    for _ in range(8):
        buffer = HostBuffer.private(SIZE, pin=True)
        buffer.flat.fill_(1)
        assert int(buffer.flat.to("cuda").sum(dtype=torch.int64)) == SIZE
        addresses.append(buffer.flat.data_ptr())
    assert len(set(addresses)) < 8, "the test needs an address that comes again"


def test_shared_memory_that_just_suffices_is_not_refused(monkeypatch):
    monkeypatch.setattr(host, "shm_free_bytes", lambda: 1000)
    host.check_shm(1000)
    with pytest.raises(ConfigError, match="/dev/shm must hold"):
        host.check_shm(1001)
    monkeypatch.setattr(host, "shm_free_bytes", lambda: None)
    with pytest.raises(ConfigError, match="it is not there"):
        host.check_shm(1)
