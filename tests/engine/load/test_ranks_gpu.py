"""One engine over two GPUs: the clip of one GPU, the same bytes again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talkies import Engine
from talkies.engine.config import EngineConfig
from tests.engine.load.test_ranks import REQUEST, psnr_db

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("options", [{}, {"quantization": "fp8", "offload": "layer"}], ids=["bf16", "fp8-streamed"])
def test_two_gpus_make_the_clip_of_one(options):
    alone = Engine.open_config(EngineConfig(device="cuda", **options)).generate(REQUEST)
    engine = Engine.open_config(EngineConfig(device="cuda", tensor_parallel=2, **options))
    try:
        clip = engine.generate(REQUEST)
        again = engine.generate(REQUEST)
    finally:
        engine.close()
    assert np.array_equal(again.frames, clip.frames)
    assert np.array_equal(again.audio, clip.audio)
    assert psnr_db(clip.frames, alone.frames) > 35
