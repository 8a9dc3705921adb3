"""Stands in for the package fa3-fwd on a CPU: the same two functions, in plain torch, e4m3 operands included."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F


class FakeFlash3:
    """``calls`` lists ``(entry, dtype of the queries, queries, keys)``."""

    def __init__(self):
        self.calls = []

    def flash_attn_func(
        self, q, k, v, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None
    ):
        self.calls.append(("dense", q.dtype, q.shape[1], k.shape[1]))
        assert q.shape[0] == k.shape[0] == 1
        if causal:
            heads = [x[0].transpose(0, 1)[None].float() for x in (q, k, v)]
            out = F.scaled_dot_product_attention(*heads, is_causal=True, scale=softmax_scale, enable_gqa=True)
            return out.transpose(1, 2).to(torch.bfloat16), None
        return _one(q[0], k[0], v[0], q_descale, k_descale, v_descale, 0)[None], None  # some releases: a tuple

    def flash_attn_varlen_func(self, q, k, v, cu_q, cu_k, max_q, max_k, q_descale=None, k_descale=None, v_descale=None):
        self.calls.append(("varlen", q.dtype, q.shape[0], k.shape[0]))
        assert cu_q.dtype == torch.int32
        bounds = cu_q.tolist()
        assert max_q == max_k == max(b - a for a, b in itertools.pairwise(bounds))
        parts = [
            _one(q[a:b], k[a:b], v[a:b], q_descale, k_descale, v_descale, i)
            for i, (a, b) in enumerate(itertools.pairwise(bounds))
        ]
        return torch.cat(parts)


def _one(q, k, v, q_descale, k_descale, v_descale, document):
    if q.dtype == torch.float8_e4m3fn:
        assert q_descale.shape == k_descale.shape == v_descale.shape
        assert all(d.dtype == torch.float32 for d in (q_descale, k_descale, v_descale))
        assert all(x.is_contiguous() for x in (q, k, v))
        pairs = ((q, q_descale), (k, k_descale), (v, v_descale))
        q, k, v = ((x.float() * d[document][:, None]).bfloat16() for x, d in pairs)
    heads = [x.transpose(0, 1)[None].float() for x in (q, k, v)]
    return F.scaled_dot_product_attention(*heads)[0].transpose(0, 1).to(torch.bfloat16).contiguous()
