"""`testbed up` as an operator uses it, on real namespaces, sockets, sshd, Ansible; judged by the
devices' own glass.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from itertools import pairwise
from pathlib import Path

import pytest

import optical_testbed
from optics import TestbedError
from orchestrator.telemetry.reader import read_points
from tests.end_to_end.conftest import Lab, ring
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]


def pairs(lab: Lab) -> int:
    return sum(map(len, lab.light().values()))


def test_a_plan_comes_up_and_the_second_up_writes_nothing(lab: Lab) -> None:
    plan = lab.plan("ring", ring((1, 2)))
    first = lab.up(plan).must()
    assert (first["made"], first["pairs_ok"], first["pairs_total"]) == (12, 30, 30)
    assert pairs(lab) == 12
    before = lab.writes()
    second = lab.up(plan).must()
    assert second["nothing_to_do"] and lab.writes() == before
    assert lab.testbed("verify").must()["ok"]
    status = lab.testbed("status").must()
    assert status["ok"] and status["plan"] == "ring" and not status["drift"]


def test_the_order_is_stage_drain_break_make_link_commit_verify_and_what_stays_is_not_touched(
    lab: Lab,
) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    since = lab.ask("status")["devices"]["ocs2"]["writes"]
    moved = [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")]
    report = lab.up(lab.plan("moved", moved)).must()
    assert (report["kept"], report["removed"], report["made"]) == (10, 2, 2)
    assert lab.ask("status")["devices"]["ocs2"]["writes"] == since
    begin = {p["name"]: p["begin_s"] for p in report["phases"]}
    end = {p["name"]: p["begin_s"] + p["seconds"] for p in report["phases"]}
    order = ["observe", "plan", "stage", "drain", "switch", "link", "verify"]
    assert [p["name"] for p in report["phases"] if p["name"] in order] == order
    assert all(end[a] <= begin[b] + 1e-3 for a, b in pairwise(order))
    points = list(read_points(Path(report["journal"]).parent))
    device = [p for p in points if p.measurement == "reconfig_device"]
    assert {p.tags["device"] for p in device} == {"ocs1", "ocs3"}
    phases = [p for p in points if p.measurement == "phase"]
    commits = [p for p in phases if p.tags["phase"] == "commit"]
    lights = [p for p in phases if p.tags["phase"] == "light"]
    assert (
        {p.tags["subject"] for p in commits}
        == {"gpu01", "gpu02"}
        == {p.tags["subject"] for p in lights}
    )
    stage_end = min(
        p.time_ns + int(p.fields["duration_ns"]) for p in phases if p.tags["phase"] == "stage"
    )
    assert all(stage_end < p.time_ns for p in device)


@pytest.mark.long
def test_a_plan_that_leaves_hosts_out_drains_only_its_own(lab: Lab) -> None:
    square = [
        ("gpu01:p1", "gpu02:p1"),
        ("gpu02:p2", "gpu03:p2"),
        ("gpu03:p1", "gpu04:p1"),
        ("gpu04:p2", "gpu01:p2"),
    ]
    lab.up(lab.plan("square", square)).must()
    report = lab.up(lab.plan("changed", [("gpu01:p3", "gpu02:p3"), *square[1:]])).must()
    assert "drain" in {p["name"] for p in report["phases"]} and report["pairs_ok"] == 12


@pytest.mark.long
def test_a_saved_plan_holds_until_the_lab_changes(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    saved = lab.folder / "saved.json"
    plan = lab.plan("moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")])
    prints = {
        lab.testbed("plan", "--topology", plan, "-o", saved).must()["fingerprint"] for _ in range(5)
    }
    assert len(prints) == 1, "whichever device answers first"
    lab.testbed("up", "--plan", saved).must()
    assert lab.testbed("up", "--plan", saved).exit_code == 9


@pytest.mark.long
def test_down_goes_on_without_a_host_that_does_not_answer(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    lab.ask("host.sshd", host="gpu03", up=False)
    answer = lab.testbed("down", "--yes")
    assert answer.exit_code == 7 and "gpu03" in answer.envelope["data"]["left"][0]
    assert pairs(lab) == 0
    lab.ask("host.sshd", host="gpu03", up=True)
    status = lab.testbed("status").must()
    assert not status["plan"] and [line.partition(":")[0] for line in status["drift"]] == ["gpu03"]
    lab.testbed("down", "--yes").must()
    assert not lab.testbed("status").must()["drift"]


@pytest.mark.long
def test_down_leaves_the_routes_and_circuits_of_another_store_alone(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    other = {"TESTBED_DATA_DIR": str(lab.folder / "other")}
    assert lab.testbed("down", "--yes", **other).must()["nothing_to_do"]
    assert lab.testbed("verify").must()["ok"]


def test_down_takes_away_what_is_ours_and_leaves_what_is_not(lab: Lab) -> None:
    foreign(lab, 6, 6)
    report = lab.up(lab.plan("pair", [("gpu01:p1", "gpu02:p1")])).must()
    assert report["foreign"] == 1
    assert lab.testbed("down", "--yes").must()["removed"] == 2
    assert lab.light() == {"ocs1": {("6", "22")}, "ocs2": set(), "ocs3": set(), "ocs4": set()}
    unforeign(lab, 6, 6)
    assert lab.testbed("down", "--yes").must()["nothing_to_do"]


def foreign(lab: Lab, ingress: int, host: int) -> None:
    """Somebody else's cross-connect on ocs1, made with his own SCPI client."""
    scpi(lab, f":oxc:swit:conn:add (@{ingress}),(@{host + 16});*idn?\n")


