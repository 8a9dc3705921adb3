"""How the text encoder's decoder layers attend. The vision tower stays with torch's own attention, image by image.

L tokens, N query heads, M key heads, H channels a head; B is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from talkies.attention import flash3

# sdpa: transformers' own call of torch's attention. A prompt has no padding, so transformers passes no mask and torch
# takes a causal kernel: no [L, L] matrix exists (tests/codecs/text/test_attention.py).
TEXT_ATTENTION = ("sdpa", "fa3")
_FA3 = "talkies_fa3"


def use_attention(model: Any, name: str) -> None:
    """Makes the decoder layers of a Qwen3VLModel use ``name`` of ``TEXT_ATTENTION``.

    Raises ``ImportError`` where the package is missing; ``engine.config.resolve`` has asked before.
    """
    assert name in TEXT_ATTENTION, name
    if name == "fa3":
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(_FA3, _causal(flash3.Flash3(flash3.load())))
    # Masks are made by name, too: for one that transformers does not know it makes none.
    model.language_model.config._attn_implementation = _FA3 if name == "fa3" else name


def _causal(flash: flash3.Flash3) -> Callable[..., tuple[Tensor, None]]:
    """In the shape that transformers calls."""

    def attend(
        module: Any, query_1NLH: Tensor, key_1MLH: Tensor, value_1MLH: Tensor, mask: Any = None, **options: Any
    ) -> tuple[Tensor, None]:
        """Returns [1, L, N, H]. ``mask`` could only be all ones: an encoder's prompt is never padded."""
        q_LNH, k_LMH, v_LMH = (x[0].transpose(0, 1) for x in (query_1NLH, key_1MLH, value_1MLH))
        return flash.causal(q_LNH, k_LMH, v_LMH, scale=options["scaling"])[None], None

    return attend
