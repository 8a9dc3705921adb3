"""How far a cheaper precision moves the embedded checkpoint's clips, beside how far another seed moves them.

    python -m bench.precision --quantization fp8 [--attention fa3-fp8] [--dtype bfloat16] [--clips 4]

Each prompt is made three times on one device and in one dtype: exactly, cheaply with the same seed, and exactly with
another seed; the exact ones use --exact-attention. What a seed changes is what a user would not call damage, so the
bound of latents, picture and sound is what another seed moves, median against median over a list of prompts; their
share of it and the worst clip are reported beside. On a CPU the fp8 products are emulated with the same e4m3 values.

Two lists: ``trained``, in the words that the checkpoint knows, and ``outside``, the first list of this bench, of which
three prompts use words that it has never seen ("a low tone"): what it makes of those is chance.
Writes <out>/precision-<device>.json.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.report import RESULTS, device_name, print_table, write_result
from talkies import Engine, VideoRequest
from talkies.engine.config import EngineConfig
from talkies.engine.pipeline.clip import Clip
from talkies.engine.pipeline.path import target_latents
from talkies.engine.pipeline.run import RequestRun
from talkies.engine.pipeline.sinks import ClipSink
from talkies.media.inspect.report import inspect
from talkies.request import Target

PROMPTS = {
    "trained": (
        "a red ball bounces slowly on a dark background with a bell sound",
        "a blue square slides right, quickly, with a drum",
        "a green triangle flashes slowly on a light background with a beep",
        "a yellow ball bounces quickly with a drum sound",
    ),
    "outside": (
        "a red ball bounces slowly on a dark background with a bell sound",
        "a blue square moves quickly on a white background with a low tone",
        "a green ball bounces quickly on a grey background with a click sound",
        "a yellow triangle moves slowly on a dark background with a high tone",
    ),
}
SEED, OTHER_SEED = 11, 12
MEASURES = ("video_latents_rel", "audio_latents_rel", "picture_rms", "logmel_db", "loudness_db")


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    """Of uint8 pictures; 99 for equal ones."""
    error = float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    return 99.0 if error == 0 else 10 * float(np.log10(255**2 / error))


def log_mel_distance_db(a: np.ndarray, b: np.ndarray, sample_rate_hz: int) -> float:
    """Mean distance of 64 mel bands in dB, frames of 1,024 samples of the mono mix; silence counts from -80 dB."""
    bank = torch.from_numpy(_mel_bank(sample_rate_hz))
    window = torch.hann_window(1024)

    def bands(wave: np.ndarray) -> torch.Tensor:
        mono = torch.from_numpy(np.ascontiguousarray(wave.mean(0), dtype=np.float32))
        spectrum = torch.stft(mono, 1024, 256, window=window, return_complex=True).abs().square()
        return 10 * (bank @ spectrum).clamp(min=1e-8).log10()

    n = min(a.shape[1], b.shape[1])
    return float((bands(a[:, :n]) - bands(b[:, :n])).abs().mean())


def _mel_bank(sample_rate_hz: int, num_bands: int = 64, num_bins: int = 513) -> np.ndarray:
    hz = np.linspace(0, sample_rate_hz / 2, num_bins)
    mel_edges = np.linspace(0, 2595 * np.log10(1 + sample_rate_hz / 2 / 700), num_bands + 2)
    edges = 700 * (10 ** (mel_edges / 2595) - 1)
    rising = (hz[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - hz[None]) / (edges[2:] - edges[1:-1])[:, None]
    return np.clip(np.minimum(rising, falling), 0, None).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Made:
    """A clip, its final latents (video, audio) and the sync offset that ``talkies inspect`` finds in its file."""

    clip: Clip
    latents: tuple[torch.Tensor, torch.Tensor]
    sync_offset_ms: float | None


def make(engine: Engine, request: VideoRequest, folder: Path) -> Made:
    latents: list[tuple[torch.Tensor, torch.Tensor]] = []
    sinks: list[ClipSink] = []

    def open_sink(output, state, facts) -> ClipSink:
        latents.append(tuple(x.float().cpu() for x in target_latents(state)))  # type: ignore[arg-type]
        sinks.append(ClipSink(engine.components, state, facts))
        return sinks[-1]

    with closing(RequestRun(engine.components, request, open_sink)) as run:
        while True:
            if run.wants_forward:
                run.forward()
            elif run.advance() is None:
                break
        clip = sinks[0].clip(run.results[0])
    path = clip.save(folder / "clip.mp4")
    return Made(clip, latents[0], inspect(path).sync_offset_ms)


def moved(one: Made, two: Made) -> dict[str, float]:
    """How far ``two`` is from ``one``: of each of ``MEASURES``, and what reads better beside them."""
    a, b = one.clip, two.clip
    power = [max(float(np.mean(clip.audio.astype(np.float64) ** 2)), 1e-12) for clip in (a, b)]
    ratio = math.sqrt(power[1] / power[0])
    found = {
        "video_latents_rel": _relative(two.latents[0], one.latents[0]),
        "audio_latents_rel": _relative(two.latents[1], one.latents[1]),
        "picture_rms": math.sqrt(np.mean((a.frames.astype(np.float64) - b.frames.astype(np.float64)) ** 2)) / 255,
        "logmel_db": log_mel_distance_db(a.audio, b.audio, a.sample_rate_hz),
        "loudness_db": abs(20 * math.log10(ratio)),
        "psnr_db": psnr_db(a.frames, b.frames),
        "loudness_ratio": ratio,
    }
    if one.sync_offset_ms is not None and two.sync_offset_ms is not None:
        found["sync_shift_ms"] = abs(two.sync_offset_ms - one.sync_offset_ms)
    return found


def _relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


def summary(
    name: str, cheap: Sequence[Mapping[str, float]], reseeded: Sequence[Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, bool]]:
    """(metrics, checks) of one list of prompts: medians of both, the worst of the cheap clips, and each measure's
    share of what a seed moves."""
    metrics: dict[str, float] = {}
    checks: dict[str, bool] = {}
    for key in sorted({key for one in cheap for key in one}):
        values, spread = ([one[key] for one in both if key in one] for both in (cheap, reseeded))
        metrics[f"{name}_{key}"] = statistics.median(values)
        worst = max(values, key=lambda x: abs(math.log(x))) if key == "loudness_ratio" else max(values)
        metrics[f"{name}_worst_{key}"] = min(values) if key == "psnr_db" else worst
        if spread:
            metrics[f"{name}_seed_{key}"] = statistics.median(spread)
        if key in MEASURES:
            most = statistics.median(spread)
            metrics[f"{name}_{key}_share_of_a_seed"] = statistics.median(values) / max(most, 1e-12)
            checks[f"{name}: {key} at most what another seed moves"] = statistics.median(values) <= most
    sync = metrics.get(f"{name}_worst_sync_shift_ms")
    if sync is not None:
        checks[f"{name}: sync moved by less than a frame"] = sync < 1000 / 24
    return metrics, checks


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantization", default="fp8")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--exact-attention", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--clips", type=int, default=4, help="of each list")
    parser.add_argument("--frames", type=int, help="the checkpoint's default when absent")
    parser.add_argument("--points", type=int, help="likewise")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    common = {"device": arguments.device, "dtype": arguments.dtype}
    exact = Engine.open_config(EngineConfig(attention=arguments.exact_attention, **common))
    cheap = Engine.open_config(
        EngineConfig(attention=arguments.attention, quantization=arguments.quantization, **common)
    )
    pairs: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    metrics: dict[str, float] = {}
    checks: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as name:
        for label, prompts in PROMPTS.items():
            prompts = prompts[: arguments.clips]
            for prompt in prompts:
                if prompt not in pairs:
                    pairs[prompt] = _pair(exact, cheap, prompt, arguments, Path(name))
                    for what, found in zip(("cheap", "seed "), pairs[prompt], strict=True):
                        print(what, {key: round(value, 3) for key, value in found.items()}, prompt, flush=True)
            found, good = summary(label, *zip(*(pairs[prompt] for prompt in prompts), strict=True))
            metrics |= found
            checks |= good
    resolved = cheap.components.config
    shape = {
        "clips": {label: len(prompts[: arguments.clips]) for label, prompts in PROMPTS.items()},
        "dtype": str(resolved.dtype).removeprefix("torch."),
        "attention": resolved.attention,
        "exact_attention": exact.components.config.attention,
        "quantization": resolved.quantize.method,
        "seeds": [SEED, OTHER_SEED],
        "prompts": {label: list(prompts[: arguments.clips]) for label, prompts in PROMPTS.items()},
    }
    device = device_name(resolved.device)
    print_table(f"precision on {device}", metrics, {}, checks)
    write_result("precision", device, shape=shape, metrics=metrics, peer={}, checks=checks, folder=arguments.out)


def _pair(
    exact: Engine, cheap: Engine, prompt: str, arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """How far the cheap clip and the one of another seed are from the exact one."""
    request = VideoRequest(
        prompt=prompt, seed=SEED, num_sigmas=arguments.points, target=Target(num_frames=arguments.frames)
    )
    reference = make(exact, request, folder)
    cheaply = make(cheap, request, folder)
    reseeded = make(exact, request.replace(seed=OTHER_SEED), folder)
    return moved(reference, cheaply), moved(reference, reseeded)


if __name__ == "__main__":
    main()
