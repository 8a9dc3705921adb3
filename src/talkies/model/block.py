"""The blocks of the packed DiT and of its text refiner, and what they must know of their rows.

S rows, L text rows, D hidden, N heads, H channels a head, F feed-forward inner, A rotary angles, T table entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from talkies.attention.base import Attend, Documents, QkNorm, attended, merged
from talkies.h3.config import DiTConfig
from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.runs import RowRuns
from talkies.kernels.select import Ops
from talkies.model.chunking import chunks_of
from talkies.model.linear import Linear as BlockLinear
from talkies.model.modulation import BlockModulation


@dataclass(frozen=True, slots=True)
class RowView:
    """What blocks must know of their rows; made once per request."""

    cos_SA: Tensor
    sin_SA: Tensor
    documents: Documents | None

    def cut(self, start: int, stop: int) -> RowView:
        """The share of rows ``start .. stop``; documents still describe the whole sequence."""
        return replace(self, cos_SA=self.cos_SA[start:stop], sin_SA=self.sin_SA[start:stop])

    def with_exact(self, spans: Sequence[tuple[int, int]]) -> RowView:
        """The same rows; an approximating attention computes the queries of these spans exactly.

        For a view of a whole sequence.
        """
        num_rows = self.cos_SA.shape[0]
        documents = self.documents or Documents((0, num_rows), num_rows)
        return replace(self, documents=documents.with_exact(merged(spans)))


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a block does first with its input: norm, modulate, cast or quantise to what its projection reads.

    ``dtype`` as in ``rms_modulate``: e4m3, or ``None`` for that of the rows.
    """

    weight_D: Tensor
    shift_TD: Tensor
    scale_TD: Tensor
    eps: float | None
    dtype: torch.dtype | None


