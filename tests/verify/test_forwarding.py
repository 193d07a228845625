"""Which pairs of hosts are asked for their hops in a lab that is too large for all, and that it is
said.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from optics import HostName, HostPort, Link
from optics.plan import Plan
from orchestrator.hosts import Hello, Hosts, Probe
from orchestrator.settings import Bounds
from orchestrator.verify.forwarding import Asked, check_forwarding, drawn, pairs_of
from orchestrator.verify.ladder import Ladder
from orchestrator.verify.level import check_level
from orchestrator.verify.report import PairSample, VerifyReport
from tests.hosts.parts import OwnParts
from tests.properties.labs import lab

NAMES = [f"gpu{n:02d}" for n in range(1, 21)]
RING = tuple(
    Link(HostPort(a, 1), HostPort(b, 2)) for a, b in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)
)
ALL = list(permutations(NAMES, 2))
PLAN = Plan(name="ring", links=(), sha256="ab12cd34" * 8)


DRAWN = [("gpu17", "gpu08"), ("gpu18", "gpu06"), ("gpu19", "gpu15"), ("gpu20", "gpu08")]


class Answering(OwnParts):
    """Hosts that answer at the planned hops of the ring, but for `wrong`."""

    def __init__(self, *wrong: tuple[HostName, HostName]) -> None:
        self.wrong, self.asked = wrong, Counter[tuple[HostName, HostName]]()

    async def probe(
        self, targets: Mapping[HostName, Mapping[str, int]], timeout_s: float
    ) -> dict[HostName, dict[str, Probe]]:
        by_address = {
            host.lane_address(lane): name
            for name, host in lab(20).hosts.items()
            for lane in range(4)
        }
        self.asked.update(
            (source, by_address[a]) for source, wanted in targets.items() for a in wanted
        )
        return {
            source: {
                a: Probe(source, a, (source, by_address[a]) not in self.wrong, hops)
                for a, hops in wanted.items()
            }
            for source, wanted in targets.items()
        }


@given(st.integers(1, 400), st.text(max_size=5))
def test_all_pairs_that_a_link_joins_are_drawn_and_as_many_others_from_each_host(
    most: int, seed: str
) -> None:
    found = set(drawn(ALL, RING, Asked(most, seed)))
    joined = {(a, b) for a, b in ALL if {a, b} in [{link.a.host, link.b.host} for link in RING]}
    assert joined <= found <= set(ALL) and len(found) == min(len(ALL), max(most, len(joined)))
    of_each = Counter(source for source, _ in found)
    assert max(of_each.values()) - min(of_each.values()) <= 1
    assert found == set(drawn(ALL[::-1], RING[::-1], Asked(most, seed)))


def test_another_seed_draws_other_pairs_and_a_small_lab_or_no_number_draws_all() -> None:
    assert set(drawn(ALL, RING, Asked(100, "a"))) != set(drawn(ALL, RING, Asked(100, "b")))
    assert drawn(ALL, RING, Asked()) is ALL and drawn(ALL, RING, Asked(380, "a")) is ALL


def test_a_draw_is_the_same_on_every_machine() -> None:
    joined = {(a, b) for link in RING for a, b in permutations((link.a.host, link.b.host))}
    found = sorted(set(drawn(ALL, RING, Asked(44, "ab12cd34-7"))) - joined)
    assert found == DRAWN


def test_what_was_not_asked_is_said_in_words_and_in_figures() -> None:
    hosts = Answering()
    asked = Asked(100, "ab12cd34-7")
    found = asyncio.run(
        check_level(
            "forwarding",
            lambda: check_forwarding(cast(Hosts, hosts), PLAN, RING, lab(20), (), asked),
        )
    )
    assert (
        found.ok
        and found.detail == "pairs 100/100 of 380 at planned hop counts"
        and pairs_of([found]) == (100, 100, 280)
    )
    assert found.pairs == PairSample(100, 380, "ab12cd34-7")
    assert found.notes == (
        "280 of 380 pairs of hosts were not asked (drawn by seed ab12cd34-7); all: testbed verify --pairs all",
    )
    assert set(hosts.asked) == set(drawn(ALL, RING, asked)) and set(hosts.asked.values()) == {4}, (
        "on every lane"
    )
    assert VerifyReport("l", "p", (found,)).to_json()["levels"][0]["pairs"] == {
        "asked": 100,
        "of": 380,
        "seed": "ab12cd34-7",
    }  # type: ignore[call-overload,index]


def test_all_pairs_are_asked_and_nothing_is_said_where_there_is_no_number() -> None:
    found = asyncio.run(check_forwarding(cast(Hosts, Answering()), PLAN, RING, lab(20)))
    assert (
        found.ok
        and found.detail == "pairs 380/380 at planned hop counts"
        and found.pairs is None
        and not found.notes
    )


def test_a_pair_that_a_link_joins_and_that_does_not_answer_fails_whatever_is_drawn() -> None:
    hosts = Answering(("gpu07", "gpu08"))
    found = asyncio.run(
        check_forwarding(cast(Hosts, hosts), PLAN, RING, lab(20), ("gpu01",), Asked(1, "x"))
    )
    assert not found.ok and found.detail == "pairs 37/40 of 380 at planned hop counts"
    assert [line for line in found.evidence if line.startswith("gpu07->gpu08: lane 0 (10.255.0.8)")]


def test_the_ladder_asks_as_the_settings_say_and_draws_by_plan_and_generation() -> None:
    hosts = Answering()
    session: Any = SimpleNamespace(hosts=hosts, lab=lab(20), bounds=Bounds(pairs=50))
    hellos = {name: Hello(name, True, active=7) for name in NAMES} | {
        "gpu99": Hello("gpu99", True, active=8)
    }
    (found,) = asyncio.run(Ladder(session, PLAN, RING, (), {}, hellos).run_levels(["forwarding"]))
    assert found.pairs == PairSample(50, 380, "ab12cd34-7") and len(hosts.asked) == 50
