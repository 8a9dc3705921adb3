"""One forward of the full-size DiT against its floor and against diffusers, on random weights made on the device.

    python -m bench.dit_forward                     # every part, on a GPU, within --limit-s seconds
    python -m bench.dit_forward --parts floor,bf16  # some
    python -m bench.dit_forward --smoke             # every part that needs no GPU, tiny sizes, on a CPU

58,758 rows (30 text, 696 audio, 58,032 video: 8.7 s of 1152x832). The floor is the four products and the attention of
a block, alone, times the number of blocks, and the projections around them, run in turn with ours so that both see the
same warm card. Outputs are checked against float32 on two full-width blocks, and at full size against diffusers' model
with the same weights. What a check watches is timed or reported after it, and not at all where it fails. A part that
fails is named and the others go on. Writes <out>/dit_forward-<device>.json after
every part.

    kernels    each fused op: time, bytes, share of the copy rate
    checks     ours (kernels, backends, fp8) and diffusers against float32 at full width, two blocks, three sizes
    floor      products in bf16 and e4m3, every attention backend that is there
    bf16       ours: time and peak of each backend, memory settings, where the time goes, fp8 attention's error
    fp8        ours: load peak, time, peak, error of products alone and of both, where the time goes; forwards of which
               some rows are exact: keyframes, references, the first and last of a run
    diffusers  eager, its default attention
    compiled   diffusers with compiled blocks and cuDNN attention
    small      1, 2 and 4 requests of 672x384 x 124 frames in one forward; what the host needs to launch one
    steps      whole steps of the embedded checkpoint's default clip, 1, 2 and 4 in one forward: host and wall time,
               with CUDA graphs and without, equal bit for bit
    saturation rows from which on a forward's fixed cost is below a tenth: predicted as the engine does, and measured
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from bench.dit_forward.checks import part_checks
from bench.dit_forward.floor import part_floor, part_kernels
from bench.dit_forward.ours import part_bf16, part_fp8
from bench.dit_forward.peer import part_compiled, part_diffusers
from bench.dit_forward.run import Reported, Run, write
from bench.dit_forward.small import part_saturation, part_small, part_steps
from bench.report import RESULTS, device_name
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.timing import Clock, free
from talkies.kernels import select

PARTS: dict[str, Callable[[Run], None]] = {
    "kernels": part_kernels,
    "checks": part_checks,
    "floor": part_floor,
    "bf16": part_bf16,
    "fp8": part_fp8,
    "diffusers": part_diffusers,
    "compiled": part_compiled,
    "small": part_small,
    "steps": part_steps,
    "saturation": part_saturation,
}
# Seconds that a part needs on an H200 with all its repeats; one that does not fit any more is left out by name.
NEEDS_S = {
    "kernels": 10,
    "checks": 30,
    "floor": 15,
    "bf16": 120,
    "fp8": 115,
    "diffusers": 65,
    "compiled": 100,
    "small": 20,
    "steps": 20,
    "saturation": 60,
}


def backends_here(device: torch.device, dtype: torch.dtype, wanted: str | None) -> tuple[list[str], list[str]]:
    """Backends that can run, and why the others cannot."""
    machine = registry.Machine.of(device, dtype)
    names = list(registry.ATTENTION) if wanted is None else wanted.split(",")
    missing = {name: registry.why_not(name, machine) for name in names}
    return [n for n, why in missing.items() if why is None], [f"{n}: {why}" for n, why in missing.items() if why]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.dit_forward", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; implied without a GPU")
    parser.add_argument("--shape", choices=("full", "small"), default="full")
    parser.add_argument("--layers", type=int, help="blocks of the model; 50 when absent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernels", default="auto", help="auto, triton or reference")
    parser.add_argument("--attention", help="comma-separated backends; default every one that is there, but flex")
    parser.add_argument("--limit-s", type=float, default=540.0, help="parts that no longer fit are left out")
    parser.add_argument("--out", type=Path, default=None, help="folder of the JSON; default bench/results")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    device = torch.device(arguments.device)
    smoke = arguments.smoke or device.type == "cpu"
    dtype = torch.bfloat16
    config = fw.TINY if smoke else fw.RELEASED
    if arguments.layers:
        config = replace(config, num_layers=arguments.layers)
    shape = fw.SMOKE if smoke else {"full": fw.FULL, "small": fw.SMALL}[arguments.shape]
    kernels = select.automatic(device) if arguments.kernels == "auto" else arguments.kernels
    backends, missing = backends_here(device, dtype, arguments.attention)
    if arguments.attention is None:
        # Its dense form is a compiled kernel for a mask that one document does not need.
        backends = [name for name in backends if name != "flex"]
    run = Run(
        device=device,
        dtype=dtype,
        config=config,
        shape=shape,
        repeats=1 if smoke else arguments.repeats,
        kernels=kernels,
        backends=backends,
        out=arguments.out or RESULTS,
        clock=Clock(arguments.limit_s),
        notes=[f"not here: {why}" for why in missing],
    )
    name = device_name(device)
    run.say(f"{name}, torch {torch.__version__}, {run.config.num_layers} blocks, kernels {kernels}, {backends}")
    for why in missing:
        run.say(f"  not here: {why}")
    if run.on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = False
    parts = arguments.parts.split(",")
    for part in [p for p in PARTS if p in parts]:
        if run.on_gpu and not smoke and run.clock.left_s < NEEDS_S[part]:
            run.say(f"{part}: left out, {run.clock.left_s:.0f} s are left and it needs about {NEEDS_S[part]}")
            run.notes.append(f"{part}: no time left")
            continue
        run.say(f"{part}:")
        with Reported(run, part):
            PARTS[part](run)
        free(run.device)
        write(run)
    _summary(run)
    return 0 if all(run.checks.values()) else 1


def _summary(run: Run) -> None:
    print("\nsummary")
    for name in ("bf16_s", "floor_bf16_s", "bf16_over_floor", "fp8_s", "floor_fp8_s", "fp8_over_floor"):
        if name in run.metrics:
            print(f"  {name:<34} {run.metrics[name]:12.6g}")
    for name in ("bf16_peak_gib", "fp8_peak_gib", "fp8_rel_err", "fp8_products_rel_err", "fp8_attention_rel_err"):
        if name in run.metrics:
            print(f"  {name:<34} {run.metrics[name]:12.6g}")
    for name, value in run.peer.items():
        print(f"  {name:<34} {value:12.6g}")
    bad = [name for name, good in run.checks.items() if not good]
    print(f"  checks: {len(run.checks) - len(bad)} ok" + (f", NOT OK: {', '.join(bad)}" if bad else ""))
    for note in run.notes:
        print(f"  note: {note}")


if __name__ == "__main__":
    sys.exit(main())
