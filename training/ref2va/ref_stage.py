"""The stage ref_dit of `training.run`: data, fine-tuning, saving and figures of the ref2va partition."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import Executor

from training import assemble, ranks, tokenizer
from training.dit import train_dit
from training.ref2va import evaluate_ref, train_ref_dit

PEAK_LR = train_ref_dit.PEAK_LR
SEED = 31_000_000  # of the training clips; prompts add up to 600,000 to it


def run(args: argparse.Namespace, device: str, pool: Executor | None, world_ranks: ranks.Ranks) -> None:
    """Reads tokenizer, vae, transformer and text_encoder of `args.out`; writes transformer_ref and figures.

    Every rank renders its own clips; the first one saves, and each judges its share of the studies.
    """
    from tokenizers import Tokenizer

    start = time.perf_counter()
    raw = Tokenizer.from_file(str(args.out / "tokenizer" / "tokenizer.json"))
    vae = assemble.load_video_vae(args.out / "vae").to(device)
    models = train_ref_dit.load(args.out, tokenizer.load(args.out / "tokenizer")).to(device)
    canvases = ("16:9", "1:1") if args.smoke else tuple(train_ref_dit.CANVAS_SHARE)

    def maker(num_clips: int, stills_per_look: int, canvases: tuple[str, ...], seed: int):
        return train_ref_dit.make_maker(
            models,
            vae,
            raw,
            num_clips=num_clips,
            stills_per_look=stills_per_look,
            rows_per_batch=2_000 if args.smoke else args.rows_per_batch,
            device=device,
            seed=seed,
            canvases=canvases,
            pool=pool,
            rank=world_ranks.rank,
        )

    training = maker(
        12 if args.smoke else args.ref_clips, 1 if args.smoke else 48, canvases, SEED + 1_000_000 * world_ranks.rank
    )
    print(f"ref_dit: data after {time.perf_counter() - start:.0f}s", flush=True)
    train_dit.train(
        models,
        training,
        train_ref_dit.loss_of,
        seconds=args.ref_seconds,
        device=device,
        peak_lr=args.ref_peak_lr,
        max_steps=8 if args.smoke else None,
        log_every=4 if args.smoke else 250,
        compiled=not args.eager,
        world_ranks=world_ranks,
    )
    del training
    assemble.halve(models.dit)
    if world_ranks.is_first:
        assemble.save_reference_dit(models.dit, args.out)
        assemble.finish(args.out)
    models.to(device).float()  # figures are of the rounded weights
    held_out = maker(12 if args.smoke else 3_000, 1 if args.smoke else 8, ("16:9", "1:1"), evaluate_ref.SEED)
    studies = evaluate_ref.SMOKE_STUDIES if args.smoke else evaluate_ref.STUDIES
    names = list(studies)[world_ranks.rank :: world_ranks.count]
    (args.out / "figures").mkdir(exist_ok=True)
    suffix = "" if world_ranks.is_first else f"_{world_ranks.rank}"
    file = args.out / "figures" / f"figures_ref{suffix}.json"
    evaluate_ref.evaluate_references(models, vae, held_out, {n: studies[n] for n in names}, pool, file)
    print(f"ref_dit: all done after {time.perf_counter() - start:.0f}s", flush=True)
