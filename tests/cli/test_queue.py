"""`testbed job queue`: what may be added, what is listed and why it waits, all on an inventory
whose lab does not run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from optics import HostPort, Link, Locked, TimedOut
from orchestrator.background.kind import Kind, StateFile
from orchestrator.fabric.up_state import UpState
from orchestrator.queue.onlab import OnLab
from orchestrator.queue.process import QUEUE, QueueState
from orchestrator.queue.verb import queue_view
from orchestrator.session import Command, load_lab
from orchestrator.settings import load
from orchestrator.store.audit import Who
from orchestrator.store.keys import key_of
from orchestrator.store.locks import Locks
from orchestrator.store.queue import change_job_state, claim, get, serve
from orchestrator.store.scope import WHOLE, reachable_scope
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.progress import Silent
from tests.house.repository import ROOT

WORKLOAD, PLAN = (
    str(ROOT / "examples" / "workloads" / "vgg16.yaml"),
    str(ROOT / "examples" / "ring-12.json"),
)
RING = ("--method", "ring")


@pytest.fixture
def bench(cli: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line on the project's lab; nothing is started, neither a lab nor a process."""
    monkeypatch.setenv("TESTBED_INVENTORY", str(ROOT / "inventory" / "emulated"))
    monkeypatch.setattr("orchestrator.queue.verb.start_lab", lambda *_: None)
    monkeypatch.setattr(Kind, "start", lambda *_: QueueState(7, "ann", "here", state="serving"))
    return cli


def opened() -> tuple[Command, OnLab]:
    settings = load()
    lab = load_lab(settings.inventory)
    command = Command(Silent(), Store(settings.store_path, durable=False), settings)
    return command, OnLab(lab, command)


def test_a_job_is_added_listed_explained_and_dropped(bench: Any) -> None:
    result = bench(
        "job",
        "queue",
        "add",
        WORKLOAD,
        "--hosts",
        "6",
        "--for",
        "4h",
        "--preemptible",
        *RING,
        "--as",
        "ann",
    )
    assert result.code == 0 and result.out == "Job 1: vgg16 on 6 hosts for 4 h 00 min, as ann.q1\n"
    assert result.err.endswith("next: testbed --as ann job queue list --explain\n")
    bench("job", "queue", "add", PLAN, "--for", "10m", "--as", "ann")
    rows = bench("job", "queue", "--json").json["data"]["rows"]
    assert [(row["number"], row["state"], row["count"], row["tenancy"]) for row in rows] == [
        (1, "waiting", 6, "ann.q1"),
        (2, "waiting", 12, "ann.q2"),
    ]
    assert rows[1]["starts"] and "comes after 2" not in rows[0]["why"]
    out = bench("job", "queue", "--explain").out.splitlines()
    assert (
        "starts on gpu01, gpu02" in out[2]
        and "needs 6 hosts of 12, 0 are free; it is not known" not in out[1]
    )
    assert bench("job", "queue", "drop", "1").code == 9, "it is ann's"
    assert bench("job", "queue", "drop", "1", "--as", "ann").out == "Job 1 is out of the queue\n"
    assert bench("job", "queue").out.splitlines()[1].split()[:4] == [
        "1",
        "vgg16",
        "(preemptible)",
        "ann",
    ]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (
            [WORKLOAD, "--hosts", "20", "--for", "4h"],
            3,
            "no hosts of emulated can hold it: it needs 20 hosts, 12 of 12 are able",
        ),
        (
            [WORKLOAD, "--hosts", "6"],
            2,
            "--for is missing: nobody behind it could know when hosts are free",
        ),
        ([WORKLOAD, "--hosts", "6", "--for", "soon"], 2, "--for: 'soon' is not a duration"),
        ([PLAN, "--hosts", "6", "--for", "1h"], 3, "the plan is for 12 hosts, not 6"),
        (["nothing.yaml", "--for", "1h"], 3, "nothing.yaml: No such file"),
        (["plan.json", "--for", "1h"], 3, "plan.json:1:1"),
        (["graph.fbuf", "--for", "1h"], 2, "is a task graph; the queue takes workloads and plans"),
        (
            [
                str(ROOT / "examples/scenarios/rotor-12/plans/neighbours-schedule.json"),
                "--for",
                "1h",
            ],
            3,
            "slots of a schedule are not changed by the queue",
        ),
        ([WORKLOAD, "--hosts", "6", "--for", "1h", "--method", "rign"], 3, "rign"),
    ],
)
def test_what_no_lab_could_run_or_nobody_could_plan_is_refused_and_not_added(
    bench: Any, argv: list[str], code: int, message: str
) -> None:
    answer = bench("job", "queue", "add", *argv, "--json")
    assert answer.code == code and message in answer.json["message"] and answer.json["hint"]
    assert bench("job", "queue", "--json").json["data"]["rows"] == []


def test_the_nearest_number_of_hosts_that_can_hold_a_workload_is_offered(bench: Any) -> None:
    argv = (WORKLOAD, *RING, "--hosts", "7", "--for", "4h")
    odd = bench("job", "queue", "add", *argv, "--json").json
    assert "no 7 hosts of emulated can hold it: 7 hosts (gpu01, ...) want 14" in odd["message"]
    assert odd["hint"] == "--hosts 6"
    moe = bench(
        "job",
        "queue",
        "add",
        str(ROOT / "examples/workloads/moe.yaml"),
        "--hosts",
        "6",
        "--for",
        "4h",
        "--json",
    ).json
    assert "are 12 ranks, not 6" in moe["message"] and moe["hint"] == "--hosts 12"


