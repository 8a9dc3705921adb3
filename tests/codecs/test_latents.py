from __future__ import annotations

import pytest
import torch

from talkies.codecs.finite import require_finite
from talkies.codecs.latents import LatentStats
from talkies.errors import CheckpointError, NumericsError


@pytest.mark.parametrize("shape", [(1, 3, 2, 5, 7), (2, 3, 9)])
def test_normalizing_subtracts_the_mean_and_divides(shape):
    stats = LatentStats(mean=(0.5, -1.0, 0.0), std=(2.0, 0.5, 1.0))
    z = torch.randn(shape)
    normalized = stats.normalize(z)
    assert normalized.dtype == torch.float32
    torch.testing.assert_close(normalized[:, 0], (z[:, 0] - 0.5) / 2)
    torch.testing.assert_close(stats.denormalize(normalized), z)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"latents_mean": [0.0], "latents_std": [1.0, 1.0]},
        {"latents_mean": [0.0, 0.0], "latents_std": [1.0, 0.0]},
        {"latents_mean": None, "latents_std": None},
    ],
)
def test_statistics_that_do_not_fit_are_refused(config):
    with pytest.raises(CheckpointError, match="vae/config"):
        LatentStats.of_config(config, 2, "vae/config.json")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_stage_that_is_not_finite_is_named(bad, dtype):
    x = torch.zeros(3, 1009, dtype=dtype)
    assert require_finite(x, "video decode") is x
    x[1, 500] = bad
    with pytest.raises(NumericsError, match="video decode"):
        require_finite(x, "video decode")
