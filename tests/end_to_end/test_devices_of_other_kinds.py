"""`testbed up` over wavelengths and by robot: the same engine, judged by whose light each host
hears.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.telemetry.reader import read_points
from tests.end_to_end.conftest import ROOT, Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def lab_of(folder: Path, driver: str, hosts: int, *more: str) -> Iterator[Lab]:
    lab = Lab(folder)
    argv = [
        "--driver",
        driver,
        "--hosts",
        str(hosts),
        "--free-ports",
        "--out",
        str(lab.inventory),
        "--state",
        str(folder / "lab"),
    ]
    argv += more
    subprocess.run(
        [sys.executable, "-m", "emulators.generate", *argv],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    lab.testbed("lab", "start").must()
    try:
        yield lab
    finally:
        lab.testbed("lab", "stop")


@pytest.fixture(scope="module")
def roadm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from lab_of(tmp_path_factory.mktemp("roadm"), "lumentum-netconf", 8)


@pytest.fixture(scope="module")
def roadm_ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from lab_of(
        tmp_path_factory.mktemp("ring"),
        "lumentum-netconf",
        6,
        "--ring",
        "--wavelengths",
        "1",
        "--settle-s",
        "0.2",
    )


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from lab_of(tmp_path_factory.mktemp("robot"), "rome-cli", 2)


def heard(lab: Lab) -> dict[str, str | None]:
    """Whose light reaches each host, by the emulated fibres themselves."""
    return {
        name: host["ports"]["1"]["light_from"] for name, host in lab.ask("status")["hosts"].items()
    }


def ring(order: list[int]) -> dict[str, str | None]:
    return {
        f"gpu{b:02d}": f"gpu{a:02d}:p1" for a, b in zip(order, [*order[1:], order[0]], strict=True)
    }


@pytest.mark.long
def test_two_plans_move_wavelengths_and_each_host_hears_the_planned_one_alone(roadm: Lab) -> None:
    first = roadm.up(ROOT / "examples" / "wss-ring-8.json", "--no-job").must()
    assert (first["made"], first["pairs_ok"], first["pairs_total"]) == (16, 56, 56)
    assert heard(roadm) == ring([1, 2, 3, 4, 5, 6, 7, 8])
    assert [
        c["off_db"] is not None and abs(c["off_db"]) <= 0.5 for c in first["equalise"]["circuits"]
    ] == [True] * 8
    assert any(p["name"] == "equalise" for p in first["phases"])
    before = roadm.writes()
    assert (
        roadm.up(ROOT / "examples" / "wss-ring-8.json", "--no-job").must()["nothing_to_do"]
        and roadm.writes() == before
    )
    second = roadm.up(ROOT / "examples" / "wss-fold-8.json", "--no-job").must()
    assert (second["kept"], second["removed"], second["made"], second["pairs_ok"]) == (11, 5, 5, 56)
    assert heard(roadm) == ring([1, 2, 3, 4, 8, 7, 6, 5])
    assert roadm.testbed("verify").must()["ok"] and not any(
        roadm.ask("writes")["violations"].values()
    )
    light = roadm.testbed("devices", "power", "--history").must()
    assert len(light["circuits"]) == 8 and all(
        c["loss_db"] and not c["lost"] for c in light["circuits"]
    )
    assert {h["circuit"] for h in light["history"]} == {c["circuit"] for c in light["circuits"]}
    points = list(read_points(Path(second["journal"]).parent))
    assert {p.tags["device"] for p in points if p.measurement == "optical"} == {"wss1"}


@pytest.mark.long
def test_where_no_spectrum_leads_no_packet_goes(roadm: Lab) -> None:
    plan = roadm.plan("pair", [("gpu01:p1", "gpu02:p1")], acceptance={"max_loss_db": 14.0})
    assert roadm.up(plan).must()["pairs_ok"] == 2
    assert heard(roadm) == {f"gpu{n:02d}": None for n in range(3, 9)} | {
        "gpu01": "gpu02:p1",
        "gpu02": "gpu01:p1",
    }
    down = roadm.testbed("down", "--yes").must()
    assert down["removed"] == 4 and set(heard(roadm).values()) == {None}


@pytest.mark.long
def test_two_owners_use_one_wavelength_on_two_stretches_of_a_ring_and_a_third_link_is_refused(
    roadm_ring: Lab,
) -> None:
    budget = {"max_loss_db": 14.0}
    passing = roadm_ring.plan("passing", [("gpu01:p1", "gpu03:p2")], acceptance=budget)
    one = roadm_ring.up(passing, "--as", "one").must()
    assert (one["made"], one["pairs_ok"]) == (8, 2), "four modules each way"
    neighbour = roadm_ring.plan("beside", [("gpu04:p1", "gpu06:p2")], acceptance=budget)
    assert roadm_ring.up(neighbour, "--as", "two").must()["pairs_ok"] == 2
    lit = {
        (h, p): port["light_from"]
        for h, host in roadm_ring.ask("status")["hosts"].items()
        for p, port in host["ports"].items()
    }
    assert {at: source for at, source in lit.items() if source} == {
        **{("gpu03", "2"): "gpu01:p1", ("gpu01", "1"): "gpu03:p2"},
        **{("gpu06", "2"): "gpu04:p1", ("gpu04", "1"): "gpu06:p2"},
    }
    writes = roadm_ring.writes()
    across = roadm_ring.plan("across", [("gpu02:p1", "gpu05:p2")], acceptance=budget)
    refused = roadm_ring.up(across, "--as", "three")
    assert (
        refused.exit_code == 9
        and roadm_ring.writes() == writes
        and not any(roadm_ring.ask("writes")["violations"].values())
    )
    assert roadm_ring.testbed("verify", "--as", "one").must()["ok"]


@pytest.mark.long
def test_a_robot_says_every_move_and_its_time_is_told_for_what_it_is(robot: Lab) -> None:
    plan = robot.plan("pair", [("gpu01:p1", "gpu02:p1")])
    answer = robot.testbed("plan", "--topology", plan).must()
    assert answer["dark_ms_expected"] == 2000.0 and answer["dark_time_scale"] == 60.0
    assert robot.up(plan, "--timeout", "1.9s").exit_code == 5 and set(heard(robot).values()) == {
        None
    }
    report = robot.up(plan).must()
    assert heard(robot) == {"gpu01": "gpu02:p1", "gpu02": "gpu01:p1"} and report["pairs_ok"] == 2
    moves = [p for p in report["parts"] if p["phase"] == "move"]
    assert [p["time_scale"] for p in moves] == [60.0, 60.0]
    assert report["dark_time_scale"] == 60.0 and report["dark_ms"] > 1000
