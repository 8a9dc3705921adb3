"""Which jobs may share a forward, and what the last ones that did keep for their next step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from talkies.engine.load.build import Components
from talkies.engine.pipeline.forward.group import StepGroup
from talkies.engine.pipeline.state import RequestState
from talkies.engine.pipeline.step import denoise_step


def batch_key(state: RequestState) -> Hashable | None:
    """States with equal keys may share a forward; None may not share at all.

    The weights have one set of adapters in them at a time. Step caches may differ: each decides for its own request.
    """
    if state.done:
        return None
    return ("denoise", state.partition, state.adapters)


class Batcher:
    """Steps groups of states; keeps what the last group shares, since it lives for many steps."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._group: StepGroup | None = None

    def step(self, states: Sequence[RequestState]) -> None:
        """One forward for all of them."""
        self._group = denoise_step(self._components, *states, group=self._group)

    def forget(self) -> None:
        """Drops the group, so that nothing of a finished request stays here."""
        self._group = None
