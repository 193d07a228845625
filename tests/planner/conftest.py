"""The lab that most plans are for."""

import pytest

from orchestrator.inventory.lab import Lab
from tests.kit.labs import lab_of


@pytest.fixture(scope="session")
def lab() -> Lab:
    return lab_of("emulated")
