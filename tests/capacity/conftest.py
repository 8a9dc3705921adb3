"""Components that several tests of this room share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from talkies import Engine


@pytest.fixture(scope="session")
def tiny_ref_components(tiny_folder):
    """The checkpoint of random weights, its one DiT serving references as well: only sizes matter here."""
    c = Engine.open(tiny_folder, threads=1).components
    c.limits = replace(c.limits, tasks=("t2va", "fl2va", "ref2va"))
    for by_partition in (c.dits, c.readers, c.runners):
        by_partition["ref2va"] = by_partition["fl2va"]
    return c
