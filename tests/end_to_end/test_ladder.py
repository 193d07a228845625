"""Every fault of the lab is found by the rung it belongs to, and named where it is; judged by what
the lab knows of itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.end_to_end.conftest import Lab, ring
from tests.end_to_end.test_up import scpi
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

Levels = dict[str, dict[str, Any]]


def run_levels(lab: Lab, *argv: str) -> Levels:
    """The rungs of `testbed verify`, by name."""
    return {
        level["name"]: level for level in lab.testbed("verify", *argv).envelope["data"]["levels"]
    }


def failed(levels: Levels) -> set[str]:
    return {name for name, level in levels.items() if not level["ok"]}


def reported(levels: Levels, name: str) -> str:
    """The evidence of a rung, which failed with its own code."""
    level = levels[name]
    assert not level["ok"] and level["code"] == f"E-{name.upper()}", level
    return "\n".join(level["evidence"])


def carriers(lab: Lab) -> dict[str, bool]:
    """What the kernel says of every port, by the lab's own look at it."""
    hosts = lab.ask("status")["hosts"]
    return {
        f"{host}:p{number}": port["carrier"]
        for host, facts in hosts.items()
        for number, port in facts["ports"].items()
    }


@pytest.fixture
def up(lab: Lab) -> Lab:
    """A ring over ports 1 and 2 that is up: odd steps on ocs1, even ones on ocs2."""
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    return lab


@pytest.mark.long
def test_a_lab_as_planned_passes_every_rung_and_nobody_waits(up: Lab) -> None:
    levels = run_levels(up)
    assert not failed(levels) and [*levels] == ["map", "light", "link", "identity", "forwarding"]
    assert {level["code"] for level in levels.values()} == {"OK"} and all(
        level["timeout_s"] for level in levels.values()
    )
    assert levels["identity"]["seconds"] < 0.9 and levels["link"]["seconds"] < 0.9


@pytest.mark.long
def test_one_way_links_are_known_without_waiting_for_answers_that_cannot_come(lab: Lab) -> None:
    links = [{"a": a, "b": b, "kind": "simplex"} for a, b in ring((1, 1))]
    path = lab.plan("one-way", [])
    path.write_text(json.dumps({**json.loads(path.read_text()), "links": links}))
    lab.up(path).must()
    levels = run_levels(lab)
    assert not failed(levels) and levels["identity"]["seconds"] < 0.3


@pytest.mark.long
def test_a_cut_fibre_is_named_by_light_and_link(up: Lab) -> None:
    up.ask("fibre", name="f-gpu03-p1", cut=True)
    try:
        until(lambda: not carriers(up)["gpu03:p1"])
        levels = run_levels(up)
        assert failed(levels) >= {"light", "link", "identity"} and levels["map"]["ok"]
        assert (
            "no light arrives at ocs1:3: the transmitter of gpu03:p1, or fibre f-gpu03-p1"
            in reported(levels, "light")
        )
        dark = [line for line in levels["link"]["evidence"] if line.startswith("light leaves")]
        assert (
            len(dark) == 1
            and "gpu03:p1 has no carrier, and nothing arrives from it: fibre f-gpu03-p1 is cut"
            in dark[0]
        )
        assert (
            len(levels["link"]["evidence"])
            == sum(not carriers(up)[p] for p in ("gpu03:p1", "gpu04:p1"))
            == 2
        )
    finally:
        up.ask("fibre", name="f-gpu03-p1", cut=False)


@pytest.mark.long
def test_a_dark_port_is_named_on_its_side_of_the_switch(up: Lab) -> None:
    up.ask("faults.add", device="ocs1", kind="dark-port", port="3")
    levels = run_levels(up)
    assert "no light arrives at ocs1:3" in reported(
        levels, "light"
    ) and "gpu04:p1 has no carrier" in reported(levels, "link")
    assert not carriers(up)["gpu04:p1"] and carriers(up)["gpu03:p1"]


@pytest.mark.long
def test_a_port_whose_hardware_failed_is_the_switchs_own(up: Lab) -> None:
    up.ask("faults.add", device="ocs1", kind="failed-port", port="3")
    assert (
        "light enters ocs1:3 (" in (text := reported(run_levels(up), "light"))
        and "ocs1 or its output" in text
    )


