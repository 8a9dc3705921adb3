"""``checks`` of bench/dit_forward: two full-width blocks, every backend and fp8, against float32 at three sizes."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.dit_forward.peer import diffusers_dit, diffusers_outputs
from bench.dit_forward.run import FP8, Reported, Run
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import free
from talkies.kernels import select
from talkies.model.chunking import Chunking


def part_checks(run: Run) -> None:
    narrow = replace(run.config, num_layers=2)
    two = [fw.CHECKS[0], fw.CHECKS[1]]
    for label, shapes in (*((f"{i}", [shape]) for i, shape in enumerate(fw.CHECKS)), ("documents", two)):
        source = RandomDiT(narrow, run.device, run.dtype)
        wide = RandomDiT(narrow, run.device, run.dtype, widen=True)
        inputs = fw.make_inputs(source, shapes, run.device, run.dtype)
        exact = _outputs(fw.make_dit(wide, run.device, torch.float32, attend="sdpa", kernels="reference"), inputs, True)
        plain = _outputs(fw.make_dit(source, run.device, run.dtype, attend="sdpa", kernels="reference"), inputs)
        allowed = fw.relative(plain, exact)
        run.metric(f"check_{label}_reference_rel", allowed, "")
        for name in run.backends:
            with Reported(run, f"check_{label}_{name}"):
                dit = fw.make_dit(source, run.device, run.dtype, attend=name, kernels=run.kernels)
                got = _outputs(dit, inputs)
                error, limit = fw.relative(got, exact), 1.2 * allowed + 1e-6
                if registry.create(name, select.create(run.kernels)).exactness is not None:
                    limit = 0.15  # an approximation; its error at full size is a number of its own
                again = _outputs(dit, inputs)
                same = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
                rows = inputs.layout.num_rows
                run.check(f"parity_{label}_{name}", error <= limit, f"{error:.2e} <= {limit:.2e}, {rows} rows")
                run.check(f"repeats_{label}_{name}", same, "two runs bit-equal")
                dit.use_chunking(Chunking(mlp_rows=256, head_groups=2))
                apart = fw.relative(_outputs(dit, inputs), got)
                run.check(f"chunked_{label}_{name}", apart <= limit, f"chunked differs by {apart:.2e}")
        with Reported(run, f"check_{label}_fp8"):
            name = run.best()
            dit = fw.make_dit(source, run.device, run.dtype, attend=name, kernels=run.kernels, quantize=FP8)
            fp8 = _outputs(dit, inputs)
            cpu = [x.float().cpu() for x in exact]
            run.check(f"parity_{label}_fp8", fw.relative(fp8, cpu) <= 0.15, f"{fw.relative(fp8, cpu):.2e} to float32")
            twin = fw.make_dit(source, run.device, run.dtype, attend="sdpa", kernels="reference", quantize=FP8)
            # The reference set multiplies the same e4m3 values in float32.
            between = fw.relative(fp8, _outputs(twin, inputs))
            run.check(f"emulation_{label}_fp8", between <= 0.05, f"{between:.2e} to the emulated product")
        if len(shapes) == 1:
            with Reported(run, f"check_{label}_diffusers"):
                theirs = diffusers_outputs(diffusers_dit(source, run.device), inputs)
                error = fw.relative(theirs, exact)
                run.check(f"parity_{label}_diffusers", error <= 1.2 * allowed + 1e-6, f"{error:.2e} to float32")
        free(run.device)


@torch.inference_mode()
def _outputs(dit, inputs: fw.Inputs, exact: bool = False) -> list[torch.Tensor]:
    return list(fw.Step(dit, inputs.to_float() if exact else inputs)())
