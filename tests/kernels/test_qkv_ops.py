"""The ops of e4m3 attention that read the projection: against float64 formulas, and against the ops they replace."""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from talkies.kernels.fp8 import E4M3, E4M3_MAX
from talkies.kernels.select import REFERENCE
from tests.kernels.sets import each_dtype, each_op_set, each_triton_set, ops_for

EPS = 1e-5
H = 16
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LONG = [((1009,), 11, 6, True), ((530, 1, 139), 11, 8, False), ((33_001,), 5, 6, False)]
LONG = LONG if torch.cuda.is_available() else []
# Lengths of the documents, heads, angles, whether queries, keys and values lie apart. An interpreted row takes 25 ms.
SCALES = [((1,), 5, 6, False), ((17,), 11, 0, True), ((9, 1, 12), 5, 8, False), ((131,), 3, 6, True), *LONG]
OPERANDS = [((1,), 19, 6, False), ((9,), 5, 0, True), ((5, 1, 4), 19, 8, False), ((9,), 11, 6, True), *LONG]

each_angles = pytest.mark.parametrize("num_angles", [0, 6])


@dataclass
class Projection:
    """Keys have an offset and heads differ in size, so that means and scales matter."""

    qkv_S3NH: Tensor
    norms: tuple[Tensor, Tensor]
    cos_SA: Tensor | None
    sin_SA: Tensor | None

    @classmethod
    def of(cls, num_rows, num_heads, num_angles, dtype, device, *, apart=False):
        """A slice of a wider projection; or queries, keys and values apart, as head-grouped attention has them."""
        shape = (3, num_rows, num_heads, H) if apart else (num_rows, 3, num_heads + 2, H)
        qkv = torch.randn(shape, device=device) + torch.randn(H, device=device)
        qkv = qkv.transpose(0, 1) if apart else qkv[:, :, 1 : num_heads + 1]
        qkv *= torch.logspace(-1, 1, num_heads, device=device)[:, None]
        norms = (torch.randn(2, H, device=device) + 1).to(dtype).unbind(0)
        theta = torch.randn(num_rows, num_angles, device=device)
        tables = (theta.cos().to(dtype), theta.sin().to(dtype)) if num_angles else (None, None)
        return cls(qkv.to(dtype), norms, *tables)

    def __iter__(self):
        """The arguments that both ops begin with."""
        return iter((self.qkv_S3NH, *self.norms, self.cos_SA, self.sin_SA))

    def exact(self):
        """Queries, keys and values of the formula in float64."""
        out = []
        for x, weight in zip(self.qkv_S3NH.unbind(1), (*self.norms, None), strict=True):
            x = x.double()
            if weight is not None:
                x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
                if self.cos_SA is not None:
                    c, s = self.cos_SA.double()[:, None], self.sin_SA.double()[:, None]
                    n = c.shape[-1]
                    a, b, rest = x.split([n, n, H - 2 * n], dim=-1)
                    x = torch.cat((a * c - b * s, b * c + a * s, rest), dim=-1)
            out.append(x)
        return out

    def apart(self, ops):
        """What ``qk_norm_rope`` makes of it; the projection stays as it is."""
        return ops.qk_norm_rope(self.qkv_S3NH.clone(), *self.norms, self.cos_SA, self.sin_SA, eps=EPS)


def _spans(lengths):
    return list(itertools.pairwise([0, *itertools.accumulate(lengths)]))


def _documents(lengths, device):
    if len(lengths) == 1:
        return None
    index = torch.arange(len(lengths), dtype=torch.int32)
    return index.repeat_interleave(torch.tensor(lengths)).to(device)


def _bits(x):
    return x.view(torch.uint8)


@each_op_set
@each_dtype
@pytest.mark.parametrize(("lengths", "num_heads", "num_angles", "apart"), SCALES, ids=str)
def test_scales_and_the_mean_are_those_of_the_formula(lengths, num_heads, num_angles, apart, dtype, name, device):
    ops = ops_for(name, device, dtype)
    projection = Projection.of(sum(lengths), num_heads, num_angles, dtype, device, apart=apart)
    kept, spans = projection.qkv_S3NH.clone(), _spans(lengths)
    got = ops.qkv_scales(*projection, spans, eps=EPS)
    assert torch.equal(projection.qkv_S3NH, kept)
    assert (got.scale_3BN.shape, got.k_mean_BNH.shape) == ((3, len(spans), num_heads), (len(spans), num_heads, H))
    assert all(x.dtype == torch.float32 and x.is_contiguous() for x in got)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    _, k, v = projection.exact()
    bound = projection.norms[1].double().abs().max() * math.sqrt(H)
    for index, (a, b) in enumerate(spans):
        mean = k[a:b:7].mean(0)
        torch.testing.assert_close(got.k_mean_BNH[index].double(), mean, **tolerance)
        largest = (mean.abs().amax(-1) + bound, v[a:b].abs().amax((0, 2)))
        for scale, want in zip(got.scale_3BN[1:, index], largest, strict=True):
            torch.testing.assert_close(scale.double() * E4M3_MAX, want, **tolerance)


