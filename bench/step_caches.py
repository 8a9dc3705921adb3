"""What a step cache costs beside a forward of random full-size weights: seconds to decide, bytes that it holds.

    python -m bench.step_caches                    # on a GPU with 48 GiB for the blocks in fp8, 70 in bf16
    python -m bench.step_caches --smoke            # tiny sizes on a CPU

Deciding is a forward of the policy whose blocks give back what they are given: the distances, and the sums that it
keeps or adds. Nothing here says what a skipped forward does to a clip: random weights are not a trajectory.

Writes <out>/step_caches-<device>.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.report import RESULTS, bench_device, device_name, print_table, write_result
from talkies.attention.registry import resolve
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, median_of
from talkies.placement.quantize import QuantizeConfig
from talkies.stepcache import registry
from talkies.stepcache.base import Course, Forward, StepCache
from talkies.stepcache.lockstep import drive

POLICIES: dict[str, tuple[str, dict[str, object]]] = {
    "teacache": ("teacache", {"threshold": 0.0}),
    "block": ("block", {"residual_diff_threshold": 0.0, "max_warmup_steps": 0}),
    "block_taylor": ("block", {"residual_diff_threshold": 0.0, "max_warmup_steps": 0, "taylorseer_order": 1}),
    "forecast": ("forecast", {"runs": [0, 1, 9]}),
}
SIGMAS = tuple(1 - i / 10 for i in range(10))
MOST_SHARE, MOST_FORECAST_GIB = 0.005, 0.1


def decided(cache: StepCache, step: int, x_SD: Tensor, forward: Forward) -> Tensor:
    """The rows that leave a forward whose blocks do nothing."""
    return drive([cache.forward(step, x_SD, forward)], lambda chosen, xs, start, stop: xs).rows[0]


def held_bytes(cache: StepCache) -> int:
    """Of all tensors that a policy keeps between two forwards, each once."""
    found: dict[int, int] = {}

    def look(value: object) -> None:
        if isinstance(value, Tensor):
            found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, (list, tuple)):
            for one in value:
                look(one)

    for value in vars(cache).values():
        look(value)
    return sum(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU")
    parser.add_argument("--quantization", choices=("none", "fp8"), default="none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    device = bench_device(smoke=options.smoke)
    if device is None:
        return 2
    dtype = torch.float32 if options.smoke else torch.bfloat16
    config, shape = (fw.TINY, fw.SMOKE) if options.smoke else (fw.RELEASED, fw.FULL)
    kernels, attention = ("reference", "sdpa") if options.smoke else ("triton", resolve("auto", device, dtype))
    source = RandomDiT(config, device, dtype)
    quantize = QuantizeConfig(method=options.quantization)
    metrics: dict[str, float] = {}
    with torch.inference_mode():
        inputs = fw.make_inputs(source, [shape], device, dtype)
        step = fw.Step(fw.make_dit(source, device, dtype, attend=attention, kernels=kernels, quantize=quantize), inputs)
        step.warm_up()
        metrics["forward_s"] = median_of(step, device, repeats=options.repeats)
        x_SD, forward = step.embed(), Forward(inputs.modulation, config.num_layers)
        made = step.dit.project(x_SD, inputs.layout, inputs.modulation)
        course = Course(layout=inputs.layout, num_blocks=config.num_layers, video_sigmas=SIGMAS, audio_sigmas=SIGMAS)
        for name, (policy, parameters) in POLICIES.items():
            cache = registry.create(policy, parameters)
            cache.begin(course)
            for first in (0, 1):  # what is kept grows until there are enough points
                decided(cache, first, x_SD, forward)
                cache.observe(first, *(part.clone() for part in made))

            def decide(cache: StepCache = cache) -> object:
                return cache.velocities(2) or decided(cache, 2, x_SD, forward)

            metrics[f"{name}_decide_s"] = median_of(decide, device, repeats=options.repeats)
            metrics[f"{name}_share"] = metrics[f"{name}_decide_s"] / metrics["forward_s"]
            metrics[f"{name}_held_gib"] = held_bytes(cache) / GIB
    shares = {name: metrics[f"{name}_share"] for name in POLICIES}
    checks = {f"{name} decides in at most {MOST_SHARE:.1%}": share <= MOST_SHARE for name, share in shares.items()}
    checks["forecast holds at most 0.1 GiB"] = metrics["forecast_held_gib"] <= MOST_FORECAST_GIB
    rows = inputs.layout.num_rows
    told = {"rows": rows, "layers": config.num_layers, "attention": attention, "quantization": options.quantization}
    name = device_name(device)
    print_table("step caches", metrics, {}, checks)
    print(write_result("step_caches", name, folder=options.out, shape=told, metrics=metrics, peer={}, checks=checks))
    return 0 if options.smoke or all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
