"""The best of all ways to run a workload: what is a candidate, what is none and why, and that what
a lab has not appears in no plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optics import BadFile, HostPort, Infeasible
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.capabilities import Line, Lines, capabilities
from orchestrator.plan.design.match import Candidate, Match, match
from orchestrator.plan.design.wavelengths import METHOD
from orchestrator.plan.design.workload import read_text
from orchestrator.plan.reader import read_plan
from orchestrator.queue.onlab import designed
from orchestrator.session import load_lab
from orchestrator.verbs.design_files import read_prices
from planner.predict.services import added_s, lookups, tcp_mbps
from tests.house.repository import ROOT
from tests.kit.labs import lab_of

SUMS = {"collectives": [{"id": "all", "bytes": 5_292_072}]}
TRAIN = {"train": {"model": "mlp"}}
REQUESTS = {"requests": {"count": 100, "keys": 10_000, "bytes": 256, "lookup_ms": 1.0}}


def text(ranks: int, needs: Mapping[str, Any] | None = None, **content: Any) -> str:
    head = {"schema": "testbed.workload/1", "name": "w", "ranks": ranks}
    return json.dumps({**head, **(content or SUMS), **({"needs": needs} if needs else {})})


def whole(lab: Lab) -> list[str]:
    return [name for name, host in lab.hosts.items() if host.partition is None]


def matched(lab: Lab, needs: Mapping[str, Any] | None = None, **more: Any) -> Match:
    lines = more.pop("lines", None)
    count = more.pop("ranks", len(whole(lab)))
    read = read_text(text(count, needs, **more), "w.yaml")
    return match(read, lab, lines=lines, prices=read_prices())


def named(found: Match, method: str, **more: str) -> Candidate:
    return next(
        one
        for one in found.candidates
        if one.method == method and all(getattr(one, key) == value for key, value in more.items())
    )


def lossy(lab: Lab, loss: float = 0.01) -> dict[HostPort, Line]:
    ports = [port for one in lab.segments.values() for port in one.ports.values()]
    return {port: Line(0.0, 0.015, loss) for port in (*lab.fibres, *ports)}


@pytest.fixture(scope="module")
def packet() -> Lab:
    return lab_of("emulated-packet")


def test_the_fastest_is_chosen_and_what_cannot_be_is_kept_with_the_reason(packet: Lab) -> None:
    found = matched(packet)
    times = [one.seconds for one in found.able]
    assert times == sorted(times) and len(times) > 5  # type: ignore[type-var]
    assert "no light of this lab goes on from host to host" in named(found, METHOD).refused
    assert all(one.refused and not one.content for one in found.candidates[len(times) :])
    plan = read_plan(found.best.text, "plan.json", packet)
    assert plan.job is not None and plan.job.predicted["iteration_ms"] == pytest.approx(
        found.best.seconds * 1e3,
        abs=1e-2,  # type: ignore[operator]
    )
    assert found.best.name in found.best.content["description"]


def test_a_network_that_takes_more_power_than_allowed_is_no_choice_though_it_is_faster(
    packet: Lab,
) -> None:
    """A ring of four hosts with two ports each: 8 transceivers and 8 ports of optical switches;
    four ports of a packet switch: 8 transceivers and 4 ports."""
    found = matched(packet)
    assert named(found, "ring").watts == pytest.approx(8 * 3.5 + 8 * 0.3)
    assert named(found, "electrical over ideal").watts == pytest.approx(8 * 3.5 + 4 * 10)
    [light, packets] = (one.watts for one in (found.best, named(found, "electrical over ideal")))
    faster = matched(packet, {"watts": packets}, compute_s=0.1).best
    slower = matched(packet, {"watts": light}, compute_s=0.1).best
    assert not faster.unmet and not slower.unmet and slower.watts <= light  # type: ignore[operator]
    unmet = named(matched(packet, {"watts": 40.0}), "electrical over ideal").unmet
    assert unmet == {"watts": "its network takes 68 W, 40 W are allowed"}
    assert matched(packet, {"watts": 1.0}).best.unmet.keys() == {"watts"}


def test_a_training_may_have_a_switch_add_and_goes_round_rings_else(packet: Lab) -> None:
    found = matched(packet, TRAIN)
    one = named(found, "electrical over ideal", function="aggregate of ideal")
    assert one.content["job"]["args"]["exchange"] == "aggregate"
    assert one.content["segments"][0]["functions"] == ["aggregate"]
    # 5.3 MB and headers once through the half of a port of 40 Mb/s that the first lane has
    assert one.seconds == pytest.approx(5_292_072 * (1 + 74 / 8192) * 8 / 20e6)
    rings = named(found, "topoopt").content["job"]["rings"]
    assert rings and all(len(order) == 4 for order in rings)
    assert "no prediction" in named(found, "periodic").refused
    with pytest.raises(Infeasible, match="this workload has other traffic"):
        matched(packet, TRAIN, transfers=[{"among": "all", "bytes": 5}])


def test_over_packet_switches_a_lane_has_the_share_of_its_partition(packet: Lab) -> None:
    """Also where a plan uses hosts whole: their agents hold partitions that are idle to it, too."""
    quarter = {
        name: replace(
            host,
            partitions={
                key: replace(part, share=0.25 if 1 in part.lanes else 0.5)
                for key, part in host.partitions.items()
            },
        )
        for name, host in packet.hosts.items()
    }
    sums = 2 * 3 / 4 * 5_292_072 * 8  # bits that each rank sends, half of them on either lane
    for lab, mbps in ((packet, 40e6), (replace(packet, hosts=quarter), 20e6)):
        found = named(matched(lab), "electrical over ideal")
        assert found.seconds == pytest.approx(sums / mbps, rel=0.01)  # and headers


def test_a_training_whose_layers_describe_another_model_is_refused(packet: Lab) -> None:
    """It would be predicted, and the best chosen, by sums that its job does not make."""
    with pytest.raises(Infeasible, match="mlp has 1323018 parameters, 5292072 bytes to sum; this"):
        matched(packet, TRAIN, collectives=[{"id": "all", "bytes": 10_000_000}])
    layers = [{"kind": "dense", "parameters": 21_258}]
    assert matched(packet, {"train": {"model": "mlp", "hidden": 64}}, layers=layers).able
    with pytest.raises(Infeasible, match=r"needs\.train\.model: gpt: no such model"):
        matched(packet, {"train": {"model": "gpt"}})


def test_a_switch_that_keeps_values_relieves_the_busiest_owner(packet: Lab) -> None:
    found = matched(packet, REQUESTS, compute_s=0.001)
    without, kept = (
        named(found, "electrical over ideal", function=f) for f in ("", "cache of ideal")
    )
    assert found.best.function and kept.seconds < without.seconds  # type: ignore[operator]
    assert kept.content["job"]["workload"] == "retrieve"
    larger = {"requests": {**REQUESTS["requests"], "bytes": 2048}}
    refused = named(
        matched(packet, larger, compute_s=0.001), "electrical over ideal", function="cache of ideal"
    )
    assert refused.refused == "ideal keeps no values of 2048 bytes"


def test_datagrams_are_for_trainings_that_bear_losses_over_lines_that_lose(packet: Lab) -> None:
    needs = {**TRAIN, "loss": 0.02}
    found = matched(packet, needs, lines=lossy(packet))
    tcp, datagrams = (named(found, "ring", transport=t) for t in ("tcp", "datagrams"))
    assert datagrams.seconds < tcp.seconds  # type: ignore[operator]
    args = datagrams.content["job"]["args"]
    assert (args["exchange"], args["loss_bound"]) == ("datagrams", 0.02)
    for wanted, lines in ((TRAIN, lossy(packet)), (needs, {}), (needs, lossy(packet, 0.0))):
        found = matched(packet, wanted, lines=lines)
        assert {one.transport for one in found.candidates} == {"tcp"}


def test_clauses_that_nothing_meets_are_named_and_the_rest_decides(packet: Lab) -> None:
    found = matched(packet, {"deadline_ms": 0.001})
    assert set(found.best.unmet) == {"deadline_ms"} and found.meets("deadline_ms") is None
    assert "not met: deadline_ms" in found.best.content["description"]
    found = matched(packet, {"latency_ms": 50.0}, lines=lossy(packet, 0.0))
    assert not found.best.unmet
    turns = [one for one in found.able if one.method == "periodic"]
    assert turns and all("latency_ms" in one.unmet for one in turns)


def test_a_latency_is_not_met_where_no_delay_is_known(packet: Lab) -> None:
    found = matched(packet, {"latency_ms": 1.0})
    assert "is not known" in found.best.unmet["latency_ms"]
    assert not matched(packet, {"latency_ms": 50.0}, lines=lossy(packet, 0.0)).best.unmet


def test_what_jobs_of_a_queue_would_share_is_left_out(packet: Lab) -> None:
    read = read_text(text(len(whole(packet)), TRAIN), "w.yaml")
    assert any(one.function for one in match(read, packet).candidates)
    assert not any(one.function for one in match(read, packet, shared=False).candidates)


def test_a_training_computes_as_long_as_its_workload_says(packet: Lab) -> None:
    found = matched(packet, TRAIN, compute_s=0.25, **SUMS)
    args, shown = found.best.content["job"]["args"], found.best.content["predicted"]
    assert args["compute_ms"] == shown["compute_ms"] > 0


def test_checkpoints_need_storage_that_keeps_pace(packet: Lab) -> None:
    needs = {**TRAIN, "checkpoints": {"bytes": 10**6, "every": 10}}
    assert "testbed_storage_mbps" in matched(packet, needs).best.unmet["checkpoints"]
    for mbps, met in ((1000.0, True), (0.05, False)):
        hosts = {name: replace(host, storage_mbps=mbps) for name, host in packet.hosts.items()}
        found = matched(replace(packet, hosts=hosts), needs)
        assert (not found.best.unmet) is met
        assert found.best.content["job"]["args"]["checkpoint_every"] == 10


def test_wavelengths_are_used_where_a_ring_of_them_is() -> None:
    ring = load_lab(ROOT / "inventory" / "emulated-ring")
    assert named(matched(ring), METHOD).seconds is not None
    with pytest.raises(Infeasible, match="no method can place"):
        matched(replace(ring, trunks=()))


PARTS = ("ideal", "oversubscribed", "aggregate", "cache", "ocs1", "ocs2", "lines")


def less(lab: Lab, away: set[str]) -> tuple[Lab, Lines]:
    """The lab, and its lines, without these capabilities."""
    fibres = {port: fibre for port, fibre in lab.fibres.items() if fibre.device not in away}
    segments = {
        name: replace(
            one, functions={f: much for f, much in one.functions.items() if f not in away}
        )
        for name, one in lab.segments.items()
        if name not in away
    }
    left = replace(lab, fibres=fibres, segments=segments)
    return left, {} if "lines" in away else lossy(left)


@settings(max_examples=15)
@given(
    st.sets(st.sampled_from(PARTS), min_size=1, max_size=5),
    st.sampled_from(({}, {**TRAIN, "loss": 0.02}, REQUESTS)),
)
def test_a_capability_taken_away_appears_in_no_plan(away: set[str], needs: Any) -> None:
    lab, lines = less(lab_of("emulated-packet"), away)
    try:
        found = matched(
            lab, needs, lines=lines, **({"compute_s": 0.01} if needs is REQUESTS else {})
        )
    except Infeasible:
        assert {"ideal", "oversubscribed"} <= away or not lab.fibres
        return
    for one in found.able:
        read_plan(one.text, "plan.json", lab)  # refuses what the lab has not
        used = json.dumps([one.content.get("segments", []), one.content["job"]["args"]])
        assert not [part for part in away if f'"{part}"' in used], one.name
        assert one.transport == "tcp" or lines
    known = capabilities(lab, whole(lab), lines)
    assert {one.name for one in known.switches} == {*lab.segments}
    assert known.lines == len(lines)
    assert {int(port[1:]) for port in known.turns} == {port.number for port in lab.fibres}


def test_needs_that_contradict_each_other_are_refused_at_their_place() -> None:
    given = "schema: testbed.workload/1\nname: w\nranks: 4\nneeds:\n  loss: 0.1\n"
    with pytest.raises(BadFile, match=r"w\.yaml:5:3: needs: loss: only a training has it"):
        read_text(given, "w.yaml")
    with pytest.raises(BadFile, match="two jobs"):
        read_text(text(4, {**TRAIN, **REQUESTS}), "w.yaml")


def test_the_queue_designs_by_the_best_that_has_no_slots(packet: Lab) -> None:
    hosts = tuple(whole(packet))
    plan = json.loads(designed(packet, text(4), "match", hosts, 7, "w-3"))
    assert plan["name"] == plan["job"]["name"] == "w-3" and "schedule" not in plan
    assert plan["job"]["args"]["iterations"] == 7
    for needs, why in (
        ({"deadline_ms": 0.001}, "needs.deadline_ms: an iteration"),
        (TRAIN, "needs.train"),
    ):
        with pytest.raises(Infeasible, match=why):
            designed(packet, text(4, needs), "match", hosts, 7, "w-3")


def test_formulas_of_lines_and_functions_are_those_worked_by_hand() -> None:
    assert tcp_mbps(1000.0, 0.015, 0.0) == 1000.0
    assert tcp_mbps(1000.0, 0.0, 0.1) == 900.0 and tcp_mbps(1000.0, 0.0, 1.0) == 0.0
    # 8948 bytes each 30 ms, times the root of 150
    assert tcp_mbps(1000.0, 0.015, 0.01) == pytest.approx(29.22, abs=0.01)
    assert added_s(8192, 8, 1024, 1e6, 0.0) == pytest.approx(0.008192 * (1 + 74 / 1024))
    assert added_s(8192, 8, 1024, 1e9, 0.5) == pytest.approx(1 + 74 / 1024), "8 kB a second"
    assert lookups(100, 2, 4, 0.0) == 100.0
    assert lookups(100, 2, 4, 0.0, cached=1) == 100.0, "the other owner has two"
    assert lookups(100, 2, 4, 0.0, cached=3) == 50.0
