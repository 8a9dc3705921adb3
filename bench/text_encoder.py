"""The text encoder with random full-size weights made on the device: bf16 and fp8, sdpa and fa3, three lengths.

    python -m bench.text_encoder                        # on a GPU, under a minute on an H200
    python -m bench.text_encoder --smoke                # tiny sizes on a CPU

Each case is ``TextEncoder.encode`` of a prompt, from ids to finite states: 50 decoder layers of Qwen3-VL 32B, no
pictures. Printed and written beside it: the allocator's peak, what the host needs to enqueue it, the floor (the seven
products of a layer alone, their weights cold in the cache, times 50) and the error of fp8 and of fa3 against bf16 with
sdpa. Random weights: a trained encoder's error is another one.

Writes <out>/text_encoder-<device>.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.random_modules import TEXT, TINY_TEXT, drawn, text_model
from bench.report import RESULTS, bench_device, device_name, write_result
from talkies.attention import registry
from talkies.benchmarks.timing import GIB, Clock, free, median_of, peak, synchronize
from talkies.codecs.text.attention import TEXT_ATTENTION, use_attention
from talkies.codecs.text.encoder import TextEncoder
from talkies.codecs.text.linears import Fp8Linears
from talkies.codecs.text.presentation import Presentation
from talkies.kernels import select
from talkies.kernels.select import Ops
from talkies.model.weights import assign
from talkies.placement.quantize import TEXT_LINEARS, TEXT_PREFIX, text_linear_names

LENGTHS, SMOKE_LENGTHS = (64, 512, 4096), (5, 33, 65)
# No picture is encoded, so the tower is as small as the class allows.
VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "deepstack_visual_indexes": [0]}
MAX_FP8_ERROR, MAX_FA3_ERROR = 0.3, 0.05  # of random weights, 50 layers deep: a wrong product is far beyond


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=240.0, help="cases that would begin later are left out")
    options = parser.parse_args(arguments)
    device = bench_device(smoke=options.smoke)
    if device is None:
        return 2
    run = Run(device, options)
    with torch.no_grad():
        run.all()
    shape = {"layers": run.num_layers, "lengths": list(run.lengths), **run.text}
    path = write_result(
        "text_encoder",
        device_name(device),
        shape=shape,
        metrics=run.metrics,
        peer={},
        checks=run.checks,
        folder=options.out,
    )
    print(f"[{run.clock.spent_s:5.1f} s] {path}")
    return 0 if all(run.checks.values()) else 1


class Run:
    def __init__(self, device: torch.device, options: argparse.Namespace) -> None:
        self.device, self.repeats = device, options.repeats
        self.clock = Clock(options.limit_s)
        self.on_gpu = device.type == "cuda"
        self.lengths = LENGTHS if self.on_gpu else SMOKE_LENGTHS
        self.text: dict[str, Any] = TEXT if self.on_gpu else TINY_TEXT
        self.num_layers: int = self.text["num_hidden_layers"]
        self.ops = select.create(select.automatic(device))
        self.metrics: dict[str, float] = {}
        self.checks: dict[str, bool] = {}
        self.exact: dict[int, Tensor] = {}  # bf16, sdpa, by length

    def say(self, text: str) -> None:
        print(f"[{self.clock.spent_s:5.1f} s] {text}", flush=True)

    def all(self) -> None:
        machine = registry.Machine.of(self.device, torch.bfloat16)
        names = [name for name in TEXT_ATTENTION if registry.why_not(name, machine) is None]
        for name in set(TEXT_ATTENTION) - set(names):
            self.say(f"{name} left out: {registry.why_not(name, machine)}")
        model = text_model(self.text, VISION | {"out_hidden_size": self.text["hidden_size"]}, self.device)
        drawn(self.device)(model, None)
        encoder = TextEncoder(model, num_live_layers=self.num_layers, dtype=torch.bfloat16, device=self.device)
        self.say(f"made {self.num_layers} layers in bf16 on {self.device}, {self.weights(model)}")
        for precision in ("bf16", "fp8"):
            if precision == "fp8":
                began = time.perf_counter()
                with peak(self.device) as seen:
                    quantise(model, Fp8Linears(names=names_of(self.num_layers), ops=self.ops, device=self.device))
                self.metrics["fp8_quantise_s"] = time.perf_counter() - began
                free(self.device)
                extra = (seen.most - seen.start) / GIB
                self.say(
                    f"quantised in {self.metrics['fp8_quantise_s']:.2f} s, {self.weights(model)}, +{extra:.2f} GiB"
                )
            self.floors(model, precision)
            for name in names:
                use_attention(model, name)
                for length in self.lengths:
                    if self.clock.left_s > 0:
                        self.case(encoder, precision, name, length)

    def weights(self, model: nn.Module) -> str:
        return f"{sum(p.nbytes for p in model.parameters()) / GIB:.2f} GiB of weights"

    def floors(self, model: Any, precision: str) -> None:
        for length in self.lengths:
            products = floor(model.language_model.layers, length, self.ops, self.device)
            seconds = self.num_layers * median_of(products, self.device, repeats=max(3, self.repeats))
            self.metrics[f"{precision}_{length}_floor_s"] = seconds

    def case(self, encoder: TextEncoder, precision: str, name: str, length: int) -> None:
        # Ids spread over the vocabulary, the same ones for every case.
        vocabulary = self.text["vocab_size"]
        ids = tuple((7919 * (i + 1)) % (vocabulary // 2) + 5 for i in range(length))
        zeros = (0,) * length
        prompt = Presentation(
            input_ids=ids, token_tags=(1,) * length, mm_token_type_ids=zeros, image_grids=(), video_grids=()
        )
        states = encoder.encode(prompt).states.float().cpu()  # the first one is not timed
        prefix = f"{precision}_{name}_{length}"
        if not self.right(prefix, precision, length, states):
            self.say(f"{prefix:<20} not timed: its outputs are wrong")
            return
        with peak(self.device) as seen:
            seconds = median_of(lambda: encoder.encode(prompt), self.device, repeats=self.repeats)
        self.metrics[f"{prefix}_s"] = seconds
        self.metrics[f"{prefix}_host_s"] = self.enqueue_seconds(encoder, ids)
        self.metrics[f"{prefix}_peak_gib"] = seen.gib
        self.metrics[f"{prefix}_activations_gib"] = (seen.most - seen.start) / GIB
        over = seconds / self.metrics[f"{precision}_{length}_floor_s"]
        self.say(f"{prefix:<20} {seconds * 1e3:9.2f} ms, {over:.2f} x floor, peak {seen.gib:.2f} GiB")

    def right(self, prefix: str, precision: str, length: int, states: Tensor) -> bool:
        """Whether ``states`` [L, D] are finite and near the exact ones; the first ones of a length are those."""
        finite = self.checks[f"{prefix} is finite"] = bool(states.isfinite().all())
        if length not in self.exact:
            if finite:
                self.exact[length] = states
            return finite
        want = self.exact[length]
        error = ((states - want).norm() / want.norm()).item()
        cosine = torch.nn.functional.cosine_similarity(states, want, dim=1).min().item()
        self.metrics[f"{prefix}_rel_err"], self.metrics[f"{prefix}_min_cosine"] = error, cosine
        limit = MAX_FP8_ERROR if precision == "fp8" else MAX_FA3_ERROR
        near = self.checks[f"{prefix} error under {limit}"] = error < limit
        self.say(f"{prefix:<20} error {error:.4f}, cosine of the worst token {cosine:.4f}")
        return finite and near

    def enqueue_seconds(self, encoder: TextEncoder, ids: tuple[int, ...]) -> float:
        """The layers alone, not waited for: what the host needs to say them."""
        stack, table = encoder.model.language_model, torch.tensor([ids], device=self.device)
        synchronize(self.device)
        began = time.perf_counter()
        stack(input_ids=table, attention_mask=torch.ones_like(table), use_cache=False)
        seconds = time.perf_counter() - began
        synchronize(self.device)
        return seconds


def names_of(num_layers: int) -> set[str]:
    return {name.removeprefix(TEXT_PREFIX) for name in text_linear_names(num_layers)}


def quantise(model: Any, linears: Fp8Linears) -> None:
    """A linear at a time: the bf16 weight is gone before the next one is quantised."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    linears.install(model)
    for name in list(weights):
        assign(model, linears.place(name, weights.pop(name), torch.bfloat16) or {})


def floor(layers: Any, length: int, ops: Ops, device: torch.device) -> Callable[[], object]:
    """The products of a layer on inputs that are ready. A layer's weights are far larger than any cache."""
    linears = [layers[0].get_submodule(name) for name in TEXT_LINEARS]
    inputs: list[Any] = []
    for linear in linears:
        x = torch.randn(length, linear.weight.shape[1], dtype=torch.bfloat16, device=device)
        inputs.append(ops.quantize_rows(x) if getattr(linear, "weight_scale", None) is not None else x)

    def run() -> None:
        for linear, x in zip(linears, inputs, strict=True):
            scale = getattr(linear, "weight_scale", None)
            if scale is None:
                torch.nn.functional.linear(x, linear.weight)
            else:
                ops.fp8_linear(x, linear.weight, scale)

    return run


if __name__ == "__main__":
    sys.exit(main())
