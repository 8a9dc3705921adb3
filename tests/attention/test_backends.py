"""Every backend of the table against a float64 softmax written out, one document at a time."""

from __future__ import annotations

import pytest
import torch

from talkies.attention import registry
from talkies.attention.base import Documents, Trimmed
from talkies.errors import ConfigError

BACKENDS = [
    n for n, b in registry.ATTENTION.items() if b.lacks(registry.Machine(capability=None, dtype=torch.float32)) is None
]


def _qkv(num_rows, num_heads=3, head_dim=16):
    generator = torch.Generator().manual_seed(num_rows)
    return [torch.randn(num_rows, num_heads, head_dim, generator=generator) for _ in range(3)]


def _formula(q, k, v, spans):
    out = torch.zeros_like(q, dtype=torch.float64)
    for a, b in spans:
        scores = torch.einsum("snh,tnh->nst", q[a:b].double(), k[a:b].double()) * q.shape[-1] ** -0.5
        out[a:b] = torch.einsum("nst,tnh->snh", scores.softmax(-1), v[a:b].double())
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_rows", [1, 63, 414])
def test_one_document(num_rows, backend):
    q, k, v = _qkv(num_rows)
    got = registry.create(backend)(q, k, v, None)
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), _formula(q, k, v, [(0, num_rows)]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [(63,), (10, 20, 15), (1, 1, 61), (5, 0, 41)])
@pytest.mark.parametrize("pad", [0, 1, 19])
@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf")])
def test_documents_and_padding(backend, lengths, pad, poison):
    documents = Documents.of_lengths(lengths, sum(lengths) + pad)
    q, k, v = _qkv(documents.num_rows)
    for tensor in (q, k, v):
        tensor[documents.num_valid :] = poison
    got = registry.create(backend)(q, k, v, documents)
    valid = documents.num_valid
    torch.testing.assert_close(got[:valid].double(), _formula(q, k, v, documents)[:valid], rtol=1e-5, atol=1e-5)
    assert not got[valid:].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_video_row_15_scores_only_keys_10_to_29(backend):
    documents = Documents.of_lengths([10, 20, 15])
    assert documents.cu_seqlens == (0, 10, 30, 45)
    q, k, v = _qkv(45)
    attend = registry.create(backend)
    before = attend(q, k, v, documents)[15]
    for row in range(45):
        moved_k, moved_v = k.clone(), v.clone()
        moved_k[row] += 3
        moved_v[row] -= 3
        assert torch.equal(attend(q, moved_k, moved_v, documents)[15], before) == (not 10 <= row < 30), row


def test_a_backend_never_sees_padding():
    seen = []

    def backend(q, k, v, documents):
        seen.append((q.shape[0], documents))
        return v

    q, k, v = _qkv(64)
    Trimmed(backend)(q, k, v, Documents((0, 58), 64))
    Trimmed(backend)(q, k, v, Documents((0, 20, 58), 64))
    Trimmed(backend)(q, k, v, Documents((0, 64), 64))
    assert seen == [(58, None), (58, Documents((0, 20, 58), 58)), (64, None)]


def test_documents_know_their_sizes():
    documents = Documents.of_lengths([3, 0, 7, 2], 16)
    assert (documents.num_documents, documents.num_valid, documents.max_seqlen) == (3, 12, 7)
    on_device = documents.cu_seqlens_on(torch.device("cpu"))
    assert on_device.tolist() == [0, 3, 10, 12]
    assert on_device.dtype == torch.int32
    assert documents.cu_seqlens_on(torch.device("cpu")) is on_device


def test_an_unknown_backend_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'warp'.*sdpa"):
        registry.create("warp")


@pytest.mark.parametrize(
    ("bounds", "num_rows"),
    [((1, 4), 4), ((0, 5), 4), ((0, 2, 2), 4), ((0, 3, 2), 4)],
    ids=["no first row", "more than there are", "an empty one", "backwards"],
)
def test_documents_that_are_no_rows_of_a_sequence_are_not_made(bounds, num_rows):
    """A kernel takes its bounds as they are, and reads whatever memory they name."""
    with pytest.raises(AssertionError):
        Documents(bounds, num_rows)
    Documents((0, 2, 4), 4)
    Documents((0, 2), 4)


def test_a_single_key_is_answered_without_cudnn_and_contiguous():
    from talkies.attention.sdpa import _cudnn

    qkv = torch.randn(1, 2, 3, 4).transpose(1, 2)  # [S, N, H] of a packed projection: heads apart
    out = _cudnn(qkv, qkv, qkv)
    assert torch.equal(out, qkv)
    assert out.is_contiguous()