@pytest.mark.long
def test_extra_loss_is_out_of_the_window_at_the_device_that_has_it(up: Lab) -> None:
    up.ask("faults.add", device="ocs1", kind="extra-loss", port="3", db=8.0)
    levels = run_levels(up)
    text = reported(levels, "light")
    assert (
        failed(levels) == {"light"}
        and text.startswith("gpu03:p1->gpu04:p1: loses ")
        and "between ocs1:3 and ocs1:20" in text
    )
    assert "expected 1.5 +-3.3 dB: ocs1, or the connector at 3 or 20" in text and levels["light"][
        "detail"
    ].startswith("1 outside")
    assert any("since it was first measured" in note for note in levels["light"]["notes"])


@pytest.mark.long
def test_a_link_that_never_comes_up_is_the_receivers(up: Lab) -> None:
    up.ask("link", host="gpu04", port=1, up=False)
    try:
        levels = run_levels(up)
        assert failed(levels) >= {"link"} and levels["light"]["ok"] and levels["map"]["ok"]
        text = reported(levels, "link")
        assert (
            "light leaves ocs1:20 (" in text
            and "gpu04:p1 has no carrier: fibre f-gpu04-p1, or the receiver of gpu04" in text
        )
    finally:
        up.ask("link", host="gpu04", port=1, up=True)


