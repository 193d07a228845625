"""The circuits that a change writes to its journal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from optics import CrossConnect, Port
from orchestrator.change.timeline import _circuit_points


def test_an_ingress_that_got_another_circuit_is_last_seen_with_it() -> None:
    old, new = (CrossConnect(Port("ocs1", "1"), Port("ocs1", to)) for to in ("18", "19"))
    ends = {"transmitter": SimpleNamespace(host="gpu01"), "receiver": SimpleNamespace(host="gpu02")}
    circuit = SimpleNamespace(path=[new], loss_db=1.2, **ends)
    change = SimpleNamespace(made={"ocs1": {new}}, removed={"ocs1": {old}})
    written: list[tuple[str, str]] = []

    def point(_: str, tags: dict[str, str], fields: dict[str, str]) -> None:
        written.append((tags["id"], fields["state"]))

    recorder = SimpleNamespace(journal=SimpleNamespace(point=point))
    _circuit_points(
        cast(Any, recorder), cast(Any, SimpleNamespace(circuits=[circuit], change=change))
    )
    assert written == [("1", "removed"), ("1", "made")]
