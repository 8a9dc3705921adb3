"""Figures of the ref2va partition: samples with references that training never drew, and the share that follows them.

Between words and references every attribute of a clip is fixed (see `reference_prompts`), so all of them are judged.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training import world
from training.codecs import audio_vae
from training.dit import batched, evaluate, sample
from training.ref2va import train_ref_dit
from training.ref2va.train_ref_dit import ReferenceBatch, ReferenceMaker, ReferenceModels, Wish

SEED = 7_654_321  # of clips, stills and sounds; training's are far below
FOLLOWED = {"image": ("color", "shape", "size"), "audio": ("sound",), "video": ("color", "shape", "motion", "tempo")}


@dataclass(frozen=True, kw_only=True)
class ReferenceStudy:
    wish: Wish
    num_clips: int = 64
    group: int = 16  # clips of one prompt length
    shifts: tuple[float, float] = (3.0, 2.0)
    num_sigmas: int = 20


STUDIES = {
    "image_56": ReferenceStudy(wish=Wish(kind="image", canvas="16:9", num_frames=56)),
    "image_bare_56": ReferenceStudy(wish=Wish(kind="image_bare", canvas="16:9", num_frames=56)),
    "square_image_56": ReferenceStudy(wish=Wish(kind="image", canvas="16:9", num_frames=56, still_canvas="1:1")),
    "image_124": ReferenceStudy(wish=Wish(kind="image", canvas="16:9", num_frames=124), num_clips=32),
    "image_audio_56": ReferenceStudy(wish=Wish(kind="image_audio", canvas="16:9", num_frames=56)),
    "video_39_to_56": ReferenceStudy(wish=Wish(kind="video", canvas="16:9", num_frames=56)),
    "video_22_to_56": ReferenceStudy(wish=Wish(kind="video", canvas="16:9", num_frames=56, preceding_frames=22)),
    "video_silent_56": ReferenceStudy(wish=Wish(kind="video_silent", canvas="16:9", num_frames=56)),
    "square_video_56": ReferenceStudy(wish=Wish(kind="video", canvas="1:1", num_frames=56), num_clips=32),
}
SMOKE_STUDIES = {
    f"{kind}_22": ReferenceStudy(
        wish=Wish(kind=kind, canvas="16:9", num_frames=22, preceding_frames=22, sound_latents=37),
        num_clips=2,
        num_sigmas=3,
    )
    for kind in ("image_audio", "video")
}


@torch.no_grad()
def sample_batch(
    models: ReferenceModels, study: ReferenceStudy, batch: ReferenceBatch, first_seed: int
) -> dict[str, Tensor]:
    """Video and audio rows of one batch, float16 on the CPU, under the reference's seeding."""
    device = batch.video_rows.device
    seeds = [first_seed + i for i in range(len(batch.clip))]
    video, audio = (x.to(device) for x in sample.reference_noise(batch.placed.layout, seeds))
    sigmas_v, sigmas_a = (sample.sigma_grid(study.num_sigmas, shift).tolist() for shift in study.shifts)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        rows = train_ref_dit.text_rows(models, batch)
        for i in range(study.num_sigmas - 1):
            times = [torch.full((len(seeds),), 1 - s[i], device=device) for s in (sigmas_v, sigmas_a)]
            velocity_v, velocity_a = batched.forward(
                models.dit, batch.placed, rows, batch.condition_rows, audio, video, *times
            )
            video = video + (sigmas_v[i] - sigmas_v[i + 1]) * velocity_v
            audio = audio + (sigmas_a[i] - sigmas_a[i + 1]) * velocity_a
    return {"video_rows": video.half().cpu(), "audio_rows": audio.half().cpu()}


def _followed(kind: str, summary: dict) -> dict:
    """The rates of what the references alone decide."""
    sources = ("video",) if kind.startswith("video") else ("image", "audio") if "audio" in kind else ("image",)
    return {source: {name: summary[name] for name in FOLLOWED[source]} for source in sources}


def evaluate_references(
    models: ReferenceModels,
    vae: nn.Module,
    maker: ReferenceMaker,
    studies: dict[str, ReferenceStudy],
    pool: Executor | None,
    file: Path,
) -> dict:
    """Figures per study, also as the JSON `file`, with a picture of a few clips each beside it."""
    from PIL import Image

    models.eval()
    torch.manual_seed(SEED)
    audio_codec = audio_vae.build().to(next(vae.parameters()).device)
    figures = {}
    for name, study in studies.items():
        wish = study.wish
        shape = sample.Study(canvas=wish.canvas, num_frames=wish.num_frames)
        attributes = maker.targets[wish.canvas].clips.attributes
        verdicts, ceiling, expectations = [], [], []
        for at in range(0, study.num_clips, study.group):
            batch = maker.make(wish, min(study.group, study.num_clips))
            truth = {"video_rows": batch.video_rows, "audio_rows": batch.audio_rows}
            through = sample.decode(vae, audio_codec, shape, truth)
            frames, waves = sample.decode(vae, audio_codec, shape, sample_batch(models, study, batch, at))
            verdicts += evaluate.judge_all(frames, waves, pool)
            ceiling += evaluate.judge_all(*through, pool)
            for index in batch.clip.tolist():
                expectations.append({k: world.ATTRIBUTES[k][int(v[index])] for k, v in attributes.items()})
        sampled = evaluate.summary(verdicts, expectations)
        figures[name] = {
            "followed": _followed(wish.kind, sampled),
            "sampled": sampled,
            "round_trip": evaluate.summary(ceiling, expectations),
        }
        shown = np.concatenate([np.concatenate(list(clip[:: wish.num_frames // 11]), 1) for clip in frames[:10]])
        Image.fromarray(shown).save(file.parent / f"ref_{name}.jpg", quality=85)
        prompts = models.text.tokenizer.batch_decode(batch.prompt_ids[:10].tolist())
        print(name, json.dumps(figures[name]), *prompts, sep="\n  ", flush=True)
        file.write_text(json.dumps(figures, indent=1) + "\n")
    return figures
