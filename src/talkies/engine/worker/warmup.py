"""The first steps of a worker: they prove that the weights run, and measure what work costs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from talkies.capacity.cost import MEASURED_S, CostModel, pixels_of, saturation_rows, saturation_samples
from talkies.engine.load.build import Components
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.state import RequestState
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.port.failure import out_of_memory
from talkies.engine.worker.batching import Batcher
from talkies.few_steps import ladder_of
from talkies.placement.graphs.replay import is_small
from talkies.request import Condition, Target, VideoRequest

MAX_ROUNDS = 8  # of one size
SECOND_SIZE_MAX_S = 2.0  # a longer step of the default length is not worth a slower start


def warm_up(components: Components, *, max_num_seqs: int = 1) -> CostModel:
    """Runs the shortest clip once, and steps of the shortest and the default length; where requests may share a
    forward, forwards of up to so many, until one is as large as the device needs to be full.

    Raises what a request would raise: a checkpoint that gives NaN never becomes ready.
    """
    limits = components.limits
    began = time.perf_counter()
    state = _state(components, limits.min_frames)
    begin_s = time.perf_counter() - began
    denoise_step(components, state)  # the first one allocates, compiles and pages in
    points = [_measure(components, limits.min_frames)]
    wave = pipeline.decode_audio(components, state)
    assert np.isfinite(wave).all()
    for _ in pipeline.decode_video(components, state):
        pass
    began = time.perf_counter()
    for _ in pipeline.decode_video(components, state):
        pass
    pixel_s = (time.perf_counter() - began) / pixels_of(state.geometry)
    rows, seconds = points[0]
    longer = _rows_of(state, limits.default_num_frames)
    if limits.default_num_frames > limits.min_frames and seconds * longer / rows < SECOND_SIZE_MAX_S:
        points.append(_measure(components, limits.default_num_frames))
    cost = CostModel.fit(points, pixel_s=pixel_s, begin_s=begin_s)
    return cost if max_num_seqs == 1 else replace(cost, full_rows=_full_rows(components, points[-1], max_num_seqs))


def _full_rows(components: Components, alone: tuple[int, float], max_num_seqs: int) -> int:
    """Rows of a forward that fills the device, from forwards of 1, 2, 4 .. requests; ``alone``: of one, measured."""
    frames = components.limits.default_num_frames
    samples = []
    try:
        for sample in saturation_samples(
            lambda count: alone if count == 1 else _measure(components, frames, count),
            max_num_seqs,
            longest_s=SECOND_SIZE_MAX_S / 4,
        ):
            samples.append(sample)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        error.__traceback__ = None  # it holds the tensors that did not fit
        components.release()
    return saturation_rows(samples)


def _rows_of(state: RequestState, num_frames: int) -> float:
    """About how many rows a clip of ``num_frames`` would have."""
    return state.num_rows * num_frames / state.geometry.num_frames


def _state(components: Components, num_frames: int) -> RequestState:
    return _states(components, num_frames, 1)[0]


def _states(components: Components, num_frames: int, count: int) -> list[RequestState]:
    """Equal requests, but for their seeds."""
    with TemporaryDirectory() as folder:
        request = _request(components, num_frames, Path(folder))
        encoded = pipeline.encode(components, pipeline.prepare(components, request))
        return [pipeline.pack(components, encoded, output=i) for i in range(count)]


def _request(components: Components, num_frames: int, folder: Path) -> VideoRequest:
    conditions: tuple[Condition, ...] = ()
    if "t2va" not in components.limits.tasks:
        picture = folder / "grey.png"
        Image.new("RGB", (64, 64), (128, 128, 128)).save(picture)
        conditions = (Condition(kind="image", uri=str(picture)),)
    # An approximating attention runs between the first forward and the last one, and a graph is replayed from the third
    # forward of one kind on. A distilled checkpoint or adapter fixes its number of sigmas.
    plain = components.graphs is None and components.attend.exactness is None
    num_sigmas = 3 if plain else 6
    request = VideoRequest(prompt="warm up", target=Target(num_frames=num_frames), conditions=conditions)
    fixed = components.schedule.base is not None or ladder_of(request, components.limits.adapters) is not None
    return request if fixed else request.replace(num_sigmas=num_sigmas)


def _measure(components: Components, num_frames: int, count: int = 1) -> tuple[int, float]:
    """(rows, seconds) of the fastest of two steps of different timesteps; of four where later ones replay a graph. Of
    more where they are so short that a timer's noise would show.

    ``count`` equal requests share each step.
    """
    best, spent, rows = float("inf"), 0.0, 0
    for _ in range(MAX_ROUNDS):
        states, batcher = _states(components, num_frames, count), Batcher(components)
        lengths = tuple(state.num_rows for state in states)
        replays = components.graphs is not None and is_small(components.dits[states[0].partition].config, lengths)
        for _ in range(min(4 if replays else 2, states[0].num_forwards)):
            components.synchronize()
            began = time.perf_counter()
            batcher.step(states)
            components.synchronize()
            took = time.perf_counter() - began
            best, spent = min(best, took), spent + took
        rows = sum(lengths)
        if spent >= MEASURED_S:
            break
    return rows, best
