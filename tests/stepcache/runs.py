"""Forwards of a tiny DiT as a policy sees them, one schedule long, and which blocks were run."""

from __future__ import annotations

import torch

from talkies.h3.timesteps import step_plan
from talkies.model.modulation import unfolded
from talkies.stepcache.base import Course, Forward
from talkies.stepcache.lockstep import drive
from tests.model.tiny import tiny_dit, tiny_layout, tiny_rows


class Runs:
    def __init__(self, num_forwards: int = 20, drift: float = 0.02):
        """``drift``: how far the rows of one forward are from those of the one before."""
        self.dit, self.layout, self.calls = tiny_dit(), tiny_layout(), []
        self.num_forwards, self._drift = num_forwards, drift
        video, audio, text = tiny_rows(self.layout)
        self._rows, self._text = (video, audio), self.dit.refine_text(text)
        self._towards = tiny_rows(self.layout, seed=2)[:2]
        self.view = self.dit.view(self.layout)

    def course(self, num_forwards: int | None = None) -> Course:
        sigmas = tuple(torch.linspace(1, 0, (num_forwards or self.num_forwards) + 1)[:-1].tolist())
        return Course(layout=self.layout, num_blocks=3, video_sigmas=sigmas, audio_sigmas=sigmas)

    def modulation(self, step):
        t = torch.tensor(step / self.num_forwards)
        return unfolded(self.dit, step_plan(self.layout, t, t))

    def embedded(self, step):
        share = min(1.0, self._drift * step)
        rows = [a + share * (b - a) for a, b in zip(self._rows, self._towards, strict=True)]
        return self.dit.embed(*rows, self._text, self.layout)

    def whole(self, step):
        return self.dit.run_blocks(self.embedded(step), self.view, self.modulation(step))

    def forward(self, cache, step, *, x=None, method="forward"):
        """The rows that leave forward ``step`` as ``cache`` has it."""
        x = self.embedded(step) if x is None else x
        before, modulation = x.clone(), self.modulation(step)

        def run(chosen, xs, start, stop):
            self.calls.append((start, stop))
            return [self.dit.run_blocks(xs[0], self.view, modulation, start, stop)]

        done = drive([getattr(cache, method)(step, x, Forward(modulation, 3))], run)
        assert torch.equal(x.nan_to_num(), before.nan_to_num()), "what was embedded was changed"
        return done.rows[0]

    def all(self, cache, num_forwards=None):
        """Of each forward its rows and how many blocks were run."""
        cache.begin(self.course(num_forwards))
        found = []
        for step in range(num_forwards or self.num_forwards):
            self.calls = []
            rows = self.forward(cache, step)
            found.append((rows, sum(stop - start for start, stop in self.calls)))
        return found
