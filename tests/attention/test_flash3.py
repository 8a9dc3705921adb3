"""The FlashAttention-3 adapters over a stand-in for the package; the real one is tested on a GPU below."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from talkies.attention import flash3, registry
from talkies.attention.base import Documents, Trimmed
from talkies.attention.sdpa import sdpa
from talkies.errors import InvalidRequest
from talkies.kernels.select import REFERENCE
from tests.attention.compare import relative_error

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16


def _qkv(num_rows, num_heads=3, head_dim=16, *, key_offset=0.0):
    generator = torch.Generator().manual_seed(num_rows)
    q, k, v = (torch.randn(num_rows, num_heads, head_dim, generator=generator) for _ in range(3))
    k += key_offset * torch.randn(1, num_heads, head_dim, generator=generator)
    # Queries, keys and values are parts of one projection, as the model hands them over.
    return torch.stack((q, k, v), dim=1).to(BF16).unbind(1)


def test_one_document_takes_the_dense_kernel_and_several_the_varlen_one(fake, exact):
    q, k, v = _qkv(45)
    for documents in (None, Documents.of_lengths([45])):
        assert relative_error(exact(q, k, v, documents), sdpa(q, k, v, None)) < 5e-3
    documents = Documents.of_lengths([10, 20, 15])
    assert relative_error(exact(q, k, v, documents), sdpa(q, k, v, documents)) < 5e-3
    assert [call[0] for call in fake.calls] == ["dense", "dense", "varlen"]


@pytest.mark.parametrize("documents", [None, Documents.of_lengths([70, 130])], ids=["one", "two"])
def test_fp8_is_close_and_is_fp8(fake, fp8, documents):
    q, k, v = _qkv(200)
    assert 1e-3 < relative_error(fp8(q, k, v, documents), sdpa(q, k, v, documents)) < 0.1
    assert {call[1] for call in fake.calls} == {E4M3}


def test_smoothing_takes_a_common_offset_of_keys_out_of_the_error(fp8):
    plain, shifted = _qkv(200), _qkv(200, key_offset=30.0)
    small = relative_error(fp8(*plain, None), sdpa(*plain, None))
    assert relative_error(fp8(*shifted, None), sdpa(*(x.float() for x in shifted), None)) < 2 * small + 0.02
    operands = flash3.quantize(*shifted, None, REFERENCE)
    assert operands.k_SNH.float().mean(0).abs().max() < 0.1 * operands.k_SNH.float().abs().max()


def test_each_document_has_its_own_scales(fp8):
    q, k, v = _qkv(90)
    v[40:] *= 100.0
    documents = Documents.of_lengths([40, 50])
    operands = flash3.quantize(q, k, v, documents, REFERENCE)
    assert operands.v_descale_BN.shape == (2, 3)
    assert (operands.v_descale_BN[1] > 20 * operands.v_descale_BN[0]).all()
    got, want = fp8(q, k, v, documents), sdpa(q, k, v, documents)
    assert relative_error(got[:40], want[:40]) < 0.1
    assert relative_error(got[40:], want[40:]) < 0.1


def test_exact_rows_equal_the_bf16_kernel_and_the_rest_does_not(fake, exact, fp8):
    q, k, v = _qkv(90)
    documents = Documents.of_lengths([40, 50]).with_exact([(3, 9), (30, 52)])
    got, want = fp8(q, k, v, documents), exact(q, k, v, Documents.of_lengths([40, 50]))
    for a, b in ((3, 9), (30, 40), (40, 52)):
        assert relative_error(got[a:b], want[a:b]) < 1e-3
    assert relative_error(got[52:], want[52:]) > 1e-3
    assert ("dense", BF16, 6, 40) in fake.calls
    assert ("dense", BF16, 10, 40) in fake.calls
    assert ("dense", BF16, 12, 50) in fake.calls


def test_a_whole_exact_step_never_touches_fp8(fake, fp8):
    q, k, v = _qkv(64)
    documents = Documents((0, 20, 58), 64).with_exact([(0, 64)])
    q[58:] = float("nan")
    got = Trimmed(fp8)(q, k, v, documents)
    assert got.isfinite().all()
    assert {call[1] for call in fake.calls} == {BF16}


def test_nan_in_keys_is_not_hidden():
    q, k, v = _qkv(64)
    k[5] = float("nan")
    x = flash3.quantize(q, k, v, None, REFERENCE)
    assert x.k_descale_BN.isnan().all()


def test_more_rows_than_were_tested_are_refused_with_the_way_out(fp8, monkeypatch):
    monkeypatch.setattr(flash3.Flash3Fp8, "max_rows", 100)
    q, k, v = _qkv(101)
    with pytest.raises(InvalidRequest, match=r"101 rows in fp8.*100.*attention=fa3"):
        fp8(q, k, v, None)
    fp8(q, k, v, Documents.of_lengths([50, 51]))  # it is the document that counts
    fp8(*_qkv(100), None)  # as many as were tested


def test_edge_steps_are_exact(fp8):
    assert [fp8.exactness.whole_step(step, 49) for step in (0, 1, 47, 48)] == [True, False, False, True]
    assert Trimmed(fp8).exactness is fp8.exactness
    assert Trimmed(sdpa).exactness is None


ON_GPU = ["sdpa", "cudnn", "fa3", "fa3-fp8", "fa4", "flex", "sage"]
APPROXIMATE = {"fa3-fp8": 0.08, "sage": 0.08}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
@pytest.mark.parametrize("lengths", [(1009,), (4096,), (333, 1, 700)])
@pytest.mark.parametrize("pad", [0, 19])
def test_backends_on_a_gpu_against_float32(name, lengths, pad):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    machine = registry.Machine.of(torch.device("cuda"), BF16)
    reason = registry.why_not(name, machine)
    if reason is not None:
        pytest.skip(reason)
    if name == "flex" and (pad or len(lengths) == 1):
        pytest.skip("it compiles for each shape: one is enough")
    from talkies.kernels import select

    documents = Documents.of_lengths(lengths, sum(lengths) + pad)
    valid = documents.num_valid
    q, k, v = (torch.randn(documents.num_rows, 3, 7, 128, device="cuda").to(BF16)[:, i] for i in range(3))
    for x in (q, k, v):
        x[valid:] = float("nan")
    attend = registry.create(name, select.create(select.automatic(q.device)))
    got = attend(q, k, v, documents)
    inner = Documents.of_lengths(lengths)
    want = sdpa(*(x[:valid].float() for x in (q, k, v)), inner)
    assert relative_error(got[:valid], want) < APPROXIMATE.get(name, 6e-3)
    assert not got[valid:].any()
    assert torch.equal(got, attend(q, k, v, documents)), "two runs differ"


def test_scales_lie_row_by_row_however_the_statistics_do():
    """fa3 reads a document's scales as one row."""

    def turned(*args):
        stats = REFERENCE.head_stats(*args)
        return type(stats)(*(x.T.contiguous().T for x in stats[:3]), *stats[3:])

    ops = dataclasses.replace(REFERENCE, head_stats=turned)
    documents = Documents.of_lengths([30, 34])
    got, want = (flash3.quantize(*_qkv(64), documents, each) for each in (ops, REFERENCE))
    for name in ("q_descale_BN", "k_descale_BN", "v_descale_BN"):
        assert getattr(got, name).is_contiguous()
        assert torch.equal(getattr(got, name), getattr(want, name))