SWAPS = {
    "two ports of a host": (
        "f-gpu03-p1",
        "f-gpu03-p2",
        "both",
        "gpu03:p1 and gpu03:p2 are swapped at ocs1 and ocs2",
    ),
    "two hosts": ("f-gpu02-p1", "f-gpu04-p1", "both", "gpu02:p1 and gpu04:p1 are swapped at ocs1"),
    "one half of two cables": (
        "f-gpu02-p1",
        "f-gpu04-p1",
        "enters",
        "gpu02:p1 and gpu04:p1 are swapped at ocs1 where their light enters",
    ),
    "a fibre and an idle one": (
        "f-gpu03-p1",
        "f-gpu03-p3",
        "both",
        "gpu03:p1 and gpu03:p3 are swapped at ocs1 and ocs3",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", SWAPS)
def test_swapped_fibres_are_named(up: Lab, case: str) -> None:
    one, other, ends, text = SWAPS[case]
    up.ask("fibre.swap", a=one, b=other, ends=ends)
    try:
        levels = run_levels(up)
        assert levels["map"]["ok"] and text in reported(levels, "identity"), levels["identity"]
    finally:
        up.ask("fibre.swap", a=one, b=other, ends=ends)


@pytest.mark.long
def test_a_host_that_does_not_answer_fails_its_links_and_no_device_is_blamed(up: Lab) -> None:
    up.ask("host.sshd", host="gpu03", up=False)
    answer = up.testbed("verify")
    levels = {level["name"]: level for level in answer.envelope["data"]["levels"]}
    assert answer.exit_code == 5 and [*answer.envelope["data"]["silent"]] == ["gpu03"]
    assert levels["map"]["ok"] and levels["light"]["ok"] and "gpu03: " in reported(levels, "link")
    assert "gpu03->gpu01: gpu03 does not answer" in reported(levels, "forwarding")
    up.ask("host.sshd", host="gpu03", up=True)


def test_a_device_that_only_says_that_it_did_is_caught_before_the_plan_counts_as_up(
    lab: Lab,
) -> None:
    lab.ask("faults.add", device="ocs1", kind="silent-failure", match="conn:add")
    answer = lab.up(lab.plan("ring", ring((1, 2)), acceptance={"link_up_timeout_s": 2}))
    assert answer.exit_code in (6, 7) and "ocs1" in answer.envelope["message"]
    assert not lab.light()["ocs1"]


@pytest.mark.long
def test_a_mirror_that_is_stuck_is_named_by_the_change(lab: Lab) -> None:
    lab.ask("faults.add", device="ocs1", kind="stuck-port", port="3")
    answer = lab.up(lab.plan("ring", ring((1, 2)), acceptance={"link_up_timeout_s": 2}))
    assert answer.exit_code in (6, 7) and "ocs1: 3->20" in answer.envelope["message"]


@pytest.mark.long
def test_a_circuit_that_somebody_took_down_is_missing_in_the_map(up: Lab) -> None:
    scpi(up, ":oxc:swit:conn:sub (@3),(@20);*idn?\n")
    levels = run_levels(up)
    assert ("3", "20") not in up.light()["ocs1"]
    assert reported(levels, "map") == "ocs1: 3->20 is missing"
    assert "does not leave ocs1:20: ocs1 does not hold that" in reported(levels, "light")


@pytest.mark.long
def test_hands_that_move_a_circuit_are_seen_in_the_map_and_told_from_swapped_fibres(
    up: Lab,
) -> None:
    scpi(up, ":oxc:swit:conn:sub (@3,5),(@20,22);:oxc:swit:conn:add (@3,5),(@22,20);*idn?\n")
    try:
        until(lambda: ("3", "22") in up.light()["ocs1"] and carriers(up)["gpu04:p1"])
        levels = run_levels(up)
        assert (
            "ocs1: 3->20 is missing; 3->22 is there instead, of no owner this store knows"
            in reported(levels, "map")
        )
        assert "another cross-connect leads there" in reported(
            levels, "identity"
        ) and "swapped" not in reported(levels, "identity")
        status = up.testbed("status").envelope["data"]
        assert any("ocs1" in line for line in status["drift"])
    finally:
        scpi(up, ":oxc:swit:conn:sub (@3,5),(@22,20);*idn?\n")


@pytest.mark.long
def test_foreign_circuits_are_listed_and_fail_nothing(up: Lab) -> None:
    scpi(up, ":oxc:swit:conn:add (@15),(@31);*idn?\n")
    try:
        levels = run_levels(up)
        assert not failed(levels) and levels["map"]["notes"] == [
            "ocs1: 15->31 is foreign, of no owner this store knows"
        ]
    finally:
        scpi(up, ":oxc:swit:conn:sub (@15),(@31);*idn?\n")


@pytest.mark.long
def test_the_circuits_of_another_owner_are_foreign_and_have_his_name(up: Lab) -> None:
    up.testbed("down", "--yes").must()
    up.up(up.plan("mine", [("gpu01:p1", "gpu02:p1")])).must()
    up.up(up.plan("hers", [("gpu03:p1", "gpu04:p1")]), "--as", "alice").must()
    try:
        (first, _) = run_levels(up)["map"]["notes"]
        assert first.startswith("ocs1: 3->20 is foreign, belongs to alice (hers, run ")
    finally:
        up.testbed("down", "--yes", "--as", "alice").must()


@pytest.mark.long
def test_one_rung_is_climbed_alone(up: Lab) -> None:
    assert [*run_levels(up, "--rung", "light")] == ["light"] and [
        *run_levels(up, "--rung", "power", "--rung", "map")
    ] == [
        "map",
        "power",
    ]


@pytest.mark.long
def test_every_link_is_qualified_and_a_slow_one_is_named(lab: Lab) -> None:
    # wide, because the machine that runs the tests has other work
    accept = {"min_link_share": 0.4, "max_link_loss": 0.3}
    lab.up(lab.plan("ring", ring((1, 2)), acceptance=accept)).must()
    levels = run_levels(lab)
    links = levels["qualification"]["links"]
    assert levels["qualification"]["ok"], levels["qualification"]
    assert len(links) == 12 and all(
        60 < q["mbps"] < 300 and q["sent"] and q["arrived"] for q in links
    )
    pid = lab.ask("status")["hosts"]["gpu03"]["pid"]
    shape = ["nsenter", "-t", str(pid), "-n", "tc", "qdisc", "replace", "dev", "opt1", "root"]
    subprocess.run([*shape, "tbf", "rate", "20mbit", "burst", "16k", "limit", "2m"], check=True)
    try:
        text = reported(run_levels(lab, "--rung", "qualification"), "qualification")
        assert (
            text.startswith("gpu03:p1->gpu04:p1: ")
            and "Mb/s" in text
            and len(text.splitlines()) == 1
        )
    finally:
        subprocess.run([*shape, "noqueue"], check=True)


@pytest.mark.long
def test_a_short_all_reduce_is_compared_with_what_the_links_allow(lab: Lab) -> None:
    lab.up(lab.plan("three", ring((1, 2), hosts=4)), "--no-job").must()
    level = run_levels(lab, "--rung", "map", "--collective")["collective"]
    figures = level["collective"]
    assert figures is not None, level
    assert (
        figures["ranks"] == 4
        and 0 < figures["busbw_mbps"] < 1.2 * figures["expected_mbps"]
        and 100 < figures["link_mbps"] < 300
    )
