"""A room has few floors: so many modules at most stand on each other, each importing the one below
it.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.house.repository import ROOT, tracked
from tests.house.test_circles import Graph, graph

FLOORS = {"orchestrator/change": 9}
"""So many at most, by room."""


def floors(modules: Graph) -> dict[str, int]:
    """The floor of each module: 1 if it imports none of the others, else one above the highest that
    it imports.
    """
    found: dict[str, int] = {}
    for name in TopologicalSorter(modules).static_order():
        found[name] = 1 + max((found[each] for each in modules[name]), default=0)
    return found


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_has_few_floors(room: str) -> None:
    found = floors(
        graph(
            ROOT,
            [
                file
                for file in tracked()
                if file.suffix == ".py" and file.is_relative_to(ROOT / room)
            ],
        )
    )
    assert len(found) > 20
    assert max(found.values()) <= FLOORS[room], sorted(found, key=lambda name: -found[name])[
        : FLOORS[room]
    ]


def test_an_import_inside_a_function_adds_a_floor(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    for name, text in {
        "top": "from made.middle import x\n",
        "middle": "from made import ground\n",
        "ground": "",
        "cellar": "",
    }.items():
        (tmp_path / "made" / f"{name}.py").write_text(text)
    files = sorted(tmp_path.rglob("*.py"))
    assert floors(graph(tmp_path, files)) == {
        "made.cellar": 1,
        "made.ground": 1,
        "made.middle": 2,
        "made.top": 3,
    }
    (tmp_path / "made" / "ground.py").write_text("def late():\n    import made.cellar\n")
    assert floors(graph(tmp_path, files)) == {
        "made.cellar": 1,
        "made.ground": 2,
        "made.middle": 3,
        "made.top": 4,
    }
