"""What a recorded graph takes for granted of the modules it was recorded from."""

from __future__ import annotations

from typing import Any

from torch import nn


class WeightAddresses:
    """A stack of modules as flat lists: to walk the tree at each step would take longer than the step."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self._flatten()

    def addresses(self) -> tuple[int, ...] | None:
        """Where each weight lies now. ``None`` when a module has hooks: they work on the host at each call."""
        if any(tuple(held.values()) != children for held, children in self._children):
            self._flatten()
        if any(self._hooks):
            return None
        return tuple(t.data_ptr() for held in self._tensors for t in held.values() if t is not None)

    def _flatten(self) -> None:
        modules = list(self.root.modules())
        # The dictionaries live as long as their modules, so what changes in them is seen.
        self._children: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
            (m._modules, tuple(m._modules.values())) for m in modules
        ]
        self._hooks: list[Any] = [hooks for m in modules for hooks in (m._forward_pre_hooks, m._forward_hooks)]
        self._tensors: list[dict[str, Any]] = [held for m in modules for held in (m._parameters, m._buffers)]