@each_op_set
def test_a_value_counts_wherever_it_stands(name, device):
    """The largest of a head is in a row that no key is taken from; the last chunk is a single row."""
    ops = ops_for(name, device)
    for row in (0, 6, 111, 112):
        projection = Projection.of(113, 3, 6, torch.float32, device)
        projection.qkv_S3NH[row, 2, 1, 5] = -1000.0
        scale = ops.qkv_scales(*projection, [(0, 113)], eps=EPS).scale_3BN[2, 0]
        torch.testing.assert_close(scale[1], torch.tensor(1000.0 / E4M3_MAX, device=device))
        assert (scale[[0, 2]] * E4M3_MAX < 500).all()


@each_op_set
@each_angles
@pytest.mark.parametrize("kind", [0, 1], ids=["queries", "keys"])
def test_none_is_larger_than_its_bound_and_one_can_reach_it(kind, num_angles, name, device):
    ops = ops_for(name, device)
    projection = Projection.of(9, 5, num_angles, torch.float32, device)
    largest = projection.norms[kind].abs().max()
    # All of a head in its heaviest channel: the norm leaves sqrt(H) of it.
    projection.qkv_S3NH[6, kind] = 0.0
    projection.qkv_S3NH[6, kind, :, projection.norms[kind].abs().argmax()] = 50.0
    if num_angles:
        projection.cos_SA[6], projection.sin_SA[6] = 1.0, 0.0
    got = ops.qkv_scales(*projection, [(0, 4), (4, 9)], eps=EPS)
    less = got.k_mean_BNH.abs().amax(-1) * kind
    bound = got.scale_3BN[kind] * E4M3_MAX - less
    torch.testing.assert_close(bound, (largest * math.sqrt(H)).expand(2, 5), rtol=1e-5, atol=0)
    x = projection.exact()[kind].abs().amax((0, 2))
    assert (x <= bound[0].double() * (1 + 1e-5)).all()
    torch.testing.assert_close(x, bound[0].double(), rtol=1e-4, atol=0)


@each_op_set
@each_dtype
@pytest.mark.parametrize(("lengths", "num_heads", "num_angles", "apart"), OPERANDS, ids=str)
def test_operands_are_those_of_the_ops_apart(lengths, num_heads, num_angles, apart, dtype, name, device):
    ops = ops_for(name, device, dtype)
    num_rows, documents = sum(lengths), _documents(lengths, device)
    projection = Projection.of(num_rows, num_heads, num_angles, dtype, device, apart=apart)
    kept = projection.qkv_S3NH.clone()
    scale = torch.rand(3, len(lengths), num_heads, device=device) * 0.02 + 0.002
    mean = torch.randn(len(lengths), num_heads, H, device=device)
    got = ops.norm_rope_quantize(*projection, scale, mean, documents, eps=EPS)
    assert torch.equal(projection.qkv_S3NH, kept)
    index = torch.zeros(num_rows, dtype=torch.long, device=device) if documents is None else documents.long()
    offsets = (None, mean, None)
    for x, exact, scale_BN, offset, alone in zip(
        got, projection.exact(), scale, offsets, projection.apart(ops), strict=True
    ):
        assert (x.dtype, x.shape) == (E4M3, (num_rows, num_heads, H))
        assert x.is_contiguous()
        want = exact if offset is None else exact - offset.double()[index]
        limited = (want / scale_BN.double()[index][..., None]).clamp(-E4M3_MAX, E4M3_MAX)
        # Turning subtracts what was rounded: a small channel can have the error of its head's largest.
        rounding = TOLERANCE[dtype] * (1 + exact.abs().amax(-1, keepdim=True)) / scale_BN.double()[index][..., None]
        assert ((x.double() - limited).abs() <= limited.abs() * 0.126 + 2**-9 + rounding).all()
        same = _bits(x) == _bits(ops.quantize_heads(alone, scale_BN, offset, documents))
        assert same.all() if device == "cpu" else same.float().mean() > 0.99


