"""Designs over packet switches, reckoned against the planner's own model of them."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree

import numpy as np
import pytest

from optics import Infeasible
from optics.plan import Plan
from orchestrator.cli.call import Usage
from orchestrator.cli.design import exported as export
from orchestrator.cli.designtext import text
from orchestrator.cli.shared import write_file
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import PAYLOAD, Design, Read, design
from orchestrator.plan.design.document import document
from orchestrator.plan.design.export import export_design
from orchestrator.plan.design.placement import shared
from orchestrator.plan.reader import read_plan
from planner.model.demand import Demand, Group
from planner.model.shape import Lab as PlannerLab
from planner.model.workload import Workload
from planner.predict.relays import CHUNK
from planner.topology import methods
from planner.topology.railonly import Rails
from tests.disk import room_for
from tests.kit.command_line import typed
from tests.kit.labs import lab_of
from tests.oracles.electrical import Electrical, oversubscribed
from tests.planner.formats.test_other_simulators import reached, simulated
from tests.properties.switches import switched_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return switched_lab(tmp_path_factory.mktemp("switches"))


def demand_of(mp: list[tuple[int, int, float]], groups: tuple[Group, ...]) -> Demand:
    matrix = np.zeros((6, 6))
    for src, dst, size in mp:
        matrix[src, dst] = size
    return Demand(6, groups, matrix, 0.001)


@pytest.mark.parametrize(
    ("method", "gbps"), [("ideal", 75), ("fat-tree", 37.5), ("oversubscribed", 50)]
)
def test_a_design_over_switches_is_reckoned_as_the_planner_reckons_them(
    lab: Lab, method: str, gbps: float
) -> None:
    pairs = [(a, b, 1e6 * (1 + (3 * a + b) % 5)) for a, b in permutations(range(6), 2)]
    given = demand_of(pairs, (Group("all", (0, 1, 2, 3, 4, 5), 50_000_000),))
    read = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}),
        given,
        "",
    )
    found = design(read, lab, methods.Wanted(method))
    rate = read.workload.rate_gbps * PAYLOAD * gbps / 25
    whole = PlannerLab(6, 1, rate)
    model = (
        oversubscribed(whole, 4, 3)
        if method == "oversubscribed"
        else Electrical(method, whole.port_bytes_per_s)
    )
    assert found.own.iteration_s == pytest.approx(model.iteration_s(given), rel=1e-6)
    plan = read_plan(json.dumps(document(found)), "plan.json", lab)
    assert plan.segments == (method,) and len(plan.links) == 15 and plan.job is not None
    assert all(
        t.dst != t.src for t in plan.job.traffic.transfers
    ) and found.own.tax == pytest.approx(1)  # type: ignore[union-attr]


def test_domains_and_rails_are_a_topology_of_two_stages(lab: Lab) -> None:
    given = demand_of([(0, 3, 1e6)], ())
    read = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}),
        given,
        "",
    )
    found = design(read, lab, methods.Wanted("electrical", segments=("domain*", "rail*")))
    assert found.shape.diameter == 2 and found.own.hops == pytest.approx(2)
    rates = {t.path[0].speed for t in found.transfers}  # type: ignore[attr-defined]
    assert rates <= {8.0, 1.0}


def across(size: float) -> Read:
    """Bytes from each rank to those on the other rail in the other domains."""
    pairs = [(a, b, size) for a, b in permutations(range(6), 2) if a // 2 != b // 2 and (a + b) % 2]
    workload = {"schema": "testbed.workload/1", "name": "w", "ranks": 6}
    return Read(Workload.model_validate(workload), demand_of(pairs, ()), "")


def test_a_rank_of_the_domain_passes_on_what_changes_rails_for_the_published_price(
    lab: Lab,
) -> None:
    size, took = 10_000_000, {}
    for relay in ("chunks", "whole"):
        wanted = methods.Wanted("electrical", segments=("domain*", "rail*"), relay=relay, scale=1.0)
        found = design(across(size), lab, wanted)
        body = document(found, relay)
        sent = body["job"]["traffic"]["transfers"]
        assert len(sent) == 12 and {t["bytes"] for t in sent} == {size}
        number = {host: rank for rank, host in enumerate(found.hosts)}
        for t in sent:
            path = (number[t["src"]], number[t["via"]], number[t["dst"]])
            assert path == Rails(6, 2, 160, 20).path(path[0], path[2])
        assert body["job"]["args"]["relay"] == relay and read_plan(json.dumps(body), "p", lab).job
        took[relay] = found.here.transfers_s * 20e6 / 8 * PAYLOAD / (2 * size)
    assert took["whole"] == pytest.approx(1 + 20 / 160)
    assert took["chunks"] == pytest.approx(1 + CHUNK / size * 20 / 160)


def test_a_transfer_that_no_rank_can_pass_on_is_refused(lab: Lab) -> None:
    hosts = ("gpu01", "gpu02", "gpu03", "gpu04")
    matrix = np.zeros((4, 4))
    matrix[1, 3] = 8
    given = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 4}),
        Demand(4, (), matrix, 0.0),
        "",
    )
    wanted = methods.Wanted(
        "electrical", hosts=hosts, segments=("domain1", "domain2", "rail1"), relay="chunks"
    )
    with pytest.raises(Infeasible, match="no rank has a link from rank 1 and one to rank 3"):
        design(given, lab, wanted)


@pytest.mark.parametrize(
    ("method", "segments", "message"),
    [
        ("ideal", ("oversubscribed",), "is not ideal: that is a packet switch without racks"),
        ("ideal", ("nonesuch",), "segment nonesuch is not in the lab (8 segments"),
        ("electrical", (), "no packet switch is named"),
        ("electrical", ("rail1",), "rail1 does not join gpu01 and gpu02"),
        ("electrical", ("rail*",), "rail1, rail2 do not join gpu01 and gpu02, gpu04, gpu06"),
    ],
)
def test_a_switch_that_is_not_what_is_wanted_is_refused(
    lab: Lab, method: str, segments: tuple[str, ...], message: str
) -> None:
    read = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}),
        demand_of([(0, 1, 1e6)], ()),
        "",
    )
    with pytest.raises(Infeasible) as refused:
        design(read, lab, methods.Wanted(method, segments=segments))
    assert message in str(refused.value) and refused.value.hint
    if "not join" in message:
        assert "name further segments: " in refused.value.hint and "domain1" in refused.value.hint


def test_a_lab_without_packet_switches_is_told_how_to_get_one() -> None:
    given = {"schema": "testbed.workload/1", "name": "w", "ranks": 6}
    with pytest.raises(Infeasible, match="the lab has no packet switches") as refused:
        design(
            Read(Workload.model_validate(given), demand_of([(0, 1, 1e6)], ()), ""),
            lab_of("emulated"),
            methods.Wanted("electrical"),
        )
    assert "python -m emulators.generate --electrical ideal" in refused.value.hint


def over(lab: Lab, method: str, *segments: str, hosts: tuple[str, ...] = ()) -> Design:
    read = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}),
        demand_of([(0, 5, 1e6)], (Group("all", (0, 1, 2, 3, 4, 5), 6_000_000),)),
        "",
    )
    return design(read, lab, methods.Wanted(method, segments=segments, hosts=hosts))


@pytest.mark.parametrize(("method", "gbs"), [("ideal", "9.375"), ("fat-tree", "4.6875")])
def test_one_packet_switch_is_a_switch_to_astra(
    lab: Lab, method: str, gbs: str, tmp_path: Path
) -> None:
    written, refused = export(over(lab, method), lab, tmp_path)
    assert (tmp_path / "astra-network.yml").read_text().splitlines()[:3] == [
        "topology: [ Switch ]", "npus_count: [ 6 ]", f"bandwidth: [ {gbs} ]",
    ]  # fmt: skip
    assert "ring-groups.json" in written and [line.partition(":")[0] for line in refused] == [
        "nccl",
        "taskgraph",
    ]


def test_what_a_tool_does_not_know_of_packet_switches_is_refused_and_not_drawn_as_links(
    lab: Lab, tmp_path: Path
) -> None:
    for found, message in (
        (over(lab, "oversubscribed"), "cannot describe uplinks that several hosts share"),
        (over(lab, "electrical", "domain*", "rail*"), "cannot describe 5 parallel packet switches"),
    ):
        written, refused = export(found, lab, tmp_path / found.wanted.method)
        assert any(line.startswith("astra-sim: ") and message in line for line in refused)
        assert any(
            line.startswith("taskgraph: ") and "no packet switches" in line for line in refused
        )
        assert sorted(path.name for path in (tmp_path / found.wanted.method).iterdir()) == sorted(
            written
        )
        assert not {"astra-network.yml", "taskgraph.fbuf"} & set(written)


@pytest.mark.parametrize(
    ("method", "segments", "boxes", "leaves", "links"),
    [
        ("ideal", (), 1, 1, 6),
        ("oversubscribed", (), 3, 2, 6 + 2),
        ("electrical", ("domain*", "rail*"), 5, 5, 12),
    ],
)
def test_packet_switches_are_switches_to_ns_3(
    lab: Lab, method: str, segments: tuple[str, ...], boxes: int, leaves: int, links: int
) -> None:
    files, _ = export_design(over(lab, method, *segments), lab)
    _, found, rates = simulated(str(files["simai-topology.txt"]))
    assert len(found) == 6 + boxes and len(rates) == 6 + links, "and a switch in each host"
    assert len({end for host, end in rates if 6 <= host < 12}) == leaves
    assert all(set(range(6)) <= reached(host, found, rates) for host in range(6))


@pytest.mark.parametrize(
    ("method", "segments", "boxes", "cables"),
    [
        ("ideal", (), 1, 6),
        ("oversubscribed", (), 3, 6 + 2),
        ("electrical", ("domain*", "rail*"), 5, 12),
    ],
)
def test_drawings_of_packet_switches_show_boxes_and_every_cable(
    lab: Lab, method: str, segments: tuple[str, ...], boxes: int, cables: int, tmp_path: Path
) -> None:
    found = over(lab, method, *segments)
    export(found, lab, tmp_path)
    dot = (tmp_path / "topology.dot").read_text()
    assert (dot.count("shape=box"), dot.count(" -- ")) == (boxes, cables) and "pair" not in dot
    root = ElementTree.fromstring((tmp_path / "picture.svg").read_text())
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    message = " ".join(element.text or "" for element in root.iter())
    assert (
        "path" not in tags
        and "bytes on links" not in message
        and "links" not in message
        and "matched" not in message
    )
    drawn = [element for element in root.iter() if element.get("stroke-width") in ("1.6", "3.2")]
    assert (
        len([e for e in drawn if e.tag.endswith("rect")]) == boxes
        and len([e for e in drawn if e.tag.endswith("line")]) == cables
    )
    spots = [(float(e.get("x", 0)), float(e.get("y", 0))) for e in drawn if e.tag.endswith("rect")]
    assert len(set(spots)) == boxes, "no box hides another"


def test_rates_are_those_of_the_ports_of_packet_switches_the_slowest_first(lab: Lab) -> None:
    found = over(lab, "electrical", "domain*", "rail*")
    rates = [lab.segments[name].link_mbps for name, _ in found.found.segments]
    output = text(found, "x", routing=(), predict=True, ports_mbps=rates)
    assert (
        "on ports of 25 to 200 Gb/s" in output
        and "\n  20 to 160 Mb/s  " in output
        and "links" not in output
    )


def plan_of(found: Design, lab: Lab) -> Plan:
    return read_plan(json.dumps(document(found)), "plan.json", lab)


def test_plans_beside_one_another_share_uplinks_that_carry_less_than_hosts_send(lab: Lab) -> None:
    across, within = ("gpu01", "gpu04"), ("gpu01", "gpu02")
    for method, theirs, mine, notified in (
        ("oversubscribed", across, ("gpu02", "gpu05"), True),
        ("oversubscribed", within, ("gpu03", "gpu04"), False),
        ("oversubscribed", across, ("gpu02", "gpu03"), False),
        ("fat-tree", across, ("gpu02", "gpu05"), False),
        ("ideal", across, ("gpu02", "gpu05"), False),
    ):
        existing = {"x.json": plan_of(two(lab, method, theirs), lab)}
        assert shared(lab, mine, [method], existing) == ([("x.json", method)] if notified else [])
    assert (
        shared(
            lab,
            ("gpu02", "gpu05"),
            ["ideal"],
            {"x.json": plan_of(two(lab, "oversubscribed", across), lab)},
        )
        == []
    )


def two(lab: Lab, method: str, hosts: tuple[str, ...]) -> Design:
    given = Demand(2, (Group("all", (0, 1), 6_000_000),), np.zeros((2, 2)), 0.001)
    read = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 2}),
        given,
        "",
    )
    return design(read, lab, methods.Wanted(method, hosts=hosts))


def test_a_design_beside_a_plan_says_what_they_share_and_names_the_lab_in_what_comes_next(
    tmp_path: Path,
) -> None:
    switched_lab(tmp_path / "my lab")
    (tmp_path / "w.yaml").write_text(
        "{schema: testbed.workload/1, name: w, ranks: 2, compute_s: 0.1, collectives: [{id: a, bytes: 40000}]}"
    )

    def run(*argv: str) -> CompletedProcess[str]:
        given = ("-w", "w.yaml", "-i", "my lab", *argv)
        done = typed("design", "oversubscribed", *given, at=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    first = run("--hosts", "gpu01,gpu04", "-o", "d.json")
    assert "testbed up --inventory 'my lab' --topology d.json" in first.stdout + first.stderr
    assert "uplinks, which" not in first.stderr
    assert (
        "on ports of 50 Gb/s" in first.stdout and "on this lab's ports of 40 Mb/s" in first.stdout
    ), "of 2 x 25 Gb/s and 2 x 20 Mb/s"
    neighbours = ("--hosts", "gpu02,gpu05", "--beside", "d.json", "-o", "e.json")
    assert (
        "d.json also uses oversubscribed; the prediction does not account for its shared uplinks"
        in run(*neighbours).stderr
    )
    reply = json.loads(run(*neighbours, "--json").stdout)
    assert reply["data"]["shared"] == [{"plan": "d.json", "segment": "oversubscribed"}]
    assert reply["hint"].startswith("testbed up --inventory 'my lab' --topology e.json --as ")


def test_a_disk_that_fills_leaves_plans_and_exports_as_they_were(lab: Lab, tmp_path: Path) -> None:
    found, plan = over(lab, "ideal"), tmp_path / "plan.json"
    export(found, lab, tmp_path / "out")
    write_file(plan, "{}")
    existing = {path.name: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with room_for(10):
        with pytest.raises(Usage, match=r"plan\.json"):
            write_file(plan, "x" * 5000)
        with pytest.raises(OSError):
            export(found, lab, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*.*")} == existing
