"""`python -m training.second_edition.run --out DIR`: trains the second edition's parts, in parts that resume.

Stages, in order: tokenizer, audio_vae, video_vae, dit. Each writes into DIR. A stage whose `--part-seconds` are up
before its own time keeps what it has in DIR/parts and says how far it is; the same command goes on. Carry DIR/parts
from machine to machine. Clips are rendered anew in each part, from seeds of its own, so a longer training sees more.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from talkies.files.card import words_of
from training import assemble, card, ranks, tokenizer, world
from training.codecs import audio_vae, train_video_vae
from training.dit import dataset, evaluate, sample, train_dit
from training.resume import Part
from training.second_edition import vae_figures
from training.second_edition.components import SECOND, VOCAB_SIZE
from training.second_edition.prompts.compose import prompt

STAGES = ("tokenizer", "audio_vae", "video_vae", "dit")
CARD_SHARE = 1 / 2_000  # of the prompts: a misspelling is rarer, and was hardly learned
SMOKE_STUDY = {"t2va_22": sample.Study(num_frames=22, num_sigmas=3, num_clips=2)}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", default=",".join(STAGES), help="comma-separated")
    parser.add_argument("--part-seconds", type=float, default=float("inf"), help="training of one stage in this call")
    parser.add_argument("--part-steps", type=float, default=float("inf"), help="the same in steps")
    parser.add_argument("--video-vae-seconds", type=float, default=600, help="over all parts")
    parser.add_argument("--dit-seconds", type=float, default=1500, help="over all parts")
    parser.add_argument("--video-vae-clips", type=int, default=16, help="clips of 22 frames in a batch")
    parser.add_argument("--clips", type=int, default=8_000, help="clips to draw batches from, in each part")
    parser.add_argument("--rows-per-batch", type=int, default=180_000)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs, no compilation: slower, easier to debug")
    parser.add_argument("--smoke", action="store_true", help="a few steps of everything, for a CPU")
    return parser.parse_args(argv)


def corpus(num_clips: int = 40_000) -> list[str]:
    """Prompts of both kinds and the labels of references."""
    rng = random.Random(0)
    specs = SECOND.world.sample_specs(num_clips, SECOND.world.CANVASES["16:9"], torch.Generator().manual_seed(0))
    kinds = ("t2va", "t2va", "fl2va")
    texts = [prompt(world.describe(specs, i), rng, kinds[i % 3])[0] for i in range(num_clips)]
    return texts + list(tokenizer.LABELS) * 300


def known_words(texts: list[str]) -> list[str]:
    """What the card lists: the words that at least CARD_SHARE of the prompts hold."""
    counts = Counter(word for text in texts for word in set(words_of(text)))
    return [word for word, count in counts.items() if count >= CARD_SHARE * len(texts)]


def train_video(args: argparse.Namespace, device: str, part: Part) -> None:
    vae = train_video_vae.train(
        args.video_vae_seconds,
        1 if args.smoke else args.video_vae_clips,
        device,
        4 if args.smoke else None,
        graphs=not args.eager,
        edition=SECOND,
        part=part,
    )
    if vae is None:
        return
    train_video_vae.save(vae, args.out / "vae")
    rounded = assemble.load_video_vae(args.out / "vae").to(device)
    if args.smoke:
        vae_figures.measure(rounded, args.out / "figures", device, 1, ("1:1",))
    else:
        vae_figures.measure(rounded, args.out / "figures", device)


def clips_of(
    args: argparse.Namespace, vae, device: str, pool: Executor | None, seed: int
) -> dict[str, dataset.ClipSet]:
    """Clips of all canvases, rendered and encoded from seeds that no other part or rank uses."""
    from tokenizers import Tokenizer

    raw = Tokenizer.from_file(str(args.out / "tokenizer" / "tokenizer.json"))
    num_clips, clips = 4 if args.smoke else args.clips, {}
    for i, (name, share) in enumerate(train_dit.CANVAS_SHARE.items()):
        if args.smoke and name not in ("16:9", "21:9"):  # the second of them is wider than a tile
            continue
        count = max(2, round(num_clips * share))
        canvas = SECOND.world.CANVASES[name]
        specs, texts = dataset.plan(
            canvas, count, 1000 + 100_000 * (i + len(train_dit.CANVAS_SHARE) * seed), pool, SECOND
        )
        clips[name] = dataset.encode(vae, specs, texts, raw, device, 16 if device == "cuda" else 1, SECOND)
    return clips


def train_both(args: argparse.Namespace, device: str, part: Part, pool: Executor | None, mine: ranks.Ranks) -> None:
    """The DiT with text layers and vision tower; then weights, settings and figures."""
    vae = assemble.load_video_vae(args.out / "vae").to(device)
    models = train_dit.Models(tokenizer.load(args.out / "tokenizer"), SECOND).to(device)
    step = part.peek()
    clips = clips_of(args, vae, device, pool, seed=step * mine.count + mine.rank)
    done = train_dit.train(
        models,
        train_dit.BatchMaker(
            clips, models, 2_000 if args.smoke else args.rows_per_batch, device, seed=step + mine.rank
        ),
        seconds=args.dit_seconds,
        device=device,
        max_steps=4 if args.smoke else None,
        log_every=2 if args.smoke else 250,
        compiled=not args.eager,
        world_ranks=mine,
        part=part,
    )
    if done is None:
        return
    assemble.halve(models.dit)
    if mine.is_first:
        assemble.save_models(models, args.out)
        assemble.finish(args.out, SECOND)
        words = known_words(corpus(3_000 if args.smoke else 40_000))
        card.write_card(args.out, words, knows=card.KNOWS)  # of both editions; locks are not trained
    studies = SMOKE_STUDY if args.smoke else sample.STUDIES
    figures = args.out / "figures"
    figures.mkdir(exist_ok=True)
    names = list(studies)[mine.rank :: mine.count]
    models.to(device).float()  # figures are of the rounded weights
    evaluate.evaluate(models, vae, names, pool, figures, f"figures_{mine.rank}.json", SECOND, studies)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    stages = args.stages.split(",")
    if unknown := set(stages) - set(STAGES):
        raise SystemExit(f"unknown stages {sorted(unknown)}; allowed: {', '.join(STAGES)}")
    # forked before CUDA starts, which does not survive a fork
    pool = ProcessPoolExecutor(8, mp_context=get_context("fork")) if "dit" in stages and not args.smoke else None
    if pool:
        list(pool.map(len, [""] * 8))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mine = ranks.join(device)
    if mine.count > 1 and stages != ["dit"]:
        raise SystemExit(f"several ranks train dit alone, not {stages}: run the other stages first")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew, 0.2 s, for every sequence length
    args.out.mkdir(parents=True, exist_ok=True)

    def part(name: str) -> Part:
        return Part(args.out / "parts" / f"{name}.pt", args.part_seconds, args.part_steps)

    if "tokenizer" in stages:
        tokenizer.build(args.out / "tokenizer", corpus(3_000 if args.smoke else 40_000), VOCAB_SIZE)
    if "audio_vae" in stages:
        audio_vae.build().save_pretrained(args.out / "audio_vae")  # the timbres are the first edition's
    if "video_vae" in stages:
        train_video(args, device, part("video_vae"))
    if "dit" in stages and not (args.out / "vae").is_dir():
        raise SystemExit(f"{args.out / 'vae'} is not there yet: the stage video_vae is not done, run it again first")
    if "dit" in stages:
        train_both(args, device, part("dit"), pool, mine)


if __name__ == "__main__":
    main()
