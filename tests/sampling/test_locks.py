"""Locked rows: which rows are written, with what, and at which noise level."""

from types import SimpleNamespace

import pytest
import torch

from talkies.h3.locks import Span
from talkies.sampling.locks import LockedRows, Locks, lock_audio, lock_video

CLEAN, NOISE = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 4)
SPANS = [Span(1, 3), Span(6, 7)]
PICKED = [1, 2, 6]
BEFORE = 5  # condition rows before the target's


def written(locked: LockedRows, sigma: float) -> torch.Tensor:
    """A stream of nine target rows after five condition rows, all -1 where nothing is locked."""
    rows = torch.full((BEFORE + 9, 4), -1.0)
    locked.pin(rows, torch.tensor(sigma))
    return rows


@pytest.mark.parametrize("lock", [lock_video, lock_audio])
@pytest.mark.parametrize("sigma", [1.0, 0.25, 0.0])
def test_an_untrained_checkpoint_sees_them_as_noisy_as_the_rest(lock, sigma):
    rows = written(lock(CLEAN, NOISE, SPANS, num_conditions=BEFORE, is_trained=False), sigma)
    for row in range(9):
        if row in PICKED:
            assert torch.equal(rows[BEFORE + row], (1 - sigma) * CLEAN[row].float() + sigma * NOISE[row])
        else:
            assert (rows[BEFORE + row] == -1).all()
    assert (rows[:BEFORE] == -1).all()


@pytest.mark.parametrize("sigma", [1.0, 0.25, 0.0])
def test_a_trained_checkpoint_sees_sound_clean_and_picture_just_short_of_it(sigma):
    sound = written(lock_audio(CLEAN, NOISE, SPANS, num_conditions=BEFORE, is_trained=True), sigma)
    assert torch.equal(sound[BEFORE:][PICKED], CLEAN[PICKED].float())
    picture = written(lock_video(CLEAN, NOISE, SPANS, num_conditions=BEFORE, is_trained=True), sigma)
    expected = 0.999 * CLEAN[PICKED].float() + 0.001 * NOISE[PICKED]
    torch.testing.assert_close(picture[BEFORE:][PICKED], expected, atol=1e-6, rtol=0)
    assert (picture == -1).all(1).sum() == BEFORE + 6


def test_a_step_begins_at_its_sigma_and_ends_at_the_next_in_each_stream_at_its_own():
    locks = Locks(
        *(lock(CLEAN, NOISE, SPANS, num_conditions=BEFORE, is_trained=False) for lock in (lock_video, lock_audio))
    )
    step = SimpleNamespace(
        video=SimpleNamespace(sigma=torch.tensor(0.75), sigma_next=torch.tensor(0.5)),
        audio=SimpleNamespace(sigma=torch.tensor(0.25), sigma_next=torch.tensor(0.125)),
    )
    for write, sigmas in ((locks.begin, (0.75, 0.25)), (locks.pin, (0.5, 0.125))):
        video, audio = (torch.full((BEFORE + 9, 4), -1.0) for _ in range(2))
        write(video, audio, step)
        assert torch.equal(video, written(locks.video, sigmas[0]))
        assert torch.equal(audio, written(locks.audio, sigmas[1]))


def test_nothing_locked_writes_nothing():
    none = LockedRows()
    assert none.at(0.5) is none.rows
    assert (written(none, 0.5) == -1).all()
    assert (none.index.dtype, none.index.shape, none.rows.shape) == (torch.int64, (0,), (0, 1))


def test_they_reach_another_process_and_device_whole():
    locks = Locks(lock_video(CLEAN, NOISE, SPANS, num_conditions=BEFORE, is_trained=False))
    for other in (Locks.of_tensors(locks.tensors()), locks.to(torch.device("cpu"))):
        for mine, theirs in zip(locks.tensors(), other.tensors(), strict=True):
            assert torch.equal(mine, theirs)
