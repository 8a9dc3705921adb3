"""What each tier of ``quality`` costs and saves on a checkpoint: every request without skipping, and with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from talkies.benchmarks.differences import Differences, differences
from talkies.engine.engine import Engine
from talkies.engine.pipeline.clip import Clip
from talkies.quality import TIERS
from talkies.request import VideoRequest

# name in a result, of ``Differences``, and which of several clips is the worst
WORST: dict[str, Callable[[Sequence[float]], float]] = {
    "psnr_db": min,
    "ssim": min,
    "si_sdr_db": min,
    "logmel_db": max,
    "loudness_db": lambda values: max(values, key=abs),
    "sync_ms": max,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One request with one tier. ``denoise_s`` of it and of the lossless clip."""

    request: VideoRequest
    num_forwards: int
    tier: str
    profile: str
    policy: str
    skipped: float
    denoise_s: float
    lossless_s: float
    found: Differences
    clip: Clip
    lossless: Clip

    @property
    def saved(self) -> float:
        """The share of the seconds of denoising."""
        return 1 - self.denoise_s / self.lossless_s


def measure(
    engine: Engine, requests: Sequence[VideoRequest], num_sigmas: Sequence[int | None], tiers: Sequence[str] = TIERS
) -> Iterator[Measured]:
    """Each request with each number of sigma points (``None``: the checkpoint's) and tier."""
    for request in requests:
        for points in num_sigmas:
            asked = request.replace(num_sigmas=points, quality="lossless")
            lossless = engine.generate(asked)
            for tier in tiers:
                clip = engine.generate(asked.replace(quality=tier))
                facts = clip.facts
                assert facts.step_cache is not None
                yield Measured(
                    request=asked,
                    num_forwards=facts.num_forwards,
                    tier=tier,
                    profile=facts.step_cache["profile"],
                    policy=facts.step_cache["policy"],
                    skipped=facts.skipped_fraction or 0.0,
                    denoise_s=clip.stages_s["denoise"],
                    lossless_s=lossless.stages_s["denoise"],
                    found=differences(clip, lossless),
                    clip=clip,
                    lossless=lossless,
                )


def summary(measured: Sequence[Measured]) -> dict[str, float]:
    """Of clips of one tier: means of what is saved, and of each difference the mean and the worst."""
    lossless_s = sum(one.lossless_s for one in measured)
    result = {
        "clips": float(len(measured)),
        "skipped": fmean(one.skipped for one in measured),
        "least_skipped": min(one.skipped for one in measured),
        "saved": 1 - sum(one.denoise_s for one in measured) / lossless_s,
    }
    for name, worst in WORST.items():
        values = [value for value in (asdict(one.found)[name] for one in measured) if value is not None]
        if values:
            result[name], result[f"worst_{name}"] = fmean(values), worst(values)
    return result


def report(
    requests: Sequence[VideoRequest], num_sigmas: Sequence[int | None], say: Callable[[str], object], **engine: Any
) -> dict[str, Any]:
    """``{"high, 49 forwards": {name: number}}``; ``engine`` are options of the engine by name."""
    opened = Engine.open(**engine)
    try:
        found: dict[str, list[Measured]] = {}
        for one in measure(opened, requests, num_sigmas):
            found.setdefault(f"{one.tier}, {one.num_forwards} forwards", []).append(one)
            say(f"{one.profile}, {one.num_forwards} forwards: {one.found.psnr_db:.1f} dB, {one.skipped:.0%} skipped")
    finally:
        opened.close()
    return {name: summary(several) for name, several in found.items()}
