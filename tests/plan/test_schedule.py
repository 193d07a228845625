"""Schedules of plan files: read, refused at the place of the mistake, written again, and each slot
as an ordinary plan.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extensions.shadow.plan import Shadow, shadow_of
from optics import BadFile, HostPort, Traits
from optics.plan import Plan
from orchestrator.inventory.lab import Lab
from orchestrator.plan import schedule as schedule_module
from orchestrator.plan.evict import plan_without_host
from orchestrator.plan.interchangeable import relabelled_text
from orchestrator.plan.reader import read_plan
from orchestrator.plan.schedule import slowest_between_slots
from orchestrator.plan.target import target
from orchestrator.plan.written import document_of

HOSTS = [f"gpu{n:02}" for n in range(1, 13)]
JOB = {"name": "j", "workload": "train", "ranks": HOSTS}


def text(**more: object) -> str:
    return json.dumps({"schema": "testbed.plan/1", "name": "p", **more}, indent=1)


def read(lab: Lab, **more: object) -> Plan:
    return read_plan(text(**more), "plan.json", lab)


def problems(lab: Lab, **more: object) -> list[str]:
    with pytest.raises(BadFile) as caught:
        read(lab, **more)
    return caught.value.problems


def pair(a: str, b: str) -> dict[str, str]:
    return {"a": a, "b": b}


def slots(*each: list[dict[str, str]], **more: object) -> dict[str, Any]:
    return {"slots": [{"links": links} for links in each], "dwell_s": 0.5, **more}


ONE = [pair("gpu02:p1", "gpu04:p1")]
FOUR = [pair("gpu02", host) for host in HOSTS[3:7]]
TRIANGLE = (
    [pair("gpu01:p1", "gpu02:p1")],
    [pair("gpu02:p1", "gpu03:p1")],
    [pair("gpu01:p1", "gpu03:p1")],
)


def test_sums_over_connections_that_know_no_slots_are_said(lab: Lab) -> None:
    job = {**JOB, "ranks": HOSTS[:3], "args": {"exchange": "gloo"}}
    plan = read(lab, schedule=slots(*TRIANGLE), job=job)
    (output,) = plan.warnings
    assert plan.slot(0).warnings == plan.warnings, (
        "`plan` and `up` of a schedule show those of a slot"
    )
    assert (
        "job.args.exchange: gloo: torch's connections do not know the slots" in output
        and "exchange wires" in output
    )
    assert read(lab, schedule=slots(*TRIANGLE), job={**job, "args": {}}).warnings == ()


def test_a_shadow_may_be_given_copies_at_ports_that_only_slots_use(lab: Lab) -> None:
    job = {**JOB, "ranks": HOSTS[:3], "shadow": {"host": "gpu09", "taps": ["gpu01:p1", "gpu02:p1"]}}
    plan = read(lab, schedule=slots(*TRIANGLE), job=job)
    assert plan.job is not None and shadow_of(plan.job) == Shadow(
        "gpu09", (HostPort("gpu01", 1), HostPort("gpu02", 1))
    )
    job["shadow"] = {"host": "gpu09", "taps": ["gpu01:p2", "gpu02:p1"]}
    (output,) = problems(lab, schedule=slots(*TRIANGLE), job=job)
    assert "gpu01:p2 is a port that this plan does not use" in output


@pytest.mark.parametrize(("name", "count"), [("round-robin", 11), ("staggered", 3), ("opera", 12)])
def test_a_pattern_becomes_slots_in_which_all_hosts_of_the_job_meet(
    lab: Lab, name: str, count: int
) -> None:
    plan = read(lab, schedule=pattern("p1", "p2", "p3", "p4", pattern=name), job=JOB)
    assert (
        plan.schedule is not None
        and len(plan.schedule.slots) == count
        and plan.schedule.pattern == name
    )
    met = {frozenset(link.hosts) for slot in plan.schedule.slots for link in slot.links}
    assert len(met) == 66
    for index in range(count):
        assert (
            len(
                target(
                    plan.slot(index), lab, {device: frozenset() for device in lab.devices}, ()
                ).circuits
            )
            == 48
        )


def test_a_slot_is_a_plan_of_what_is_lit_then(lab: Lab) -> None:
    always, route = (
        [pair("gpu01:p4", "gpu02:p4")],
        {"src": "gpu01", "dst": "gpu03", "via": ["gpu02"]},
    )
    plan = read(
        lab,
        links=always,
        schedule=slots(*TRIANGLE),
        routes=[route],
        job={**JOB, "ranks": HOSTS[:3]},
    )
    first, second = plan.slot(0), plan.slot(1)
    assert plan.hosts == ("gpu01", "gpu02", "gpu03")
    assert [str(link) for link in second.links] == ["gpu01:p4 -- gpu02:p4", "gpu02:p1 -- gpu03:p1"]
    assert (first.job, first.schedule, first.sha256) == (None, None, plan.sha256)
    assert first.routes == () and len(second.routes) == 1, "a route goes where its links are"
    assert not first.acceptance.all_pairs and second.acceptance.all_pairs, (
        "all pairs where links join them all"
    )
    with pytest.raises(ValueError, match="no schedule"):
        first.slot(0)


def test_one_way_links_do_not_join_all_pairs(lab: Lab) -> None:
    other, back = (
        [{**pair(a, b), "kind": "simplex"}]
        for a, b in (("gpu01:p1", "gpu02:p1"), ("gpu02:p1", "gpu01:p1"))
    )
    plan = read(lab, schedule=slots(other, back, other + back))
    assert [plan.slot(index).acceptance.all_pairs for index in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "schedule",
    [
        slots(*TRIANGLE, guard_s=0.01, late="stop", kind="phase"),
        {"pattern": "staggered", "ports": ["p1", "p2"], "dwell_s": 0.3, "hold": False},
    ],
)
def test_what_is_read_is_written_and_read_again(lab: Lab, schedule: dict[str, Any]) -> None:
    plan = read(lab, schedule=schedule, job={**JOB, "ranks": HOSTS[:3]})
    again = read_plan(json.dumps(document_of(plan)), "again.json", lab)
    assert plan.schedule is not None and again.schedule == replace(plan.schedule, pattern="")


@pytest.mark.parametrize(
    ("mbps", "length_m", "guard_s"),
    [
        (250, 0, 0.004),
        (100, 0, 0.004),
        (20, 0, 0.007212),
        (25_000, 0, 0.000042),
        (25_000, 10_000, 0.00014),
    ],
)
def test_a_guard_by_itself_is_as_long_as_two_bursts_wait_and_light_travels(
    lab: Lab, mbps: float, length_m: float, guard_s: float
) -> None:
    hosts = {name: replace(host, link_mbps=mbps) for name, host in lab.hosts.items()}
    fibres = {port: replace(fibre, length_m=length_m) for port, fibre in lab.fibres.items()}
    plan = read(replace(lab, hosts=hosts, fibres=fibres), schedule=slots(*TRIANGLE, guard_s="auto"))
    assert plan.schedule is not None and plan.schedule.guard_s == pytest.approx(guard_s, abs=1.1e-6)


def test_other_hosts_take_their_places_in_slots_and_patterns(lab: Lab) -> None:
    swapped = json.loads(
        relabelled_text(text(schedule=slots(*TRIANGLE)), {"gpu01": "gpu02", "gpu02": "gpu01"})
    )
    assert swapped["schedule"]["slots"][1]["links"] == [pair("gpu01:p1", "gpu03:p1")]
    opera = pattern("p1", hosts=HOSTS[:3])
    assert (
        json.loads(relabelled_text(text(schedule=opera), {"gpu03": "gpu09"}))["schedule"]["hosts"][
            2
        ]
        == "gpu09"
    )


@pytest.mark.parametrize(
    "schedule",
    [
        slots(
            *TRIANGLE,
            [pair("gpu03:p1", "gpu04:p1")],
            [pair("gpu01:p1", "gpu04:p1")],
            [pair("gpu02:p1", "gpu04:p1")],
        ),
        {"pattern": "staggered", "ports": ["p1"], "hosts": HOSTS[:4], "dwell_s": 0.5},
    ],
    ids=["slots", "pattern"],
)
def test_a_host_that_failed_is_left_out_of_every_slot(lab: Lab, schedule: dict[str, Any]) -> None:
    whole = text(schedule=schedule, job={**JOB, "ranks": HOSTS[:4]})
    plan = read_plan(plan_without_host(whole, read_plan(whole, "p", lab), lab, "gpu04"), "p", lab)
    assert plan.schedule is not None and plan.job is not None
    assert set(plan.hosts) == {"gpu01", "gpu02", "gpu03"} == set(plan.job.hosts)


def pattern(*ports: str, **more: object) -> dict[str, Any]:
    return {"pattern": "opera", "dwell_s": 1, "ports": list(ports), **more}


@pytest.mark.parametrize(
    ("message", "schedule", "more"),
    [
        ("guard_s: hosts would stop sending 500 ms before the end of a slot of 500 ms", slots(*TRIANGLE, guard_s=0.5), {}),
        ("slots: 65 slots; a schedule has at most 64", slots(*[TRIANGLE[0]] * 65), {}),
        ("slots: never meet: gpu02 and gpu03;", slots(TRIANGLE[0], TRIANGLE[2]), {}),
        ("slots: one slot, which never ends", slots(TRIANGLE[0]), {}),
        ("slots: all slots have the same links", slots(TRIANGLE[0], TRIANGLE[0]), {}),
        ("pattern: one slot, which never ends", pattern("p1", "p2", "p3", hosts=HOSTS[:4], pattern="staggered"), {}),
        ("pattern: slots are given too", slots(*TRIANGLE, pattern="opera", ports=["p1"]), {}),
        ("pattern: slots are given too", pattern("p1", hosts=HOSTS[:4], slots=[]), {}),
        ("ports: slots name their own ports", slots(*TRIANGLE, ports=["p1"]), {}),
        ("slots[0].links[0].b: port gpu02:p1 is already used by links[0]", slots(*TRIANGLE), {"links": ONE}),
        ("slots[0].links[1].a: port gpu02:p1 is already used by schedule.slots[0].links[0]", slots(TRIANGLE[0] + TRIANGLE[1]), {}),
        ("slots[0].links[0].a: gpu01 has no port p9", slots([pair("gpu01:p9", "gpu02:p9")]), {}),
        ("slots[1].links[0]: gpu02 is in 5 links but has 4 ports", slots([], [pair("gpu02", "gpu03")]), {"links": FOUR}),
        ("dwell_s: ocs1 takes 50 ms from slot to slot", slots(*TRIANGLE, dwell_s=0.19), {}),
        ("the nearest dwell that works is 0.2 s", slots(*TRIANGLE, dwell_s=0.19), {}),
        ("pattern: the pattern opera needs the ports", pattern(), {}),
        ("ports[1]: port p1 is named twice", pattern("p1", "p1"), {"job": JOB}),
        ("ports[0]: gpu01 has no port p7", pattern("p7"), {"job": JOB}),
        ("hosts[1]: host gpu13 is not in the lab", pattern("p1", hosts=["gpu01", "gpu13"]), {}),
        ("hosts[1]: host gpu01 is named twice", pattern("p1", hosts=["gpu01", "gpu01", "gpu02"]), {}),
        ("pattern: the pattern opera joins 0 hosts", pattern("p1"), {}),
        ("kind: the job's iterations end a slot, but the plan has no job", slots(*TRIANGLE, kind="phase"), {}),
        ("follow: no clock tells", slots(*TRIANGLE, kind="phase", follow="clock"), {"job": {**JOB, "ranks": HOSTS[:3]}}),
    ],
)  # fmt: skip
def test_a_mistake_in_a_schedule_is_reported_at_its_place(
    lab: Lab, message: str, schedule: dict[str, Any], more: dict[str, Any]
) -> None:
    found = problems(lab, schedule=schedule, **more)
    assert any(message in line for line in found), found
    assert all("schedule." in line for line in found)
    assert all(line.startswith("plan.json:") and line.split(":")[1].isdigit() for line in found)


def rotor_lab(lab: Lab, *devices: str) -> Lab:
    """The lab with devices of 10 ms, of which these change slots by themselves."""
    traits = {d: replace(lab.traits_of(d), settle_s=0.01) for d in lab.devices}
    return lab.with_traits(traits | {d: replace(traits[d], stored_dwell_s=1e-4) for d in devices})


@pytest.mark.parametrize(
    ("message", "schedule"),
    [
        (
            "the nearest dwell that works is 0.1 s, or 0.06 s by their clocks alone (follow: clock)",
            slots(*TRIANGLE, dwell_s=0.06),
        ),
        (
            "ocs1 changes slots by itself at 0.1 ms, hosts at 50 ms with the dark time: the nearest",
            slots(*TRIANGLE, dwell_s=1e-5),
        ),
        ("the nearest dwell that works is 0.03 s", slots(*TRIANGLE, dwell_s=0.001, follow="clock")),
    ],
)
def test_devices_that_turn_by_themselves_may_be_faster_than_a_command(
    lab: Lab, message: str, schedule: dict[str, Any]
) -> None:
    here = rotor_lab(lab, "ocs1")
    found = problems(here, schedule=schedule)
    assert any(message in line for line in found), found
    read(here, schedule=slots(*TRIANGLE, dwell_s=0.1))
    read(here, schedule=slots(*TRIANGLE, dwell_s=0.03, follow="clock"))


def test_one_device_that_must_be_told_slows_all_down(lab: Lab) -> None:
    two = slots([pair("gpu01:p1", "gpu02:p1"), pair("gpu01:p2", "gpu02:p2")], [], dwell_s=0.03)
    found = problems(rotor_lab(lab, "ocs1"), schedule=two, acceptance={"all_pairs": False})
    assert any(
        "ocs1 takes 10 ms from slot to slot" in line and "but ocs2 must be given every slot" in line
        for line in found
    ), found


def test_too_many_slots_of_a_pattern_name_one_that_has_fewer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MOST_SLOTS", 8)
    message = "schedule.pattern: opera over 12 hosts and 4 ports has 12 slots; at most 8 are possible; staggered has 3"
    assert any(
        message in line for line in problems(lab, schedule=pattern("p1", "p2", "p3", "p4"), job=JOB)
    )


def test_a_schedule_has_slots_and_goes_without_adapting(lab: Lab) -> None:
    assert any(
        "schedule: the schedule has no slots" in line for line in problems(lab, schedule=slots())
    )
    found = problems(lab, schedule=slots(*TRIANGLE), adapt={"every": 3})
    assert any("adapt: no circuits to adapt" in line for line in found)
    assert any("adapt: the plan has a schedule too" in line for line in found)


def test_pairs_that_no_job_and_no_check_needs_may_never_meet(lab: Lab) -> None:
    apart = slots([pair("gpu01:p1", "gpu02:p1")], [pair("gpu03:p1", "gpu04:p1")])
    assert problems(lab, schedule=apart)[0].endswith(
        "in some slot a path over its links must join them"
    )
    assert read(lab, schedule=apart, acceptance={"all_pairs": False}).schedule is not None


def test_two_hops_in_a_slot_are_a_meeting(lab: Lab) -> None:
    chain = slots(
        [pair("gpu01:p1", "gpu02:p1"), pair("gpu02:p2", "gpu03:p2")], [pair("gpu01:p1", "gpu02:p1")]
    )
    assert read(lab, schedule=chain, job={**JOB, "ranks": HOSTS[:3]}).schedule is not None


def test_the_slowest_device_counts_its_moves_one_by_one_where_it_makes_them_so(lab: Lab) -> None:
    plan = read(
        lab,
        schedule=slots(
            [pair("gpu01:p1", "gpu02:p1"), pair("gpu01:p2", "gpu02:p2")],
            [pair("gpu01:p2", "gpu02:p2")],
        ),
    )
    assert plan.schedule is not None
    slow = lab.with_traits(
        {
            **{name: Traits(0.01) for name in lab.devices},
            "ocs1": Traits(0.02, at_once=1),
            "ocs2": Traits(9.0),
        }
    )
    assert slowest_between_slots(plan.schedule.slots, slow) == ("ocs1", 0.04), "ocs2 never moves"
    assert slowest_between_slots((), slow) is None


def test_a_plan_for_another_lab_is_named_as_such_by_its_slots(lab: Lab) -> None:
    strange = [pair(f"node{n}:p1", f"node{n + 1}:p1") for n in range(1, 9, 2)]
    assert "this is a plan for another lab" in problems(lab, schedule=slots(strange))[0]
