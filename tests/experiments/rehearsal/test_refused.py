"""What cannot be rehearsed is refused with the reason and the next command, and what is not needed
is left out and named.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import optical_testbed_home
from conformance.private import CommandFailed, CommandLine
from optics import Identity, Missing
from orchestrator.experiments.rehearsal.findings import cut_off_pairs
from orchestrator.experiments.rehearsal.inventory import AccessPaths, not_on_twin, slower, texts
from orchestrator.experiments.rehearsal.reading import LabReading
from orchestrator.experiments.rehearsal.twin import no_room
from orchestrator.experiments.rehearsal.verb import _emulated
from orchestrator.inventory.lab import read_lab
from orchestrator.inventory.segments import SegmentQueue
from orchestrator.session import load_lab
from tests.experiments.rehearsal.test_findings import goal, link
from tests.properties.switches import switched_lab

FACE = Identity("x", "x", "x", "x", tuple(map(str, range(1, 5))), tuple(map(str, range(101, 105))))
READ = LabReading({"ocs1": FACE, "ocs2": FACE}, {}, {})


def test_a_device_without_an_emulator_is_named_and_left_out_unless_the_change_needs_it() -> None:
    lab, moved = goal([link(1, 2)], [link(1, 3)])
    foreign = replace(
        lab, devices={**lab.devices, "ocs2": replace(lab.devices["ocs2"], driver="acme-rest")}
    )
    second, reported = _emulated(foreign, READ, moved, [], {"polatis-scpi"})
    assert list(second.devices) == ["ocs1"] and {f.device for f in second.fibres.values()} == {
        "ocs1"
    }
    assert reported == ["ocs2, which the change does not involve: family acme-rest has no emulator"]
    needed = replace(
        lab, devices={**lab.devices, "ocs1": replace(lab.devices["ocs1"], driver="acme-rest")}
    )
    with pytest.raises(
        Missing, match=r"no emulator for the family of ocs1 \(acme-rest\)"
    ) as refused:
        _emulated(needed, READ, moved, [], {"polatis-scpi"})
    assert refused.value.hint.startswith("testbed plan")
    assert cut_off_pairs(moved)
    # its circuit at ocs2 is removed, and of nobody in the store: adopted
    _, other = goal([link(1, 2, 2)], [link(1, 2)])
    with pytest.raises(Missing, match=r"no emulator for the family of ocs2 \(acme-rest\)"):
        _emulated(foreign, READ, other, [], {"polatis-scpi"})


def test_the_twin_has_the_labs_cables_and_losses_on_ports_of_its_own_and_none_of_its_passwords() -> (
    None
):
    lab, _ = goal([], [link(1, 2)])
    devices = {
        n: replace(c, username="operator", password="secret", options={"key_file": "/root/key"})
        for n, c in lab.devices.items()
    }
    hosts = {
        n: replace(h, link_mbps=25_000.0, gpus=8, host_id=h.host_id + 254)
        for n, h in lab.hosts.items()
    }
    lab = replace(lab, devices=devices, hosts=hosts)
    families = {"polatis-scpi": {"schemes": ["tcp"], "login": None}}
    paths = AccessPaths(
        dict.fromkeys(lab.hosts, 20001), {"ocs1": 20002, "ocs2": 20003}, Path("/twin/lab")
    )
    found = texts(lab, READ.identities, families, paths)
    assert "secret" not in "".join(found.values()) and "key_file" not in found["devices.yml"]
    read = read_lab(found["hosts.yml"], found["devices.yml"], found["fibres.yml"])
    assert read.fibres == lab.fibres and read.trunks == lab.trunks
    assert {d.address for d in read.devices.values()} == {
        "tcp://127.0.0.1:20002",
        "tcp://127.0.0.1:20003",
    }
    assert slower(lab) == 100.0 and {h.link_mbps for h in read.hosts.values()} == {250.0}
    assert [text.partition(":")[0] for text in not_on_twin(lab)] == ["GPUs", "rate"] and not list(
        not_on_twin(read)
    )
    assert [h.mgmt_address for h in read.hosts.values()] == [
        f"10.254.0.{n}" for n in range(1, len(hosts) + 1)
    ]


def test_queues_of_the_twin_hold_as_many_milliseconds_as_those_of_the_lab(tmp_path: Path) -> None:
    lab = switched_lab(tmp_path)
    segments = {
        name: replace(s, queue=SegmentQueue(20_000 if s.racks else 100))
        for name, s in lab.segments.items()
    }
    segments["oversubscribed"] = replace(
        segments["oversubscribed"], queue=SegmentQueue(20_000, "job")
    )
    lab = replace(
        lab,
        segments=segments,
        hosts={n: replace(h, link_mbps=25_000.0) for n, h in lab.hosts.items()},
    )
    paths = AccessPaths(
        dict.fromkeys(lab.hosts, 20001), {"ocs1": 20002, "ocs2": 20003}, Path("/twin/lab")
    )
    families = {key: {"schemes": ["tcp"], "login": None} for key in ("polatis-scpi", "calient-tl1")}
    found = texts(lab, READ.identities, families, paths)
    read = read_lab(found["hosts.yml"], found["devices.yml"], found["fibres.yml"]).segments
    assert read["oversubscribed"].queue == SegmentQueue(200, "job") and read[
        "fat-tree"
    ].queue == SegmentQueue(200)
    assert read["ideal"].queue == SegmentQueue(68), "no shorter than an inventory may have it"


def test_a_device_of_the_twin_has_the_labels_of_the_labs_and_those_that_stand_for_no_circuit() -> (
    None
):
    lab, _ = goal([], [link(1, 2)])
    modules = Identity("x", "x", "x", "x", ("0.in", "1.in"), ("0.1", "0.3", "1.2"), ("0.2", "1.1"))
    paths = AccessPaths(
        dict.fromkeys(lab.hosts, 20001), {"ocs1": 20002, "ocs2": 20003}, Path("/twin/lab")
    )
    families = {"polatis-scpi": {"schemes": ["tcp"], "login": None}}
    found = texts(lab, {"ocs1": modules, "ocs2": FACE}, families, paths)["emulator.yml"]
    ports = {name: device["ports"] for name, device in yaml.safe_load(found)["devices"].items()}
    assert ports == {
        "ocs1": {"in": ["0.in", "1.in"], "out": ["0.1", "0.3", "1.2", "0.2", "1.1"]},
        "ocs2": {"in": [*FACE.ingress], "out": [*FACE.egress]},
    }


def test_a_twin_of_a_ring_has_its_amplifiers() -> None:
    lab = load_lab(Path(__file__).parents[3] / "inventory" / "emulated-ring")
    paths = AccessPaths(
        dict.fromkeys(lab.hosts, 20001), dict.fromkeys(lab.devices, 20002), Path("/twin/lab")
    )
    families = {"lumentum-netconf": {"schemes": ["netconf"], "login": ("superuser", "emulated")}}
    found = texts(lab, dict.fromkeys(lab.devices, FACE), families, paths)
    assert (
        read_lab(found["hosts.yml"], found["devices.yml"], found["fibres.yml"]).trunks == lab.trunks
    )


def test_a_twin_that_this_machine_does_not_bear_has_devices_alone_and_says_why(
    tmp_path: Path,
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  999999 kB\nMemAvailable:  512000 kB\n")
    assert no_room(12, 1, 1, meminfo) == ""
    for running, launched in ((0, 12), (12, 2)):
        output = no_room(12, running, launched, meminfo)
        assert output.startswith(
            "12 hosts and 12 ranks take about 2100 MB, and 500 MB are free here"
        )
        assert ("--no-job" in output) is (launched == 12)
    meminfo.write_text("MemAvailable:  999999999 kB\n")
    assert (
        no_room(250, 0, 0, meminfo) == ""
        and no_room(251, 0, 0, meminfo) == "the lab has 251 and a twin at most 250"
    )


def test_a_plan_whose_devices_cannot_be_read_is_not_rehearsed(tmp_path: Path) -> None:
    inventory = tmp_path / "lab"
    argv = [
        "--hosts",
        "2",
        "--ports",
        "1",
        "--free-ports",
        "--state",
        str(tmp_path / "state"),
        "--out",
        str(inventory),
    ]
    subprocess.run(
        [sys.executable, "-P", "-m", "emulators.generate", *argv],
        check=True,
        env=optical_testbed_home.environment(),
    )
    (inventory / "emulator.yml").unlink()  # a lab of hardware: nobody can start it
    plan = tmp_path / "plan.json"
    plan.write_text(
        '{"schema": "testbed.plan/1", "name": "two", "links": [{"a": "gpu01:p1", "b": "gpu02:p1"}]}'
    )
    with pytest.raises(CommandFailed, match=r"E-UNREACHABLE: ocs1: .*; ") as refused:
        CommandLine(inventory, tmp_path)("plan", "--rehearse", "--topology", plan)
    assert refused.value.code == 5 and "testbed doctor" in str(refused.value)
    assert not (tmp_path / "state" / "rehearsals").exists()
