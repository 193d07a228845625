"""What the store has of a plan that is up is read as it was written, and refused where this version
does not know it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from optics import (
    CrossConnect,
    FrequencySlot,
    HostPort,
    Link,
    LinkKind,
    Port,
    SpectralRoute,
    StoreFailed,
)
from orchestrator.fabric.up_state import SlotsMade, UpState

LINKS = (
    Link(HostPort("gpu01", 1), HostPort("gpu02", 2)),
    Link(HostPort("gpu02", 1), HostPort("gpu03", 1), LinkKind.SIMPLEX),
)
PATH = (
    CrossConnect(Port("ocs1", "1"), Port("ocs1", "17")),
    SpectralRoute(Port("wss1", "in"), Port("wss1", "3"), FrequencySlot.flexgrid(-280, 4)),
)


def stored(up: UpState) -> Any:
    return json.loads(json.dumps(up.to_json()))


@pytest.mark.parametrize(
    "up", [UpState(), UpState(LINKS), UpState(LINKS, (PATH,), "f00d", SlotsMade(2, (0, 2)))]
)
def test_what_is_up_is_read_as_it_was_written(up: UpState) -> None:
    assert UpState.of_json(stored(up)) == up


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"links": 3, "paths": [], "slots": None},
        {"links": [], "paths": [], "slots": {}},
        {"links": [[1]]},
    ],
)
def test_what_this_version_did_not_write_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(
        StoreFailed, match=r"the store has a .* (that this version cannot read|whose fields)"
    ):
        UpState.of_json(data)


@pytest.mark.parametrize("slots", [False, True])
def test_a_field_that_nobody_knows_is_refused_by_name(slots: bool) -> None:
    data = stored(UpState(slots=SlotsMade(0, (0,))))
    (data["slots"] if slots else data)["generation"] = 1
    with pytest.raises(StoreFailed, match="whose fields are not those of this version: generation"):
        UpState.of_json(data)
