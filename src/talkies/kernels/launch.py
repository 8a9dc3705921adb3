"""Host side of the Triton kernels: outputs, block sizes, checks. No Triton in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.kernels.fp8 import E4M3, Fp8Rows

# A product is rounded before it is added, as in the reference. Left alone, Triton contracts the two into one rounding:
# on an H200 a quarter of the values then differ from the reference in the last bit.
EXACT = {"enable_fp_fusion": False}


def stored(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What a kernel writes for ``dtype``.

    Triton's interpreter forgets the carry when it rounds to e4m3 (125 becomes 64), so on a CPU the kernel leaves
    float32 and torch rounds. Elsewhere it is ``dtype``.
    """
    return torch.float32 if dtype == E4M3 and device.type == "cpu" else dtype


def new_rows(like_SD: Tensor, num_channels: int, dtype: torch.dtype | None) -> tuple[Tensor, Tensor | None]:
    """An output [S, channels] and, for e4m3, its scales [S, 1]; not filled."""
    kind = stored(dtype or like_SD.dtype, like_SD.device)
    out = torch.empty(like_SD.shape[0], num_channels, dtype=kind, device=like_SD.device)
    scale = torch.empty(like_SD.shape[0], 1, dtype=torch.float32, device=like_SD.device) if dtype == E4M3 else None
    return out, scale


def rows_or_fp8(out: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor | Fp8Rows:
    """What a kernel wrote to the pair of :func:`new_rows`; ``dtype`` is that of its input."""
    return out if scale is None else Fp8Rows(out.to(E4M3), scale, dtype)


def block_of(num_channels: int) -> int:
    """The power of two that holds a whole row."""
    return max(16, 1 << (num_channels - 1).bit_length())


def split_row(num_channels: int) -> tuple[int, int]:
    """Two powers of two that hold a row with little waste: 5,376 channels in 4,096 + 2,048 lanes, not 8,192.

    The second is 0 where the first is enough.
    """
    block = max(16, 1 << (num_channels.bit_length() - 1))
    return block, block_of(num_channels - block) if num_channels > block else 0


def warps_of(block: int, *, quantized: bool = False) -> int:
    """Up to 32 values a thread, 16 warps; half as many where a row waits for its own scale, too.

    Then warps wait for each other twice, and more of them in a program make other rows wait with them (LOG.md).
    """
    warps = min(16, max(1, block // 1024))
    return max(1, warps // 2) if quantized else warps


def rows_of(num_rows: int, groups: int, most: int) -> int:
    """Rows of a program where ``groups`` programs share a row: ``most``, or one while that keeps a GPU busier."""
    return most if num_rows * groups >= 2048 * most else 1


def check_tables(*tables_TD: Tensor) -> int:
    """The stride between entries, which tables of one block share (they are slices of one tensor)."""
    assert all(t.stride(-1) == 1 for t in tables_TD), [t.stride() for t in tables_TD]
    strides = {t.stride(0) for t in tables_TD}
    assert len(strides) == 1, strides
    return strides.pop()


@dataclass(frozen=True, slots=True)
class Rotary:
    """What a kernel that turns heads is launched with: tables [S, A], and a head's sizes in pairs of channels."""

    cos: Tensor
    sin: Tensor
    constants: dict[str, int]


def rotary_of(
    cos_SA: Tensor | None, sin_SA: Tensor | None, num_rows: int, head_dim: int, *, otherwise: Tensor
) -> Rotary:
    """Without tables nothing turns, and any tensor stands in for them."""
    num_angles = 0
    if cos_SA is not None:
        assert sin_SA is not None
        num_angles = cos_SA.shape[1]
        assert cos_SA.shape[0] == num_rows, (cos_SA.shape, num_rows)
        assert cos_SA.is_contiguous()
        assert sin_SA.is_contiguous()
    assert head_dim % 2 == 0, head_dim
    return Rotary(
        otherwise if cos_SA is None else cos_SA,
        otherwise if sin_SA is None else sin_SA,
        {"NUM_ANGLES": num_angles, "PAIRS": head_dim // 2, "BLOCK_P": block_of(head_dim // 2)},
    )
