"""Every kernel set of the table on every device it runs on here, as pytest parameters."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest
import torch
from packaging.version import Version

from talkies.kernels import select

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed: pip install -e '.[kernels]'")


# The extra `kernels` asks for 3.7: the interpreter of triton 3.6, which torch 2.11 brings, fails under numpy 2.5.
TOO_OLD = HAS_TRITON and Version(importlib.metadata.version("triton")) < Version("3.7")
interprets = pytest.mark.skipif(TOO_OLD, reason="triton's interpreter before 3.7 fails under this numpy")


def _sets():
    yield pytest.param("reference", "cpu", id="reference")
    yield pytest.param(
        "triton", "cpu", id="triton-interpreted", marks=[needs_triton, interprets, _only_without_a_gpu()]
    )
    yield pytest.param("reference", "cuda", id="reference-gpu", marks=[pytest.mark.gpu, _only_with_a_gpu()])
    yield pytest.param("triton", "cuda", id="triton-gpu", marks=[pytest.mark.gpu, _only_with_a_gpu(), needs_triton])


def _only_with_a_gpu():
    return pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def _only_without_a_gpu():
    return pytest.mark.skipif(torch.cuda.is_available(), reason="triton compiles here; see the gpu cases")


each_op_set = pytest.mark.parametrize(("name", "device"), list(_sets()))
each_triton_set = pytest.mark.parametrize(("name", "device"), [s for s in _sets() if s.values[0] == "triton"])
# Triton's interpreter truncates where it should round to bfloat16: float16 stands in for it there.
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def ops_for(name: str, device: str, dtype: torch.dtype = torch.float32):
    if name == "triton" and device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter is wrong for bfloat16")
    return select.create(name)
