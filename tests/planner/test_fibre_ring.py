"""Designs on a ring of wavelength-selective switches: what ring cables are, no light twice in a
fibre, plans beside others.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulators.devices.families import device_from_config
from optics import HostPort, Infeasible, Link, SpectralRoute
from optics.plan import Plan
from orchestrator.cli.main import run
from orchestrator.fabric.circuits import circuits, settings
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import Design, design
from orchestrator.plan.design.document import document
from orchestrator.plan.design.wavelengths import METHOD, fibre_ring, held_by
from orchestrator.plan.reader import read_plan
from orchestrator.session import load_lab
from orchestrator.verbs.design_files import workload_of
from planner.topology.methods import Wanted
from planner.topology.wavelengths import Span

ROOT = Path(__file__).resolve().parents[2]
ALL = tuple(f"gpu{k:02d}" for k in range(1, 7))


@pytest.fixture(scope="module")
def lab() -> Lab:
    return load_lab(ROOT / "inventory" / "emulated-ring")


def wanted(ranks: int, *groups: tuple[int, ...], **more: Any) -> dict[str, Any]:
    sums = [
        {"id": f"g{k}", "ranks": list(members), "bytes": 1_000_000}
        for k, members in enumerate(groups)
    ]
    return {
        "schema": "testbed.workload/1",
        "name": "w",
        "ranks": ranks,
        "collectives": sums,
        **more,
    }


def made(lab: Lab, workload: dict[str, Any], **options: Any) -> Design:
    return design(workload_of(workload), lab, Wanted(METHOD, **options))


def planned(found: Design, lab: Lab) -> Plan:
    return read_plan(json.dumps(document(found)), "plan.json", lab)


def light(links: tuple[Link, ...], lab: Lab) -> Counter[tuple[str, Any]]:
    """How often each slot is in each fibre between two nodes."""
    passed = [setting for circuit in circuits(links, lab) for setting in circuit.path]
    return Counter(
        (lab.onward[s.egress].name, s.slot)
        for s in passed
        if isinstance(s, SpectralRoute) and s.egress in lab.onward
    )


def test_a_ring_is_read_from_cables_in_any_order_and_with_one_port_for_each_wavelength_and_way(
    lab: Lab,
) -> None:
    ring = fibre_ring(replace(lab, fibres=dict(reversed(lab.fibres.items()))))
    assert ring.hosts == ALL and len(ring.slots) == 2 and len(ring.ports) == 24
    assert ring.ports["gpu03", ring.slots[1], -1] == HostPort("gpu03", 4)
    assert [*ring.light(HostPort("gpu05", 1), HostPort("gpu02", 2))] == [(0, Span(4, 3))] * 2
    assert [*ring.light(HostPort("gpu05", 4), HostPort("gpu02", 3))] == [(1, Span(1, 3))] * 2
    assert [*ring.light(HostPort("gpu05", 1), HostPort("gpu02", 4))] == [
        (0, Span(4, 3)),
        (1, Span(4, 3)),
    ], "a wavelength each way"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("emulated", "no light of this lab goes on from host to host"),
        ("emulated-wss", "can go to 8 hosts at wss1"),
    ],
)
def test_cables_that_are_no_ring_are_told_why(name: str, text: str) -> None:
    with pytest.raises(Infeasible, match=text) as refused:
        fibre_ring(load_lab(ROOT / "inventory" / name))
    assert refused.value.hint


def test_a_ring_with_a_fibre_between_nodes_missing_is_none(lab: Lab) -> None:
    with pytest.raises(Infeasible, match="no wavelength that every host sends both ways round"):
        fibre_ring(replace(lab, trunks=tuple(t for t in lab.trunks if t.name != "t-02e-03w")))


def test_ranks_are_placed_so_that_their_links_share_no_light_and_the_plan_is_read_back(
    lab: Lab,
) -> None:
    workload = wanted(6, (0, 3), (1, 4), (2, 5), tuple(range(6)))
    found = made(lab, workload)
    plan = planned(found, lab)
    assert (
        sorted(found.hosts) == list(ALL) and plan.job is not None and plan.job.hosts == found.hosts
    )
    assert max(light(found.links, lab).values()) == 1
    for a, b in ((0, 3), (1, 4), (2, 5)):
        ends = [ALL.index(found.hosts[rank]) for rank in (a, b)]
        assert (ends[0] - ends[1]) % 6 in (1, 5), "neighbours"
    assert plan.acceptance.max_loss_db == pytest.approx(found.loss_db + 6, abs=0.05)
    in_order = made(lab, workload, hosts=ALL)
    assert in_order.hosts == ALL and max(light(in_order.links, lab).values()) == 1
    assert in_order.here.iteration_s > 1.5 * found.here.iteration_s
    assert "first fit takes" in found.found.why[0]


def test_the_same_wavelength_twice_in_a_fibre_is_refused_by_the_planner_and_by_the_device(
    lab: Lab,
) -> None:
    one, other = (
        Link(HostPort("gpu01", 1), HostPort("gpu03", 2)),
        Link(HostPort("gpu02", 1), HostPort("gpu04", 2)),
    )
    with pytest.raises(
        Infeasible,
        match=r"overlap at wss02e:4201 \(trunk t-02e-03w\): 191.3250-191.3750THz and 191.3250-191.3750THz",
    ):
        circuits((one, other), lab)
    neighbour = Link(HostPort("gpu02", 3), HostPort("gpu04", 4))
    assert max(light((one, neighbour), lab).values()) == 1
    plant, _ = device_from_config("wss02e", "lumentum-netconf", {"size": "21x21"})
    notices = [
        s
        for each in (one, other)
        for s in sorted(settings(circuits((each,), lab))["wss02e"], key=str)
    ]
    refused = {}
    for setting in notices:
        assert isinstance(setting, SpectralRoute)
        band = (
            setting.ingress.label,
            setting.egress.label,
            setting.slot.low_mhz,
            setting.slot.high_mhz,
        )
        refused |= plant.connect({band: 0.0}, 0.0)
    both = ["spectrum in use on port 4201", "spectrum in use on port 5101"]
    assert (
        sorted(refused.values()) == sorted(violation.why for violation in plant.violations) == both
    )


def test_a_plan_beside_another_takes_no_light_of_it_and_is_refused_where_none_is_left(
    lab: Lab,
) -> None:
    first = made(lab, wanted(3, (0, 1, 2)), wavelengths=1)
    existing = {"first.json": planned(first, lab)}
    held = held_by(existing, lab)
    assert len(held) == len(first.links)
    second = made(
        lab,
        wanted(3, (0, 1, 2)),
        taken=dict.fromkeys(first.hosts, "first.json"),
        held=held,
        wavelengths=1,
    )
    assert not set(second.hosts) & set(first.hosts)
    both = (*first.links, *second.links)
    assert max(light(both, lab).values()) == 1 and len({slot for _, slot in light(both, lab)}) == 2
    held += held_by({"second.json": planned(second, lab)}, lab)
    with pytest.raises(
        Infeasible,
        match=r"no ring through .* was found on 2 wavelengths beside the plans that stay",
    ):
        made(lab, wanted(3, (0, 1, 2)), held=held)


def test_hosts_that_are_not_on_the_ring_and_wavelengths_that_it_lacks_are_refused(lab: Lab) -> None:
    with pytest.raises(Infeasible, match="3 wavelengths are wanted, the ring has 2"):
        made(lab, wanted(6, tuple(range(6))), wavelengths=3)
    fewer = replace(
        lab,
        fibres={port: fibre for port, fibre in lab.fibres.items() if port != HostPort("gpu04", 3)},
    )
    assert len(fibre_ring(fewer).slots) == 1


def test_options_of_other_methods_are_refused_on_a_ring_and_its_own_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(json.dumps(wanted(6, tuple(range(6)))))
    ring = [
        "design",
        METHOD,
        "-w",
        str(file),
        "--lab",
        str(ROOT / "inventory" / "emulated-ring"),
        "--json",
    ]
    for code, text, output in (
        (3, [*ring, "--ports", "2"], "not 2 ports a host"),
        (3, [*ring, "--simplex"], "not simplex links"),
        (
            2,
            ["design", "ring", "-w", str(file), "--wavelengths", "2", "--json"],
            "--wavelengths applies to ring-wavelengths only",
        ),
    ):
        assert run(text) == code
        assert output in json.loads(capsys.readouterr().out)["message"]
    assert run([*ring, "-o", str(tmp_path / "p.json")]) == 0
    assert json.loads((tmp_path / "p.json").read_text())["producer"]["method"] == METHOD
