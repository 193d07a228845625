"""Plans over packet switches on a lab that has both kinds: brought up, verified, left for light and
come back to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, Lab
from tests.end_to_end.test_design import WORKLOAD

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def started(folder: Path, hosts: int, *more: str) -> Lab:
    """A lab of its own, running."""
    lab = Lab(folder)
    generate = [
        sys.executable,
        "-m",
        "emulators.generate",
        "--hosts",
        str(hosts),
        "--free-ports",
        *more,
    ]
    subprocess.run(
        [*generate, "--out", lab.inventory, "--state", folder / "lab"],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    lab.testbed("lab", "start").must()
    return lab


@pytest.mark.long
def test_a_plan_moves_from_a_switch_to_light_and_back(tmp_path: Path) -> None:
    lab = started(tmp_path, 3, "--ports", "2", "--electrical", "oversubscribed:2@50", "--rack", "2")
    try:
        tree = lab.plan("tree", [], segments=[{"name": "oversubscribed"}])
        lab.testbed("tagout", "gpu03:p3", "--reason", "hands in rack").must()
        tagged = lab.up(tree)
        assert tagged.exit_code == 9 and "gpu03:p3 is tagged out by" in str(tagged.envelope)
        assert "`up` would be refused: gpu03:p3" in str(
            lab.testbed("plan", "--topology", tree).envelope
        )
        lab.testbed("tagout", "remove", "gpu03:p3").must()
        up = lab.up(tree).must()
        lab.testbed("tagout", "oversubscribed", "--reason", "a new power supply").must()
        assert lab.testbed("down", "--yes").exit_code == 9
        assert lab.up(tree).must()["nothing_to_do"]
        lab.testbed("tagout", "remove", "oversubscribed").must()
        assert (up["pairs_ok"], up["pairs_total"], up["writes"]) == (6, 6, 0)
        lab.ask("fibre", name="oversubscribed-gpu03", cut=True)
        bad = lab.testbed("verify", "--rung", "link", "--rung", "identity")
        text = str(bad.envelope)
        assert (
            bad.exit_code == 7
            and "gpu03:p3 has no carrier: its cable to the packet switch oversubscribed" in text
        )
        assert (
            "gpu03:p3: receives nothing; the packet switch oversubscribed is planned there" in text
        )
        assert "gpu03:p3 is down: its cable to the packet switch oversubscribed" in str(
            lab.testbed("status").envelope
        )
        lab.ask("fibre", name="oversubscribed-gpu03", cut=False)
        ring = lab.plan("ring", [("gpu01", "gpu02"), ("gpu02", "gpu03")])
        assert lab.up(ring).must()["pairs_ok"] == 6
        assert lab.testbed("rollback").must()["plan"] == "tree"
        assert lab.light() == {"ocs1": set(), "ocs2": set()}
        assert lab.testbed("verify").must()["ok"]
    finally:
        lab.testbed("lab", "stop").must()


@pytest.mark.long
def test_what_was_predicted_of_switches_is_measured_within_a_tenth(tmp_path: Path) -> None:
    kinds = [
        word
        for kind in ("ideal", "fat-tree@50", "oversubscribed:4")
        for word in ("--electrical", kind)
    ]
    lab = started(
        tmp_path,
        6,
        "--ports",
        "2",
        "--rate-mbps",
        "20",
        "--rack",
        "3",
        *kinds,
        "--queue",
        "512:job",
    )
    workload = tmp_path / "small.yaml"
    workload.write_text(WORKLOAD)
    try:
        for method in ("ideal", "fat-tree", "oversubscribed"):
            plan = tmp_path / f"{method}.json"
            designed = lab.testbed(
                "design", method, "-w", workload, "-o", plan, "--scale", "0.15", "--iterations", "4"
            ).must()
            job = lab.up(plan).must()["job"]
            assert lab.ask("status")["queues"]["jobs"] == [[f"gpu0{n}" for n in range(1, 7)]], (
                "the switches were notified"
            )
            # every look at the job takes time from it
            time.sleep(4 * designed["here"]["iteration_ms"] / 1e3)
            deadline_s = time.monotonic() + 60.0
            while job["state"] in ("starting", "running"):
                assert time.monotonic() < deadline_s, job
                job = lab.testbed("job", "status").must()
                time.sleep(0.5)
            figures = {
                row["figure"]: row for row in lab.testbed("design", "compare").must()["figures"]
            }
            for name in ("iteration", "all-reduce"):
                assert abs(figures[name]["off"]) < 0.10, (method, figures[name])
    finally:
        lab.testbed("lab", "stop").must()


ACROSS = """\
schema: testbed.workload/1
name: across
ranks: 4
rate_gbps: 0.02
transfers:
  - {src: 0, dst: 3, bytes: 2000000}
  - {src: 1, dst: 2, bytes: 2000000}
  - {src: 2, dst: 1, bytes: 2000000}
  - {src: 3, dst: 0, bytes: 2000000}
"""


@pytest.mark.long
def test_bytes_cross_a_domain_and_then_a_rail(tmp_path: Path) -> None:
    kinds = ("--electrical", "domains:2@80", "--electrical", "rails:2@20")
    lab = started(tmp_path, 4, "--ports", "1", "--rate-mbps", "20", *kinds)
    workload = tmp_path / "across.yaml"
    workload.write_text(ACROSS)
    try:
        for relay in ("chunks", "whole"):
            plan = tmp_path / f"{relay}.json"
            over = ("--segment", "domain*", "--segment", "rail*", "--relay", relay)
            design = ("design", "electrical", "-w", workload, "-o", plan, "--iterations", "4")
            lab.testbed(*design, *over).must()
            job = lab.up(plan).must()["job"]
            deadline_s = time.monotonic() + 60.0
            while job["state"] in ("starting", "running"):
                assert time.monotonic() < deadline_s, job
                time.sleep(1.0)
                job = lab.testbed("job", "status").must()
            reply = lab.testbed("design", "compare").must()
            tax = next(row for row in reply["figures"] if row["figure"] == "bandwidth tax")
            assert tax["predicted"] == 2 and abs(tax["off"]) < 0.1, "by the counters of the ports"
    finally:
        lab.testbed("lab", "stop").must()
