"""A job that goes on over a change stays whole, and one that is to be restarted is; its ranks
answer as those of `test_ring_change`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extensions.adapt.plan import Region, Regions
from optics import HostPort, Interlock
from optics.plan import Mode, TransitionPolicy
from orchestrator.change.job_back import change_rings_back
from orchestrator.change.report import UpReport
from orchestrator.change.rollback import Rollback
from orchestrator.change.snapshot import Snapshot
from orchestrator.change.up import Up
from orchestrator.fabric.transition import per_device
from orchestrator.jobs.record import spec_of
from orchestrator.plan.reader import read_plan
from orchestrator.services.guard import recover
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.telemetry import Journal, Silent
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs import change as engine
from orchestrator.verbs import job as job_verbs
from orchestrator.verbs.job import _pause, job_pause, job_resume
from tests.change.fleet import TENANCY, plan_text, ring
from tests.change.living import ONE, OTHER, Living
from tests.change.test_ring_change import MOVED, bench, text
from tests.drills import bench as drill
from tests.drills.bench import plan_text as drill_plan
from tests.kit.jobs import spec

__all__ = ["bench"]

TWO_PAIRS = (("gpu01:p3", "gpu02:p3"), ("gpu03:p3", "gpu04:p3"))


async def up(bench: Living, message: str, mode: Mode | None = None, *, launch: bool = True) -> Any:
    plan, asked = (
        read_plan(message, "plan.json", bench.lab),
        RunOptions(UpOptions(launch_job=launch, job=mode)),
    )
    run, context = bench.context(
        "up", asked, plan_name=plan.name, plan_text=message, plan_sha=plan.sha256
    )
    with run, Journal(context.run_dir, run.id, bench.lab.name) as journal:
        context.recorder, context.sample_hz = Recorder(Silent(), journal), 0.0
        report = await Up(context, plan, message).carry_out()
        run.finish("ok")
    return report


async def refused(
    bench: Living, message: str, mode: Mode | None = None, *, launch: bool = True
) -> Interlock:
    """Nothing has moved, and nobody was asked for anything."""
    held, routes, points = bench.held(), bench.generations(), len(bench.points.names)
    with pytest.raises(Interlock) as error:
        await up(bench, message, mode, launch=launch)
    assert (bench.held(), bench.generations(), len(bench.points.names)) == (held, routes, points)
    assert not bench.ranks.asked and not bench.ranks.launched and bench.job.ended is None
    return error.value


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (
            TWO_PAIRS,
            "job mlp: gpu01 cannot reach gpu03 over this plan, and 3 more pairs of its hosts likewise",
        ),
        (
            ring(3, 2)[:2],
            "job mlp: gpu01 cannot reach gpu04 over this plan, and 2 more pairs of its hosts likewise",
        ),
    ],
    ids=["two pairs", "without gpu04"],
)
async def test_a_plan_without_a_job_that_cuts_a_running_one_is_refused_before_anything_moves(
    bench: Living, links: Sequence[tuple[str, str]], message: str
) -> None:
    error = await refused(bench, plan_text("cut", *links))
    assert (
        str(error).startswith(message)
        and "testbed job stop" in error.hint
        and "--job restart" not in error.hint
    )


async def test_a_plan_that_leaves_a_way_over_other_hosts_is_not(bench: Living) -> None:
    first = bench.job
    report = await up(bench, plan_text("chain", *ring(3, 2)[:3]))
    assert report.made and bench.job.id == first.id and not bench.ranks.launched


@pytest.mark.parametrize(
    ("mode", "launch", "option"), [(None, False, "--no-job"), ("keep", True, "--job keep")]
)
async def test_where_the_plan_has_a_job_its_launch_is_a_way_on(
    bench: Living, mode: Mode | None, launch: bool, option: str
) -> None:
    pair = {
        "name": "pair",
        "workload": "train",
        "ranks": ["gpu01", "gpu02"],
        "args": {"iterations": 0},
    }
    cut = plan_text("cut", *TWO_PAIRS, job=pair)
    error = await refused(bench, cut, mode, launch=launch)
    assert f"to launch cut's own job in its place: --job restart instead of {option}" in error.hint
    await up(bench, cut, "restart")
    assert [name for name, _, _ in bench.ranks.launched] == ["pair"]


async def test_a_job_that_has_ended_keeps_no_plan_from_coming_up(bench: Living) -> None:
    for name in bench.ranks.ran:
        bench.ranks.ran[name] = "exited"
    assert (await up(bench, plan_text("cut", *TWO_PAIRS))).made


# --- restarts


@pytest.mark.parametrize("links", [ring(1, 2), MOVED], ids=["no light moves", "light moves"])
async def test_a_restart_that_is_asked_for_launches_the_same_job_again(
    bench: Living, links: Any
) -> None:
    first = bench.job
    report = await up(bench, text(ONE, links), "restart")
    assert bench.ranks.launched == [("mlp", True, [[0, 1, 2, 3]])] and bench.job.id != first.id
    assert not report.nothing_to_do and report.job.run == report.run
    assert report.notes == ("job mlp is restarted: as --job restart asks",)


async def test_a_kept_job_is_restarted_by_the_plan_whose_rings_it_has(bench: Living) -> None:
    await up(bench, text(), "keep")
    assert not bench.ranks.launched
    await up(bench, text(ONE, MOVED), "restart")
    assert [name for name, _, _ in bench.ranks.launched] == ["mlp"]


async def test_a_job_that_has_finished_is_left_so_with_a_word_and_launched_anew_if_a_restart_is_asked_for(
    bench: Living,
) -> None:
    message = text(ONE, ring(1, 2))
    await up(bench, message)
    for name in bench.ranks.ran:
        bench.ranks.ran[name] = "exited"
    report = await up(bench, message)
    assert report.nothing_to_do and not bench.ranks.launched
    assert report.notes == (
        "job mlp has finished after 30 iterations; to launch it again: testbed job launch",
    )
    report = await up(bench, message, "restart")
    assert bench.ranks.launched == [("mlp", False, [[0, 1, 2, 3]])] and not report.nothing_to_do


async def test_a_restart_where_the_plan_has_no_job_is_said_to_be_none(bench: Living) -> None:
    report = await up(bench, plan_text("bare", *MOVED), "restart")
    assert not bench.ranks.launched
    assert report.notes == (
        "--job restart: bare has no job, so job mlp goes on (testbed job stop ends it)",
    )


# --- on a lab whose devices are read


def job(*ranks: str) -> dict[str, Any]:
    return {"name": "mlp", "workload": "train", "ranks": list(ranks), "args": {"iterations": 0}}


def with_job(name: str, links: Sequence[tuple[str, str]], *ranks: str) -> str:
    return json.dumps({**json.loads(drill_plan(name, links)), "job": job(*ranks)})


def launched(bench: drill.Bench, message: str, state: str = "running") -> None:
    """The job of a plan, as the store has it."""
    wanted = read_plan(message, "plan.json", bench.lab).job
    assert wanted is not None
    with bench.store() as store:
        number = store.add_job(
            bench.tenancy(), "r0", wanted.name, spec_of(wanted, bench.lab, "r0"), "running"
        )
        if state != "running":
            store.set_job(number, state, ended=True)


CHAIN = [("gpu01:p1", "gpu02:p1"), ("gpu02:p2", "gpu03:p2")]


async def test_plan_tells_that_a_running_job_would_be_cut_and_up_refused(tmp_path: Path) -> None:
    async with drill.opened(tmp_path) as lab:
        launched(lab, with_job("chain", CHAIN, "gpu01", "gpu03"))
        cut = tmp_path / "cut.json"
        cut.write_text(drill_plan("cut", CHAIN[:1]))
        report = await lab.verb(engine.plan, cut)
        assert report.job_change == "mlp: gpu01 cannot reach gpu03 over this plan"
        why = "job mlp: gpu01 cannot reach gpu03 over this plan; to end the job first: testbed job stop"
        assert report.notes == (f"`up` would be refused: {why}",)
        assert (await lab.verb(engine.up, cut, UpOptions(dry_run=True))).notes == report.notes
        whole = tmp_path / "whole.json"
        whole.write_text(drill_plan("whole", CHAIN))
        assert (await lab.verb(engine.plan, whole)).job_change == "mlp keeps running"


@pytest.mark.parametrize(("host", "mode"), [("gpu03", "keep"), ("gpu02", "restart")])
async def test_a_host_without_a_rank_is_moved_out_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, mode: str
) -> None:
    asked: list[Any] = []

    class Change:
        def __init__(self, *_: Any) -> None: ...

        async def up(self, plan: Any, text: str, options: Any) -> UpReport:
            asked.append(options.asked.job)
            return UpReport("r", plan.name, "bench")

    async with drill.opened(tmp_path, hosts=4) as lab:
        message = with_job("chain", [*CHAIN, ("gpu01:p2", "gpu04:p2")], "gpu01", "gpu02", "gpu04")
        await lab.up(message)
        launched(lab, message)
        monkeypatch.setattr(recover, "ChangeRun", Change)
        await lab.verb(engine.evict, {host: ""})
    assert asked == [mode]


@pytest.mark.parametrize(("launched_it", "mode"), [(True, None), (False, "restart")])
async def test_a_restart_that_was_made_before_its_up_died_is_not_made_again_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched_it: bool, mode: str | None
) -> None:
    asked: list[Any] = []

    class Change:
        def __init__(self, *_: Any) -> None: ...

        async def up(self, plan: Any, text: str, options: Any) -> UpReport:
            asked.append(options.asked.job)
            return UpReport("r", plan.name, "bench")

    async with drill.opened(tmp_path) as lab:
        process = drill.Process("")
        process.act = lambda name: setattr(
            process, "kill_at", len(process.points) if name.startswith("after hosts confirm") else 0
        )
        with pytest.raises(drill.Killed):
            await lab.up(drill_plan("chain", CHAIN), job="restart", process=process)
        with lab.store() as store:
            died = store.history(lab.key, 1)[0].id
            store.add_job(lab.tenancy(), died if launched_it else "r0", "mlp", spec(), "running")
        monkeypatch.setattr("orchestrator.verbs.back.ChangeRun", Change)
        await lab.verb(engine.resume, died)
    assert asked == [mode]


async def test_a_job_that_is_turned_back_has_its_regions_again(bench: Living) -> None:
    was = bench.job.spec.wanted
    region = Region("r", was.hosts[:2], (HostPort(was.hosts[0], 1),), "ideal")
    bench.store.set_job_spec(
        bench.job.id,
        replace(bench.job.spec, wanted=replace(was, attached={"regions": Regions((region,))})),
    )
    run, context = bench.context("rollback")
    with run:
        await change_rings_back(
            context, Snapshot({}, job=bench.job.id, wanted=was), TransitionPolicy()
        )
    assert bench.job.spec.wanted == was and not bench.ranks.launched


@pytest.mark.parametrize("state", ["killed", "running"])
@pytest.mark.parametrize("verb", ["rollback", "up"])
async def test_a_job_that_an_up_cut_before_it_died_is_not_launched_by_a_way_back(
    bench: Living, verb: str, state: str
) -> None:
    """The plan was up, the job not replaced; its ranks would wait for each other in vain. One that
    runs is left as it is.
    """
    bench.ranks.ran[bench.job.spec.on_hosts] = "killed"
    await up(bench, plan_text("cut", *TWO_PAIRS))
    bench.start()  # as if it had run on
    bench.ranks.ran[bench.job.spec.on_hosts] = state
    owned = per_device(bench.store.owned(TENANCY))
    to = Snapshot(
        owned,
        current=bench.store.current(TENANCY),
        generations=bench.generations(),
        job=bench.job.id,
    )
    if verb == "rollback":
        report = await bench.back(to)
        reported, left = "".join(report.notes), report.job is not None and report.job.state != state
    else:
        run, context = bench.context(verb)
        with run:
            undone = await Rollback(context, to, (), 1.0).carry_out()
        reported, left = undone.evidence, bool(undone.left)
    why = "its job is not resumed: job mlp: gpu01 cannot reach gpu03 over this plan, and 3 more pairs of its hosts likewise"
    assert not bench.ranks.launched and not left and (why in reported) is (state == "killed")
    assert bench.ranks.ran[bench.job.spec.on_hosts] == state


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_command_that_waited_for_a_turn_keeps_what_that_recorded(
    bench: Living, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    jobs = bench.context()[1].jobs

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[Any]:
        yield jobs

    @asynccontextmanager
    async def holding(*_: Any, **__: Any) -> AsyncIterator[Any]:
        await bench.change(text(links=ring(1, 2)))  # by whoever held the lock
        if verb == "resume":
            await _pause(jobs, bench.job, 7, 1, 600.0, Recorder(Silent()))
        yield SimpleNamespace(bind=lambda run: None)

    monkeypatch.setattr(job_verbs, "_opened", opened)
    monkeypatch.setattr(job_verbs, "holding", holding)
    monkeypatch.setattr(job_verbs, "own_scheduler", lambda *_: None)
    settings = SimpleNamespace(user="ann", owner="ann", run_dir=lambda run: bench.folder / run)
    command: Any = SimpleNamespace(
        store=bench.store, settings=settings, inventory=bench.folder, progress=Silent()
    )
    if verb == "pause":
        await job_pause(command, for_s=600.0)
    else:
        await job_resume(command)
    assert [list(ring) for ring in bench.job.spec.wanted.rings] == OTHER[
        "rings"
    ] and bench.ranks.runs["rings"] == [[3, 2, 1, 0]]
    assert (bench.job.pause is not None) is (verb == "pause")
