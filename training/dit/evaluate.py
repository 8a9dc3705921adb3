"""Figures of a trained checkpoint: samples the studies of `sample` and lets `training.judge` look and listen.

Every study has a ceiling beside it: the same clips rendered, through both VAEs and judged.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from training import world
from training.codecs import audio_vae as audio_codec
from training.dit import sample
from training.dit.train_dit import Models
from training.editions import FIRST, Edition
from training.judge import verdict

SHOWN_BY_A_KEYFRAME = frozenset(("color", "shape", "background", "size", "place"))


def judge_all(frames: np.ndarray, waves: np.ndarray, pool: Executor | None) -> list:
    run = pool.map if pool else map
    return list(run(verdict.judge, list(frames), list(waves)))


def _expectation(study: sample.Study, truth: dict[str, str], kept: frozenset | dict) -> dict:
    """`kept` names what the prompt fixes, or maps it to the values that loose words allow."""
    due = {name: truth[name] for name in kept}
    if isinstance(kept, dict):
        due |= {name: allowed for name, allowed in kept.items() if len(allowed) > 1}
    return due | ({name: truth[name] for name in SHOWN_BY_A_KEYFRAME} if study.keyframes else {})


def _psnr_db(frames: np.ndarray, reference: np.ndarray) -> float:
    error = frames.astype(np.float32) / 255 - reference
    return float(np.mean(-10 * np.log10(np.maximum(np.square(error).mean((1, 2, 3)), 1e-9))))


@torch.no_grad()
def _round_trip(vae: nn.Module, audio_vae: nn.Module, study: sample.Study, specs: Any, edition: Edition) -> tuple:
    """(frames, waves, truth frames in 0..1 [B, F, H, W, 3]) of the rendered clips through both VAEs."""
    device = next(vae.parameters()).device
    specs = specs.to(device)
    clip = edition.world.render(specs, study.num_frames)
    rows = torch.cat([sample.encode_rows(vae, part) for part in clip.video_B3FHW.split(8)])
    directions, scale = (t.to(device) for t in audio_codec.basis())
    audio = audio_codec.project(world.audio_for(specs, clip.motion, study.num_frames), directions, scale)
    group = {"video_rows": rows, "audio_rows": audio.transpose(-1, -2).flatten(1, 2)}
    truth = clip.video_B3FHW[:, :, [0, -1]].permute(0, 2, 3, 4, 1).cpu().numpy()
    return *sample.decode(vae, audio_vae, study, group, edition), truth


def summary(verdicts: list, expectations: list) -> dict:
    scores = verdict.score(verdicts, expectations)
    rates = {name: round(100 * rate.share, 1) for name, rate in scores.rates.items()}
    return {
        "clips": len(verdicts),
        **rates,
        "offset_median_ms": round(scores.offset_median_ms, 1),
        "offset_p90_ms": round(scores.offset_p90_ms, 1),
        "pan_error": round(scores.pan_error, 3),
    }


def evaluate(
    models: Models,
    vae: nn.Module,
    names: list[str],
    pool: Executor | None,
    folder: Path,
    file_name: str,
    edition: Edition = FIRST,
    studies: dict[str, sample.Study] = sample.STUDIES,
) -> dict:
    """Figures per study, also as `file_name` in the folder, with a picture of a few clips each."""
    from PIL import Image

    audio_vae = audio_codec.build().to(next(vae.parameters()).device)
    figures = {}
    for name in names:
        study = studies[name]
        verdicts, ceiling, expectations, ends = [], [], [], []
        for group in sample.run_study(models, vae, study, edition):
            specs = group["specs"]
            frames, waves = sample.decode(vae, audio_vae, study, group, edition)
            through, through_waves, truth = _round_trip(vae, audio_vae, study, specs, edition)
            verdicts += judge_all(frames, waves, pool)
            ceiling += judge_all(through, through_waves, pool)
            described = [world.describe(specs, i) for i in range(len(specs))]
            expectations += [_expectation(study, d, k) for d, k in zip(described, group["kept"], strict=True)]
            for at, which in ((0, "first"), (-1, "last")):
                if which in study.keyframes:
                    ends.append((which, _psnr_db(frames[:, at], truth[:, at]), _psnr_db(through[:, at], truth[:, at])))
        figures[name] = {"sampled": summary(verdicts, expectations), "round_trip": summary(ceiling, expectations)}
        for which in study.keyframes:
            values = [(got, limit) for w, got, limit in ends if w == which]
            figures[name][f"{which}_frame_psnr_db"] = [round(float(v), 1) for v in np.mean(values, 0)]
        shown = np.concatenate([np.concatenate(list(clip[:: study.num_frames // 11]), 1) for clip in frames[:10]])
        Image.fromarray(shown).save(folder / f"{name}.jpg", quality=85)
        print(name, json.dumps(figures[name]), *group["prompts"][:10], sep="\n  ", flush=True)
        (folder / file_name).write_text(json.dumps(figures, indent=1) + "\n")
    return figures
