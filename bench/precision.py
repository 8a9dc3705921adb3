"""How far a cheaper precision moves the embedded checkpoint's clips: picture, sound and their sync.

    python -m bench.precision --quantization fp8 [--attention fa3-fp8] [--dtype bfloat16] [--clips 4]

Each prompt is made twice with one seed, exactly and cheaply, on the same device and in the same dtype; the exact one
uses --exact-attention. On a CPU the fp8 products are emulated with the same e4m3 values.
Writes <out>/precision-<device>.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from bench.report import RESULTS, device_name, print_table, write_result
from talkies import Engine, VideoRequest
from talkies.engine.config import EngineConfig
from talkies.media.inspect.report import inspect

# In the words that the embedded checkpoint was trained on: what it does with others is chance, in any precision.
PROMPTS = (
    "a red ball bounces slowly on a dark background with a bell sound",
    "a blue square slides right, quickly, with a drum",
    "a green triangle flashes slowly on a light background with a beep",
    "a yellow ball bounces quickly with a drum sound",
)


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


def make(engine: Engine, prompt: str, folder: Path) -> tuple[np.ndarray, np.ndarray, float | None]:
    """Frames, wave and the sync offset that ``talkies inspect`` finds in the written clip."""
    clip = engine.generate(VideoRequest(prompt=prompt, seed=11))
    path = folder / "clip.mp4"
    clip.save(path)
    return np.asarray(clip.frames), np.asarray(clip.audio), inspect(path).sync_offset_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantization", default="fp8")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--exact-attention", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--clips", type=int, default=len(PROMPTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    common = {"device": arguments.device, "dtype": arguments.dtype}
    exact = Engine.open_config(EngineConfig(attention=arguments.exact_attention, **common))
    cheap = Engine.open_config(
        EngineConfig(attention=arguments.attention, quantization=arguments.quantization, **common)
    )
    found: dict[str, list[float]] = {"psnr_db": [], "logmel_db": [], "loudness_ratio": [], "sync_shift_ms": []}
    with tempfile.TemporaryDirectory() as folder:
        for prompt in PROMPTS[: arguments.clips]:
            one, two = (make(engine, prompt, Path(folder)) for engine in (exact, cheap))
            rate = exact.limits.sample_rate_hz
            found["psnr_db"].append(psnr_db(one[0], two[0]))
            found["logmel_db"].append(log_mel_distance_db(one[1], two[1], rate))
            found["loudness_ratio"].append(float(np.sqrt(np.mean(two[1] ** 2) / max(np.mean(one[1] ** 2), 1e-12))))
            if one[2] is not None and two[2] is not None:
                found["sync_shift_ms"].append(abs(two[2] - one[2]))
            print({name: round(values[-1], 3) for name, values in found.items() if values}, prompt, flush=True)
    metrics = {name: statistics.median(values) for name, values in found.items() if values}
    metrics["worst_psnr_db"] = min(found["psnr_db"])
    resolved = cheap.components.config
    checks = {"PSNR at least 32 dB": metrics["psnr_db"] >= 32}
    if found["sync_shift_ms"]:
        checks["sync moved by less than a frame"] = max(found["sync_shift_ms"]) < 1000 / 24
    shape = {
        "clips": len(found["psnr_db"]),
        "dtype": str(resolved.dtype).removeprefix("torch."),
        "attention": resolved.attention,
        "exact_attention": exact.components.config.attention,
        "quantization": resolved.quantize.method,
    }
    device = device_name(resolved.device)
    print_table(f"precision on {device}: {shape}", metrics, {}, checks)
    write_result("precision", device, shape=shape, metrics=metrics, peer={}, checks=checks, folder=arguments.out)


if __name__ == "__main__":
    main()
