"""Each op of each set against the formula written out in float64, row by row, with outputs that start as NaN."""

from __future__ import annotations

import itertools

import pytest
import torch

from talkies.errors import ConfigError
from talkies.kernels import select
from talkies.kernels.fp8 import E4M3, E4M3_MAX, Fp8Rows
from talkies.kernels.runs import RowRuns
from tests.kernels.sets import each_dtype, each_op_set, ops_for

EPS = 1e-5
ROWS = [1, 63, 1009] if torch.cuda.is_available() else [1, 63]  # an interpreted row takes a millisecond
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}
# What one rounding of a dtype may move a bit; two sets may fall on two sides of it in a few places.
ULP = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

each_size = pytest.mark.parametrize("num_rows", ROWS)


def _runs(num_rows):
    cut = [num_rows // 3, num_rows // 3, num_rows - 2 * (num_rows // 3)]
    return RowRuns.of(zip(cut, (2, 0, 1), strict=True))


def _entries(runs, device):
    return runs.index(torch.device(device)).long()


def _rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def _close(got, want, dtype):
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, **TOLERANCE[dtype])


def _tables(num_channels, dtype, device):
    """Shift, scale, gate: slices of one tensor, as a block's modulation hands them over."""
    params = torch.randn(3, 6, num_channels, device=device).to(dtype)
    return params[:, 0], params[:, 1], params[:, 2]


def _quantized(got: Fp8Rows, want, dtype):
    """e4m3 keeps three bits of mantissa: half of the last is 1/16 of a value, of tiny ones 2^-10 of the scale."""
    assert (got.data.dtype, got.scale.dtype) == (E4M3, torch.float32)
    assert got.scale.shape == (*want.shape[:-1], 1)
    largest = want.abs().amax(-1, keepdim=True)
    torch.testing.assert_close(got.scale.double() * E4M3_MAX, largest, rtol=TOLERANCE[dtype]["rtol"] * 4, atol=1e-6)
    slack = want.abs() * 0.126 + got.scale.double() * 2**-9 + TOLERANCE[dtype]["atol"]
    assert ((got.dequantized().double() - want).abs() <= slack).all()


@each_op_set
@each_dtype
@each_size
@pytest.mark.parametrize("num_channels", [37, 272])
def test_rms_modulate(num_channels, num_rows, dtype, name, device):
    ops = ops_for(name, device, dtype)
    x = torch.randn(num_rows, num_channels, device=device).to(dtype)
    weight = torch.randn(num_channels, device=device).to(dtype)
    (shift, scale, _), runs = _tables(num_channels, dtype, device), _runs(num_rows)
    kept, entry = x.clone(), _entries(runs, device)
    want = _rms(x.double(), weight.double()) * (1 + scale.double()[entry]) + shift.double()[entry]
    _close(ops.rms_modulate(x, weight, shift, scale, runs, eps=EPS), want, dtype)
    assert torch.equal(x, kept)
    rounded = ops.rms_modulate(x, weight, shift, scale, runs, eps=EPS)
    wide = ops.rms_modulate(x, weight, shift, scale, runs, eps=EPS, dtype=torch.float32)
    assert wide.dtype == torch.float32
    _same(wide, rounded.float(), dtype, device)
    _quantized(ops.rms_modulate(x, weight, shift, scale, runs, eps=EPS, dtype=E4M3), rounded.double(), dtype)


@each_op_set
@each_dtype
@each_size
def test_gate_residual(num_rows, dtype, name, device):
    ops = ops_for(name, device, dtype)
    x, branch = torch.randn(2, num_rows, 37, device=device).to(dtype)
    gate, runs = _tables(37, dtype, device)[2], _runs(num_rows)
    kept = x.clone()
    want = x.double() + gate.double()[_entries(runs, device)] * branch.double()
    into = branch.clone()
    got = ops.gate_residual(x, into, gate, runs)
    _close(got, want, dtype)
    assert got.data_ptr() == into.data_ptr()
    assert torch.equal(x, kept)
    over_x = x.clone()
    assert ops.gate_residual(over_x, branch.clone(), gate, runs, out=over_x).data_ptr() == over_x.data_ptr()
    assert torch.equal(over_x, got)


