"""What the queue takes for done, by what its jobs' ranks say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optics import Missing
from optics.plan import Job
from orchestrator.fabric.up_state import UpState
from orchestrator.jobs.report import JobStatus
from orchestrator.queue import onlab
from orchestrator.queue.onlab import OnLab
from orchestrator.session import Command, load_lab
from orchestrator.settings import load
from orchestrator.store.audit import Who
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.keys import key_of
from orchestrator.store.queue import QueuedJob, add, claim
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from tests.house.repository import ROOT

TWO = ("gpu01", "gpu02")
STATUS = JobStatus("mlp", "running", run="1", started=1e12, iterations=20, ranks=2)


class Verbs:
    """The verbs of an owner, each of which is noted. status: what ranks say; None: no job was
    launched.
    """

    def __init__(self, status: JobStatus | None) -> None:
        self.status, self.did = status, list[str]()

    async def job_status(self, command: Command) -> JobStatus:
        self.did.append("status")
        if self.status is None:
            raise Missing("no job was ever launched on this lab")
        return self.status

    async def job_stop(self, command: Command) -> JobStatus:
        self.did.append("stop")
        return await self.job_status(command)

    async def up(self, command: Command, plan: object) -> Any:
        self.did.append("up")
        return SimpleNamespace(plan="p", job=None)

    async def down(self, command: Command) -> Any:
        self.did.append("down")
        return SimpleNamespace(left=())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite3", durable=False) as made:
        yield made


@pytest.fixture
def acts(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnLab:
    monkeypatch.setattr(onlab, "copy_journals", lambda settings: None)
    settings = load(env={"TESTBED_INVENTORY": str(ROOT / "inventory" / "emulated")}, cwd=tmp_path)
    return OnLab(load_lab(settings.inventory), Command(Silent(), store, settings))


def started(
    store: Store, acts: OnLab, *, up: bool, args: Mapping[str, Any] | None = None, program: str = ""
) -> QueuedJob:
    """A job whose start was killed. up: after its plan had come up."""
    who, key = Who("ann", "ann"), key_of(acts.lab)
    job = claim(
        store,
        who,
        add(store, key, who, name="p", text="", method="", count=2, for_s=60.0),
        TWO,
        "{}",
    )
    assert job is not None
    run = store.new_run("up", key, plan_name="p", owner=job.tenancy, user="ann")
    if up:
        store.set_current(
            job.key,
            run.id,
            plan_name="p",
            plan_sha="x",
            plan_text="{}",
            up=UpState(()),
            generation=1,
        )
    wanted = Job("mlp", "program" if program else "train", TWO, args=args or {}, program=program)
    store.add_job(job.key, run.id, "mlp", JobSpec(wanted, "mlp.1", "gloo"), "running")
    return job


@pytest.mark.parametrize(
    ("up", "status", "did"),
    [
        (True, replace(STATUS, state="finished"), ["status"]),
        (True, STATUS, ["status", "up"]),
        (True, replace(STATUS, state="failed"), ["status", "up"]),
        (True, None, ["status", "up"]),
        (False, replace(STATUS, state="finished"), ["up"]),
    ],
)
async def test_a_start_that_died_is_done_again_unless_its_job_has_finished(
    store: Store,
    acts: OnLab,
    monkeypatch: pytest.MonkeyPatch,
    up: bool,
    status: JobStatus | None,
    did: list[str],
) -> None:
    verbs = Verbs(status)
    monkeypatch.setattr(onlab, "verbs", verbs)
    text = await acts.start(started(store, acts, up=up))
    assert verbs.did == did and text == (
        "finished after 20 iterations" if did == ["status"] else "p"
    )


@pytest.mark.parametrize(
    ("state", "args", "made", "message"),
    [
        ("stopped", {"iterations": 20}, {}, "finished after 20 iterations"),
        ("stopped", {"iterations": 50}, {"resumed_from": 30}, "finished after 20 iterations"),
        ("stopped", {}, {"iterations": 50}, "finished after 50 iterations"),
        ("stopped", {"iterations": 21}, {}, ""),
        ("stopped", {"iterations": 0}, {}, ""),
        ("failed", {"iterations": 20}, {}, ""),
        ("finished", {"iterations": 20}, {}, "finished after 20 iterations"),
    ],
)
async def test_a_job_that_was_stopped_in_its_last_iteration_has_finished(
    store: Store,
    acts: OnLab,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    args: Mapping[str, Any],
    made: Mapping[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr(
        onlab,
        "verbs",
        Verbs(replace(STATUS, state=state, detail="" if state == "finished" else "why", **made)),
    )
    assert await acts.stop(started(store, acts, up=True, args=args)) == (
        made.get("iterations", 20),
        message,
    )


async def test_what_a_program_of_the_owners_counts_is_not_compared(
    store: Store, acts: OnLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onlab, "verbs", Verbs(replace(STATUS, state="stopped")))
    job = started(store, acts, up=True, args={"iterations": 1}, program="ddp")
    assert await acts.stop(job) == (20, "")


async def test_a_stop_that_died_after_its_down_still_knows_that_the_job_had_finished(
    store: Store, acts: OnLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onlab, "verbs", Verbs(replace(STATUS, state="finished")))
    assert await acts.stop(started(store, acts, up=False)) == (0, "finished after 20 iterations")
