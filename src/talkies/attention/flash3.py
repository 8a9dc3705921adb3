"""FlashAttention-3 (package ``fa3-fwd``, Hopper), in bf16 and in e4m3.

S rows, N heads, H channels, B documents. Its dense entry takes [B, S, N, H], its varlen one [S, N, H] with cu_seqlens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from talkies.attention.base import Documents, Exactness, QkNorm
from talkies.errors import InvalidRequest
from talkies.kernels.fp8 import scale_of
from talkies.kernels.select import Ops

# Rows up to which the error of the e4m3 kernel was measured (bench/dit_forward's size, in blocks of 64).
FP8_TESTED_ROWS = 58_816


def load() -> Any:
    """The package's module; raises ``ImportError``."""
    import fa3_fwd_interface

    return fa3_fwd_interface


class Flash3:
    """bf16; documents through the varlen kernel, a single one through the dense kernel, which is 5 % faster."""

    def __init__(self, module: Any) -> None:
        self._dense: Callable = module.flash_attn_func
        self._varlen: Callable = module.flash_attn_varlen_func

    def __call__(
        self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None, **descale: Tensor
    ) -> Tensor:
        """Returns [S, N, H], contiguous. ``q_descale``, ``k_descale``, ``v_descale`` are float32 [B, N]."""
        if documents is None or documents.num_documents == 1:
            return _first(self._dense(q_SNH[None], k_SNH[None], v_SNH[None], **descale))[0]
        bounds = documents.cu_seqlens_on(q_SNH.device)
        longest = documents.max_seqlen
        return _first(self._varlen(q_SNH, k_SNH, v_SNH, bounds, bounds, longest, longest, **descale))

    def some_queries(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor) -> Tensor:
        """Queries that are a part of one document's rows, against all of its keys."""
        return _first(self._dense(q_SNH[None], k_SNH[None], v_SNH[None]))[0]

    def causal(self, q_SNH: Tensor, k_SMH: Tensor, v_SMH: Tensor, *, scale: float) -> Tensor:
        """Row s of one document against keys 0 .. s, which may have fewer heads: M divides N. Returns [S, N, H]."""
        return _first(self._dense(q_SNH[None], k_SMH[None], v_SMH[None], softmax_scale=scale, causal=True))[0]


def _first(result: Any) -> Tensor:
    """Some releases return ``(out, lse)``."""
    return result[0] if isinstance(result, tuple) else result


@dataclass(frozen=True, slots=True)
class Fp8Operands:
    """e4m3 queries, keys and values with a scale per document and head."""

    q_SNH: Tensor
    k_SNH: Tensor
    v_SNH: Tensor
    q_descale_BN: Tensor
    k_descale_BN: Tensor
    v_descale_BN: Tensor


def quantize(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None, ops: Ops) -> Fp8Operands:
    """Each head's largest magnitude becomes 448.

    Keys lose their mean over the document first: it adds one constant to all scores of a query, which softmax does
    not see, and channels with a common offset would spend the format's few bits on it.
    """
    spans, document_S = _spans(q_SNH, documents)
    stats = ops.head_stats(q_SNH, k_SNH, v_SNH, spans)
    mean = stats.k_mean_BNH
    q_scale, k_scale, v_scale = (scale_of(largest).contiguous() for largest in stats[:3])  # as kernels read them
    return Fp8Operands(
        ops.quantize_heads(q_SNH, q_scale, None, document_S),
        ops.quantize_heads(k_SNH, k_scale, mean, document_S),
        ops.quantize_heads(v_SNH, v_scale, None, document_S),
        q_scale,
        k_scale,
        v_scale,
    )


def quantize_projection(qkv_S3NH: Tensor, norm: QkNorm, documents: Documents | None, ops: Ops) -> Fp8Operands:
    """As :func:`quantize`, for queries and keys that are not made yet. The projection is read twice and left as it is.

    Values have the same bits. Queries and keys are scaled by what their norm allows, not by their largest magnitude,
    and keys lose a mean of few of them.
    """
    spans, document_S = _spans(qkv_S3NH, documents)
    scale_3BN, mean = ops.qkv_scales(qkv_S3NH, *norm.tensors, spans, eps=norm.eps)
    operands = ops.norm_rope_quantize(qkv_S3NH, *norm.tensors, scale_3BN, mean, document_S, eps=norm.eps)
    return Fp8Operands(*operands, *scale_3BN.unbind(0))


def _spans(rows: Tensor, documents: Documents | None) -> tuple[list[tuple[int, int]], Tensor | None]:
    """The rows of each document, and the document of each row (``None`` where there is one)."""
    if documents is None:
        return [(0, rows.shape[0])], None
    return list(documents), documents.index_on(rows.device) if documents.num_documents > 1 else None


class Flash3Fp8:
    """e4m3 where the document says nothing else; its exact rows (conditions, edge steps) are computed in bf16."""

    exactness = Exactness(first_steps=1, last_steps=1, condition_rows=True)
    max_rows = FP8_TESTED_ROWS

    def __init__(self, flash: Flash3, ops: Ops) -> None:
        self._flash, self._ops = flash, ops

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        """Returns [S, N, H] in bf16."""
        self._check_rows(q_SNH.shape[0], documents)
        exact = () if documents is None else documents.exact
        if exact == ((0, q_SNH.shape[0]),):
            return self._flash(q_SNH, k_SNH, v_SNH, documents)
        out_SNH = self._of_operands(quantize(q_SNH, k_SNH, v_SNH, documents, self._ops), documents)
        for (start, stop), (first, last) in _per_document(exact, documents):
            out_SNH[start:stop] = self._flash.some_queries(q_SNH[start:stop], k_SNH[first:last], v_SNH[first:last])
        return out_SNH

    def of_projection(self, qkv_S3NH: Tensor, norm: QkNorm, documents: Documents | None) -> Tensor:
        """Queries and keys are never written in bf16, unless some rows are exact. Returns [S, N, H] in bf16."""
        if documents is not None and documents.exact:
            q, k, v = self._ops.qk_norm_rope(qkv_S3NH, *norm.tensors, eps=norm.eps)
            return self(q, k, v, documents)
        self._check_rows(qkv_S3NH.shape[0], documents)
        return self._of_operands(quantize_projection(qkv_S3NH, norm, documents, self._ops), documents)

    def _check_rows(self, num_rows: int, documents: Documents | None) -> None:
        longest = num_rows if documents is None else documents.max_seqlen
        if longest > self.max_rows:
            raise InvalidRequest(
                f"attention over {longest} rows in fp8 is untested: its error is known up to {self.max_rows}",
                hint="use attention=fa3, or ask for a shorter or smaller clip",
                param="attention",
            )

    def _of_operands(self, x: Fp8Operands, documents: Documents | None) -> Tensor:
        return self._flash(
            x.q_SNH,
            x.k_SNH,
            x.v_SNH,
            documents,
            q_descale=x.q_descale_BN,
            k_descale=x.k_descale_BN,
            v_descale=x.v_descale_BN,
        )


def _per_document(
    spans: tuple[tuple[int, int], ...], documents: Documents | None
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """``(span of queries, span of their document)``, cut where a span crosses a border."""
    if documents is None:
        return []
    pairs = []
    for start, stop in spans:
        for first, last in documents:
            a, b = max(start, first), min(stop, last)
            if a < b:
                pairs.append(((a, b), (first, last)))
    return pairs
