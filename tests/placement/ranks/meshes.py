"""A DiT over the ranks of a mesh, in processes with gloo, and one forward of it as a step does it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from talkies.attention import registry
from talkies.h3.packing import AudioCondition, PackedLayout, VisualCondition, build_layout, concat_layouts
from talkies.h3.timesteps import step_plan
from talkies.kernels.select import REFERENCE
from talkies.model.modulation import build_table
from talkies.model.weights import build_dit
from talkies.placement.apply import attend_of, runner_of
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, join_ranks


def build(source, groups: RankGroups | None = None, attend=None):
    """(DiT, runner) of one rank; of one device without ``groups``."""
    attend = attend_of(attend or registry.create("sdpa"), groups)
    if groups is not None:
        source = ShardedTensors(source, Shard(rank=groups.place.tensor, degree=groups.mesh.tensor))
    dit = build_dit(source, attend=attend, text_attend=registry.create("sdpa"), ops=REFERENCE, adaln=False)
    if groups is not None:
        join_ranks(dit, groups)
    return dit.eval().requires_grad_(False), runner_of(dit, groups=groups)


def _clip(*, text, conditions=(), isolate=None) -> PackedLayout:
    return build_layout(
        text_tags=torch.ones(text, dtype=torch.long),
        latent_frames=7,
        latent_height=4,
        latent_width=6,
        audio_latents=9,
        patch_size=(1, 2, 2),
        conditions=conditions,
        isolate=isolate,
    )


def layouts() -> dict[str, PackedLayout]:
    """Of every task, of two requests in one forward, and of a model whose modalities do not see each other. Row counts
    are odd, so that no degree divides them."""
    first = VisualCondition(kind="keyframe-first", latent_height=4, latent_width=6)
    image = VisualCondition(kind="image", latent_height=6, latent_width=4)
    t2va = _clip(text=9)
    fl2va = _clip(text=30, conditions=[first])
    ref2va = _clip(text=12, conditions=[image, AudioCondition(audio_latents=5)])
    return {
        "t2va": t2va,
        "fl2va": fl2va,
        "ref2va": ref2va,
        "two": concat_layouts([t2va, fl2va]),
        "isolated": _clip(text=9, isolate="modality"),
        "padded": ref2va.padded(64),
    }


@dataclass
class Inputs:
    """What one forward reads, the same on every rank."""

    layout: PackedLayout
    video: torch.Tensor
    audio: torch.Tensor
    text: torch.Tensor
    modulation: object

    @classmethod
    def of(cls, layout, reader):
        generator = torch.Generator().manual_seed(5)
        c = reader.config
        count = layout.num_requests
        plan = step_plan(layout, torch.linspace(0.2, 0.6, count), torch.linspace(0.5, 0.4, count))
        return cls(
            layout,
            torch.randn(layout.num_video_rows, c.video_row_dim, generator=generator),
            torch.randn(layout.num_audio_rows, c.audio_in_channels, generator=generator),
            torch.randn(layout.num_text, c.text_dim, generator=generator),
            build_table(reader, [plan]).step(0),
        )


@torch.inference_mode()
def forward(dit, runner, inputs: Inputs, *, poison: float | None = None, exact=()):
    """(video, audio) velocities of all rows. ``poison`` is what structural padding holds."""
    from talkies.engine.pipeline.step import velocities

    layout, sharing = inputs.layout, runner.sharing
    refined = dit.refine_text(inputs.text.to(dit.dtype), layout.text_documents)
    view = dit.view(layout)
    view = view.with_exact(exact) if exact else view
    start = 0 if sharing is None else sharing.share(layout.spans).start

    def through(x, run):
        if poison is not None:
            x[max(0, layout.num_rows - start) :] = poison
        return run(x)

    return velocities(dit, runner, inputs.video, inputs.audio, refined, layout, view, inputs.modulation, through)
