import pytest

from talkies.attention import flash3
from talkies.kernels.select import REFERENCE
from tests.attention.fake_flash3 import FakeFlash3


@pytest.fixture
def fake():
    return FakeFlash3()


@pytest.fixture
def exact(fake):
    return flash3.Flash3(fake)


@pytest.fixture
def fp8(exact):
    return flash3.Flash3Fp8(exact, REFERENCE)
