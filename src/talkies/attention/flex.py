"""Attention through torch's FlexAttention: documents are a block mask, so all of them are one compiled kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from talkies.attention.base import Documents


class Flex:
    """Compiled on a GPU; eager elsewhere, where it makes all scores and serves tests alone."""

    def __init__(self, *, compiled: bool) -> None:
        self._attend = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
        self._mask: tuple[Documents, torch.device, BlockMask] | None = None

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        """Returns [S, N, H], contiguous."""
        q, k, v = (x.transpose(0, 1)[None] for x in (q_SNH, k_SNH, v_SNH))
        mask = None if documents is None or documents.num_documents == 1 else self._mask_of(documents, q.device)
        return self._attend(q, k, v, block_mask=mask)[0].transpose(0, 1).contiguous()

    def _mask_of(self, documents: Documents, device: torch.device) -> BlockMask:
        """The mask of the last documents is kept: a request asks for the same one in every block and step."""
        if self._mask is None or self._mask[0] != documents or self._mask[1] != device:
            index = documents.index_on(device)

            def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
                return index[q] == index[k]

            rows = documents.num_valid
            self._mask = (documents, device, create_block_mask(same, None, None, rows, rows, device=str(device)))
        return self._mask[2]
