"""The packed DiT: embed, run_blocks, project. Single-device code; placement wraps it from outside.

Equal to diffusers' model on the same weights (tests/parity/test_dit_forward.py).

Three seams: ``attend`` (how rows meet), ``blocks`` (where weights come from) and ``run_blocks``, which takes any share
of the sequence with its matching view and modulation. A step calls it through a :class:`~talkies.model.runner.Runner`,
which placement may put something around.

S rows, L text rows, D hidden, N heads, H channels a head, F feed-forward inner, A rotary angles.
"""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from talkies.attention.base import Attend, Documents
from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from talkies.h3.packing import PackedLayout, Stream
from talkies.h3.rope import rotary_table
from talkies.h3.spans import Arranged
from talkies.h3.timesteps import StepPlan
from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.runs import RowRuns
from talkies.kernels.select import REFERENCE, Ops
from talkies.model.block import Block, RefinerBlock, RowView
from talkies.model.chunking import WHOLE, Chunking
from talkies.model.modulation import Affine, StepModulation, unfolded


class TokenRefiner(nn.Module):
    """Blocks over the text rows alone, once a request: see :meth:`PackedDiT.refine_text`."""

    def __init__(self, config: DiTConfig, ops: Ops) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock(config, ops) for _ in range(config.num_refiner_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=config.final_norm_eps)


class TimeEmbedder(nn.Module):
    """Weights only: ``modulation.py`` evaluates them, a timestep at a time."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(config.freq_dim, config.time_embed_hidden_dim)
        self.linear_2 = nn.Linear(config.time_embed_hidden_dim, config.time_embed_dim)


class OutputNorm(nn.Module):
    """The norm before the heads; ``linear`` gives its shift and scale, and is absent as a block's ``adaln`` is."""

    def __init__(self, config: DiTConfig, *, adaln: bool) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.final_norm_eps)
        self.linear = nn.Linear(config.time_embed_dim, config.final_adaln_out_features) if adaln else None