def test_without_a_job_of_the_user_nothing_is_served(bench: Any) -> None:
    assert bench("service", "stop", "queue").out == "No queue service was running\n"
    assert (
        bench("service", "start", "queue").out
        == "No job of yours is in the queue, so there is nothing to serve\n"
    )
    assert bench("job", "queue").out == "No jobs in the queue\n"


def test_who_serves_on_a_machine_that_is_gone_can_be_given_up_and_a_job_that_is_added_all_the_same_is_said(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, acts = opened()
    user = command.settings.user
    serve(command.store, key_of(acts.lab), Who(user, user, host="gone"))

    def locked(*_: object) -> QueueState:
        raise Locked(
            "the queue is served already by pid 7 on gone", hint="testbed service stop queue"
        )

    monkeypatch.setattr(Kind, "start", locked)
    result = bench("job", "queue", "add", PLAN, "--for", "10m", "--json")
    assert result.code == 0 and bench("job", "queue", "add", PLAN, "--for", "10m").out.startswith(
        "Job 2: "
    )

    def fails(*_: object) -> QueueState:
        raise TimedOut("the queue is still starting", hint="see log")

    monkeypatch.setattr(Kind, "start", fails)
    assert "is not served any more from gone" in bench("service", "stop", "queue").out
    answer = bench("job", "queue", "add", PLAN, "--for", "10m", "--json")
    text = f"job 3 (ring-12 of {user}) was added, but nothing serves the queue: the queue is still starting"
    assert answer.code != 0 and answer.json["message"] == text
    assert answer.json["hint"].startswith("testbed service start queue")
    assert len(bench("job", "queue", "--json").json["data"]["rows"]) == 3
    job = get(command.store, key_of(acts.lab), 1)
    assert job is not None and claim(command.store, Who(user, user), job, ("gpu01",), "")
    answer = bench("job", "queue", "drop", "1", "--json").json
    assert answer["message"].startswith(
        f"job 1 (ring-12 of {user}) is to be stopped, but nothing serves the queue: the queue is"
    )
    command.store.close()


def test_hosts_of_others_reserved_tagged_out_or_locked_are_left_alone_and_named(bench: Any) -> None:
    bench("job", "queue", "add", WORKLOAD, "--hosts", "12", "--for", "1h", *RING)
    command, acts = opened()
    key, store = key_of(acts.lab), command.store
    link = Link(HostPort("gpu01", 1), HostPort("gpu02", 1))
    store.set_current(
        f"{key}/bob",
        "r",
        plan_name="two",
        plan_sha="",
        plan_text="",
        up=UpState((link,)),
        generation=1,
    )
    Locks(store, key, Who("eve", "eve")).take(
        "reservation", reachable_scope(acts.lab, ["gpu03"]), "demo"
    )
    Tagouts(store, key, Who("joe", "joe")).set("f-gpu04-p1", "hands in rack")
    [row] = queue_view(command).rows
    assert row.why.startswith(
        "needs 12 hosts of 12, 8 are free (gpu05, gpu06, gpu07, gpu08 ...); it is not known when more will be"
    )
    assert row.why.endswith(
        "(gpu01: held by bob (two); gpu02: held by bob (two); gpu03: reserved by eve: demo; gpu04: f-gpu04-p1 is tagged out by joe)"
    )
    Locks(store, key, Who("eve", "eve")).take("reservation", WHOLE, "upgrade", queue=True)
    assert "0 are free" in queue_view(command).rows[0].why
    store.close()


def test_a_running_job_of_the_queue_keeps_its_hosts_and_its_own_plan_is_not_another_owners(
    bench: Any,
) -> None:
    bench("job", "queue", "add", WORKLOAD, "--hosts", "6", "--for", "1h", *RING)
    command, acts = opened()
    store, job = command.store, get(command.store, key_of(acts.lab), 1)
    assert job is not None
    hosts = acts.able(job)[:6]
    plan = json.loads(acts.plan(job, hosts))
    assert plan["name"] == plan["job"]["name"] == "vgg16-1" and plan["job"]["args"] == {
        "iterations": 0
    }
    assert {end for one in plan["links"] for end in (one["a"], one["b"])} == set(hosts)
    who = Who(job.owner, job.user)
    starting = claim(store, who, job, hosts, json.dumps(plan))
    assert (
        starting and not acts.is_up(starting) and change_job_state(store, who, starting, "running")
    )
    link = Link(HostPort("gpu01", 1), HostPort("gpu02", 1))
    store.set_current(
        job.key,
        "r",
        plan_name="vgg16-1",
        plan_sha="",
        plan_text="",
        up=UpState((link,)),
        generation=1,
    )
    assert acts.is_up(starting) and not acts.out([starting])
    bench("job", "queue", "add", WORKLOAD, "--hosts", "6", "--for", "1h", *RING)
    first, second = queue_view(command).rows
    assert (first.state, first.hosts) == ("running", hosts) and set(second.starts) == set(
        acts.hosts
    ) - set(hosts)
    assert bench("job", "queue", "drop", "1").out == "Job 1 is being stopped\n"
    store.close()


def test_a_queue_without_a_job_of_the_user_is_served_to_its_end_at_once_and_its_file_says_so(
    bench: Any,
) -> None:
    command, acts = opened()
    path = QUEUE.path(command.settings, key_of(acts.lab))
    assert bench("service", "run", "queue").out == "Started 0, stopped 0, 0 failures\n"
    left = QUEUE.read(path)
    assert left is not None and not left.alive and (left.state, left.error) == ("ended", "")
    with StateFile(QUEUE, path, QUEUE.own(command.settings)):
        answer = bench("service", "run", "queue", "--jsonl", "--json")
        assert (
            answer.code != 0
            and answer.json["code"] == "E-LOCKED"
            and "another queue service runs for this lab" in answer.json["message"]
        )
