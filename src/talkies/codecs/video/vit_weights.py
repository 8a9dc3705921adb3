"""The weights of the video decoder: from the port's names to ours."""

from __future__ import annotations

import torch
from torch import Tensor


def own_key(port_key: str) -> str:
    """The name here of a port key of the decoder (q, k, v excepted: see :func:`gather`)."""
    key = port_key.removeprefix("decoder.")
    for theirs, ours in (
        (".attn.to_out.0.", ".attn.to_out."),
        (".ff.net.0.proj.", ".ff.up."),
        (".ff.net.2.", ".ff.down."),
    ):
        key = key.replace(theirs, ours)
    return key


def gather(port: dict[str, Tensor]) -> dict[str, Tensor]:
    """Port tensors of the decoder -> tensors under our names, q, k and v fused row-wise."""
    ours: dict[str, Tensor] = {}
    for key, tensor in port.items():
        if ".attn.to_q." in key:
            keys = [key.replace(".to_q.", f".to_{name}.") for name in "qkv"]
            if all(k in port for k in keys):
                ours[own_key(key).replace(".to_q.", ".to_qkv.")] = torch.cat([port[k] for k in keys])
        elif ".attn.to_k." not in key and ".attn.to_v." not in key:
            ours[own_key(key)] = tensor
    return ours
