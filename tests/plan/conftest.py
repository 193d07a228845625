"""The lab that most plans are read against."""

from __future__ import annotations

import pytest

from orchestrator.inventory.lab import Lab
from tests.kit.labs import lab_of


@pytest.fixture(scope="session")
def lab() -> Lab:
    return lab_of("emulated")
