"""A plan without one of its hosts: a spare has its place in everything, or its neighbours close the
rings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extensions.shadow.plan import Shadow, shadow_of
from optics import HostPort, Infeasible, TestbedError
from optics.plan import Plan, ring_steps
from orchestrator.hosts.launch import identity
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.plan.evict import left_out, plan_without_host, replaced
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from tests.properties.labs import inventory, lab

HERE = lab(8, 4)
RING = [f"gpu{k:02d}" for k in range(1, 7)]


def text(
    ranks: list[str] | None = None, links: list[dict[str, Any]] | None = None, **more: Any
) -> str:
    """A ring of six of eight hosts, on ports 1 and 2 in turn."""
    made = [
        {"a": f"{a}:p{1 + k % 2}", "b": f"{b}:p{1 + k % 2}"}
        for k, (a, b) in enumerate(ring_steps(RING))
    ]
    job = {
        "name": "mlp",
        "workload": "train",
        "ranks": ranks or RING,
        "rings": [RING, RING[::-1]],
    } | more.pop("job", {})
    return json.dumps(
        {"schema": "testbed.plan/1", "name": "ring", "links": links or made, "job": job} | more
    )


def plan_of(written: str, where: Lab = HERE) -> Plan:
    return read_plan(written, "ring", where)


def evicted(
    written: str, spare: str = "", host: str = "gpu04", where: Lab = HERE
) -> tuple[Plan, str]:
    plan = plan_of(written, where)
    found = (
        replaced(written, plan, where, {host: spare})
        if spare
        else plan_without_host(written, plan, where, host)
    )
    return plan_of(found, where), found


def test_a_spare_has_the_host_s_place_in_links_rings_and_ranks_and_the_training_goes_on() -> None:
    written = text(spares=["gpu07", "gpu08"], interchangeable=[["gpu03", "gpu04"]])
    before = plan_of(written)
    after, found = evicted(written, "gpu07")
    assert before.job is not None and after.job is not None
    assert after.job.ranks == (*RING[:3], "gpu07", *RING[4:]) and "gpu04" not in {
        h for link in after.links for h in link.hosts
    }
    assert after.job.evicted == {"gpu04": "gpu07"} and identity(after.job) == identity(before.job)
    assert after.spares == ("gpu08",) and after.interchangeable == (("gpu03", "gpu07"),)
    again, found = evicted(found, "gpu08", "gpu07")
    assert (
        again.job is not None
        and again.job.evicted == {"gpu04": "gpu08"}
        and identity(again.job) == identity(before.job)
    )
    own, found = evicted(found, "gpu04", "gpu08")
    assert own.job is not None and not own.job.evicted and own.job.ranks == before.job.ranks


def test_several_ranks_move_with_their_numbers() -> None:
    hosts, devices, fibres = inventory(8, 4)
    where = read_lab(hosts.replace("  vars:", "  vars:\n    testbed_ranks: 2"), devices, fibres)
    two = [f"{host}/{k}" for host in RING for k in range(2)]
    after, _ = evicted(text(two), "gpu07", where=where)
    assert after.job is not None and after.job.ranks[6:8] == ("gpu07/0", "gpu07/1")
    assert after.job.evicted == {"gpu04/0": "gpu07/0", "gpu04/1": "gpu07/1"}


def test_traffic_follows_to_the_spare() -> None:
    traffic = {
        "groups": [{"id": "data", "bytes": 64, "rings": [RING]}],
        "transfers": [
            {"src": "gpu04", "dst": "gpu05", "bytes": 9},
            {"src": "gpu03", "dst": "gpu04", "bytes": 9},
        ],
    }
    after, _ = evicted(text(job={"workload": "replay", "rings": [], "traffic": traffic}), "gpu08")
    assert after.job is not None and after.job.traffic is not None
    assert [(t.src, t.dst) for t in after.job.traffic.transfers] == [
        ("gpu08", "gpu05"),
        ("gpu03", "gpu08"),
    ]
    assert after.job.traffic.groups[0].rings[0][3] == "gpu08"


def test_without_a_spare_its_neighbours_close_the_ring_once_for_both_directions() -> None:
    before = plan_of(text())
    after, found = evicted(text())
    assert before.job is not None and after.job is not None
    assert len(after.links) == 5 and ("gpu03", "gpu05") in [link.hosts for link in after.links]
    assert after.job.rings == (
        ("gpu01", "gpu02", "gpu03", "gpu05", "gpu06"),
        ("gpu06", "gpu05", "gpu03", "gpu02", "gpu01"),
    )
    assert identity(after.job) == identity(before.job) and after.job.evicted == {"gpu04": ""}
    kept = {str(link) for link in before.links} & {str(link) for link in after.links}
    assert len(kept) == 4 and assign_ports(after.links, HERE), (
        "what need not move stays where it is"
    )
    fewer, _ = evicted(found, host="gpu05")
    assert (
        fewer.job is not None
        and identity(fewer.job) == identity(before.job)
        and len(fewer.links) == 4
    )


def test_a_shadow_s_host_gives_its_place_to_a_spare_or_the_job_goes_on_without_one() -> None:
    written = text(job={"shadow": {"host": "gpu07"}})
    moved, _ = evicted(written, "gpu08", "gpu07")
    assert (
        moved.job is not None
        and shadow_of(moved.job) == Shadow("gpu08")
        and moved.job.ranks == tuple(RING)
    )
    alone, _ = evicted(written, host="gpu07")
    assert alone.job is not None and shadow_of(alone.job) is None and alone.job.ranks == tuple(RING)


def test_taps_follow_a_spare_and_are_chosen_anew_where_neighbours_close_the_ring() -> None:
    written = text(job={"shadow": {"host": "gpu07", "taps": ["gpu04:p1", "gpu02:p1"]}})
    for spare, taps in (("", "auto"), ("gpu08", (HostPort("gpu08", 1), HostPort("gpu02", 1)))):
        after, _ = evicted(written, spare)
        assert (
            after.job is not None
            and (shadow := shadow_of(after.job)) is not None
            and shadow.taps == taps
        )


def test_ports_are_chosen_anew_where_those_that_are_free_do_not_meet() -> None:
    links = [
        {"a": f"{a}:p{1 + k % 2}", "b": f"{b}:p{1 + k % 2}"}
        for k, (a, b) in enumerate(ring_steps(RING))
    ]
    three = lab(6, 3)
    taken = [*links, {"a": "gpu03:p3", "b": "gpu06:p3"}]
    after, _ = evicted(text(links=taken), where=three)
    assert len(after.links) == 6 and assign_ports(after.links, three)


def _pipeline(groups: list[dict[str, Any]]) -> str:
    traffic = {"groups": groups, "transfers": [{"src": "gpu03", "dst": "gpu04", "bytes": 9}]}
    return text(job={"workload": "replay", "rings": [], "traffic": traffic})


def _alone() -> str:
    return _pipeline([{"id": "d", "bytes": 4, "rings": [["gpu01", "gpu02"]]}])


def _shared() -> str:
    return _pipeline([{"id": "d", "bytes": 4, "rings": [["gpu04", "gpu05"]]}])


@pytest.mark.parametrize(
    ("written", "host", "spare", "message", "hint"),
    [
        (
            _alone,
            "gpu04",
            "",
            "gpu04 is the only holder of a pipeline stage of job mlp, which cannot go on without it",
            "testbed job evict gpu04 --spare gpu07",
        ),
        (
            _shared,
            "gpu04",
            "",
            "gpu04 takes part in model-parallel transfers of job mlp, which cannot go on without them",
            "testbed job evict gpu04 --spare gpu07",
        ),
        (text, "gpu09", "", "gpu09 is no host of ring, nor of the lab", "testbed status"),
        (text, "gpu07", "", "gpu07 is no host of ring", "testbed status"),
        (
            text,
            "gpu04",
            "gpu05",
            "gpu05 is in use by ring already",
            "testbed job evict gpu04 --spare gpu07",
        ),
        (
            text,
            "gpu04",
            "gpu04",
            "gpu04 is in use by ring already",
            "testbed job evict gpu04 --spare gpu07",
        ),
        (
            text,
            "gpu04",
            "gpu70",
            "gpu70 is not in the lab",
            "testbed job evict gpu04 --spare gpu07",
        ),
    ],
)
def test_what_cannot_be_done_without_is_refused_with_the_next_command(
    written: Callable[[], str], host: str, spare: str, message: str, hint: str
) -> None:
    with pytest.raises(TestbedError, match=message) as refused:
        evicted(written(), spare, host)
    assert refused.value.hint == hint


def test_a_spare_that_is_not_alike_is_refused_with_the_difference() -> None:
    hosts, devices, fibres = inventory(8, 4)
    where = read_lab(
        hosts.replace(
            "      testbed_host_id: 7\n", "      testbed_host_id: 7\n      testbed_gpus: 8\n"
        ),
        devices,
        fibres,
    )
    with pytest.raises(
        Infeasible, match="gpu07 cannot take the place of gpu04: gpu04 has GPUs 0, gpu07 has 8"
    ) as refused:
        evicted(text(), "gpu07", where=where)
    assert refused.value.hint == "testbed job evict gpu04 --spare gpu08"
    with pytest.raises(
        TestbedError, match=r"spares\[0\].*gpu07 cannot take the place of any host of the plan"
    ):
        plan_of(text(spares=["gpu07"]), where)


def test_a_full_lab_says_that_the_ring_cannot_be_closed() -> None:
    full = [
        {"a": f"{a}:p{1 + k % 2}", "b": f"{b}:p{1 + k % 2}"}
        for k, (a, b) in enumerate(ring_steps(RING))
    ]
    with pytest.raises(Infeasible, match="cannot do without gpu04") as refused:
        evicted(text(links=full), where=lab(6, 2))
    assert "design replan --topology FILE --host gpu04" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"spares": ["gpu01"]}, "gpu01 is in use by this plan"),
        ({"spares": ["gpu07", "gpu07"]}, "gpu07 is named twice"),
        ({"spares": ["gpu99"]}, "host gpu99 is not in the lab"),
        ({"job": {"evicted": {"gpu01": ""}}}, "gpu01 is a rank of the job"),
        ({"job": {"evicted": {"gpu08": "gpu07"}}}, "gpu07 is not a rank of the job"),
        (
            {"job": {"evicted": {"gpu08": "gpu01", "gpu07": "gpu01"}}},
            "gpu01 took more than one place",
        ),
        ({"job": {"evicted": {"a/b": ""}}}, "wanted a host such as gpu01"),
    ],
)
def test_spares_and_evicted_ranks_of_a_plan_file_are_checked(
    more: dict[str, Any], message: str
) -> None:
    with pytest.raises(TestbedError, match=message):
        plan_of(text(**more))


def test_spares_replace_those_of_the_plan() -> None:
    written = text(spares=["gpu07"])
    assert plan_of(left_out(written, ["gpu08"], plan_of(written), HERE)).spares == ("gpu08",)


@pytest.mark.parametrize(
    ("spares", "message"),
    [
        (
            ["gpu08", "gpu88"],
            "--spares gpu08,gpu88: gpu88 is not in the lab (8 hosts, gpu01..gpu08); did you mean gpu08?",
        ),
        (["gpu01"], "--spares gpu01: gpu01 is in use by ring already"),
        (["gpu08", "gpu08"], "--spares gpu08,gpu08: gpu08 is named twice"),
        (
            ["gpu01", "gpu02"],
            "--spares gpu01,gpu02: gpu01 is in use by ring already\n--spares gpu01,gpu02: gpu02 is in use by ring already",
        ),
    ],
)
def test_spares_that_cannot_be_are_refused_by_the_option_s_name_with_some_that_can(
    spares: list[str], message: str
) -> None:
    with pytest.raises(TestbedError) as refused:
        left_out(text(), spares, plan_of(text()), HERE)
    assert str(refused.value) == message and "--spares gpu07" in str(refused.value.hint)
