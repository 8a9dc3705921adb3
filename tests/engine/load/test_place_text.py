"""The text encoder on a GPU, from a checkpoint's files to states, wherever its weights live."""

from __future__ import annotations

import pytest
import torch

from talkies.codecs.text.presentation import present
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.engine.config import embedded_folder
from talkies.engine.load.place_components import place_text
from talkies.kernels import select
from talkies.kernels.fp8 import E4M3
from talkies.placement.components import Residency
from talkies.placement.quantize import QuantizeConfig

PROMPT = "a red ball bounces slowly on a dark background"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["none", "fp8"])
def test_on_a_gpu_every_residence_gives_the_same_bits(method):
    folder, device = embedded_folder(), torch.device("cuda")
    prompt = present(FolderTokenizer.load(folder / "tokenizer"), PROMPT)
    states = {}
    for where in ("resident", "streamed", "evicted"):
        residency = Residency()
        encoder = place_text(
            folder / "text_encoder",
            residency,
            where,
            dtype=torch.bfloat16,
            device=device,
            ops=select.create("triton"),
            quantize=QuantizeConfig(method=method),
            attention="sdpa",  # fa3 has no kernel for heads of 16 channels
        )
        linear = encoder.model.language_model.layers[0].mlp.up_proj
        assert linear.weight.dtype == (E4M3 if method == "fp8" else torch.bfloat16)
        assert linear.weight.device.type == ("cuda" if where == "resident" else "cpu")
        for _ in range(2):  # it leaves and comes back
            residency.enter("text")
            states.setdefault(where, []).append(encoder.encode(prompt).states.float())
            residency.release()
        residency.close()
    first = states["resident"][0]
    assert first.device.type == "cuda"
    assert all(torch.equal(each, first) for several in states.values() for each in several)
