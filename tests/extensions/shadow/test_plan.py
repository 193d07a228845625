"""The shadow of a job: read, written, refused at the place of the mistake; where its taps are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extensions.shadow.hosts import tapped
from extensions.shadow.plan import Shadow, shadow_of
from optics import BadFile, HostPort, Infeasible
from optics.plan import Plan
from orchestrator.change.locking import plan_hosts
from orchestrator.extensions import job_of
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.decision import differing
from orchestrator.plan.attached import check_placed
from orchestrator.plan.evict import why_no_spare
from orchestrator.plan.interchangeable import relabelled_text
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from orchestrator.plan.written import document_of
from orchestrator.results import to_json

HOSTS = ["gpu01", "gpu02", "gpu03"]
RING = [
    {"a": f"{a}:p{n}", "b": f"{b}:p{n}"}
    for n, (a, b) in enumerate(zip(HOSTS, HOSTS[1:] + HOSTS[:1], strict=True), 1)
]


def text(shadow: object, **job: object) -> str:
    content: dict[str, Any] = {
        "name": "j",
        "workload": "train",
        "ranks": HOSTS,
        "rings": [HOSTS],
        "shadow": shadow,
        **job,
    }
    return json.dumps({"schema": "testbed.plan/1", "name": "p", "links": RING, "job": content})


def read(lab: Lab, shadow: object, **job: object) -> Plan:
    return read_plan(text(shadow, **job), "plan.json", lab)


def problem(lab: Lab, shadow: object, **job: object) -> str:
    with pytest.raises(BadFile) as caught:
        read(lab, shadow, **job)
    [line] = caught.value.problems
    return line


def test_a_shadow_is_read_written_and_read_again_and_kept_with_the_job(lab: Lab) -> None:
    for raw, taps in (
        ({"host": "gpu07"}, "auto"),
        ({"host": "gpu07", "taps": ["gpu01:p1", "gpu03:p2"]}, None),
    ):
        plan = read(lab, raw)
        assert plan.job is not None
        assert shadow_of(plan.job) == Shadow(
            "gpu07", taps or (HostPort("gpu01", 1), HostPort("gpu03", 2))
        )  # type: ignore[arg-type]
        assert read_plan(json.dumps(document_of(plan)), "again.json", lab).job == plan.job
        assert job_of(json.loads(json.dumps(to_json(plan.job)))) == plan.job
        assert plan_hosts(plan) == {*HOSTS, "gpu07"} == set(plan.job.needed)
        assert "in use by p already" in why_no_spare("gpu01", "gpu07", plan, lab)


def test_a_job_without_its_shadow_is_another_job(lab: Lab) -> None:
    job = read(lab, {"host": "gpu07"}).job
    before = read(lab, None).job
    assert job is not None and before is not None and differing(before, job) == ["shadow"]


def test_taps_follow_hosts_that_change_places(lab: Lab) -> None:
    moved = json.loads(
        relabelled_text(
            text({"host": "gpu07", "taps": ["gpu01:p1", "gpu03:p2"]}), {"gpu01": "gpu05"}
        )
    )
    assert moved["job"]["shadow"] == {"host": "gpu07", "taps": ["gpu05:p1", "gpu03:p2"]}
    assert json.loads(relabelled_text(text({"host": "gpu07"}), {"gpu07": "gpu08"}))["job"][
        "shadow"
    ] == {"host": "gpu08"}


def test_by_itself_all_ports_of_two_hosts_are_tapped(lab: Lab) -> None:
    job = read(lab, {"host": "gpu07"}).job
    assert job is not None and tapped(job, lab) == {"gpu01": [1, 2, 3, 4], "gpu02": [1, 2, 3, 4]}
    job = read(lab, {"host": "gpu07", "taps": ["gpu03:p2", "gpu01:p3", "gpu01:p1"]}).job
    assert job is not None and tapped(job, lab) == {"gpu01": [1, 3], "gpu03": [2]}


@pytest.mark.parametrize(
    ("shadow", "job", "message"),
    [
        (
            {"host": "gpu02"},
            {},
            "gpu02 is a host of the job's ranks: its shadow would be lost with them; name another host",
        ),
        ({"host": "gpu99"}, {}, "host gpu99 is not in the lab"),
        (
            {"host": "gpu07", "taps": ["gpu01:p2", "gpu02:p1"]},
            {},
            "gpu01:p2 is a port that this plan does not use",
        ),
        ({"host": "gpu07", "taps": ["gpu07:p1", "gpu02:p1"]}, {}, "gpu07 is not a host of the job"),
        (
            {"host": "gpu07", "taps": ["gpu01:p9", "gpu02:p1"]},
            {},
            "gpu01 has no port p9 (it has p1, p2, p3, p4)",
        ),
        ({"host": "gpu07", "taps": []}, {}, "job.shadow.taps: wanted at least 1 item, got 0"),
        (
            {"host": "gpu07", "taps": "gpu01:p1"},
            {},
            'job.shadow.taps: wanted auto or a list, got "gpu01:p1"',
        ),
        (
            {"host": "gpu07", "taps": ["gpu01", "gpu02:p1"]},
            {},
            "job.shadow.taps[0]: wanted a host port such as gpu01:p1",
        ),
        ({"host": "gpu07", "taps": ["gpu01:p1", "gpu01:p1"]}, {}, "gpu01:p1 is named twice"),
        (
            {"host": "gpu07", "taps": ["gpu01:p1", "gpu01:p3"]},
            {},
            "taps at gpu01 alone do not see every sum",
        ),
        (
            {"host": "gpu07"},
            {"workload": "allreduce"},
            "shadow is for train; this job is allreduce: leave shadow out",
        ),
        (
            {"host": "gpu07"},
            {"ranks": ["gpu01"], "rings": []},
            "a job on one host sends nothing that could be copied",
        ),
    ],
)
def test_a_shadow_that_could_not_follow_is_refused(
    lab: Lab, shadow: object, job: dict[str, object], message: str
) -> None:
    assert message in problem(lab, shadow, **job)


def test_a_list_where_only_a_word_is_allowed_is_told_with_the_words(lab: Lab) -> None:
    assert "job.backend: wanted auto, gloo or nccl, got a list" in problem(
        lab, {"host": "gpu07"}, backend=[]
    )


def test_sums_of_nccl_are_not_followed(lab: Lab) -> None:
    with pytest.raises(BadFile, match="a shadow follows sums over the project's own connections"):
        read(lab, {"host": "gpu07"}, backend="nccl")


def test_a_tap_at_a_port_that_is_not_chosen_for_any_link_is_refused(lab: Lab) -> None:
    body = json.loads(text({"host": "gpu07", "taps": ["gpu01:p4", "gpu02:p1"]}))
    body["links"] = [{key: end.partition(":")[0] for key, end in link.items()} for link in RING]
    plan = read_plan(json.dumps(body), "plan.json", lab)
    links = assign_ports(plan.links, lab)
    with pytest.raises(Infeasible) as refused:
        check_placed(plan, links)
    message = "job.shadow.taps[0]: the links of p do not end at gpu01:p4, so nothing arrives there (they end at gpu01:p"
    assert str(refused.value).startswith(message) and "auto" in refused.value.hint
    taps = [
        next(str(end) for link in links for end in (link.a, link.b) if end.host == host)
        for host in ("gpu01", "gpu02")
    ]
    body["job"]["shadow"]["taps"] = taps
    check_placed(read_plan(json.dumps(body), "plan.json", lab), links)
    body["job"]["shadow"]["taps"] = "auto"
    check_placed(read_plan(json.dumps(body), "plan.json", lab), links)
