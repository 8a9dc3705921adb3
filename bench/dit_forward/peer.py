"""``diffusers`` and ``compiled`` of bench/dit_forward: diffusers' model over the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from bench.dit_forward.run import Run
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import median_of, peak
from talkies.h3 import dit_keys as keys
from talkies.h3.dit_keys import Layout
from talkies.h3.rope import inverse_frequencies
from talkies.h3.timesteps import row_timesteps
from talkies.model.weights import assign


def diffusers_dit(source: RandomDiT, device: torch.device):
    """Diffusers' model over the same weights, AdaLN projections included; nothing passes through the host."""
    from diffusers import MiniMaxH3Transformer3DModel

    with torch.device("meta"):
        model = MiniMaxH3Transformer3DModel(**asdict(source.config))
    for name, spec in source.specs.items():
        parts = keys.split(spec, source.tensor(name), Layout.PORT, source.config)
        assign(model, dict(zip(keys.file_keys(name, Layout.PORT), parts, strict=True)))
    model.rope.inv_freq = inverse_frequencies(source.config.rope_freq_dim, source.config.rope_theta).to(device)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not left, left
    return model.eval().requires_grad_(False)


def _diffusers_step(model, inputs: fw.Inputs) -> Callable[[], list[torch.Tensor]]:
    layout, device = inputs.layout, inputs.video.device
    timestep, indices = row_timesteps(layout, inputs.t_video, inputs.t_audio)
    arguments = {
        "hidden_states": inputs.video[None],
        "audio_hidden_states": inputs.audio[None],
        "encoder_hidden_states": inputs.text[None],
        "timestep": timestep.to(device),
        "timestep_indices": indices.to(device),
        "token_tags": layout.tags.long().to(device),
        "position_ids": layout.positions.to(device),
        "video_indices": layout.video_indices.to(device),
        "audio_indices": layout.audio_indices.to(device),
        "text_indices": layout.text_indices.to(device),
    }

    def step() -> list[torch.Tensor]:
        out = model(**arguments)
        return [out.sample[0], out.audio_sample[0]]

    return step


@torch.inference_mode()
def diffusers_outputs(model, inputs: fw.Inputs) -> list[torch.Tensor]:
    return _diffusers_step(model, inputs)()


def part_diffusers(run: Run) -> None:
    _peer(run, "eager", lambda model: None, run.repeats)


def part_compiled(run: Run) -> None:
    def prepare(model) -> None:
        if run.on_gpu:
            model.set_attention_backend("_native_cudnn")
        model.compile_repeated_blocks(fullgraph=True)

    _peer(run, "compiled", prepare, run.repeats)


def _peer(run: Run, label: str, prepare: Callable[[object], None], repeats: int) -> None:
    run.trusted("diffusers")
    model = diffusers_dit(run.source, run.device)
    prepare(model)
    step = _diffusers_step(model, run.inputs())
    with torch.no_grad():  # inference tensors would be guarded on by the compiler
        outputs = [x.float().cpu() for x in step()]
        if "bf16" in run.outputs:
            error = fw.relative(run.outputs["bf16"], outputs)
            agrees = error <= 0.05
            if not agrees:
                run.withdraw("bf16_", f"{error:.2e} from diffusers {label}")
            run.require(f"full_size_agrees_with_diffusers_{label}", agrees, f"{error:.2e} over every row")
            run.metric(f"bf16_to_diffusers_{label}_rel", error, "")
        if run.clock.left_s < (repeats + 1) * 16 and run.on_gpu:
            repeats = 1
        with peak(run.device) as seen:
            seconds = median_of(step, run.device, repeats=repeats, warmups=0)
    run.metric(f"diffusers_{label}_s", seconds, peer=True)
    if label == "eager":
        run.metric("diffusers_peak_gib", seen.gib, "GiB", peer=True)
    if "bf16_s" in run.metrics:
        run.metric(f"speedup_over_diffusers_{label}", seconds / run.metrics["bf16_s"], "x")
    if "bf16_cudnn_s" in run.metrics:
        # The same attention kernel on both sides: what is left is everything else.
        run.metric(f"speedup_over_diffusers_{label}_with_cudnn", seconds / run.metrics["bf16_cudnn_s"], "x")
