"""Fixtures that several rooms share."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the suite may reach out
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # Threads of several workers that wait for each other on the same cores made some tests sixty times as slow.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))

from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, so before any test module


@pytest.fixture(scope="session")
def tiny_parts():
    """Random-weight modules of every component; see tests/tiny_checkpoint.py."""
    from tests import tiny_checkpoint

    return tiny_checkpoint.components()


@pytest.fixture(scope="session")
def tiny_folder(tiny_parts, tmp_path_factory) -> Path:
    """The same weights as a checkpoint folder in the port layout."""
    from tests import tiny_checkpoint

    return tiny_checkpoint.save(tmp_path_factory.mktemp("tiny-checkpoint"), tiny_parts)


@pytest.fixture(scope="session")
def embedded_engine():
    """The checkpoint inside the package, opened once."""
    from talkies import Engine

    return Engine.open()
