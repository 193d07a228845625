"""Hosts at two planes of packet switches on a real emulated lab: leaf switches lost one after the
other under a guard.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.end_to_end.test_guard import Watching
from tests.end_to_end.test_switches import started

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def test_the_guard_takes_the_other_plane_then_a_host_at_both_and_names_a_rack_that_is_cut_off(
    tmp_path: Path,
) -> None:
    lab = started(tmp_path, 6, "--ports", "1", "--electrical", "dual:2@50")

    def leaf(plane: str, *hosts: str, cut: bool) -> None:
        for host in hosts:
            lab.ask("fibre", name=f"{plane}-{host}", cut=cut)

    try:
        up = lab.up(
            lab.plan("planes", [], segments=[{"name": "plane1"}, {"name": "plane2"}])
        ).must()
        assert (up["pairs_ok"], up["pairs_total"], up["writes"]) == (30, 30, 0)
        guard = Watching(lab)
        try:
            guard.wait("watching")
            leaf("plane1", "gpu01", "gpu02", cut=True)
            while len((found := guard.wait("rerouted"))["around"]) < 9:
                assert not found["cut_off"]
            assert not found["cut_off"] and not found["notes"], (
                "every pair answered over the other plane"
            )
            dark = lab.testbed("status").envelope["data"]["dark"]
            assert dark == [
                "the packet switch of rack 1 of plane1 is down, or all its cables: gpu01:p2, gpu02:p2"
            ]
            leaf("plane2", "gpu03", "gpu04", cut=True)
            while len((found := guard.wait("rerouted"))["around"]) < 18:
                assert not found["cut_off"]
            assert not found["cut_off"] and not found["notes"], (
                "gpu05 or gpu06 forwards between the two racks"
            )
            leaf("plane2", "gpu01", "gpu02", cut=True)
            while (found := guard.wait("rerouted"))["cut_off"] != ["gpu01", "gpu02"]:
                pass
            for plane, rack in (
                ("plane1", ("gpu01", "gpu02")),
                ("plane2", ("gpu01", "gpu02", "gpu03", "gpu04")),
            ):
                leaf(plane, *rack, cut=False)
            guard.wait("restored", 60.0)
            assert lab.testbed("verify").must()["ok"]
        finally:
            guard.end()
    finally:
        lab.testbed("lab", "stop").must()
