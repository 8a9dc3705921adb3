"""`python -m training.run --out DIR`: trains every part of the embedded checkpoint and assembles the folder.

Stages, in order: tokenizer, audio_vae, video_vae, dit, ref_dit. Each writes into DIR; a later call with --stages
continues. The stages dit and ref_dit run on several GPUs of one host, one stage a call, under
`torchrun --nproc-per-node N -m training.run`.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from training import assemble, ranks, tokenizer, world
from training.codecs import audio_vae, train_video_vae
from training.dit import dataset, evaluate, sample, train_dit
from training.ref2va import ref_stage

STAGES = ("tokenizer", "audio_vae", "video_vae", "dit", "ref_dit")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", default=",".join(STAGES), help="comma-separated")
    parser.add_argument("--video-vae-seconds", type=float, default=330)
    parser.add_argument("--dit-seconds", type=float, default=900)
    parser.add_argument("--video-vae-clips", type=int, default=32, help="clips of 22 frames in a batch")
    parser.add_argument("--clips", type=int, default=20_000)
    parser.add_argument("--rows-per-batch", type=int, default=180_000)
    parser.add_argument("--ref-seconds", type=float, default=300, help="the second DiT, which takes references")
    parser.add_argument("--ref-clips", type=int, default=8_000)
    parser.add_argument("--ref-peak-lr", type=float, default=ref_stage.PEAK_LR)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs, no compilation: slower, easier to debug")
    parser.add_argument("--smoke", action="store_true", help="a few steps of everything, for a CPU")
    return parser.parse_args(argv)


def encode_all(vae, raw_tokenizer, num_clips: int, device: str, pool, rank: int = 0) -> dict[str, dataset.ClipSet]:
    start = time.perf_counter()
    plans = {
        name: dataset.plan(
            world.CANVASES[name],
            max(4, round(num_clips * share)),
            1000 + 100_000 * (i + rank * len(world.CANVASES)),
            pool,
        )
        for i, (name, share) in enumerate(train_dit.CANVAS_SHARE.items())
    }
    print(f"dataset: prompts after {time.perf_counter() - start:.0f}s", flush=True)
    batch = 64 if device == "cuda" else 2
    clips = {n: dataset.encode(vae, specs, texts, raw_tokenizer, device, batch) for n, (specs, texts) in plans.items()}
    total = sum(len(c) for c in clips.values())
    print(f"dataset: {total} clips after {time.perf_counter() - start:.0f}s", flush=True)
    return clips


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    stages = args.stages.split(",")
    if unknown := set(stages) - set(STAGES):
        raise SystemExit(f"unknown stages {sorted(unknown)}; allowed: {', '.join(STAGES)}")
    # forked before CUDA starts, which does not survive a fork
    wants_pool = not args.smoke and {"dit", "ref_dit"} & set(stages)
    pool = ProcessPoolExecutor(8, mp_context=get_context("fork")) if wants_pool else None
    if pool:
        list(pool.map(len, [""] * 8))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    world_ranks = ranks.join(device)
    if world_ranks.count > 1 and stages not in (["dit"], ["ref_dit"]):
        raise SystemExit(f"several ranks train dit or ref_dit alone, not {stages}: run the other stages first")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew, 0.2 s, for every sequence length
    args.out.mkdir(parents=True, exist_ok=True)
    if "tokenizer" in stages:
        tokenizer.build(args.out / "tokenizer")
    if "audio_vae" in stages:
        audio_vae.build().save_pretrained(args.out / "audio_vae")
    if "video_vae" in stages:
        steps = 3 if args.smoke else None
        num_clips = 2 if args.smoke else args.video_vae_clips
        vae = train_video_vae.train(args.video_vae_seconds, num_clips, device, steps, graphs=not args.eager)
        train_video_vae.save(vae, args.out / "vae")
    if "dit" in stages:
        from tokenizers import Tokenizer

        vae = assemble.load_video_vae(args.out / "vae").to(device)
        raw = Tokenizer.from_file(str(args.out / "tokenizer" / "tokenizer.json"))
        clips = encode_all(vae, raw, 6 if args.smoke else args.clips, device, pool, world_ranks.rank)
        models = train_dit.Models(tokenizer.load(args.out / "tokenizer"))
        rows_per_batch = 2_000 if args.smoke else args.rows_per_batch
        models.to(device)
        train_dit.train(
            models,
            train_dit.BatchMaker(clips, models, rows_per_batch, device, seed=world_ranks.rank),
            seconds=args.dit_seconds,
            device=device,
            max_steps=6 if args.smoke else None,
            log_every=3 if args.smoke else 250,
            compiled=not args.eager,
            snapshot=args.out / "dit_half_time.pt",
            world_ranks=world_ranks,
        )
        assemble.halve(models.dit)
        if world_ranks.is_first:
            assemble.save_models(models, args.out)
            assemble.finish(args.out)
        names = list(sample.STUDIES)[:1] if args.smoke else list(sample.STUDIES)
        figures = args.out / "figures"
        figures.mkdir(exist_ok=True)
        names = names[world_ranks.rank :: world_ranks.count]
        evaluate.evaluate(models.to(device).float(), vae, names, pool, figures, f"figures_{world_ranks.rank}.json")
    if "ref_dit" in stages:
        ref_stage.run(args, device, pool, world_ranks)


if __name__ == "__main__":
    main()
