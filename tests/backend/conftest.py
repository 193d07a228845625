"""The crew: four ranks for the cases of all modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.crew import Crew


@pytest.fixture(scope="package")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Four ranks whose default group is the back-end `testbed`."""
    made = Crew(tmp_path_factory.mktemp("crew"))
    yield made
    made.stop()