@each_op_set
@each_dtype
@each_size
def test_gate_residual_norm_is_the_two_ops_in_one(num_rows, dtype, name, device):
    ops = ops_for(name, device, dtype)
    x, branch = torch.randn(2, num_rows, 272, device=device).to(dtype)
    weight = torch.randn(272, device=device).to(dtype)
    (shift, scale, gate), runs = _tables(272, dtype, device), _runs(num_rows)
    kept = x.clone()
    want = ops.gate_residual(x, branch.clone(), gate, runs)
    for out in (None, torch.float32, E4M3):
        into = branch.clone()
        y, h = ops.gate_residual_norm(x, into, gate, weight, shift, scale, runs, eps=EPS, dtype=out)
        assert y.data_ptr() == into.data_ptr()
        _same(y, want, dtype, device)
        alone = ops.rms_modulate(y, weight, shift, scale, runs, eps=EPS, dtype=out)
        if out == E4M3:
            _quantized(h, ops.rms_modulate(y, weight, shift, scale, runs, eps=EPS).double(), dtype)
        else:
            _same(h, alone, dtype, device)
    assert torch.equal(x, kept)


@each_op_set
@each_dtype
@each_size
@pytest.mark.parametrize("num_channels", [37, 272])
def test_a_wide_stream_takes_branches_of_16_bits_and_is_only_normed(num_channels, num_rows, dtype, name, device):
    """The video decoder's: a float32 stream in place, one gate for all rows, no modulation."""
    ops = ops_for(name, device, dtype)
    x, branch = torch.randn(2, num_rows, num_channels, device=device)
    branch = branch.to(dtype)
    gate, weight = torch.randn(1, num_channels, device=device), torch.randn(num_channels, device=device)
    runs = RowRuns.of([(num_rows, 0)])
    total = x.double() + gate.double() * branch.double()
    normed = _rms(total, weight.double())
    for out in (None, dtype, E4M3):
        stream, kept = x.clone(), branch.clone()
        y, h = ops.gate_residual_norm(stream, kept, gate, weight, None, None, runs, eps=EPS, dtype=out, out=stream)
        assert y.data_ptr() == stream.data_ptr()
        _close(y, total, torch.float32)
        if out == E4M3:
            _quantized(h, normed, torch.float32)
        else:
            _close(h, normed, out or torch.float32)
        assert dtype == torch.float32 or torch.equal(kept, branch)
        # A block that begins by itself, and a last block that nothing follows, have the same bits.
        alone = ops.rms_modulate(y, weight, None, None, runs, eps=EPS, dtype=out)
        if out != E4M3:
            _same(h, alone, out or torch.float32, device)
        last = x.clone()
        _same(ops.gate_residual(last, branch.clone(), gate, runs, out=last), y, torch.float32, device)


@each_op_set
@each_dtype
@each_size
@pytest.mark.parametrize("num_angles", [0, 6, 8])
@pytest.mark.parametrize(("num_heads", "apart"), [(5, False), (19, True)])
def test_qk_norm_rope(num_heads, apart, num_angles, num_rows, dtype, name, device):
    ops = ops_for(name, device, dtype)
    # A slice of a wider projection; or queries, keys and values apart, as head-grouped attention has them.
    shape = (3, num_rows, num_heads, 16) if apart else (num_rows, 3, num_heads + 2, 16)
    qkv = torch.randn(shape, device=device).to(dtype)
    qkv = qkv.transpose(0, 1) if apart else qkv[:, :, 1 : num_heads + 1]
    norm_q, norm_k = torch.randn(2, 16, device=device).to(dtype)
    angles = torch.randn(num_rows, num_angles, dtype=torch.float64, device=device)
    cos, sin = (angles.cos().to(dtype), angles.sin().to(dtype)) if num_angles else (None, None)
    kept = qkv.clone()
    q, k, v = ops.qk_norm_rope(qkv, norm_q, norm_k, cos, sin, eps=EPS)
    for got, source, weight in ((q, kept[:, 0], norm_q), (k, kept[:, 1], norm_k)):
        want = _rms(source.double(), weight.double())
        a, b, rest = want.split([num_angles, num_angles, 16 - 2 * num_angles], dim=-1)
        c, s = angles.cos()[:, None], angles.sin()[:, None]
        _close(got, torch.cat((a * c - b * s, b * c + a * s, rest), dim=-1), dtype)
    assert torch.equal(v, kept[:, 2])


