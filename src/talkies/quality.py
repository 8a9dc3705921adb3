"""What ``quality`` means: named tiers, each a step-cache policy for every task. No torch.

``lossless`` runs every forward. The others leave some out, by policies that were calibrated for a checkpoint and are
written in its ``step_caches.json`` (``files/step_caches.py``, docs/step-caches.md), or, where it has none, by those of
``GENERIC``, which nobody has measured on it: they carry a warning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from talkies.few_steps import AdapterFacts, in_use, ladder_of
from talkies.request import VideoRequest

TIERS = ("high", "medium", "low")


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePolicy:
    """``name`` and ``parameters`` as ``stepcache.registry`` takes them.

    One with ``num_forwards`` is for requests of exactly so many, with the shifts that it was calibrated with.
    ``skipped``: the share of the forwards' compute that it is expected to leave out."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    skipped: float = 0.0
    num_forwards: int | None = None
    video_shift: float | None = None
    audio_shift: float | None = None

    @property
    def fingerprint(self) -> int:
        """63 bits of what it does: a run that was saved with another one does not go on with this."""
        said = json.dumps([self.name, sorted(self.parameters.items())])
        return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "big") >> 1

    @property
    def kept_streams(self) -> int:
        """Tensors [S, D] that it holds from one forward to the next."""
        if self.name == "teacache":
            return 2
        return 2 + int(self.parameters.get("taylorseer_order", 0)) if self.name == "block" else 0

    @property
    def kept_rows(self) -> int:
        """Sets of float32 rows of both streams, as velocities and noisy latents are, that it or its resume holds."""
        told = self.parameters
        if self.name == "forecast":
            return 1 + max(int(told.get("video_order", 1)), int(told.get("audio_order", 1)))
        return 1 + int(told.get("taylorseer_order", 0)) if self.name == "block" else 2 * (self.name == "teacache")

    def fits(self, request: VideoRequest, num_forwards: int, *, own_steps: bool) -> bool:
        """``own_steps``: the request's noise levels are not evenly spaced before the shift."""
        if self.num_forwards is None:
            return True
        shifts = (request.video_shift, self.video_shift), (request.audio_shift, self.audio_shift)
        same = all(asked in (None, calibrated) for asked, calibrated in shifts)
        return self.num_forwards == num_forwards and same and not own_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What a request's ``quality`` became. ``profile`` names tier and version, such as ``high-1``."""

    tier: str
    profile: str
    policy: CachePolicy
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any] | None:
        """What a job says of it before it is run; nothing of a lossless one."""
        return None if self.tier == "lossless" else {"profile": self.profile, "policy": self.policy.name}


OFF = Chosen(tier="lossless", profile="lossless", policy=CachePolicy(name="off"))


def _block(threshold: float, *, warmup: int, in_a_row: int) -> CachePolicy:
    parameters = {
        "residual_diff_threshold": threshold,
        "audio_residual_diff_threshold": threshold / 2,
        "max_warmup_steps": warmup,
        "max_continuous_cached_steps": in_a_row,
    }
    return CachePolicy(name="block", parameters=parameters)


# Thresholds, warm-up and bounds as cache-dit and SGLang publish them for other models; half as much for the sound.
GENERIC = {
    "high": _block(0.08, warmup=8, in_a_row=1),
    "medium": _block(0.12, warmup=4, in_a_row=2),
    "low": _block(0.24, warmup=4, in_a_row=3),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiers:
    """Of one checkpoint: tier -> task -> policies, of which the first that fits a request is taken. ``checkpoint`` is
    the hash of the one that they were calibrated for; empty: nobody has calibrated any."""

    version: int = 0
    checkpoint: str = ""
    policies: Mapping[str, Mapping[str, Sequence[CachePolicy]]] = field(default_factory=dict)

    def all(self) -> list[CachePolicy]:
        return [policy for tasks in self.policies.values() for several in tasks.values() for policy in several]


def num_forwards_of(request: VideoRequest, adapters: tuple[AdapterFacts, ...], default_num_sigmas: int) -> int:
    """Of one output. Raises ``InvalidRequest`` for adapters that are not known, or not for its task."""
    distilled = ladder_of(request, adapters)
    if distilled is not None:
        return distilled[1].num_forwards
    points = len(request.sigmas) if request.sigmas is not None else request.num_sigmas or default_num_sigmas
    return points - 1


def chosen(request: VideoRequest, tiers: Tiers, adapters: tuple[AdapterFacts, ...], default_num_sigmas: int) -> Chosen:
    """The policy of ``request``, and what its owner should know of it. Raises as :func:`num_forwards_of`."""
    tier = request.quality
    if tier == "lossless":
        return OFF
    num_forwards = num_forwards_of(request, adapters, default_num_sigmas)
    own_steps = request.sigmas is not None or ladder_of(request, adapters) is not None
    for policy in tiers.policies.get(tier, {}).get(str(request.resolved_task), ()):
        if policy.fits(request, num_forwards, own_steps=own_steps):
            notes: tuple[str, ...] = ()
            if in_use(request, adapters):
                notes = (f"quality={tier} was calibrated without adapters: what it costs with them was not measured",)
            return Chosen(tier=tier, profile=f"{tier}-{tiers.version}", policy=policy, notes=notes)
    kind = f"{request.resolved_task} with {num_forwards} forwards" if tiers.checkpoint else "this checkpoint"
    note = (
        f"quality={tier} is not calibrated for {kind}: thresholds published for other models are used, and what they "
        "cost here was not measured; see talkies calibrate"
    )
    return Chosen(tier=tier, profile=f"{tier}-generic", policy=GENERIC[tier], notes=(note,))