class PackedDiT(nn.Module):
    """The network. Inference only: some kernels reuse their inputs' memory.

    ``attend`` is for the packed sequence and may be wrapped; ``text_attend`` is for the refiner, whose rows every
    rank holds whole. ``blocks`` may be replaced by any module that iterates over callables like :class:`Block`.
    The input and output projections and the time embedder are float32 in every checkpoint and stay so.
    """

    def __init__(
        self,
        config: DiTConfig,
        *,
        attend: Attend,
        text_attend: Attend | None = None,
        ops: Ops = REFERENCE,
        adaln: bool = True,
    ) -> None:
        super().__init__()
        self.config, self.ops, self.chunking = config, ops, WHOLE
        self.attend = attend
        self.text_attend = text_attend or attend
        self.proj_in = nn.Linear(config.video_row_dim, config.hidden_size)
        self.audio_proj_in = nn.Linear(config.audio_in_channels, config.hidden_size)
        self.context_embedder = nn.Linear(config.text_dim, config.hidden_size)
        self.time_embedder = TimeEmbedder(config)
        self.token_refiner = TokenRefiner(config, ops)
        self.blocks = nn.ModuleList(Block(config, ops, adaln=adaln) for _ in range(config.num_layers))
        self.norm_out = OutputNorm(config, adaln=adaln)
        self.proj_out = nn.Linear(config.hidden_size, config.video_row_dim)
        self.audio_proj_out = nn.Linear(config.hidden_size, config.audio_in_channels)

    def use_chunking(self, chunking: Chunking) -> None:
        """Trades launches for memory; the values stay what they are."""
        heads = self.config.num_attention_heads
        if heads % chunking.head_groups:
            raise ConfigError(
                f"head_groups={chunking.head_groups} does not divide {heads} heads",
                hint="use " + ", ".join(str(g) for g in range(1, heads + 1) if heads % g == 0),
                param="head_groups",
            )
        self.chunking = chunking
        for block in self.blocks:
            assert isinstance(block, Block)
            block.mlp_rows, block.attn.head_groups = chunking.mlp_rows, chunking.head_groups

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the residual stream."""
        return self.context_embedder.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.proj_in.weight.device

    def refine_text(self, states_LT: Tensor, documents: Documents | None = None) -> Tensor:
        """Encoder states [L, text_dim] -> [L, D]. Depends on the prompt alone: once per request, not per step."""
        x_LD = self.context_embedder(states_LT.to(self.context_embedder.weight))
        for block in self.token_refiner.blocks:
            x_LD = block(x_LD, documents, self.text_attend)
        return self.token_refiner.final_norm(x_LD)

    def view(self, layout: PackedLayout) -> RowView:
        """Rotary table and documents of a layout; once per request."""
        c = self.config
        # Cosines are taken where the positions are (CPU), so that they do not depend on the device.
        cos, sin = rotary_table(layout.positions, c.rope_freq_dim, c.rope_theta, self.dtype)
        return RowView(cos.to(self.device), sin.to(self.device), layout.documents)

    def embed(self, video_rows: Tensor, audio_rows: Tensor, refined_text_LD: Tensor, layout: Arranged) -> Tensor:
        """Float32 rows [Nv, C * 4], [Na, C] and refined text, each in the order of the layout -> [S, D].

        All three of a share of rows, with that share in place of the layout, give the same rows of the whole.
        """
        return layout.spans.join(
            {
                Stream.TEXT: refined_text_LD,
                Stream.VIDEO: self.proj_in(video_rows).to(refined_text_LD.dtype),
                Stream.AUDIO: self.audio_proj_in(audio_rows).to(refined_text_LD.dtype),
            }
        )

    def run_blocks(
        self, x_SD: Tensor, view: RowView, modulation: StepModulation, start: int = 0, stop: int | None = None
    ) -> Tensor:
        """Blocks ``start .. stop`` over any share of the rows. Returns [S, D]; ``x_SD`` is left as it was."""
        blocks: list[Any] = list(islice(self.blocks, start, stop))
        carry: list[Tensor | Fp8Rows] = []
        for index, (block, following) in enumerate(zip_longest(blocks, blocks[1:]), start):
            m = modulation.block(index)
            if _can_begin_early(block, following, x_SD):
                entrance = following.entrance(modulation.block(index + 1))
                x_SD = block(x_SD, view, m, self.attend, entrance, carry)
            elif carry:
                x_SD = block(x_SD, view, m, self.attend, None, carry)
            else:
                x_SD = block(x_SD, view, m, self.attend)
        return x_SD

    def project(self, x_SD: Tensor, layout: Arranged, modulation: StepModulation) -> tuple[Tensor, Tensor]:
        """[S, D] -> float32 velocities towards data, video [Nv, C * 4] and audio [Na, C]; condition rows included.

        ``modulation`` is of the rows given: cut, where they are a share with that share in place of the layout.
        """
        start, stop = layout.spans.media  # the text of a request alone is never normed
        if start == stop:  # a share of text alone
            return x_SD.new_empty(0, self.proj_out.out_features, dtype=torch.float32), x_SD.new_empty(
                0, self.audio_proj_out.out_features, dtype=torch.float32
            )
        y_SD = self._output_norm(x_SD[start:stop], modulation.output, modulation.output_runs.cut(start, stop))
        video, audio = layout.spans.pick(y_SD, Stream.VIDEO, Stream.AUDIO)
        return self.proj_out(video), self.audio_proj_out(audio)

    def _output_norm(self, x_SD: Tensor, output_T2D: Tensor, runs: RowRuns) -> Tensor:
        """Norm and modulation in the block dtype, then float32, which is what the heads compute in."""
        norm = self.norm_out.norm
        return self.ops.rms_modulate(
            x_SD,
            norm.weight,
            output_T2D[:, 0],
            output_T2D[:, 1],
            runs,
            eps=norm.eps,
            dtype=torch.float32,
        )

    def forward(
        self,
        video_rows: Tensor,
        audio_rows: Tensor,
        text_states_LT: Tensor,
        layout: PackedLayout,
        modulation: StepModulation | StepPlan,
    ) -> tuple[Tensor, Tensor]:
        """Everything at once; a plan in place of a modulation is evaluated from the resident AdaLN weights."""
        if isinstance(modulation, StepPlan):
            modulation = unfolded(self, modulation)
        refined = self.refine_text(text_states_LT, layout.text_documents)
        x_SD = self.embed(video_rows, audio_rows, refined, layout)
        x_SD = self.run_blocks(x_SD, self.view(layout), modulation)
        return self.project(x_SD, layout, modulation)

    # AdaLN weights, as the table builder asks for them.

    def time_embedder_weights(self) -> tuple[Affine, Affine]:
        return _affine(self.time_embedder.linear_1), _affine(self.time_embedder.linear_2)

    def block_adaln(self, block: int) -> Affine:
        return _affine(getattr(next(islice(self.blocks, block, None)), "adaln", None))

    def output_adaln(self) -> Affine:
        return _affine(self.norm_out.linear)

    def drop_adaln(self) -> None:
        """Frees the AdaLN projections; from here on modulation comes from tables."""
        for module in (*self.blocks, self.norm_out):
            for name in ("adaln", "linear"):
                if hasattr(module, name):
                    setattr(module, name, None)


def _affine(module: object) -> Affine:
    assert isinstance(module, nn.Linear), "the AdaLN projections were dropped; build tables from the checkpoint reader"
    return Affine(module.weight, module.bias)


def _can_begin_early(block: object, following: object, x_SD: Tensor) -> bool:
    """Whether what ``following`` does first can be done where ``block`` writes its rows.

    Not for one that is called through a hook (its weights may come only then), nor for rows that are written in chunks.
    """
    if not (isinstance(block, Block) and isinstance(following, Block)):
        return False
    return not following._forward_pre_hooks and block.takes_whole(x_SD.shape[0])