@each_op_set
@each_dtype
@each_size
@pytest.mark.parametrize("num_inner", [21, 4100])
def test_swiglu(num_inner, num_rows, dtype, name, device):
    ops = ops_for(name, device, dtype)
    up = torch.randn(num_rows, 2 * num_inner, device=device).to(dtype)
    kept = up.clone()
    value, gate = up.double().chunk(2, dim=-1)
    got = ops.swiglu(up)
    _close(got, value * gate * gate.sigmoid(), dtype)
    _quantized(ops.swiglu(up, dtype=E4M3), got.double(), dtype)
    assert torch.equal(up, kept)


@each_op_set
@each_dtype
@each_size
def test_quantize_rows(num_rows, dtype, name, device):
    ops = ops_for(name, device, dtype)
    x = (torch.randn(num_rows, 48, device=device) * torch.logspace(-3, 2, num_rows, device=device)[:, None]).to(dtype)
    _quantized(ops.quantize_rows(x), x.double(), dtype)
    zeros = ops.quantize_rows(torch.zeros(3, 48, device=device).to(dtype))
    assert not zeros.dequantized().any()


@each_op_set
@each_size
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("num_documents", [1, 2])
def test_quantize_heads(num_documents, smooth, num_rows, name, device):
    ops = ops_for(name, device)
    num_documents = min(num_documents, num_rows)
    x = torch.randn(num_rows, 5, 3, 16, device=device)[:, :, 1]  # strided, as one part of a projection
    document = torch.arange(num_rows, device=device, dtype=torch.int32) * num_documents // num_rows
    offset = torch.randn(num_documents, 5, 16, device=device) if smooth else None
    want = x.double() if offset is None else x.double() - offset.double()[document.long()]
    scale = torch.rand(num_documents, 5, device=device) + 0.02
    got = ops.quantize_heads(x, scale, offset, document if num_documents > 1 else None)
    assert got.dtype == E4M3
    assert got.is_contiguous()
    per_row = scale.double()[document.long()][..., None]
    limited = (want / per_row).clamp(-E4M3_MAX, E4M3_MAX)
    slack = limited.abs() * 0.126 + 2**-9
    assert ((got.double() - limited).abs() <= slack).all()


@each_op_set
@each_dtype
@pytest.mark.parametrize("lengths", [(1,), (63,), (1030,), (70, 1, 530)], ids=str)
def test_head_stats(lengths, dtype, name, device):
    ops = ops_for(name, device, dtype)
    bounds = [0, *itertools.accumulate(lengths)]
    spans = list(itertools.pairwise(bounds))
    q, k, v = (torch.randn(bounds[-1], 3, 5, 16, device=device) + 0.5).to(dtype).unbind(1)
    got = ops.head_stats(q, k, v, spans)
    for index, (a, b) in enumerate(spans):
        mean = k[a:b].double().mean(0)
        torch.testing.assert_close(got.k_mean_BNH[index].double(), mean, rtol=1e-5, atol=1e-5)
        for largest, x in ((got.q_largest_BN, q[a:b]), (got.v_largest_BN, v[a:b])):
            assert torch.equal(largest[index], x.float().abs().amax((0, 2)))
        # Of one row nothing is left but the rounding of its mean.
        torch.testing.assert_close(
            got.k_largest_BN[index].double(), (k[a:b].double() - mean).abs().amax((0, 2)), rtol=1e-5, atol=1e-5
        )
    assert all(part.dtype == torch.float32 for part in got)


