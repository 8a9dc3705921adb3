"""Each reference against the formula written out in float64, row by row."""

from __future__ import annotations

import pytest
import torch

from talkies.errors import ConfigError
from talkies.kernels import select
from talkies.kernels.runs import RowRuns

EPS = 1e-5
ROWS = [1, 63, 414, 1009]
OPS = [(name, select.create(name)) for name in select.KERNELS]
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}

each_op_set = pytest.mark.parametrize("ops", [ops for _, ops in OPS], ids=[name for name, _ in OPS])
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
each_size = pytest.mark.parametrize("num_rows", ROWS)


def _runs(num_rows):
    cut = [num_rows // 3, num_rows // 3, num_rows - 2 * (num_rows // 3)]
    return RowRuns.of(zip(cut, (2, 0, 1), strict=True))


def _entries(runs):
    return runs.index(torch.device("cpu")).long()


def _rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def _close(got, want, dtype):
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, **TOLERANCE[dtype])


@each_op_set
@each_dtype
@each_size
def test_rms_modulate(num_rows, dtype, ops):
    x, weight = torch.randn(num_rows, 37, dtype=dtype), torch.randn(37, dtype=dtype)
    shift, scale, runs = torch.randn(3, 37, dtype=dtype), torch.randn(3, 37, dtype=dtype), _runs(num_rows)
    kept, entry = x.clone(), _entries(runs)
    want = _rms(x.double(), weight.double()) * (1 + scale.double()[entry]) + shift.double()[entry]
    _close(ops.rms_modulate(x, weight, shift, scale, runs, eps=EPS), want, dtype)
    assert torch.equal(x, kept)


@each_op_set
@each_dtype
@each_size
def test_gate_residual(num_rows, dtype, ops):
    x, branch = torch.randn(num_rows, 37, dtype=dtype), torch.randn(num_rows, 37, dtype=dtype)
    gate, runs = torch.randn(3, 37, dtype=dtype), _runs(num_rows)
    kept = x.clone()
    want = x.double() + gate.double()[_entries(runs)] * branch.double()
    _close(ops.gate_residual(x, branch, gate, runs), want, dtype)
    assert torch.equal(x, kept)


@each_op_set
@each_dtype
@each_size
@pytest.mark.parametrize("num_angles", [0, 6, 8])
def test_qk_norm_rope(num_angles, num_rows, dtype, ops):
    qkv = torch.randn(num_rows, 3, 5, 16, dtype=dtype)
    norm_q, norm_k = torch.randn(16, dtype=dtype), torch.randn(16, dtype=dtype)
    angles = torch.randn(num_rows, num_angles, dtype=torch.float64)
    cos, sin = (angles.cos().to(dtype), angles.sin().to(dtype)) if num_angles else (None, None)
    kept = qkv.clone()
    q, k, v = ops.qk_norm_rope(qkv, norm_q, norm_k, cos, sin, eps=EPS)
    for got, source, weight in ((q, qkv[:, 0], norm_q), (k, qkv[:, 1], norm_k)):
        want = _rms(source.double(), weight.double())
        a, b, rest = want.split([num_angles, num_angles, 16 - 2 * num_angles], dim=-1)
        c, s = angles.cos()[:, None], angles.sin()[:, None]
        _close(got, torch.cat((a * c - b * s, b * c + a * s, rest), dim=-1), dtype)
    assert torch.equal(v, qkv[:, 2])
    assert torch.equal(qkv, kept)


@each_op_set
@each_dtype
@each_size
def test_swiglu(num_rows, dtype, ops):
    up = torch.randn(num_rows, 2 * 21, dtype=dtype)
    kept = up.clone()
    value, gate = up.double().chunk(2, dim=-1)
    _close(ops.swiglu(up), value * gate * gate.sigmoid(), dtype)
    assert torch.equal(up, kept)


@each_op_set
def test_a_row_of_nan_stays_in_its_row(ops):
    runs, ones, zeros = _runs(9), torch.ones(3, 16), torch.zeros(3, 16)
    x = torch.randn(9, 16)
    x[4] = float("nan")
    clean = torch.arange(9) != 4
    assert ops.rms_modulate(x, torch.ones(16), zeros, ones, runs, eps=EPS)[clean].isfinite().all()
    assert ops.gate_residual(x, x.clone(), ones, runs)[clean].isfinite().all()
    assert ops.swiglu(x)[clean].isfinite().all()
    q, k, _ = ops.qk_norm_rope(
        x[:, None, None].expand(9, 3, 2, 16), torch.ones(16), torch.ones(16), None, None, eps=EPS
    )
    assert q[clean].isfinite().all()
    assert k[clean].isfinite().all()


def test_bfloat16_modulation_rounds_at_every_step():
    x, weight = torch.randn(50, 64).bfloat16(), torch.randn(64).bfloat16()
    shift, scale = torch.randn(1, 64).bfloat16(), torch.randn(1, 64).bfloat16()
    normed = torch.nn.functional.rms_norm(x, (64,), weight, EPS)
    factor = (1 + scale.float()).bfloat16()
    product = (normed.float() * factor.float()).bfloat16()
    want = (product.float() + shift.float()).bfloat16()
    got = select.REFERENCE.rms_modulate(x, weight, shift, scale, RowRuns.of([(50, 0)]), eps=EPS)
    assert torch.equal(got, want)


def test_an_unknown_kernel_set_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'fast'.*reference"):
        select.create("fast")
