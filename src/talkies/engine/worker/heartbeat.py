"""Signs of life from a worker's loop: one as a unit begins, more from inside those that may take long.

They come from the thread that works, never from one beside it: a hung loop must fall silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import nn
from torch.utils.hooks import RemovableHandle

from talkies.engine.port.messages import Beat, Message

BEAT_EVERY_S = 0.5


class Pulse:
    """Cheap to call: most calls only look at the clock."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._last_at = float("-inf")
        self._expected_s = 0.0
        self._hooks: list[RemovableHandle] = []

    def begin(self, expected_s: float) -> None:
        """A unit begins that should take ``expected_s`` seconds; 0 where nobody knows."""
        if expected_s > self._expected_s or self._due():
            self._expected_s = expected_s
            self._beat(Beat(expected_s))

    def __call__(self) -> None:
        """Something moved within the unit."""
        if self._due():
            self._beat(Beat())

    def listen_to(self, model: nn.Module) -> None:
        """Calls itself whenever one of the layers of ``model`` begins."""
        for stack in model.modules():
            if isinstance(stack, nn.ModuleList | nn.Sequential):
                for layer in stack.children():
                    self._hooks.append(layer.register_forward_pre_hook(lambda *_: self()))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _due(self) -> bool:
        return time.monotonic() - self._last_at > BEAT_EVERY_S

    def _beat(self, beat: Beat) -> None:
        self._last_at = time.monotonic()
        self._send(beat)
