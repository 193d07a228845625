"""RDMA ports of emulated hosts: `doctor` finds GIDs that moved and an interface that was renamed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.conftest import ROOT, Lab

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


@pytest.fixture(scope="module")
def rdma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts that have RDMA devices."""
    lab = Lab(tmp_path_factory.mktemp("rdma"))
    argv = [
        "--hosts",
        "2",
        "--ports",
        "2",
        "--free-ports",
        "--bmc",
        "--state",
        str(lab.folder / "lab"),
    ]
    subprocess.run(
        [sys.executable, "-m", "emulators.generate", *argv, "--out", str(lab.inventory)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    with (lab.inventory / "emulator.yml").open("a") as file:
        file.write("rdma: true\n")
    lab.testbed("lab", "start").must()
    try:
        yield lab
    finally:
        lab.testbed("lab", "stop")


def said(lab: Lab) -> list[dict[str, Any]]:
    checks = lab.testbed("doctor").envelope["data"]["checks"]
    return [check for check in checks if check["name"].startswith("RDMA of ")]


def test_doctor_finds_ports_that_came_back_from_a_flap_otherwise(rdma: Lab) -> None:
    job = {"name": "sum", "workload": "allreduce", "ranks": ["gpu01", "gpu02"]}
    job |= {"rings": [["gpu01", "gpu02"]], "args": {"iters": 2}}
    links = [("gpu01:p1", "gpu02:p1")]
    rdma.up(rdma.plan("plain", links, job=job)).must()
    assert said(rdma) == [], "jobs of these hosts do not use RDMA"
    env = {"NCCL_IB_DISABLE": "0", "NCCL_IB_GID_INDEX": "3"}
    rdma.up(rdma.plan("rdma", links, job=job | {"name": "sum2", "env": env})).must()
    (fine,) = said(rdma)
    assert (fine["name"], fine["state"]) == ("RDMA of 2 hosts", "ok"), fine

    moved = rdma.testbed("lab", "fault", "add", "gpu01", "gids-moved", "--port", "1").must()
    bad, fine = said(rdma)
    assert (bad["name"], bad["state"], fine["name"]) == ("RDMA of gpu01", "fail", "RDMA of 1 host")
    assert "has the RoCE v2 GID of 10.1.0.1 at index 5; at index 3" in bad["detail"], bad
    rdma.testbed("lab", "fault", "remove", "gpu01", str(moved["number"])).must()

    renamed = rdma.testbed("lab", "fault", "add", "gpu02", "renamed", "--port", "2").must()
    (bad, _) = said(rdma)
    assert "p2: opt2 was renamed to ren2" in bad["detail"] and "udev" in bad["fix"], bad
    rdma.testbed("lab", "fault", "remove", "gpu02", str(renamed["number"])).must()
    (fine,) = said(rdma)
    assert (fine["name"], fine["state"]) == ("RDMA of 2 hosts", "ok"), fine


def test_a_power_cycle_leaves_nothing_of_them_but_their_devices(rdma: Lab) -> None:
    rdma.testbed("lab", "fault", "add", "gpu02", "renamed", "--port", "2").must()
    cycle = ("--cycle", "--yes", "--force", "--reason", "a test")
    rdma.testbed("host", "power", "gpu02", *cycle).must()
    look = "ls /sys/class/infiniband/*/device/net /sys/class/net; cat /sys/class/infiniband/*/ports/1/gids/2"
    shown = rdma.testbed("host", "exec", "gpu02", look).must()["stdout"].split()
    assert shown.count("opt1") == shown.count("opt2") == 2 and "ren2" not in shown
    assert shown[-2:] == [":".join(["0000"] * 8)] * 2, "no port has an address"
