"""One engine over two or four GPUs: the clip of one GPU, the same bytes again."""

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


FP8 = {"quantization": "fp8", "offload": "layer"}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("degrees", "options"),
    [
        ({"tensor_parallel": 2}, {}),
        ({"tensor_parallel": 2}, FP8),
        ({"ulysses_degree": 2}, {}),
        ({"ulysses_degree": 2}, FP8),
        ({"ring_degree": 2}, {"attention": "sdpa"}),
        ({"ulysses_degree": 4}, {}),
        ({"ulysses_degree": 2, "tensor_parallel": 2}, {}),
        ({"ulysses_degree": 2, "ring_degree": 2}, {"attention": "sdpa"}),
    ],
    ids=["t2", "t2-fp8-streamed", "u2", "u2-fp8-streamed", "r2", "u4", "u2xt2", "u2xr2"],
)
def test_several_gpus_make_the_clip_of_one(degrees, options):
    config = EngineConfig(device="cuda", **degrees, **options)
    if config.mesh.size > torch.cuda.device_count():
        pytest.skip(f"needs {config.mesh.size} GPUs")
    alone = Engine.open_config(EngineConfig(device="cuda", **options)).generate(REQUEST)
    engine = Engine.open_config(config)
    try:
        clip = engine.generate(REQUEST)
        again = engine.generate(REQUEST)
    finally:
        engine.close()
    assert np.array_equal(again.frames, clip.frames)
    assert np.array_equal(again.audio, clip.audio)
    assert psnr_db(clip.frames, alone.frames) > 35