@each_op_set
@pytest.mark.parametrize("num_rows", [1, 63])
def test_fp8_linear(num_rows, name, device):
    ops = ops_for(name, device)
    x, weight = torch.randn(num_rows, 48, device=device).bfloat16(), torch.randn(32, 48, device=device)
    rows, columns = ops.quantize_rows(x), ops.quantize_rows(weight)
    assert rows.dtype == torch.bfloat16
    want = rows.dequantized().double() @ columns.dequantized().double().T
    got = ops.fp8_linear(rows, columns.data, columns.scale)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
    exact = x.double() @ weight.double().T
    assert (got.double() - exact).norm() / exact.norm() < 0.06
    # Some of the outputs, into one part of a larger buffer, as head-grouped attention asks for them.
    buffer = torch.full((3, num_rows, 16), float("nan"), dtype=torch.bfloat16, device=device)
    into = ops.fp8_linear(rows, columns.data[16:], columns.scale[16:], out=buffer[1])
    assert into.data_ptr() == buffer[1].data_ptr()
    _same(buffer[1], got[:, 16:], torch.bfloat16, device)
    assert buffer[0].isnan().all()
    assert buffer[2].isnan().all()


@each_op_set
def test_a_row_of_nan_stays_in_its_row(name, device):
    ops = ops_for(name, device)
    runs = _runs(9)
    ones, zeros = torch.ones(3, 16, device=device), torch.zeros(3, 16, device=device)
    weight = torch.ones(16, device=device)
    x = torch.randn(9, 16, device=device)
    x[4] = float("nan")
    clean = torch.arange(9, device=device) != 4
    for got in (
        ops.rms_modulate(x, weight, zeros, ones, runs, eps=EPS),
        ops.rms_modulate(x, weight, zeros, ones, runs, eps=EPS, dtype=E4M3).dequantized(),
        ops.gate_residual(x, x.clone(), ones, runs),
        *ops.gate_residual_norm(x, x.clone(), ones, weight, zeros, ones, runs, eps=EPS),
        ops.swiglu(x),
        ops.swiglu(x, dtype=E4M3).dequantized(),
        ops.quantize_rows(x).dequantized(),
        *ops.qk_norm_rope(x[:, None, None].expand(9, 3, 2, 16), weight, weight, None, None, eps=EPS),
    ):
        assert got[clean].isfinite().all()
        assert got[4].isnan().all()


@each_op_set
def test_an_infinite_value_does_not_leave_fp8_as_a_number(name, device):
    ops = ops_for(name, device)
    x = torch.randn(3, 16, device=device)
    x[1, 5] = float("inf")
    got = ops.quantize_rows(x).dequantized()
    assert not got[1, 5].isfinite()
    assert got[[0, 2]].isfinite().all()


@each_op_set
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_modulation_rounds_at_every_step(dtype, name, device):
    ops = ops_for(name, device, dtype)
    x, weight = torch.randn(50, 64, device=device).to(dtype), torch.randn(64, device=device).to(dtype)
    params = torch.randn(1, 2, 64, device=device).to(dtype)
    shift, scale = params[:, 0], params[:, 1]
    normed = torch.nn.functional.rms_norm(x, (64,), weight, EPS)
    factor = (1 + scale.float()).to(dtype)
    product = (normed.float() * factor.float()).to(dtype)
    want = (product.float() + shift.float()).to(dtype)
    got = ops.rms_modulate(x, weight, shift, scale, RowRuns.of([(50, 0)]), eps=EPS)
    assert _differing(got, want) < (0 if name == "reference" and device == "cpu" else 0.01) + 1e-9


@each_op_set
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_set_rounds_where_the_reference_rounds(dtype, name, device):
    """Not merely close: values equal the reference's but for the few that a different reduction order moves."""
    ops, reference = ops_for(name, device, dtype), select.REFERENCE
    num_rows = 99
    runs = _runs(num_rows)
    (shift, scale, gate), weight = _tables(64, dtype, device), torch.randn(64, device=device).to(dtype)
    x, branch = torch.randn(2, num_rows, 64, device=device).to(dtype)
    qkv = torch.randn(num_rows, 3, 5, 64, device=device).to(dtype)
    norms = torch.randn(2, 64, device=device).to(dtype)
    angles = torch.randn(num_rows, 24, device=device)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    pairs = [
        (ops.gate_residual(x, branch.clone(), gate, runs), reference.gate_residual(x, branch.clone(), gate, runs)),
        (
            ops.rms_modulate(x, weight, shift, scale, runs, eps=EPS),
            reference.rms_modulate(x, weight, shift, scale, runs, eps=EPS),
        ),
        (ops.swiglu(qkv.flatten(1)[:, :640]), reference.swiglu(qkv.flatten(1)[:, :640])),
        *zip(
            ops.qk_norm_rope(qkv.clone(), *norms, cos, sin, eps=EPS),
            reference.qk_norm_rope(qkv.clone(), *norms, cos, sin, eps=EPS),
            strict=True,
        ),
    ]
    for got, want in pairs:
        assert _differing(got, want) < 0.01
        torch.testing.assert_close(got.float(), want.float(), rtol=ULP[dtype], atol=4 * ULP[dtype])