@each_triton_set
@pytest.mark.parametrize("lengths", [(37,), (5, 1, 31)], ids=str)
def test_programs_of_many_rows_find_the_same_bits(lengths, monkeypatch, name, device):
    ops = ops_for(name, device)
    documents = _documents(lengths, device)
    projection = Projection.of(37, 5, 6, torch.float32, device)
    scale = torch.rand(3, len(lengths), 5, device=device) * 0.02 + 0.002
    mean = torch.randn(len(lengths), 5, H, device=device)

    def both():
        return *ops.norm_rope_quantize(*projection, scale, mean, documents, eps=EPS), *projection.apart(ops)[:2]

    few = both()
    for op in ("norm_rope_quantize", "qk_norm_rope"):
        module = importlib.import_module(f"talkies.kernels.{op}.triton")
        assert 37 % module.ROWS
        monkeypatch.setattr(module, "rows_of", lambda num_rows, groups, most: most)
    assert all(torch.equal(_bits(a), _bits(b)) for a, b in zip(few, both(), strict=True))


@each_triton_set
@pytest.mark.parametrize(("head_dim", "num_angles"), [(24, 6), (24, 12), (40, 0)])
def test_pairs_of_a_head_need_not_fill_their_lanes(head_dim, num_angles, name, device):
    ops, documents = ops_for(name, device), _documents((2, 7), device)
    qkv = torch.randn(9, 3, 5, head_dim, device=device)
    theta = torch.randn(9, num_angles, device=device)
    tables = (theta.cos(), theta.sin()) if num_angles else (None, None)
    arguments = (*torch.randn(2, head_dim, device=device), *tables)
    scales = REFERENCE.qkv_scales(qkv, *arguments, [(0, 2), (2, 9)], eps=EPS)
    close = {"rtol": TOLERANCE[torch.float32], "atol": TOLERANCE[torch.float32]}
    torch.testing.assert_close(ops.qkv_scales(qkv, *arguments, [(0, 2), (2, 9)], eps=EPS), scales, **close)
    want = REFERENCE.norm_rope_quantize(qkv, *arguments, *scales, documents, eps=EPS)
    for x, y in zip(ops.norm_rope_quantize(qkv, *arguments, *scales, documents, eps=EPS), want, strict=True):
        torch.testing.assert_close(x.float(), y.float(), rtol=0.13, atol=2**-9)  # one step of e4m3
    want = REFERENCE.qk_norm_rope(qkv, *arguments, eps=EPS)
    torch.testing.assert_close(ops.qk_norm_rope(qkv.clone(), *arguments, eps=EPS), want, **close)


@each_op_set
def test_scales_and_operands_keep_a_nan_in_its_row(name, device):
    ops = ops_for(name, device)
    projection = Projection.of(9, 3, 6, torch.float32, device)
    scales = ops.qkv_scales(*projection, [(0, 9)], eps=EPS)
    projection.qkv_S3NH[4] = float("nan")
    for x in ops.norm_rope_quantize(*projection, *scales, None, eps=EPS):
        assert x.float()[torch.arange(9, device=device) != 4].isfinite().all()
        assert x.float()[4].isnan().all()
    # With scales of its own, too: every query meets it in its key, so no later check can miss it.
    scales = ops.qkv_scales(*projection, [(0, 9)], eps=EPS)
    for x in ops.norm_rope_quantize(*projection, *scales, None, eps=EPS):
        assert x.float()[4].isnan().all()


@each_op_set
def test_no_rows_have_no_operands(name, device):
    ops = ops_for(name, device)
    projection = Projection.of(0, 3, 6, torch.float32, device)
    scale, mean = torch.ones(3, 1, 3, device=device), torch.zeros(1, 3, H, device=device)
    for x in ops.norm_rope_quantize(*projection, scale, mean, None, eps=EPS):
        assert (x.dtype, x.shape) == (E4M3, (0, 3, H))


@each_op_set
def test_two_runs_give_the_same_bits(name, device):
    ops = ops_for(name, device)
    projection = Projection.of(19, 3, 6, torch.float32, device)
    first, second = (ops.qkv_scales(*projection, [(0, 19)], eps=EPS) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    first, second = (ops.norm_rope_quantize(*projection, *first, None, eps=EPS) for _ in range(2))
    assert all(torch.equal(_bits(a), _bits(b)) for a, b in zip(first, second, strict=True))
