"""A matrix product of e4m3 operands with a scale per row and per output. S rows, K inputs, N outputs."""

from __future__ import annotations

from torch import Tensor

from talkies.kernels.fp8 import Fp8Rows


def fp8_linear(x_SK: Fp8Rows, weight_NK: Tensor, weight_scale_N1: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``(x.data @ weight.T) * x.scale * weight_scale``. Returns [S, N] in ``x.dtype``.

    ``out``, if given, is contiguous and receives it.

    The same e4m3 values as on a GPU, multiplied and summed in float32: products of two e4m3 are exact there, so only
    the order of the sum differs.
    """
    product_SN = x_SK.data.float() @ weight_NK.float().T
    product_SN.mul_(x_SK.scale).mul_(weight_scale_N1.T)
    return product_SN.to(x_SK.dtype) if out is None else out.copy_(product_SN)
