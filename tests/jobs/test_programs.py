"""Programs of the lab's owner in a change: kept over other rings, replaced when declared otherwise,
missed when silent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optics.plan import Job
from orchestrator.hosts import Tail
from orchestrator.inventory.positions import Problems
from orchestrator.inventory.programs import read_programs
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.jobs.decision import JobDecision, decide_job
from orchestrator.jobs.keep import is_same
from orchestrator.jobs.progress import NEVER_SEEN, unseen, usual
from orchestrator.jobs.rank_records import sound
from orchestrator.session import Session
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store

FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")
GPT = Job(
    "mine",
    "program",
    FOUR,
    (FOUR,),
    {"size": 1},
    backend="gloo",
    program="gpt",
    version="aa",
    training={"size": 1},
)
OTHER = replace(GPT, rings=(FOUR, FOUR[::-1]))
DECLARED = r"programs: {gpt: {command: [gpt], iterations: {pattern: 'iter (?P<iter>\d+)'}}}"
KEY = "lab/ann"


def running(job: Job) -> JobRecord:
    return JobRecord(
        1, KEY, "r1", job.name, JobSpec(job, "mine.r1", job.backend), "running", 0.0, None, ""
    )


@pytest.mark.parametrize("backend", ["gloo", "nccl", "none"])
def test_a_program_that_does_not_use_the_rings_keeps_over_others(backend: Any) -> None:
    was, wanted = (
        replace(GPT, backend=backend),
        replace(OTHER, backend=backend, predicted={"iteration_ms": 4.0}),
    )
    for live in ("require", "prefer", "never"):
        assert decide_job(running(was), wanted, live) == JobDecision("keep")
    assert is_same(running(was), replace(was, rings=OTHER.rings)) and not was.uses_rings


def test_one_on_the_projects_back_end_turns() -> None:
    was, wanted = replace(GPT, backend="testbed"), replace(OTHER, backend="testbed")
    assert decide_job(running(was), wanted, "prefer") == JobDecision("rings") and was.uses_rings


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (replace(OTHER, version="bb"), "the declaration or the files of job.program differs"),
        (replace(OTHER, args={"size": 2}, training={"size": 2}), "job.args.size differs"),
        (
            replace(OTHER, program="other", version="cc"),
            "job.program, the declaration or the files of job.program differ ",
        ),
        (
            Job("mine", "train", FOUR, (FOUR,)),
            "job.workload, job.args.size, job.backend, job.program and 1 more differ ",
        ),
    ],
)
def test_what_else_differs_restarts_it_and_is_named(job: Job, text: str) -> None:
    found = decide_job(running(GPT), job, "prefer")
    assert found.kind == "restart" and found.why.startswith(text), found.why


def test_what_a_program_writes_as_iterations_is_taken_only_where_it_is_sound() -> None:
    good = {"iter": 1, "iter_ms": 2.5, "t_wall_ns": 3}
    bad = [
        "no json", "[" * 50_000, "null", "7", "[]", "{}", '{"iter": 1}',
        *(json.dumps(good | change) for change in (
            {"iter": "1"}, {"iter": True}, {"iter": None}, {"iter": -1}, {"iter_ms": float("nan")}, {"iter_ms": float("inf")},
            {"t_wall_ns": 1e300}, {"t_wall_ns": 10**4000}, {"iter_ms": []},
        )),
    ]  # fmt: skip
    assert sound(bad) == []
    odd = good | {
        "loss": float("nan"),
        "comm_ms": "x",
        "samples": {},
        "bytes": 10**30,
        "busy": 0.5,
        "loop": True,
    }
    assert sound([json.dumps(odd).encode()]) == [good | {"busy": 0.5}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite3") as opened:
        yield opened


def ran(store: Store, folder: Path, run: str, program: str, *took_ms: float, key: str = KEY) -> int:
    """A job in the store, with its iterations at home."""
    job = replace(GPT, program=program)
    number = store.add_job(key, run, job.name, JobSpec(job, f"mine.{run}", "gloo"))
    (folder / run).mkdir()
    lines = [json.dumps({"iter": n, "iter_ms": ms, "t_wall_ns": 1}) for n, ms in enumerate(took_ms)]
    (folder / run / f"mine.{run}.iterations.jsonl").write_text("\n".join(lines))
    return number


def test_what_is_usual_is_taken_from_the_last_run_of_the_same_program_on_the_slice(
    store: Store, tmp_path: Path
) -> None:
    ran(store, tmp_path, "r1", "gpt", 30_000.0, 4_000.0, 5_000.0, 6_000.0)
    ran(store, tmp_path, "r2", "other", 1.0, 1.0)
    ran(store, tmp_path, "r3", "gpt", 1.0, 1.0, key="lab/bob")
    ran(store, tmp_path, "r4", "gpt")
    now = ran(store, tmp_path, "r5", "gpt", 1.0, 1.0)
    found = usual(store, KEY, tmp_path, "gpt", now)
    assert (found.first_s, found.iteration_s, found.patience_s) == (30.0, 5.0, 45.0)
    assert usual(store, KEY, tmp_path, "new", now) == NEVER_SEEN and NEVER_SEEN.patience_s == 60
    assert usual(store, "lab/bob", tmp_path, "gpt", now).patience_s == 10, (
        "three iterations of a millisecond are no time"
    )


async def test_a_silent_program_is_reported_after_its_time_and_at_its_end(
    store: Store, tmp_path: Path
) -> None:
    document = read_yaml(DECLARED, "programs.yml")
    lab = SimpleNamespace(
        programs=read_programs(document, Problems(document)), hosts=dict.fromkeys(FOUR)
    )

    async def tail(*_: object) -> Tail:
        return Tail("loading\nstep 12: loss 3\n", 0, 0, "running")

    session = cast(
        Session, SimpleNamespace(lab=lab, hosts=SimpleNamespace(jobs=SimpleNamespace(tail=tail)))
    )

    async def shown(since_s: float, state: str = "starting", job: Job = GPT) -> str:
        record = replace(running(job), started=time.time() - since_s)
        return await unseen(session, store, KEY, tmp_path, record, state)

    assert (
        not await shown(50)
        and not await shown(0, "failed")
        and not await shown(999, job=Job("mine", "train", FOUR))
    )
    late = await shown(61)
    assert late.startswith(
        r"no iteration of gpt shows: no line of its output matched 'iter (?P<iter>\\d+)' in 61 s (expected "
    )
    assert "within 60 s, it never ran here, and 20 s an iteration are assumed" in late
    assert (
        "the last line of its output: 'step 12: loss 3'; see iterations at programs.yml:1:12"
        in late
    )
    assert (await shown(1, "finished")).startswith("no iteration of gpt shows")