def unforeign(lab: Lab, ingress: int, host: int) -> None:
    scpi(lab, f":oxc:swit:conn:sub (@{ingress}),(@{host + 16});*idn?\n")


def scpi(lab: Lab, text: str) -> None:
    with socket.create_connection(("127.0.0.1", lab.port("ocs1")), 5) as link:
        link.sendall(text.encode())
        assert link.recv(1000)


def test_a_foreign_circuit_in_the_way_is_refused_and_named(lab: Lab) -> None:
    foreign(lab, 1, 3)
    before = lab.writes()
    answer = lab.up(lab.plan("ring", ring((1, 2))))
    assert answer.exit_code == 9 and "ocs1:1->19" in answer.envelope["message"]
    assert lab.writes() == before
    unforeign(lab, 1, 3)


BAD_PLANS: dict[str, tuple[str, str]] = {
    "an unknown host": (
        '{"schema":"testbed.plan/1","name":"x","links":[{"a":"gpu77:p1","b":"gpu02:p1"}]}',
        "gpu77",
    ),
    "an unknown port": (
        '{"schema":"testbed.plan/1","name":"x","links":[{"a":"gpu01:p9","b":"gpu02:p1"}]}',
        "p9",
    ),
    "a port twice": (
        '{"schema":"testbed.plan/1","name":"x","links":[{"a":"gpu01:p1","b":"gpu02:p1"},{"a":"gpu01:p1","b":"gpu03:p1"}]}',
        "gpu01:p1",
    ),
    "an impossible circuit": (
        '{"schema":"testbed.plan/1","name":"x","links":[{"a":"gpu01:p1","b":"gpu02:p2"}]}',
        "no fibre path",
    ),
    "more links than ports": (
        '{"schema":"testbed.plan/1","name":"x","links":[{"a":"gpu01","b":"gpu02","count":5}]}',
        "gpu01",
    ),
    "a syntax error": ('{"schema":"testbed.plan/1",\n "name":"x" "links":[]}', ":2:"),
}


def test_a_bad_plan_is_refused_with_its_place_and_changes_nothing(lab: Lab) -> None:
    path = lab.folder / "bad.json"
    before = lab.writes()
    places = {f"{name}_dir": lab.folder / name for name in ("data", "state", "lock")}
    with optical_testbed.Lab.open(lab.inventory, settings=places) as script:
        for case, (text, word) in BAD_PLANS.items():
            path.write_text(text)
            with pytest.raises(TestbedError) as caught:
                script.up(path)
            message = str(caught.value)
            assert caught.value.exit_code == 3 and word in message and "bad.json:" in message, case
    answer = lab.up(path)
    assert answer.exit_code == 3 and "bad.json:" in answer.envelope["message"], answer.envelope
    assert lab.writes() == before


def test_an_unreachable_device_is_named_and_nothing_changes(lab: Lab) -> None:
    devices = lab.inventory / "devices.yml"
    text = devices.read_text()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        try:
            devices.write_text(text.replace(str(lab.port("ocs2")), str(closed.getsockname()[1])))
            before = lab.writes()
            answer = lab.up(lab.plan("ring", ring((1, 2))))
        finally:
            devices.write_text(text)
    assert answer.exit_code == 5 and "ocs2" in answer.envelope["message"]
    assert lab.writes() == before and pairs(lab) == 0


