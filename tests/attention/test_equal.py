from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talkies.attention import equal
from talkies.attention.equal import EqualSequences


def _qkv(batch, rows, heads, channels, **kind):
    """Views of one projection, as the decoder hands them over."""
    qkv = torch.randn(batch, rows, 3, heads, channels, generator=torch.Generator().manual_seed(0)).to(**kind)
    return qkv.unbind(2)


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 37), (2, 130)])
def test_sequences_do_not_see_each_other(batch, rows):
    q, k, v = _qkv(batch, rows, 3, 16)
    got = EqualSequences()(q, k, v)
    assert got.is_contiguous()
    for one, (a, b, c) in zip(got, zip(q, k, v, strict=True), strict=True):
        scores = torch.einsum("snh,tnh->nst", a.double(), b.double()) * 16**-0.5
        want = torch.einsum("nst,tnh->snh", scores.softmax(-1), c.double())
        torch.testing.assert_close(one.double(), want, rtol=1e-5, atol=1e-5)


class Refuses:
    """Stands for torch's SDPA: cuDNN's turn is refused, all others are served."""

    def __init__(self, monkeypatch):
        self.within_cudnn, self.calls = False, []
        monkeypatch.setattr(equal, "sdpa_kernel", lambda backend: self)
        self.serve = F.scaled_dot_product_attention
        monkeypatch.setattr(equal.F, "scaled_dot_product_attention", self.attention)

    def __enter__(self):
        self.within_cudnn = True

    def __exit__(self, *exc):
        self.within_cudnn = False

    def attention(self, q, k, v):
        self.calls.append("cudnn" if self.within_cudnn else "torch")
        if self.within_cudnn and q.shape[2] > 40:
            raise RuntimeError("no plan")
        return self.serve(q, k, v)


def test_a_shape_that_cudnn_refuses_is_asked_once(monkeypatch):
    sdpa, attend = Refuses(monkeypatch), EqualSequences()
    for _ in range(2):
        for rows in (37, 130):
            q, k, v = (x.transpose(1, 2) for x in _qkv(2, rows, 3, 16))
            attend._on_cuda(q, k, v)
    assert sdpa.calls == ["cudnn", "cudnn", "torch", "cudnn", "torch"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_on_a_gpu_it_is_as_far_from_float64_as_its_dtype(dtype):
    q, k, v = _qkv(3, 1797, 4, 64, device="cuda", dtype=dtype)
    got = EqualSequences()(q, k, v)
    scores = torch.einsum("bsnh,btnh->bnst", q.double(), k.double()) / 8
    want = torch.einsum("bnst,btnh->bsnh", scores.softmax(-1), v.double())
    error = (got.double() - want).norm() / want.norm()
    assert error < (1e-3 if dtype == torch.float16 else 8e-3)
