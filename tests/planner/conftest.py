"""Properties of the planner: the same examples every time."""

import pytest
from hypothesis import settings

from orchestrator.inventory.lab import Lab
from tests.kit.labs import lab_of

settings.register_profile("planner", settings.get_profile("busy"), derandomize=True)
settings.load_profile("planner")


@pytest.fixture(scope="session")
def lab() -> Lab:
    return lab_of("emulated")
