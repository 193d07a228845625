"""Three committers in a line: probes, fibre ends, forwarding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agent.space import Peer, Space, facts

pytestmark = pytest.mark.lab


class Line:
    """gpu01:p1 -- p1:gpu02:p2 -- p1:gpu03, routes committed on each."""

    def __init__(self, make: Callable[[str], Space]) -> None:
        self.hosts = [make(f"gpu0{n}") for n in (1, 2, 3)]
        a, b, c = self.hosts
        a.fibre(1, b, 1)
        b.fibre(2, c, 1)
        near = {1: (a.mac("opt1"), b.mac("opt1")), 2: (b.mac("opt2"), c.mac("opt1"))}
        self.peers: list[Peer] = []
        for n, host in enumerate(self.hosts, 1):
            host.agent("install", facts(host.name, n, 2 if n == 2 else 1))
            peer = host.attach()
            peer.ask("watch", links=True)
            self.peers.append(peer)
        self.directions = [
            [(2, "10.1.0.2", "opt1", near[1][1]), (3, "10.1.0.2", "opt1", near[1][1])],
            [(1, "10.1.0.1", "opt1", near[1][0]), (3, "10.1.0.3", "opt2", near[2][1])],
            [(2, "10.2.0.2", "opt1", near[2][0]), (1, "10.2.0.2", "opt1", near[2][0])],
        ]
        for index in range(3):
            self.commit(index)

    def commit(self, index: int) -> None:
        directions = self.directions[index]
        routes = [
            [f"10.255.0.{to}/32", via, dev, f"10.255.0.{index + 1}"]
            for to, via, dev, _ in directions
        ]
        neighbours = [list(x) for x in sorted({(via, mac, dev) for _, via, dev, mac in directions})]
        answer = self.peers[index].ask("stage", generation=1, routes=routes, neighbours=neighbours)
        assert answer["ok"], answer
        assert self.peers[index].ask("commit", generation=1)["ok"]

    def probe(
        self, index: int, *targets: dict[str, Any], timeout_s: float = 0.3
    ) -> list[dict[str, Any]]:
        return list(
            self.peers[index].ask("probe", targets=list(targets), timeout_s=timeout_s)["results"]
        )


@pytest.fixture(scope="module")
def line(spaces: Callable[[str], Space]) -> Iterator[Line]:
    made = Line(spaces)
    yield made
    for peer in made.peers:
        peer.close()


def test_probes_count_the_links_there_and_back_and_name_who_answered(line: Line) -> None:
    near, far = line.probe(
        0, {"address": "10.255.0.2", "hops": 1}, {"address": "10.255.0.3", "hops": 2}
    )
    assert (near["ok"], near["hops"], near["back_hops"], near["host"]) == (True, 1, 1, "gpu02")
    assert (far["ok"], far["hops"], far["back_hops"], far["host"]) == (True, 2, 2, "gpu03")
    assert 0 < near["rtt_us"] < 200_000


def test_a_probe_without_answer_is_a_result_and_a_route_less_one_says_why(line: Line) -> None:
    line.peers[2].ask("clear")  # it hears the question and has no way to answer
    silent, lost, fine = line.probe(
        0,
        {"address": "10.255.0.3"},
        {"address": "10.255.0.77"},
        {"address": "10.255.0.2"},
        timeout_s=0.1,
    )
    assert silent == {"address": "10.255.0.3", "ok": False}
    assert (lost["ok"], lost["error"]) == (False, "Network is unreachable")
    assert fine["ok"]


def test_a_probe_over_too_few_links_is_asked_again_and_then_told(line: Line) -> None:
    [result] = line.probe(0, {"address": "10.255.0.2", "hops": 2}, timeout_s=0.1)
    assert (result["ok"], result["hops"]) == (True, 1)


def test_probes_are_answered_on_lane_addresses_only(line: Line) -> None:
    [result] = line.probe(0, {"address": "10.1.0.1"}, timeout_s=0.05)
    assert result["ok"] is False
    [own] = line.probe(0, {"address": "10.255.0.1"})
    assert own["host"] == "gpu01"


def test_each_fibre_end_is_named_by_the_other_end(line: Line) -> None:
    ports = line.peers[1].ask("neighbours", timeout_s=0.5)["ports"]
    assert ports["1"]["answered"] == ports["1"]["heard"] == {"host": "gpu01", "port": 1}
    assert ports["2"]["answered"] == {"host": "gpu03", "port": 1}


def test_a_dark_port_has_no_neighbour_and_is_not_waited_for(line: Line) -> None:
    line.hosts[2].ip("link", "set", "opt1", "down")
    line.peers[1].event("link")
    ports = line.peers[1].ask("neighbours", ports=[2], timeout_s=3)["ports"]
    line.hosts[2].ip("link", "set", "opt1", "up")
    assert (ports["2"]["carrier"], ports["2"]["answered"]) == (False, None)
