"""The first steps of a worker: they prove that the weights run, and measure what work costs."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from talkies.engine import pipeline
from talkies.engine.build import Components
from talkies.engine.cost import CostModel, pixels_of
from talkies.engine.state import RequestState
from talkies.placement.graphs import is_small
from talkies.request import Condition, Target, VideoRequest

SECOND_SIZE_MAX_S = 2.0  # a longer step of the default length is not worth a slower start


def warm_up(components: Components) -> CostModel:
    """Runs the shortest clip once, and steps of the shortest and the default length.

    Raises what a request would raise: a checkpoint that gives NaN never becomes ready.
    """
    limits = components.limits
    began = time.perf_counter()
    state = _state(components, limits.min_frames)
    begin_s = time.perf_counter() - began
    pipeline.denoise_step(components, state)  # the first one allocates, compiles and pages in
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
    return CostModel.fit(points, pixel_s=pixel_s, begin_s=begin_s)


def _rows_of(state: RequestState, num_frames: int) -> float:
    """About how many rows a clip of ``num_frames`` would have."""
    return state.num_rows * num_frames / state.geometry.num_frames


def _state(components: Components, num_frames: int) -> RequestState:
    with TemporaryDirectory() as folder:
        request = _request(components, num_frames, Path(folder))
        return pipeline.pack(components, pipeline.encode(components, pipeline.prepare(components, request)))


def _request(components: Components, num_frames: int, folder: Path) -> VideoRequest:
    conditions: tuple[Condition, ...] = ()
    if "t2va" not in components.limits.tasks:
        picture = folder / "grey.png"
        Image.new("RGB", (64, 64), (128, 128, 128)).save(picture)
        conditions = (Condition(kind="image", uri=str(picture)),)
    # An approximating attention runs between the first forward and the last one, and a graph is replayed from the third
    # forward of one kind on. A distilled checkpoint fixes its number of sigmas.
    plain = components.graphs is None and components.attend.exactness is None
    num_sigmas = None if components.schedule.base is not None else 3 if plain else 6
    target = Target(num_frames=num_frames)
    return VideoRequest(prompt="warm up", num_sigmas=num_sigmas, target=target, conditions=conditions)


def _measure(components: Components, num_frames: int) -> tuple[int, float]:
    """(rows, seconds) of the fastest of two steps of different timesteps; of four where later ones replay a graph."""
    state = _state(components, num_frames)
    best = float("inf")
    replays = components.graphs is not None and is_small(components.dits[state.partition].config, (state.num_rows,))
    for _ in range(min(4 if replays else 2, state.num_forwards)):
        components.synchronize()
        began = time.perf_counter()
        pipeline.denoise_step(components, state)
        components.synchronize()
        best = min(best, time.perf_counter() - began)
    return state.num_rows, best
