"""Two GPUs and NCCL: what ``bench.memory.ranks`` checks, at sizes that take seconds."""

from __future__ import annotations

import pytest
import torch

from bench.memory import __main__ as memory
from bench.memory import ranks
from talkies.kernels import select

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(200)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_shards_and_the_shared_copy_agree_with_one_gpu():
    device = torch.device("cuda")
    found = ranks.measure(
        memory.SMOKE_CONFIG, memory.SMOKE_SHAPES[0], device, select.automatic(device), "sdpa", ranks.PARTS, 170.0
    )
    # At this size a launch costs more than a block: nothing is said about speed, or about memory in whole blocks.
    checks = {k: v for k, v in found.items() if k.startswith("check ") and "within" not in k and "host copy" not in k}
    assert len(checks) == 11
    assert all(checks.values()), checks
