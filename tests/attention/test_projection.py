"""e4m3 attention from the projection on, against the path that norms, turns and quantises one after the other."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from talkies.attention import flash3, registry
from talkies.attention.base import Documents, QkNorm, Trimmed, attend_projection
from talkies.attention.sdpa import sdpa
from talkies.errors import InvalidRequest
from talkies.h3.timesteps import step_plan
from talkies.kernels import select
from talkies.kernels.fp8 import E4M3, E4M3_MAX
from talkies.kernels.select import REFERENCE
from talkies.model.chunking import Chunking
from talkies.model.modulation import unfolded
from tests.attention.compare import relative_error
from tests.attention.fake_flash3 import FakeFlash3
from tests.model.tiny import tiny_dit, tiny_layout, tiny_rows

BF16 = torch.bfloat16
ONE, TWO = None, Documents.of_lengths([70, 130])

each_documents = pytest.mark.parametrize("documents", [ONE, TWO], ids=["one", "two"])


def _projection(num_rows=200, num_heads=3, head_dim=16, *, rotary=True, device="cpu"):
    generator = torch.Generator(device).manual_seed(num_rows)
    qkv = torch.randn(num_rows, 3, num_heads, head_dim, generator=generator, device=device)
    qkv[:, 1] += 3 * torch.randn(num_heads, head_dim, generator=generator, device=device)
    norms = 1 + 0.1 * torch.randn(2, head_dim, generator=generator, device=device)
    theta = torch.randn(num_rows, 3 * head_dim // 8, generator=generator, device=device)
    tables = (theta.cos().to(BF16), theta.sin().to(BF16)) if rotary else (None, None)
    return qkv.to(BF16), QkNorm(*norms.to(BF16), *tables, 1e-5)


def _turned(qkv, norm, ops=REFERENCE):
    return ops.qk_norm_rope(qkv.clone(), *norm.tensors, eps=norm.eps)


@each_documents
@pytest.mark.parametrize("rotary", [True, False])
def test_values_have_the_bits_of_the_other_path_and_the_rest_a_bound(documents, rotary):
    qkv, norm = _projection(rotary=rotary)
    kept = qkv.clone()
    got = flash3.quantize_projection(qkv, norm, documents, REFERENCE)
    want = flash3.quantize(*_turned(qkv, norm), documents, REFERENCE)
    assert torch.equal(qkv, kept)
    assert torch.equal(got.v_SNH.view(torch.uint8), want.v_SNH.view(torch.uint8))
    assert torch.equal(got.v_descale_BN, want.v_descale_BN)
    q_bound, k_bound = (x.float().abs().max() * math.sqrt(16) / E4M3_MAX for x in (norm.norm_q_H, norm.norm_k_H))
    torch.testing.assert_close(got.q_descale_BN, q_bound.expand_as(want.q_descale_BN))
    assert (got.q_descale_BN > want.q_descale_BN).all()
    # A mean of the keys is no larger than a key.
    assert ((k_bound < got.k_descale_BN) & (got.k_descale_BN < 2 * k_bound)).all()


@each_documents
@pytest.mark.parametrize("rotary", [True, False])
def test_attention_is_as_close_as_by_the_other_path(fake, fp8, documents, rotary):
    qkv, norm = _projection(rotary=rotary)
    turned = _turned(qkv, norm)
    exact = sdpa(*(x.float() for x in turned), documents)
    got = fp8.of_projection(qkv.clone(), norm, documents)
    assert {call[1] for call in fake.calls} == {E4M3}
    assert 1e-3 < relative_error(got, exact) < 1.2 * relative_error(fp8(*turned, documents), exact) < 0.1


@pytest.mark.parametrize("spans", [[(0, 200)], [(3, 9), (60, 75)]], ids=["whole", "some"])
def test_exact_rows_take_the_other_path(fake, fp8, spans):
    qkv, norm = _projection()
    documents = TWO.with_exact(spans)
    got = fp8.of_projection(qkv.clone(), norm, documents)
    calls = list(fake.calls)
    assert torch.equal(got, fp8(*_turned(qkv, norm), documents))
    assert fake.calls == 2 * calls
    assert BF16 in {call[1] for call in calls}


@pytest.mark.parametrize("lengths", [(58,), (20, 38)], ids=str)
def test_padding_is_cut_before_the_kernels_and_zero_after_them(fp8, lengths):
    qkv, norm = _projection(64)
    qkv[58:] = float("nan")
    got = Trimmed(fp8).of_projection(qkv.clone(), norm, Documents.of_lengths(lengths, 64))
    want = fp8.of_projection(qkv[:58].clone(), norm.first(58), Documents.of_lengths(lengths))
    assert torch.equal(got[:58], want)
    assert not got[58:].any()


def test_without_padding_nothing_is_cut(fp8):
    qkv, norm = _projection(rotary=False)
    for documents in (ONE, TWO):
        got = Trimmed(fp8).of_projection(qkv.clone(), norm, documents)
        assert torch.equal(got, fp8.of_projection(qkv.clone(), norm, documents))


def test_other_backends_take_queries_keys_and_values(fp8):
    assert attend_projection(fp8) is not None
    assert attend_projection(Trimmed(fp8)) is not None
    for backend in (sdpa, flash3.Flash3(FakeFlash3())):
        assert attend_projection(backend) is None
        assert attend_projection(Trimmed(backend)) is None


def test_more_rows_than_were_tested_are_refused(fp8, monkeypatch):
    monkeypatch.setattr(flash3.Flash3Fp8, "max_rows", 100)
    qkv, norm = _projection(101)
    with pytest.raises(InvalidRequest, match=r"101 rows in fp8.*100.*attention=fa3"):
        fp8.of_projection(qkv, norm, None)
    fp8.of_projection(qkv, norm, Documents.of_lengths([50, 51]))  # it is the document that counts


def test_a_model_attends_from_its_projection_whole_and_in_head_groups(fake):
    seen = []

    def counted(*args, **kwargs):
        seen.append(args[0].stride())
        return REFERENCE.norm_rope_quantize(*args, **kwargs)

    ops = dataclasses.replace(REFERENCE, norm_rope_quantize=counted)
    layout = tiny_layout(audio_latents=9)
    rows = tiny_rows(layout)
    dit = tiny_dit(dtype=BF16)
    dit.attend = Trimmed(flash3.Flash3Fp8(flash3.Flash3(fake), ops))
    x = dit.embed(*rows[:2], dit.refine_text(rows[2]), layout)
    modulation = unfolded(dit, step_plan(layout, torch.tensor(0.25), torch.tensor(0.5)))
    whole = dit.run_blocks(x, dit.view(layout), modulation)
    num_blocks = len(dit.blocks)
    assert len(seen) == num_blocks
    dit.use_chunking(Chunking(head_groups=2))
    assert torch.equal(dit.run_blocks(x, dit.view(layout), modulation), whole)
    assert len(seen) == 3 * num_blocks
    assert len(set(seen)) == 2, "groups lie apart, the whole in rows"


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(1009,), (4096,), (333, 1, 700)], ids=str)
@pytest.mark.parametrize("pad", [0, 19])
def test_from_the_projection_on_a_gpu_against_float32(lengths, pad):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    reason = registry.why_not("fa3-fp8", registry.Machine.of(torch.device("cuda"), BF16))
    if reason is not None:
        pytest.skip(reason)
    ops = select.create("triton")
    documents = Documents.of_lengths(lengths, sum(lengths) + pad)
    valid, inner = documents.num_valid, Documents.of_lengths(lengths)
    qkv, norm = _projection(documents.num_rows, 7, 128, device="cuda")
    qkv[valid:] = float("nan")
    attend = registry.create("fa3-fp8", ops).of_projection
    got = attend(qkv.clone(), norm, documents)
    want = sdpa(*(x[:valid].float() for x in _turned(qkv, norm)), inner)
    assert relative_error(got[:valid], want) < 0.08
    assert not got[valid:].any()
    assert torch.equal(got, attend(qkv.clone(), norm, documents)), "two runs differ"
    x = flash3.quantize_projection(qkv[:valid], norm.first(valid), inner, ops)
    y = flash3.quantize(*(z[:valid] for z in _turned(qkv, norm, ops)), inner, ops)
    assert torch.equal(x.v_SNH.view(torch.uint8), y.v_SNH.view(torch.uint8))
