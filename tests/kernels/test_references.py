"""What the references compute in float32, whatever their operands are, and where they round."""

from __future__ import annotations

import pytest
import torch

from talkies.kernels.fp8 import E4M3
from talkies.kernels.qk_norm_rope.reference import qk_norm_rope
from talkies.kernels.qkv_scales.reference import qkv_scales
from talkies.kernels.quantize_heads.reference import quantize_heads
from talkies.kernels.quantize_rows.reference import quantize_rows

HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF)
def test_the_norm_of_a_head_is_computed_in_float32_and_rounds_once(dtype):
    qkv = (3 * torch.randn(37, 3, 4, 16)).to(dtype)
    norm_q, norm_k = (1 + 0.1 * torch.randn(16)).to(dtype), (1 + 0.1 * torch.randn(16)).to(dtype)
    got = qk_norm_rope(qkv, norm_q, norm_k, None, None, eps=1e-6)
    want = qk_norm_rope(qkv.float(), norm_q.float(), norm_k.float(), None, None, eps=1e-6)
    for ours, exact in zip(got, want, strict=True):
        assert torch.equal(ours, exact.to(dtype))
    # against the formula in float64: half a unit in the last place of the dtype, and what float32 adds
    x = qkv[:, 0].double()
    norm = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm_q.double()
    assert (got[0].double() - norm).abs().max() <= norm.abs().max() * torch.finfo(dtype).eps / 2 * 1.01


@pytest.mark.parametrize("dtype", HALF)
def test_values_become_e4m3_from_float32(dtype):
    x = torch.randn(33, 4, 16).to(dtype)
    scale, offset = torch.rand(1, 4) + 0.5, torch.randn(1, 4, 16)
    assert torch.equal(
        quantize_heads(x, scale, offset, None).view(torch.uint8),
        quantize_heads(x.float(), scale, offset, None).view(torch.uint8),
    )
    rows, exact = quantize_rows(x.flatten(1)), quantize_rows(x.flatten(1).float())
    assert torch.equal(rows.data.view(torch.uint8), exact.data.view(torch.uint8))
    assert torch.equal(rows.scale, exact.scale)
    assert rows.data.dtype is E4M3
    assert (rows.dtype, exact.dtype) == (dtype, torch.float32)


def test_heads_are_quantised_to_rows_however_they_lay():
    apart = torch.randn(4, 33, 16).transpose(0, 1)  # [S, N, H] of a projection with heads apart
    assert not apart.is_contiguous()
    assert quantize_heads(apart, torch.ones(1, 4), None, None).is_contiguous()


def test_values_beyond_their_scale_become_the_largest_number_and_no_nan():
    """A bound of queries and keys is met but for rounding; what passes it must not become NaN."""
    x = torch.tensor([-1e6, -460.0, -3.0, 0.0, 3.0, 460.0, 1e6, 449.0]).expand(2, 1, 8)
    got = quantize_heads(x, torch.ones(1, 1), None, None).float()
    assert got[0, 0].tolist() == [-448, -448, -3, 0, 3, 448, 448, 448]


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_scales_are_float32_whatever_the_values_are(dtype):
    qkv, norm = torch.randn(9, 3, 2, 16).to(dtype), torch.ones(16, dtype=dtype)
    found = qkv_scales(qkv, norm, norm, None, None, [(0, 4), (4, 9)], eps=1e-6)
    assert (found.scale_3BN.dtype, found.k_mean_BNH.dtype) == (torch.float32, torch.float32)
    for document, (start, stop) in enumerate([(0, 4), (4, 9)]):
        largest = qkv[start:stop, 2].float().abs().amax((0, 2))
        torch.testing.assert_close(found.scale_3BN[2, document] * 448, largest, rtol=1e-6, atol=0)
