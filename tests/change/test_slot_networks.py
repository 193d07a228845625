"""What hosts are given of the windows that TCP keeps over a schedule's slots."""

from __future__ import annotations

import pytest

from optics import Circuit, CrossConnect, HostPort, Port
from optics.plan import Plan, Schedule
from orchestrator.services.schedule.goals import SlotGoal, network_requests

HOSTS = ("gpu01", "gpu02", "gpu03")


def duplex(a: str, b: str) -> tuple[Circuit, ...]:
    """Circuits between the ports 1 of two hosts, by settings of their own."""
    ends = HostPort(a, 1), HostPort(b, 1)
    return tuple(
        Circuit(
            one,
            other,
            (CrossConnect(Port("ocs1", f"{one.host}{other.host}"), Port("ocs1", other.host)),),
        )
        for one, other in (ends, ends[::-1])
    )


def goal(*circuits: Circuit) -> SlotGoal:
    return SlotGoal(
        Plan("slot", ()), (), circuits, {"ocs1": frozenset(s for c in circuits for s in c.path)}
    )


ALWAYS = duplex("gpu01", "gpu02")
GOALS = (goal(*ALWAYS), goal(*ALWAYS, *duplex("gpu01", "gpu03")))


def test_hosts_of_a_circuit_that_comes_and_goes_are_told_of_another_network_in_its_slot() -> None:
    found = network_requests(GOALS, (71, 72), Schedule((), 0.2, tcp="per-network"), HOSTS)
    assert found["gpu01"] == {"networks": {"71": 0, "72": 1}, "states": 2} == found["gpu03"]
    assert found["gpu02"] == {"networks": {"71": 0, "72": 0}, "states": 2}


@pytest.mark.parametrize(
    ("tcp", "wanted"),
    [
        ("cubic", {}),
        ("one-window", {"networks": {"71": 0, "72": 1}, "states": 1}),
        ("not-told", {"networks": {}, "states": 2}),
    ],
)
def test_the_arms_to_compare_with_have_one_window_or_hear_nothing(
    tcp: str, wanted: dict[str, object]
) -> None:
    found = network_requests(GOALS, (71, 72), Schedule((), 0.2, tcp=tcp), HOSTS)  # type: ignore[arg-type]
    assert found.get("gpu01", {}) == wanted
