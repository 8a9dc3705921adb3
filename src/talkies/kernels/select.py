"""The table of kernels: one frozen set of implementations per name, resolved once at build and handed to the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from talkies.errors import ConfigError
from talkies.kernels.gate_residual.reference import gate_residual
from talkies.kernels.qk_norm_rope.reference import qk_norm_rope
from talkies.kernels.rms_modulate.reference import rms_modulate
from talkies.kernels.swiglu.reference import swiglu


@dataclass(frozen=True, kw_only=True, slots=True)
class Ops:
    """The fused operations of a block; signatures are those of ``kernels/<op>/reference.py``."""

    rms_modulate: Callable
    gate_residual: Callable
    qk_norm_rope: Callable
    swiglu: Callable


REFERENCE = Ops(rms_modulate=rms_modulate, gate_residual=gate_residual, qk_norm_rope=qk_norm_rope, swiglu=swiglu)

# A factory per name, so that a set whose package is missing fails when it is asked for and not on import.
KERNELS: dict[str, Callable[[], Ops]] = {"reference": lambda: REFERENCE}


def create(name: str) -> Ops:
    """The kernel set called ``name``; raises ``ConfigError`` with the list when there is none."""
    if name not in KERNELS:
        raise ConfigError(
            f"no kernel set is called {name!r}", hint="one of " + ", ".join(sorted(KERNELS)), param="kernels"
        )
    return KERNELS[name]()
