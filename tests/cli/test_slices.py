"""`testbed design slices`: what is said after failures, the data, the picture, and what is
refused.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.house.repository import ROOT

AT = ("--inventory", ROOT / "inventory" / "emulated")


def test_a_slice_after_failures_is_named_with_its_chances_and_the_next_command(
    cli: Any, tmp_path: Path
) -> None:
    picture = tmp_path / "slices.svg"
    argv = ("--slice", "2x4", "--failed", "gpu03, gpu08", "--failures", "2", "--svg", picture)
    result = cli("design", "slices", *AT, *argv)
    hosts = "gpu01,gpu02,gpu04,gpu05,gpu06,gpu07,gpu09,gpu10"
    assert result.code == 0
    assert result.out.splitlines() == [
        "  grid            3x4: 12 hosts",
        "  failed          gpu03, gpu08",
        f"  reconfigurable  {hosts} (45 choices)",
        "  static          none: no place is whole",
        "  failures  reconfigurable  static",
        "  0         1.0000 (1)      1.0000 (1)",
        "  1         1.0000 (1)      1.0000 (1)",
        "  2         1.0000 (1)      0.2727 (3/11)",
        "  probability that a slice can be formed after so many failures of hosts, each set of them being as likely",
        "Slice 2x4: can be formed by optical switches only",
    ]
    assert f" design torus --hosts {hosts} " in result.err
    names = [
        node.text
        for node in ElementTree.parse(picture).getroot().iter()
        if node.text and node.text.startswith("gpu")
    ]
    assert len(names) == 24


def test_a_failed_host_takes_out_its_block_and_the_data_has_exact_fractions(cli: Any) -> None:
    argv = (
        "design",
        "slices",
        *AT,
        "--slice",
        "2x2",
        "--block",
        "1x2",
        "--failed",
        "gpu03",
        "--failures",
        "4",
    )
    assert "  failed          gpu03; with them gpu04\n" in cli(*argv).out
    assert (
        "  static          none: 2x5 does not fit the grid\n"
        in cli("design", "slices", *AT, "--slice", "2x5").out
    )
    data = cli(*argv, "--json").json["data"]
    assert (data["grid"], data["block"], data["failed"]) == ([3, 4], [1, 2], ["gpu03"])
    assert data["reconfigurable"] == {"hosts": ["gpu01", "gpu02", "gpu05", "gpu06"], "choices": 10}
    assert data["probabilities"][4] == {
        "failures": 4,
        "reconfigurable": 1.0,
        "static": pytest.approx(39 / 55),
        "reconfigurable_exact": "1",
        "static_exact": "39/55",
    }


@pytest.mark.parametrize(
    ("argv", "code", "problem"),
    [
        ((), 2, "design slices: no slice given"),
        (("--slice", "2x"), 2, "--slice 2x: wanted sides of 1 to 4096 hosts with x between"),
        (("--slice", "2x99999"), 2, "wanted sides of 1 to 4096 hosts"),
        (("--slice", "1x2x2x2"), 2, "--slice 1x2x2x2: more than 3 sides"),
        (
            ("--slice", "2x2", "--grid", "12"),
            2,
            "--grid and --slice have different numbers of sides",
        ),
        (("--slice", "2x2", "--grid", "3x3"), 3, "a grid of 3x3 has 9 hosts, the lab has 12"),
        (
            ("--slice", "4x4"),
            3,
            "a slice of 4x4 has 16 hosts, the machine has 12 hosts of 3x4\nnext: take at most 12 hosts of 3x4",
        ),
        (("--slice", "2x2", "--block", "2x2"), 3, "blocks of 2x2 do not fill a grid of 3x4"),
        (
            ("--slice", "2x2", "--failed", "gpu33"),
            2,
            "--failed gpu33: there is no host gpu33; did you mean gpu03?\nnext: the hosts: gpu01,",
        ),
    ],
)
def test_a_slice_that_cannot_be_is_refused(
    cli: Any, argv: tuple[str, ...], code: int, problem: str
) -> None:
    result = cli("design", "slices", *AT, *argv)
    assert result.code == code and problem in result.err and "next:" in result.err


def test_a_twist_is_for_tori(cli: Any) -> None:
    result = cli(
        "design", "ring", *AT, "--twisted", "-w", ROOT / "examples" / "workloads" / "dlrm.yaml"
    )
    assert result.code == 2 and "--twisted applies to torus only" in result.err


def test_ranks_pass_on_over_packet_switches_in_one_of_two_ways(cli: Any) -> None:
    workload = ("-w", ROOT / "examples" / "workloads" / "dlrm.yaml")
    result = cli("design", "ring", *AT, "--relay", "chunks", *workload)
    assert result.code == 2 and "--relay applies to ideal, fat-tree" in result.err
    result = cli("design", "electrical", *AT, "--relay", "chunk", *workload)
    assert result.code == 2 and "not one of chunks, whole; did you mean chunks?" in result.err