@each_op_set
def test_chunks_of_rows_equal_the_whole_bit_for_bit(name, device):
    ops = ops_for(name, device)
    runs, weight = _runs(101), torch.randn(64, device=device)
    shift, scale, gate = _tables(64, torch.float32, device)
    x, branch = torch.randn(2, 101, 64, device=device)
    whole = ops.gate_residual_norm(x, branch.clone(), gate, weight, shift, scale, runs, eps=EPS)
    bounds = [0, 17, 34, 68, 101]
    for a, b in itertools.pairwise(bounds):
        part = ops.gate_residual_norm(x[a:b], branch[a:b].clone(), gate, weight, shift, scale, runs.cut(a, b), eps=EPS)
        for got, want in zip(part, whole, strict=True):
            assert torch.equal(got, want[a:b])


@each_op_set
def test_no_rows_are_no_error(name, device):
    ops = ops_for(name, device)
    assert ops.quantize_rows(torch.empty(0, 16, device=device).reshape(0, 16)).shape == (0, 16)
    assert ops.swiglu(torch.empty(0, 32, device=device)).shape == (0, 16)


def _same(got, want, dtype, device):
    """Bit for bit where nothing is compiled; a compiler may order a sum differently in another kernel."""
    if device == "cpu":
        assert torch.equal(got, want)
    assert _differing(got, want) < (1.0 if dtype == torch.float32 else 0.01)
    torch.testing.assert_close(got.float(), want.float(), rtol=ULP[dtype], atol=4 * ULP[dtype])


def _differing(got, want):
    return (got != want).float().mean().item()


def test_an_unknown_kernel_set_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'fast'.*reference"):
        select.create("fast")


def test_triton_without_a_device_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(select.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed.*kernels=reference"):
        select.create("triton")
    assert select.automatic(torch.device("cuda")) == "reference"
    assert select.automatic(torch.device("cpu")) == "reference"


@each_op_set
@each_dtype
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("num_channels", [40, 5376])
def test_a_sum_normed_at_once_has_the_bits_of_the_two_ops(num_channels, fp8, dtype, name, device):
    """A block whose weights are streamed begins by itself; a resident one is begun by the block before it."""
    ops, num_rows = ops_for(name, device, dtype), 9
    x, branch = torch.randn(2, num_rows, num_channels, device=device).to(dtype)
    weight = torch.randn(num_channels, device=device).to(dtype)
    (shift, scale, gate), runs = _tables(num_channels, dtype, device), _runs(num_rows)
    kind = E4M3 if fp8 else None
    total = ops.gate_residual(x, branch.clone(), gate, runs)
    apart = ops.rms_modulate(total, weight, shift, scale, runs, eps=EPS, dtype=kind)
    at_once, normed = ops.gate_residual_norm(x, branch.clone(), gate, weight, shift, scale, runs, eps=EPS, dtype=kind)
    assert torch.equal(at_once, total)
    if fp8:
        assert torch.equal(normed.data.view(torch.uint8), apart.data.view(torch.uint8))
        assert torch.equal(normed.scale, apart.scale)
    else:
        assert torch.equal(normed, apart)


def test_the_largest_of_a_row_is_448_whatever_the_reciprocal_rounds_to():
    """Some reciprocals carry it past 448 by a unit or two of float32; e4m3 has no larger value, and rounds it back."""
    x = torch.linspace(1.0, 2.0, 4001)[:, None]
    got = ops_for("reference", "cpu").quantize_rows(x)
    assert (x / got.scale > 448).any() or (x * (1 / got.scale) > 448).any()
    assert torch.equal(got.data.float(), torch.full_like(x, 448.0))
