"""Rungs of the ladder against labs that are made for them: what a swap looks like, what a window
lets pass, what traffic shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optics import CrossConnect, HostPort, Link, LinkKind, Port
from optics.plan import Acceptance, Job, Plan
from orchestrator.fabric.cabling import Swap, explained, predicted, senders, swaps
from orchestrator.fabric.circuits import circuits, settings
from orchestrator.hosts import Hello, HostEvent, Hosts, JobState, PortState
from orchestrator.inventory.lab import Lab
from orchestrator.verify import collective
from orchestrator.verify.carriers import carriers, speeds
from orchestrator.verify.collective import expected, rings_of, size
from orchestrator.verify.ladder import Background, check_map
from orchestrator.verify.level import Finding, check_level
from orchestrator.verify.losses import judge
from orchestrator.verify.power import measure
from orchestrator.verify.qualification import Direction, batches, compared, directions
from orchestrator.verify.report import LinkQuality
from tests.change.fibrelab import SWITCH, FibrePlant, hosts_yml, joined, read, with_meters
from tests.hosts.parts import OwnParts


def star(hosts: int = 6, ports: int = 2) -> Lab:
    """Port p of every host on switch p: host k enters at k and leaves at 100 + k."""
    fibres = [
        f'name: f{k}{p}, host: gpu{k:02d}, port: {p}, device: ocs{p}, enters: "{k}", leaves: "{100 + k}"'
        for k in range(1, hosts + 1)
        for p in range(1, ports + 1)
    ]
    return read(
        hosts_yml(hosts, ports),
        {f"ocs{p}": with_meters(SWITCH) for p in range(1, ports + 1)},
        fibres,
    )


def port(host: int, number: int = 1) -> HostPort:
    return HostPort(f"gpu{host:02d}", number)


def pairs(*ends: tuple[HostPort, HostPort], kind: LinkKind = LinkKind.DUPLEX) -> list[Link]:
    return [Link(a, b, kind) for a, b in ends]


LAB = star()
PLANNED = senders(
    pairs(
        (port(1), port(2)), (port(3), port(4)), (port(1, 2), port(3, 2)), (port(2, 2), port(5, 2))
    )
)


def heard_after(*done: Swap) -> dict[HostPort, HostPort | None]:
    return predicted(PLANNED, done, LAB.fibres)


def test_two_ports_of_a_host_that_are_swapped_are_named_before_anything_that_looks_alike() -> None:
    done = Swap("both", port(1), port(1, 2))
    (line,) = explained(PLANNED, PLANNED, heard_after(done), LAB)
    assert line.startswith(
        "gpu01:p1 and gpu01:p2 are swapped at ocs1 and ocs2 (fibres f11, f12; the light would look the same if"
    )


def test_a_fibre_in_an_idle_socket_is_told_from_a_swap_of_its_peer() -> None:
    (line,) = explained(PLANNED, PLANNED, heard_after(Swap("both", port(3), port(6))), LAB)
    assert line == "gpu03:p1 and gpu06:p1 are swapped at ocs1 (fibres f31, f61)"


def test_half_a_cable_is_told_from_a_whole_one() -> None:
    (line,) = explained(PLANNED, PLANNED, heard_after(Swap("enters", port(1), port(3))), LAB)
    assert "gpu01:p1 and gpu03:p1 are swapped at ocs1 where their light enters" in line


def test_two_swaps_at_once_are_both_named() -> None:
    lines = explained(
        PLANNED,
        PLANNED,
        heard_after(Swap("both", port(1), port(3)), Swap("both", port(2, 2), port(3, 2))),
        LAB,
    )
    assert (
        len(lines) == 2
        and "gpu01:p1 and gpu03:p1" in lines[0]
        and "gpu02:p2 and gpu03:p2" in lines[1]
    )


def test_who_hears_nobody_is_named_and_a_stranger_s_light_is_told_from_darkness() -> None:
    heard = {**PLANNED, port(2): None}
    assert explained(PLANNED, PLANNED, heard, LAB) == (
        "gpu02:p1: receives nothing; gpu01:p1 is planned",
    )
    assert (
        "no port of this lab sends there" in explained(PLANNED, PLANNED, heard, LAB, [port(2)])[0]
    )


def test_another_cross_connect_is_no_swap() -> None:
    led = {**PLANNED, port(2): port(3), port(4): port(1)}
    lines = explained(PLANNED, led, led, LAB)
    assert len(lines) == 2 and all("another cross-connect leads there" in line for line in lines)


@given(
    st.sampled_from(["both", "enters", "leaves"]),
    st.sampled_from(sorted(LAB.fibres)),
    st.sampled_from(sorted(LAB.fibres)),
)
def test_whatever_two_fibres_are_swapped_what_is_named_explains_all_that_is_heard(
    ends: str, one: HostPort, other: HostPort
) -> None:
    if one == other or (ends != "both" and LAB.fibres[one].device != LAB.fibres[other].device):
        return
    heard = heard_after(Swap(ends, one, other))  # type: ignore[arg-type]
    seen = {r: s for r, s in heard.items() if r in PLANNED or s is not None}
    found = [swap for swap, _ in swaps(PLANNED, seen, LAB)]
    assert predicted(PLANNED, found, seen) == seen


# --- map and light


async def test_the_map_names_what_is_missing_what_stands_there_and_whose_it_is() -> None:
    lab = star()
    wanted = settings(circuits(pairs((port(1), port(2))), lab))
    hers = CrossConnect(Port("ocs1", "1"), Port("ocs1", "104"))
    stray = CrossConnect(Port("ocs2", "5"), Port("ocs2", "106"))
    held = {
        "ocs1": frozenset(
            {*wanted["ocs1"]} - {CrossConnect(Port("ocs1", "1"), Port("ocs1", "102"))}
        )
        | {hers},
        "ocs2": frozenset({stray}),
    }
    around = Background(owned={"ocs2": frozenset({stray})}, whose={hers: "alice (hers, run 7)"})
    found = await check_map(held, wanted, around)
    assert not found.ok and found.detail == "1/2 cross-connects, 1 foreign"
    assert found.evidence == (
        "ocs1: 1->102 is missing; 1->104 is there instead, belongs to alice (hers, run 7)",
        "ocs2: 5->106 is owned and not in the plan",
    )
    assert found.notes == ("ocs1: 1->104 is foreign, belongs to alice (hers, run 7)",)


async def test_a_device_that_was_not_read_is_no_device_that_agrees() -> None:
    wanted = settings(circuits(pairs((port(1), port(2))), star()))
    found = await check_map({}, wanted, Background(silent={"ocs1": "ocs1: connection refused"}))
    assert not found.ok and found.evidence == ("ocs1: ocs1: connection refused",)


async def lost(light: FibrePlant, links: list[Link], **limits: float) -> tuple[str, ...]:
    paths = circuits(links, light.lab)
    for device, held in settings(paths).items():
        light.devices[device].held = held
    return judge(await measure(light.devices, light.lab, paths), light.lab, **limits)[2]


async def test_loss_is_judged_by_sections_so_that_the_part_that_loses_is_named() -> None:
    lab = joined(trunks=2).with_traits(dict.fromkeys(("west", "east"), with_meters(SWITCH)))
    one = pairs((port(1), port(2)), kind=LinkKind.SIMPLEX)
    light = FibrePlant(lab)
    assert await lost(light, one) == ()
    light.extra_db = {Port("east", "801"): 9.0}
    (line,) = await lost(light, one)
    assert "between west:901 and east:801, expected 0.6 +-2.6 dB: trunk we1" in line


async def test_the_plan_may_ask_for_a_narrower_window_and_for_a_loss_that_is_not_exceeded() -> None:
    light = FibrePlant(star())
    one = pairs((port(1), port(2)))
    assert await lost(light, one, window_db=0.01) == ()
    light.lab = light.lab.with_traits(
        {name: replace(with_meters(SWITCH), insertion_loss_db=1.0) for name in light.lab.devices}
    )
    readings_lab, light.lab = light.lab, star()
    paths = circuits(one, readings_lab)
    readings = await measure(light.devices, readings_lab, paths)
    ok, text, evidence = judge(readings, readings_lab, window_db=0.2)
    assert (
        not ok
        and text == "2 outside the loss window of 2 circuits"
        and "loses 1.5 dB" in evidence[0]
    )
    assert judge(readings, readings_lab, max_loss_db=1.0)[0] is True, (
        "within what the meters promise"
    )
    assert judge([replace(r, meter_db=0.1) for r in readings], readings_lab, max_loss_db=1.0)[
        1
    ].startswith("2 outside")


# --- link


class Ears(OwnParts):
    """Hosts that tell their carriers, and later that one came."""

    def __init__(self, up: Mapping[HostPort, bool]) -> None:
        self.up, self.queue = dict(up), asyncio.Queue[HostEvent]()
        self.subscribed = 0

    def subscribe(self) -> asyncio.Queue[HostEvent]:
        self.subscribed += 1
        return self.queue

    def unsubscribe(self, queue: asyncio.Queue[HostEvent]) -> None:
        self.subscribed -= 1

    async def watch_links(self, names: Collection[str] | None = None) -> Mapping[HostPort, bool]:
        return self.up


async def test_a_carrier_that_comes_late_is_heard_of_and_nobody_polls() -> None:
    ears = Ears({port(1): True, port(2): False})
    asyncio.get_running_loop().call_later(
        0.05, ears.queue.put_nowait, HostEvent("gpu02", "link", 0, {"port": 1, "carrier": True})
    )
    assert (await carriers(cast(Hosts, ears), [port(1), port(2)], 5.0))[port(2)]
    assert not ears.subscribed


async def test_a_carrier_that_never_comes_is_waited_for_only_so_long() -> None:
    ears = Ears({port(1): True, port(2): False})
    assert not (await carriers(cast(Hosts, ears), [port(1), port(2)], 0.05))[port(2)]
    assert not ears.subscribed


def test_two_ends_with_different_speeds_are_a_fault_and_silence_about_it_is_none() -> None:
    def hello(host: str, speed: int | None) -> Hello:
        return Hello(
            host, installed=True, ports={1: PortState("opt1", "m", None, True, 1, 9000, speed)}
        )

    link = pairs((port(1), port(2)))
    assert speeds({"gpu01": hello("gpu01", 25000), "gpu02": hello("gpu02", 10000)}, link) == (
        "gpu01:p1 came up with 25000 Mb/s and gpu02:p1 with 10000 Mb/s",
    )
    assert speeds({"gpu01": hello("gpu01", 25000), "gpu02": hello("gpu02", None)}, link) == ()


async def test_a_rung_without_result_in_its_time_fails_with_its_own_code() -> None:
    async def never() -> Finding:
        await asyncio.Event().wait()
        return Finding(True, "")

    found = await check_level("light", never, 0.02)
    assert (found.ok, found.code, found.evidence, found.timeout_s) == (
        False,
        "E-LIGHT",
        ("no result after 0.02 s",),
        0.02,
    )


# --- traffic


def test_links_of_a_batch_share_no_host_port_and_are_no_more_than_allowed() -> None:
    # each port in two links: two simplex rings on one port
    links = pairs(*((port(k), port(k % 6 + 1)) for k in range(1, 7)))
    groups = batches(links, 2)
    assert sorted(map(str, links)) == sorted(str(link) for group in groups for link in group)
    for group in groups:
        ends = [end for link in group for end in (link.a, link.b)]
        assert len(ends) == len(set(ends)) and len(group) <= 2


def measured(links: list[Link], rate: float = 250.0) -> dict[Direction, LinkQuality]:
    return {
        d: LinkQuality(str(d), rate, None, 0.0, 0.9 * rate, 900, 900)
        for link in links
        for d in directions(link)
    }


def test_a_slow_link_a_lossy_one_and_a_dead_one_are_named_and_the_rest_pass() -> None:
    links = pairs(
        (port(1), port(2)), (port(3), port(4)), (port(1, 2), port(3, 2)), (port(2, 2), port(5, 2))
    )
    found = measured(links)
    slow, lossy, dead = (
        Direction(port(1), port(2)),
        Direction(port(4), port(3)),
        Direction(port(3, 2), port(1, 2)),
    )
    found[slow] = replace(found[slow], mbps=100.0)
    found[lossy] = replace(found[lossy], loss=0.03)
    found[dead] = replace(found[dead], mbps=None, loss=None)
    quality = compared(found, 250.0, Acceptance())
    assert quality.evidence == (
        "gpu01:p1->gpu02:p1: 100 Mb/s, 40 % of 250 (at least 80 %)",
        "gpu03:p2->gpu01:p2: nothing arrives",
        "gpu04:p1->gpu03:p1: loses 3 % at 225 Mb/s (at most 0.5 %)",
    )
    assert quality.message.startswith("5/8 directions, slowest 100 of 250 Mb/s")
    assert compared(found, 250.0, Acceptance(min_link_share=0.3, max_link_loss=0.05)).evidence == (
        "gpu03:p2->gpu01:p2: nothing arrives",
    )


def test_a_host_all_of_whose_links_are_slow_is_named_itself() -> None:
    links = pairs(
        (port(1), port(2)), (port(3), port(4)), (port(1, 2), port(3, 2)), (port(2, 2), port(5, 2))
    )
    found = {
        d: replace(q, mbps=60.0) if d.sender.host == "gpu01" else q
        for d, q in measured(links).items()
    }
    assert all(
        line.endswith("as all of gpu01's: check gpu01")
        for line in compared(found, 250.0, Acceptance()).evidence
    )


def job(rings: tuple[tuple[str, ...], ...]) -> Plan:
    return Plan("p", (), Job("j", "allreduce", rings[0], rings))


def test_an_all_reduce_is_expected_at_the_rate_of_the_slowest_hop_of_all_rings_together() -> None:
    lab = star(4)
    hosts = tuple(f"gpu{k:02d}" for k in range(1, 5))
    links = pairs(
        *((port(k, p), port(k % 4 + 1, p)) for k in range(1, 5) for p in (1, 2)),
        kind=LinkKind.SIMPLEX,
    )
    rates: dict[Direction, float | None] = {d: 240.0 for link in links for d in directions(link)}
    two = expected(job((hosts, hosts)), links, lab, (hosts, hosts), rates)
    assert two.busbw_mbps == pytest.approx(60.0)
    rates[Direction(port(2), port(3))] = 80.0
    slow = expected(job((hosts, hosts)), links, lab, (hosts, hosts), rates)
    assert slow.busbw_mbps == pytest.approx(20.0) and slow.slowest == "gpu02:p1->gpu03:p1"
    assert size(two, 4) == 8 << 20
    assert rings_of(Plan("p", ()), links) == (hosts, (hosts,))


class NeverDone(OwnParts):
    """Hosts whose ranks run on."""

    stopped = False

    async def launch(self, job: Job, run: str) -> None:
        pass

    async def states(self, name: str, ranks: Collection[str]) -> Mapping[str, JobState]:
        return {rank: JobState(rank, "running") for rank in ranks}

    async def stop(self, name: str, grace_s: float, ranks: Collection[str]) -> None:
        self.stopped = True


async def test_an_all_reduce_that_does_not_end_is_stopped_and_fails_its_rung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collective, "DEADLINE_S", 0.0)
    lab, links = star(2), pairs((port(1), port(2)))
    rates: dict[Direction, float | None] = {d: 240.0 for link in links for d in directions(link)}
    hosts = NeverDone()

    async def run_levels() -> Finding:
        figures = await collective.all_reduce(
            cast(Hosts, hosts), lab, job((("gpu01", "gpu02"),)), links, rates
        )
        return Finding(True, str(figures))

    found = await check_level("collective", run_levels)
    assert hosts.stopped and found.evidence == (
        "the all-reduce has not ended after 0 s: 2 ranks still run",
    )


def test_rings_that_share_a_hop_share_its_rate() -> None:
    lab = star(4, 1)
    hosts = tuple(f"gpu{k:02d}" for k in range(1, 5))
    links = pairs(*((port(k), port(k % 4 + 1)) for k in range(1, 5)), kind=LinkKind.SIMPLEX)
    rates: dict[Direction, float | None] = {d: 240.0 for link in links for d in directions(link)}
    found = expected(job((hosts, hosts)), links, lab, (hosts, hosts), rates)
    assert found.busbw_mbps == pytest.approx(30.0) and "by 2 rings' steps" in found.slowest
