"""Which forwards a checkpoint can do without: schedules of the policy ``forecast`` from whole runs of a few requests.

Every request is denoised without skipping, and the velocities of all its forwards are kept (host memory: at full size
0.8 GB for 49 forwards). From them follow the costs of every gap, and from those the cheapest schedule for each number
of runs (``stepcache/schedule.py``). A tier is a bound on that cost; the shortest schedule under it is taken. What a
tier then does to frames and sound is measured by ``talkies bench quality``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from torch import Tensor

from talkies.engine.engine import Engine
from talkies.engine.load.build import Components
from talkies.engine.pipeline import path
from talkies.engine.pipeline.state import RequestState, course_of
from talkies.engine.pipeline.step import denoise_step
from talkies.errors import InvalidRequest
from talkies.quality import CachePolicy, Tiers
from talkies.request import VideoRequest
from talkies.stepcache.base import StepCache
from talkies.stepcache.schedule import best_runs, gap_costs, gram

# The most by which the latents of a clip may be off at the end, as estimated: the root mean squares of all gaps, of
# picture and sound together, summed. Chosen on the embedded checkpoint (docs/step-caches.md).
BOUNDS = {"high": 0.015, "medium": 0.04, "low": 0.1}
ORDERS = (0, 1)
PROMPTS = (
    "A red ball bounces slowly on a dark background with a bell sound.",
    "A small green square slides left quickly on a light background with a drum sound.",
    "A big blue triangle on the left flashes slowly on a dark background with a beep.",
    "A yellow ball slides right slowly on a light background and a bell rings.",
)


def default_requests() -> list[VideoRequest]:
    """Prompts in plain words, for t2va."""
    return [VideoRequest(prompt=prompt, seed=number, adapters=()) for number, prompt in enumerate(PROMPTS)]


class Recorder(StepCache):
    """Skips nothing and keeps the velocities of the rows that are denoised, flat, in host memory."""

    def __init__(self) -> None:
        self.video: list[Tensor] = []
        self.audio: list[Tensor] = []

    def observe(self, step: int, video: Tensor, audio: Tensor) -> None:
        layout = self.course.layout
        self.video = [*self.video, video[layout.num_condition_video_rows :].flatten().cpu()]
        self.audio = [*self.audio, audio[layout.num_condition_audio_rows :].flatten().cpu()]


@dataclass
class Seen:
    """Sums over the requests of one task and number of forwards: of each stream and order the costs [h, i, j]."""

    video_shift: float | None
    audio_shift: float | None
    costs: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    num_requests: int = 0

    def add(self, state: RequestState, recorder: Recorder) -> None:
        streams = {
            "video": (gram(recorder.video), state.schedule.video_sigmas.tolist()),
            "audio": (gram(recorder.audio), state.schedule.audio_sigmas.tolist()),
        }
        for (name, (products, sigmas)), order in product(streams.items(), ORDERS):
            found = gap_costs(products, sigmas, order)
            self.costs[name, order] = self.costs.get((name, order), 0.0) + found
        self.num_requests += 1

    def best(self, num_runs: int) -> tuple[float, list[int], int, int]:
        """The least cost, its runs, and the orders of video and audio."""
        ways = []
        for video, audio in product(ORDERS, ORDERS):
            mean = [np.sqrt(self.costs[key] / self.num_requests) for key in (("video", video), ("audio", audio))]
            runs, cost = best_runs(mean[0] + mean[1], num_runs)
            ways.append((cost, runs, video, audio))
        return min(ways)

    def policy(self, bound: float, num_forwards: int) -> CachePolicy | None:
        """The one that runs fewest forwards within ``bound``; ``None`` where nothing can be left out."""
        low, high = 2, num_forwards  # costs fall with every run more
        while low < high:
            middle = (low + high) // 2
            if self.best(middle)[0] <= bound:
                high = middle
            else:
                low = middle + 1
        if low == num_forwards:
            return None
        _, runs, video_order, audio_order = self.best(low)
        return CachePolicy(
            name="forecast",
            parameters={"runs": runs, "video_order": video_order, "audio_order": audio_order},
            skipped=round(1 - len(runs) / num_forwards, 6),
            num_forwards=num_forwards,
            video_shift=self.video_shift,
            audio_shift=self.audio_shift,
        )


def calibrate(
    engine: Engine,
    requests: Sequence[VideoRequest],
    num_sigmas: Sequence[int],
    *,
    bounds: dict[str, float] | None = None,
    version: int = 1,
    say: Callable[[str], object] = lambda line: None,
) -> Tiers:
    """Tiers for the tasks of ``requests`` at these numbers of sigma points. Raises as ``Engine.generate``, and
    ``InvalidRequest`` for requests with steps or shifts of their own."""
    components = engine.components
    seen: dict[tuple[str, int], Seen] = {}
    for number, request in enumerate(requests):
        if request.sigmas is not None or request.video_shift is not None or request.audio_shift is not None:
            raise InvalidRequest(
                "a request to calibrate from has steps of its own", hint="leave them out", param="sigmas"
            )
        for points in num_sigmas:
            state, recorder = recorded(components, request.replace(num_sigmas=points, quality="lossless"))
            key = (str(state.task), state.num_forwards)
            if key not in seen:
                seen[key] = Seen(components.schedule.video_shift, components.schedule.audio_shift)
            seen[key].add(state, recorder)
            say(f"{number + 1} of {len(requests)}: {key[0]}, {key[1]} forwards")
    policies: dict[str, dict[str, list[CachePolicy]]] = {}
    for tier, bound in (bounds or BOUNDS).items():
        for (task, forwards), one in sorted(seen.items()):
            found = one.policy(bound, forwards)
            if found is not None:
                policies.setdefault(tier, {}).setdefault(task, []).append(found)
                say(f"{tier} {task}: {len(found.parameters['runs'])} of {forwards} forwards run")
    return Tiers(version=version, checkpoint=components.checkpoint_hash, policies=policies)


def recorded(components: Components, request: VideoRequest) -> tuple[RequestState, Recorder]:
    """The request denoised, and the velocities of all its forwards."""
    state = path.pack(components, path.encode(components, path.prepare(components, request)))
    recorder = Recorder()
    recorder.begin(course_of(state.layout, state.schedule, components.dits[state.partition].config.num_layers))
    state.step_cache = recorder
    while not state.done:
        denoise_step(components, state)
    kept = state.step_cache
    assert isinstance(kept, Recorder)  # the copy that the last step left
    return state, kept