class Attention(nn.Module):
    """Multi-head self-attention; ``to_qkv`` rows are all queries, then all keys, then all values."""

    def __init__(self, config: DiTConfig, ops: Ops) -> None:
        super().__init__()
        self.ops, self.eps, self.num_heads = ops, config.qk_norm_eps, config.num_attention_heads
        self.head_groups = 1
        self.to_qkv = BlockLinear(config.hidden_size, 3 * config.inner_dim, ops)
        self.norm_q = nn.Parameter(torch.empty(config.attention_head_dim))
        self.norm_k = nn.Parameter(torch.empty(config.attention_head_dim))
        self.to_out = BlockLinear(config.inner_dim, config.hidden_size, ops)

    def forward(
        self,
        h_SD: Tensor | Fp8Rows,
        cos_SA: Tensor | None,
        sin_SA: Tensor | None,
        documents: Documents | None,
        attend: Attend,
    ) -> Tensor:
        """[S, D] normed rows -> a new [S, D]. Without ``cos_SA`` there is no rotary (text refiner)."""
        norm = QkNorm(self.norm_q, self.norm_k, cos_SA, sin_SA, self.eps)
        if self.head_groups > 1:
            return self.to_out(self._in_groups(h_SD, norm, documents, attend))
        qkv_S3NH = self.to_qkv(h_SD).view(h_SD.shape[0], 3, -1, self.norm_q.shape[0])
        out_SNH = attended(qkv_S3NH, norm, documents, attend, self.ops)
        del qkv_S3NH  # the projection is the largest tensor of a block and not needed for the next product
        return self.to_out(out_SNH.flatten(1))

    def _in_groups(self, h_SD: Tensor | Fp8Rows, norm: QkNorm, documents: Documents | None, attend: Attend) -> Tensor:
        """Some heads at a time: queries, keys and values of one group are alive at once. Returns [S, N * H]."""
        num_rows, head_dim = h_SD.shape[0], self.norm_q.shape[0]
        inner = self.to_qkv.weight.shape[0] // 3
        assert (inner // head_dim) % self.head_groups == 0, (inner, head_dim, self.head_groups)
        width = inner // self.head_groups
        # Queries, keys and values apart: a product fills each of them in place.
        qkv = torch.empty(3, num_rows, width, dtype=h_SD.dtype, device=h_SD.device)
        out = torch.empty(num_rows, inner, dtype=h_SD.dtype, device=h_SD.device)
        for start in range(0, inner, width):
            for part in range(3):
                outputs = slice(part * inner + start, part * inner + start + width)
                self.to_qkv.part(h_SD, outputs, qkv[part])
            qkv_S3NH = qkv.view(3, num_rows, -1, head_dim).transpose(0, 1)
            out[:, start : start + width] = attended(qkv_S3NH, norm, documents, attend, self.ops).flatten(1)
        return out


class FeedForward(nn.Module):
    """SwiGLU; ``up`` rows are all values, then all gates."""

    def __init__(self, config: DiTConfig, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.up = BlockLinear(config.hidden_size, 2 * config.ffn_dim, ops)
        self.down = BlockLinear(config.ffn_dim, config.hidden_size, ops)

    def forward(self, h_SD: Tensor | Fp8Rows) -> Tensor:
        """Returns a new [S, D]."""
        return self.down(self.ops.swiglu(self.up(h_SD), dtype=self.down.input_dtype))


class RefinerBlock(nn.Module):
    """Pre-norm block of the text refiner: no modulation, no rotary."""

    def __init__(self, config: DiTConfig, ops: Ops) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = Attention(config, ops)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.ff = FeedForward(config, ops)

    def forward(self, x_LD: Tensor, documents: Documents | None, attend: Attend) -> Tensor:
        """Returns a new [L, D]."""
        x_LD = x_LD + self.attn(self.norm1(x_LD), None, None, documents, attend)
        return x_LD + self.ff(self.norm2(x_LD))


class Block(nn.Module):
    """One modulated block. ``adaln`` is absent when modulation comes from a table."""

    def __init__(self, config: DiTConfig, ops: Ops, *, adaln: bool) -> None:
        super().__init__()
        self.ops = ops
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = Attention(config, ops)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.ff = FeedForward(config, ops)
        self.adaln = nn.Linear(config.time_embed_dim, config.adaln_out_features) if adaln else None
        self.mlp_rows: int | None = None

    def forward(
        self,
        x_SD: Tensor,
        view: RowView,
        modulation: BlockModulation,
        attend: Attend,
        entrance: Entrance | None = None,
        carry: list[Tensor | Fp8Rows] | None = None,
    ) -> Tensor:
        """Returns a new [S, D]; ``x_SD`` is left as it was.

        ``entrance`` is the following block's: what it does first is then done here, while the stream is in registers,
        and waits for it in ``carry``; what the block before left there is taken out.
        """
        m, ops = modulation, self.ops
        if carry:
            h_SD = carry.pop()
        else:
            first = self.entrance(m)
            h_SD = ops.rms_modulate(
                x_SD, first.weight_D, first.shift_TD, first.scale_TD, m.runs, eps=first.eps, dtype=first.dtype
            )
        branch = self.attn(h_SD, view.cos_SA, view.sin_SA, view.documents, attend)
        del h_SD
        if entrance is not None:
            assert carry is not None
            return self._into(entrance, x_SD, branch, m, carry)
        # Everything from here on is row by row. The memory of ``branch`` becomes the stream after attention, then the
        # stream after the feed-forward.
        for start, stop in chunks_of(x_SD.shape[0], self.mlp_rows):
            runs = m.runs if stop - start == x_SD.shape[0] else m.runs.cut(start, stop)
            y_SD, h_SD = self._after_attention(x_SD[start:stop], branch[start:stop], m, runs)
            ops.gate_residual(y_SD, self.ff(h_SD), m[5], runs, out=y_SD)
        return branch

    def entrance(self, modulation: BlockModulation) -> Entrance:
        """What this block does first under its own ``modulation``."""
        return Entrance(self.norm1.weight, modulation[0], modulation[1], self.norm1.eps, self.attn.to_qkv.input_dtype)

    def takes_whole(self, num_rows: int) -> bool:
        """Whether the feed-forward takes all rows at once: only then are they written once."""
        return self.mlp_rows is None or num_rows <= self.mlp_rows

    def _after_attention(
        self, x_SD: Tensor, branch_SD: Tensor, m: BlockModulation, runs: RowRuns
    ) -> tuple[Tensor, Tensor | Fp8Rows]:
        """The stream, in the memory of ``branch_SD``, and what the feed-forward reads."""
        return self.ops.gate_residual_norm(
            x_SD,
            branch_SD,
            m[2],
            self.norm2.weight,
            m[3],
            m[4],
            runs,
            eps=self.norm2.eps,
            dtype=self.ff.up.input_dtype,
        )

    def _into(
        self, entrance: Entrance, x_SD: Tensor, branch_SD: Tensor, m: BlockModulation, carry: list[Tensor | Fp8Rows]
    ) -> Tensor:
        y_SD, h_SD = self._after_attention(x_SD, branch_SD, m, m.runs)
        branch_SD = self.ff(h_SD)
        del h_SD
        e = entrance
        out_SD, normed = self.ops.gate_residual_norm(
            y_SD, branch_SD, m[5], e.weight_D, e.shift_TD, e.scale_TD, m.runs, eps=e.eps, dtype=e.dtype
        )
        carry.append(normed)
        return out_SD
