"""What a forward holds besides weights, in bytes by the row. No torch: who admits requests asks this, too.

The terms are the allocations of ``model/block.py`` with the fused kernels of a GPU; the references of a CPU hold more.
D hidden, I attention width, F feed-forward, e bytes of the block dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from talkies.h3.config import DiTConfig
from talkies.model.chunking import Chunking
from talkies.placement.ranks.mesh import ONE, Mesh


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardRates:
    """Bytes of a forward's highest point, by the row: ``whole`` where all rows are at the same place, ``outside`` and
    ``chunk`` where the feed-forward takes ``chunk_rows`` of them at a time (``None``: all)."""

    whole: float
    outside: float = 0.0
    chunk: float = 0.0
    chunk_rows: int | None = None

    def bytes(self, rows: float) -> float:
        """Of a forward of so many rows."""
        chunk = rows if self.chunk_rows is None else min(rows, self.chunk_rows)
        return max(rows * self.whole, rows * self.outside + chunk * self.chunk)


def forward_rates(
    config: DiTConfig,
    size: int,
    chunking: Chunking,
    *,
    mesh: Mesh = ONE,
    fp8: bool = False,
    fp8_attention: bool = False,
) -> ForwardRates:
    """What a row of a device holds besides weights; ``model/block.py`` from top to bottom."""
    c, e = config, size
    d, i, f, heads = c.hidden_size, c.inner_dim, c.ffn_dim, c.num_attention_heads
    entry = 1 if fp8 else e  # an e4m3 input has a float32 scale a row besides
    scales = 4 if fp8 else 0
    # run_blocks: the embedded rows stay with the caller while the stream is the block's input.
    stream = 2 * d * e
    normed = d * entry + scales
    groups = chunking.head_groups
    of_kernel = 4 * heads // groups  # log-sum-exp, which attention kernels return
    if fp8_attention:
        of_kernel += 3 * i // groups  # e4m3 copies of q, k, v
    if groups == 1:
        attention = normed + 3 * i * e + i * e + of_kernel  # to_qkv, attend's output
    else:
        turn = i * e // groups  # a group of attend's output, beside all of it
        attention = normed + 3 * turn + i * e + turn + of_kernel
    if mesh.num_shares > 1:  # what is sent and what comes, beside the projection (``placement/ranks/ulysses.py``)
        attention += 5 * i * e // groups
    if mesh.ring > 1:  # float32 sums, and the keys and values that come next (``placement/ranks/ring.py``)
        attention += i * (4 + 4 * e) // groups
    # to_out runs while the input's norm is held by forward.
    out = normed + i * e + (i + 4 if fp8 else 0) + d * e
    # project: float32 rows of the media beside the block's output and the embedded rows.
    projected = stream + d * 4 + 4 * (c.video_row_dim + c.audio_in_channels)
    embedded = d * e + d * 4
    # gate_residual_norm writes the stream into the branch; the rest is by chunk.
    up = normed + 2 * f * e + (f + 4 if fp8 else f * e)  # up, then swiglu's output beside it
    down = normed + (f + 4 if fp8 else f * e) + d * e
    return ForwardRates(
        whole=max(stream + attention, stream + out, projected, embedded),
        outside=stream + d * e,
        chunk=max(up, down),
        chunk_rows=chunking.mlp_rows,
    )
