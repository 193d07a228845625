"""The queue at work on a lab of files: starts, ends, stops, gives up, and is killed at any
point.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from optics import BadFile, Infeasible, Interrupted, Locked, NotVerified, TestbedError, Unreachable
from orchestrator.inventory.lab import read_lab
from orchestrator.queue import acts
from orchestrator.queue.acts import NOT_STOPPED, decided
from orchestrator.queue.onlab import able
from orchestrator.queue.serving import TRIES
from orchestrator.store.audit import Who, audit
from orchestrator.store.queue import (
    QueuedJob,
    add,
    change_job_state,
    claim,
    drop,
    note_obstacle,
    queued,
)
from orchestrator.store.store import Store
from tests.house.repository import ROOT
from tests.queue.floor import ANN, HOSTS, LAB, Floor, Points, queue, serve, serving, until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite3", durable=False) as made:
        yield made


@pytest.fixture
def floor(tmp_path: Path) -> Floor:
    return Floor(tmp_path / "floor", Points())


async def served(
    store: Store, floor: Floor, events: list[str] | None = None
) -> list[tuple[int, str, str]]:
    """Serve until no job is left; return number, state and detail of each."""
    async with asyncio.timeout(30):
        await serving(store, floor, events).serve()
    assert not [host for host in HOSTS if (floor.folder / host).exists()], (
        "nothing is left on a host"
    )
    return [
        (job.number, job.state, job.detail)
        for job in sorted(queued(store, LAB, ended=99), key=lambda job: job.number)
    ]


async def test_jobs_run_side_by_side_and_one_after_the_other_and_end_by_themselves(
    store: Store, floor: Floor
) -> None:
    for count in (2, 2, 4):
        queue(store, count)
    assert await served(store, floor) == [(n, "done", "finished") for n in (1, 2, 3)]
    assert sorted(floor.did[:2]) == ["launched 1 1", "launched 2 1"] and floor.did[2:] == [
        "launched 3 1"
    ]


async def test_a_job_whose_time_is_over_is_stopped(store: Store, floor: Floor) -> None:
    queue(store, 4, for_s=0.1, iterations=0)
    assert await served(store, floor) == [(1, "done", "its time is over")]


async def test_one_that_may_be_stopped_gives_its_hosts_and_goes_on_from_its_checkpoint(
    store: Store, floor: Floor
) -> None:
    queue(store, 4, preemptible=True, iterations=40)
    work = asyncio.ensure_future(served(store, floor))
    await until(lambda: floor.did)
    await asyncio.sleep(0.05)
    queue(store, 3)
    assert [state for _, state, _ in await work] == ["done", "done"]
    assert floor.did == ["launched 1 1", "launched 2 1", "launched 1 2"]
    kept = int((floor.folder / "ann.q1.checkpoint").read_text())
    first = next(job for job in queued(store, LAB, ended=9) if job.number == 1)
    assert kept == first.done == 40 and first.generation == 2
    assert "stopped for 2 (job of ann)" in {
        line.why.partition("; ")[2] for line in audit(store, LAB, 99)
    }


async def test_one_that_had_finished_when_it_was_to_give_its_hosts_is_not_run_again(
    store: Store, floor: Floor
) -> None:
    queue(store, 4, preemptible=True, iterations=0)
    floor.finished[1] = "finished after 30 iterations"  # nobody served, and saw it
    work = asyncio.ensure_future(served(store, floor))
    await until(lambda: floor.did)
    queue(store, 3)
    assert await work == [(1, "done", "finished after 30 iterations"), (2, "done", "finished")]
    assert floor.did == ["launched 1 1", "launched 2 1"]


async def test_a_job_that_is_dropped_is_stopped_and_one_whose_plan_somebody_took_down_is_over(
    store: Store, floor: Floor
) -> None:
    queue(store, 2, iterations=0)
    queue(store, 2, iterations=0)
    work = asyncio.ensure_future(served(store, floor))
    await until(lambda: len(floor.did) == 2)
    drop(store, LAB, ANN, 1)
    await until(lambda: [job.state for job in queued(store, LAB)] == ["running"])
    (floor.folder / "gpu03").unlink()
    assert await work == [
        (1, "done", "dropped by ann"),
        (2, "done", "its plan was taken down by somebody"),
    ]


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (Locked("gpu01 is locked by bob"), "done", "finished"),
        (NotVerified("no light"), "done", "finished"),
        (Infeasible("not on this lab"), "failed", "not on this lab"),
        (BadFile(["plan:1:1: no"]), "failed", "plan:1:1: no"),
        (KeyError("a fault"), "failed", "KeyError: 'a fault'"),
    ],
)
async def test_a_start_that_fails_is_tried_again_unless_that_is_no_use(
    store: Store, floor: Floor, error: TestbedError, state: str, message: str
) -> None:
    queue(store, 4)
    floor.fails = {1: error}
    assert await served(store, floor) == [(1, state, message)]


async def test_a_job_that_never_starts_is_given_up_and_holds_nobody_up(
    store: Store, floor: Floor
) -> None:
    class Never(dict[int, TestbedError]):
        def pop(self, number: int) -> TestbedError:  # type: ignore[override]
            return self[number]

    queue(store, 4)
    queue(store, 4)
    floor.fails = Never({1: NotVerified("no light\nat gpu01:p1")})
    assert await served(store, floor) == [(1, "failed", "no light"), (2, "done", "finished")]
    started = [
        line
        for line in audit(store, LAB, 99)
        if (line.what, line.subject) == ("queue: starting", "job 1")
    ]
    assert len(started) == TRIES


async def test_hosts_that_others_have_are_left_alone_and_a_stop_that_fails_is_repeated(
    store: Store, floor: Floor
) -> None:
    queue(store, 2)
    floor.others = dict.fromkeys(HOSTS[:2], "held by bob (ring-12)")
    stop, left = floor.stop, [NotVerified("gpu03 does not answer")]

    async def fails_once(job):  # type: ignore[no-untyped-def]
        if left:
            raise left.pop()
        return await stop(job)

    floor.stop = fails_once  # type: ignore[method-assign]
    events: list[str] = []
    assert [state for _, state, _ in await served(store, floor, events)] == ["done"]
    assert "job 1 (job of ann): on gpu03, gpu04, as ann.q1" in events
    assert any("gpu03 does not answer; tried again after" in text for text in events)


async def test_a_job_whose_hosts_cannot_be_asked_ends_the_service_of_no_other(
    store: Store, floor: Floor
) -> None:
    queue(store, 2, iterations=0)
    queue(store, 2, iterations=30)
    stop, row = floor.stop, [Unreachable("gpu01 does not answer")] * 3

    async def fails(job: QueuedJob) -> tuple[int, str]:
        if job.number == 1 and row:
            raise row.pop()
        return await stop(job)

    async def unknown(job: QueuedJob) -> list[str]:
        raise Unreachable("the lab does not answer")

    floor.stop, floor.left = fails, unknown  # type: ignore[method-assign,assignment]
    work = asyncio.ensure_future(served(store, floor))
    await until(lambda: len(floor.did) == 2)
    drop(store, LAB, ANN, 1)
    assert await work == [(1, "done", "dropped by ann"), (2, "done", "finished")]


def test_hosts_that_do_not_come_back_are_not_waited_for(
    store: Store, floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = (queue(store, 2, preemptible=True) for _ in range(2))
    for job, hosts in ((stuck, HOSTS[:2]), (other, HOSTS[2:])):
        claimed = claim(store, ANN, job, hosts, "[]")
        assert claimed and change_job_state(store, ANN, claimed, "running")
    queue(store, 2)
    latest = {job.number: job for job in queued(store, LAB)}
    assert decided(floor, latest.values(), {"ann"}).stops == {2: 3}
    stopping = change_job_state(
        store, ANN, latest[1], "stopping", next="waiting", detail="stopped for 3 (job of ann)"
    )
    assert stopping and not decided(floor, queued(store, LAB), {"ann"}).stops, (
        "its hosts will be free"
    )
    note_obstacle(store, stopping, f"stopped for 3 (job of ann){NOT_STOPPED}gpu01 does not answer")
    assert not decided(floor, queued(store, LAB), {"ann"}).stops, "it is tried again"
    monkeypatch.setattr(acts, "STUCK_S", 0.0)
    assert decided(floor, queued(store, LAB), {"ann"}).stops == {2: 3}


async def test_jobs_of_a_user_who_does_not_serve_the_queue_hold_nobody_up(
    store: Store, floor: Floor
) -> None:
    bob = Who("bob", "bob")
    runs, waits = (
        add(
            store,
            LAB,
            bob,
            name="job",
            text="",
            method="ring",
            count=2,
            for_s=600,
            preemptible=True,
        )
        for _ in range(2)
    )
    claimed = claim(store, bob, runs, HOSTS[:2], "[]")
    assert claimed and change_job_state(store, bob, claimed, "running")
    queue(store, 4)
    late = queue(store, 2)
    work = asyncio.ensure_future(serving(store, floor).serve())
    await until(lambda: "launched 4 1" in floor.did)
    assert [(job.number, job.state) for job in queued(store, LAB)][:3] == [
        (1, "running"),
        (2, "waiting"),
        (3, "waiting"),
    ]
    found = decided(floor, queued(store, LAB), {"ann"})
    assert found.why[waits.number] == "bob does not serve the queue: testbed service start queue"
    assert (
        "it is not known when more will be" in found.why[3] and late.number == 4 and not found.stops
    )
    assert "; enough in " in decided(floor, queued(store, LAB), {"ann", "bob"}).why[3]
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_an_act_that_is_broken_off_says_so_by_an_error_and_is_left_to_the_next(
    store: Store, floor: Floor
) -> None:
    start, stop = floor.start, floor.stop

    async def broken_off(job: QueuedJob) -> str:
        try:
            return await asyncio.sleep(30, "")
        except asyncio.CancelledError:
            raise Interrupted("rolled back") from None

    async def leave(state: str) -> None:
        work = asyncio.ensure_future(serving(store, floor).serve())
        await until(lambda: [job.state for job in queued(store, LAB)] == [state])
        await asyncio.sleep(0.03)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert [(job.state, job.tries) for job in queued(store, LAB)] == [(state, 0)]

    queue(store, 4, iterations=0)
    floor.start = broken_off  # type: ignore[method-assign]
    await leave("starting")
    floor.start, floor.stop = start, broken_off  # type: ignore[method-assign,assignment]
    await leave("running")
    drop(store, LAB, ANN, 1)
    await leave("stopping")
    floor.stop = stop  # type: ignore[method-assign]
    assert await served(store, floor) == [(1, "done", "dropped by ann")]


async def test_who_stops_serving_leaves_jobs_running_for_the_next(
    store: Store, floor: Floor
) -> None:
    queue(store, 4, iterations=30)
    work = asyncio.ensure_future(serving(store, floor).serve())
    await until(lambda: [job.state for job in queued(store, LAB)] == ["running"])
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert [job.state for job in queued(store, LAB)] == ["running"] and (
        floor.folder / "gpu01"
    ).exists()
    assert await served(store, floor) == [(1, "done", "finished")]
    assert floor.did == ["launched 1 1"]


def test_only_whole_hosts_hold_a_workload_and_none_beside_its_slices() -> None:
    partitions = "{a: {lanes: [0]}, b: {lanes: [1]}}"
    each = "{testbed_host_id: %d, testbed_ports: {1: {interface: opt1}}}"
    names = ", ".join(f"gpu0{n}: {each % n}" for n in (1, 2, 3))
    hosts = f"all: {{vars: {{ansible_user: root, testbed_lanes: 2, testbed_partitions: {partitions}}}, hosts: {{{names}}}}}"
    ports = ", ".join(f"'gpu0{n}:p1'" for n in (1, 2, 3))
    fibres = f"{{fibres: [], segments: [{{name: s, ports: [{ports}], link_mbps: 100}}]}}"
    lab = read_lab(
        hosts,
        "{lab: l, devices: {ocs1: {driver: polatis-scpi, address: 'tcp://127.0.0.1:5025'}}}",
        fibres,
    )
    workload = (ROOT / "examples/workloads/vgg16.yaml").read_text()
    assert able(lab, workload, "electrical") == ("gpu01", "gpu02", "gpu03")


# --- killed


def check(folder: Path, kills: list[int]) -> None:
    """Nothing was lost, nothing was done twice."""
    floor = Floor(folder / "floor", Points())
    with Store(folder / "store.sqlite3", durable=False) as store:
        jobs = queued(store, LAB, ended=99)
    assert jobs and {job.state for job in jobs} == {"done"}, kills
    assert not [line for line in floor.did if line.startswith("VIOLATION")], kills
    assert len(floor.did) == len(set(floor.did)), f"twice: {floor.did}, killed at {kills}"
    assert {int(line.split()[1]) for line in floor.did} == {job.number for job in jobs}, kills
    assert not [host for host in HOSTS if (floor.folder / host).exists()], kills


def test_a_queue_of_twenty_jobs_that_is_killed_ten_times_loses_none_and_starts_none_twice(
    tmp_path: Path,
) -> None:
    chance = random.Random(19)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        for _ in range(20):
            queue(
                store,
                chance.randint(1, 4),
                preemptible=chance.random() < 0.3,
                iterations=chance.randint(1, 4),
            )
    kills = [chance.randint(5, 50) for _ in range(10)]
    assert [serve(tmp_path, kill_at) for kill_at in kills] == [None] * 10, (
        "it had ended before it could be killed"
    )
    assert serve(tmp_path) is not None
    check(tmp_path, kills)


@pytest.mark.long
def test_a_queue_that_is_killed_at_any_point_loses_no_job_and_starts_none_twice(
    tmp_path: Path,
) -> None:
    def made(name: str) -> Path:
        """Three jobs, the first of which has to go for the second."""
        (tmp_path / name).mkdir()
        with Store(tmp_path / name / "store.sqlite3", durable=False) as store:
            queue(store, 3, preemptible=True, iterations=12)
            queue(store, 2)
            queue(store, 4)
        return tmp_path / name

    points = serve(whole := made("whole"))
    check(whole, [])
    assert points is not None and points > 40
    for point in range(1, points + 1):
        serve(folder := made(str(point)), point)
        assert serve(folder) is not None
        check(folder, [point])
