"""The queue in the store: states that are written once, by whoever knows the last one; time that is
counted by no wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from optics.errors import Interlock, Locked, Missing
from orchestrator.fabric.up_state import UpState
from orchestrator.store import queue
from orchestrator.store.audit import Who, audit
from orchestrator.store.queue import (
    QueuedJob,
    add,
    change_job_state,
    claim,
    drop,
    keeps,
    queued,
    serve,
    served,
)
from orchestrator.store.store import Store

LAB, ANN, BOB = "lab", Who("ann", "ann"), Who("bob", "bob")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite3", durable=False) as made:
        yield made


def added(store: Store, who: Who = ANN, count: int = 2, lab: str = LAB) -> QueuedJob:
    return add(
        store,
        lab,
        who,
        name="dlrm",
        text="{}",
        method="topoopt",
        count=count,
        for_s=60,
        preemptible=True,
    )


def test_a_job_goes_from_state_to_state_and_gives_its_hosts_back(store: Store) -> None:
    job = added(store)
    assert (job.number, job.tenancy, job.state, job.left_s, job.preemptible) == (
        1,
        "ann.q1",
        "waiting",
        60,
        True,
    )
    starting = claim(store, ANN, job, ("gpu01", "gpu02"), "plan")
    assert starting and (starting.generation, starting.hosts, starting.plan_text) == (
        1,
        ("gpu01", "gpu02"),
        "plan",
    )
    running = change_job_state(store, ANN, starting, "running")
    stopping = running and change_job_state(
        store, ANN, running, "stopping", next="waiting", detail="for 2"
    )
    assert (
        stopping
        and stopping.hosts == ("gpu01", "gpu02")
        and 0 < stopping.used_s < 60
        and stopping.left_s < 60
    )
    again = change_job_state(store, ANN, stopping, "waiting", done=12)
    assert again and (again.hosts, again.done, again.generation) == ((), 12, 1)
    assert [line.what for line in audit(store, LAB)][::-1] == [
        "queued", "queue: starting", "queue: running", "queue: stopping", "queue: waiting"
    ]  # fmt: skip


def test_who_knows_an_old_state_changes_nothing(store: Store) -> None:
    job = added(store)
    starting = claim(store, ANN, job, ("gpu01", "gpu02"), "plan")
    assert starting and claim(store, ANN, job, ("gpu03", "gpu04"), "plan") is None
    waits = change_job_state(store, ANN, starting, "waiting")
    assert waits and claim(store, ANN, waits, ("gpu01", "gpu02"), "plan")
    assert change_job_state(store, ANN, starting, "running") is None, (
        "the same state, of an earlier time"
    )


def test_two_jobs_never_get_the_same_host(store: Store) -> None:
    first, second = added(store), added(store, BOB)
    assert claim(store, ANN, first, ("gpu01", "gpu02"), "plan")
    assert claim(store, BOB, second, ("gpu02", "gpu03"), "plan") is None
    assert claim(store, BOB, second, ("gpu03", "gpu04"), "plan")
    third = added(store)
    assert claim(store, ANN, third, ("gpu04/a", "gpu05/a"), "plan") is None, "it is used whole"
    assert claim(store, ANN, third, ("gpu06/a", "gpu05/a"), "plan") and claim(
        store, ANN, added(store), ("gpu06/b",), "plan"
    )
    assert claim(store, ANN, added(store), ("gpu06", "gpu07"), "plan") is None, (
        "it is used in slices"
    )
    other = added(store, lab="other")
    assert claim(store, ANN, other, ("gpu01", "gpu02"), "plan"), "another lab has its own hosts"
    assert [job.number for job in queued(store, LAB)] == [1, 2, 3, 4, 5]


def test_what_is_dropped_is_stopped_first_and_only_by_its_owner(store: Store) -> None:
    job, waits = added(store), added(store)
    claim(store, ANN, job, ("gpu01", "gpu02"), "plan")
    with pytest.raises(Interlock, match="job 1 \\(dlrm of ann\\) is ann's"):
        drop(store, LAB, BOB, 1)
    dropped = drop(store, LAB, ANN, 1)
    assert (dropped.state, dropped.next, dropped.detail) == ("stopping", "done", "dropped by ann")
    assert drop(store, LAB, ANN, waits.number).state == "done"
    for number, text in ((2, "has ended already"), (7, "no job 7")):
        with pytest.raises(Missing, match=text):
            drop(store, LAB, ANN, number)
    assert [job.number for job in queued(store, LAB, ended=5)] == [2, 1]


def test_a_job_that_is_stopped_for_another_and_then_dropped_does_not_wait_again(
    store: Store,
) -> None:
    job = claim(store, ANN, added(store), ("gpu01", "gpu02"), "plan")
    assert (
        job
        and (job := change_job_state(store, ANN, job, "running"))
        and (job := change_job_state(store, ANN, job, "stopping", next="waiting"))
    )
    assert drop(store, LAB, ANN, job.number).next == "done"


def test_the_jobs_of_a_user_are_served_by_one_process_that_lives(store: Store) -> None:
    class Other(Who):
        process = "another boot/1"  # type: ignore[assignment]

    serve(store, LAB, Other("bob", "bob", pid=2**22 + 1))
    serve(store, LAB, ANN)
    serve(store, LAB, ANN)
    assert served(store, LAB) == {"ann"}, "bob's has died"
    serve(store, LAB, BOB)
    assert served(store, LAB) == {"ann", "bob"} and not served(store, "other")
    with pytest.raises(Locked, match=f"the queue of ann is served already by pid {ANN.pid}"):
        serve(store, LAB, Who("ann", "ann", pid=1))


def test_a_user_can_serve_the_queue_from_another_machine_once_the_first_has_ended_or_is_given_up(
    store: Store,
) -> None:
    here, other = ANN, Who("ann", "ann", host="other")
    serve(store, LAB, other)
    with pytest.raises(Locked, match="on other"):
        serve(store, LAB, here)
    assert not queue.serves(store, LAB, here) and queue.serves(store, LAB, other)
    queue.unserve(store, LAB, other)
    assert not served(store, LAB)
    serve(store, LAB, other)
    assert queue.given_up(store, LAB, here) == "other" and not queue.serves(store, LAB, other)
    serve(store, LAB, here)
    queue.unserve(store, LAB, other)
    assert queue.given_up(store, LAB, here) == "" and served(store, LAB) == {"ann"}, (
        "that of this machine is stopped, not given up"
    )


def test_a_job_that_cannot_be_stopped_everywhere_gives_the_other_hosts_back(store: Store) -> None:
    job = claim(store, ANN, added(store), ("gpu01", "gpu02"), "plan")
    stopping = job and change_job_state(store, ANN, job, "stopping", next="done")
    assert stopping
    keeps(store, stopping, ["gpu02"])
    assert claim(store, BOB, added(store, BOB), ("gpu02", "gpu03"), "plan") is None
    assert claim(store, BOB, added(store, BOB), ("gpu01", "gpu03"), "plan")


def test_the_slice_of_a_job_is_one_that_nobody_uses(store: Store) -> None:
    store.set_current(
        "lab/ann.q1", "r", plan_name="p", plan_sha="", plan_text="", up=UpState(), generation=1
    )
    assert added(store).tenancy == "ann.q2"
    assert len(added(store, Who("a" * 64, "ann")).tenancy) <= 64


def test_a_wall_clock_that_is_set_gives_and_takes_no_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = claim(store, ANN, added(store), ("gpu01", "gpu02"), "plan")
    assert job and change_job_state(store, ANN, job, "running")
    now = time.time()
    monkeypatch.setattr(queue.time, "time", lambda: now + 7200)
    [job] = queued(store, LAB)
    assert job.left_s > 50