@pytest.mark.long
def test_a_device_that_answers_garbage_is_quoted_and_nothing_changes(lab: Lab) -> None:
    lab.ask("faults.add", device="ocs1", kind="garble", match="stat")
    before = lab.writes()
    answer = lab.up(lab.plan("ring", ring((1, 2))))
    assert answer.exit_code == 5 and "ocs1" in answer.envelope["message"]
    assert lab.writes() == before and pairs(lab) == 0


def test_a_host_whose_sshd_is_down_is_named_and_nothing_changes(lab: Lab) -> None:
    lab.ask("host.sshd", host="gpu03", up=False)
    before = lab.writes()
    answer = lab.up(lab.plan("ring", ring((1, 2))))
    assert answer.exit_code == 5 and "gpu03" in answer.envelope["message"]
    assert lab.writes() == before


def test_a_change_that_a_device_refuses_is_taken_back_and_the_next_up_completes_it(
    lab: Lab,
) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    before = lab.light()
    fault = lab.ask("faults.add", device="ocs3", kind="refuse", match="ENT-CRS", count=1)
    plan = lab.plan("two", [*ring((1, 2)), ("gpu01:p3", "gpu04:p3"), ("gpu02:p3", "gpu05:p3")])
    answer = lab.up(plan)
    assert answer.exit_code == 6, answer.envelope
    assert (
        "ocs3" in answer.envelope["message"]
        and "everything is as before" in answer.envelope["message"]
    )
    assert lab.light() == before and lab.testbed("verify").must()["ok"]
    assert not lab.testbed("status").must()["unfinished"]
    lab.ask("faults.remove", device="ocs3", number=fault["number"])
    assert lab.up(plan).must()["pairs_ok"] == 30
    assert pairs(lab) == 16


def test_a_dark_fibre_is_localised_and_the_hosts_stay_consistent(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    lab.ask("faults.add", device="ocs3", kind="dark-port", port="1.1.1/in")
    plan = lab.plan(
        "more", [*ring((1, 2)), ("gpu01:p3", "gpu04:p3")], acceptance={"link_up_timeout_s": 2}
    )
    answer = lab.up(plan)
    assert answer.exit_code == 6 and "gpu04:p3 has no carrier" in answer.envelope["message"]
    assert (
        "no light arrives at ocs3:1.1.1: the transmitter of gpu01:p3, or fibre f-gpu01-p3"
        in answer.envelope["message"]
    )
    status = lab.testbed("status").envelope["data"]
    assert status["plan"] == "ring" and {h["generation"] for h in status["hosts"]} == {
        status["generation"]
    }
    lab.clean()


@pytest.mark.long
def test_a_second_writer_is_locked_out_and_told_by_whom(lab: Lab) -> None:
    plan = lab.plan("ring", ring((1, 2)))
    first = lab.command("up", "--topology", plan)
    until(lab.holders)
    first.send_signal(signal.SIGSTOP)  # however slow the second is
    answer = lab.up(plan)
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=60)
    assert answer.exit_code == 4 and "up ring" in answer.envelope["message"]


@pytest.mark.parametrize("moment", ["writes", pytest.param("stage", marks=pytest.mark.long)])
def test_after_kill_9_of_up_the_next_up_converges(lab: Lab, moment: str) -> None:
    plan = lab.plan("ring", ring((1, 2)))
    before = lab.writes()
    process = lab.command("up", "--topology", plan)
    if moment == "writes":
        until(lambda: lab.writes() != before or process.poll() is not None)
    else:
        time.sleep(1.5)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert lab.up(plan).must()["run"]
    assert pairs(lab) == 12
    assert lab.testbed("verify").must()["ok"]


@pytest.mark.long
def test_a_device_that_settles_while_the_next_up_stages_holds_nobody_up(lab: Lab) -> None:
    plan = lab.plan("ring", ring((1, 2)))
    before = lab.writes()
    with lab.settling(2.0):
        process = lab.command("up", "--topology", plan)
        until(lambda: lab.writes() != before)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert lab.up(plan).must()["pairs_ok"] == 30


def test_dry_run_and_plan_write_nothing(lab: Lab) -> None:
    plan = lab.plan("ring", ring((1, 2)))
    before = lab.writes()
    assert lab.up(plan, "--dry-run").must()["made"] == 12
    assert lab.testbed("plan", "--topology", plan).must()["made"] == 12
    assert lab.testbed("plan", "--topology", plan, "--exit-code").exit_code == 8
    assert lab.writes() == before and pairs(lab) == 0
