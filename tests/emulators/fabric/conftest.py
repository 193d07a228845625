from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tests.emulators.fabric.emulated import EmulatedLab, write_inventory


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    """A lab of three hosts with two ports each, shared by the module."""
    running = EmulatedLab(write_inventory(tmp_path_factory.mktemp("lab")))
    yield running
    assert running.stop() == 0, running.log.read_text()
