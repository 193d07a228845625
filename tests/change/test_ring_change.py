"""A change and the job that runs: its ranks take over their rings, pause, or keep it from that;
then policy decides.

The ranks are those of `tests.change.living`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optics import Infeasible, NotVerified, Refused, RolledBack, TestbedError, Unreachable
from optics.plan import Job, Mode, TransitionPolicy
from orchestrator.change.ring_change import RingChange
from orchestrator.change.run import before_run
from orchestrator.change.standstill import Standstill, standstill
from orchestrator.change.up import Up
from orchestrator.deadline import deadline
from orchestrator.inventory.programs import Iterations, Program
from orchestrator.jobs.attempt import Attempt
from orchestrator.jobs.decision import JobDecision
from orchestrator.jobs.iterations import last_before, rings_changed_at
from orchestrator.jobs.record import spec_of
from orchestrator.plan.reader import read_plan
from orchestrator.store.store import Store
from orchestrator.telemetry import MEASUREMENTS, Silent, read_points
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs.job import _pause
from tests.change.fleet import TENANCY, plan_text, ring
from tests.change.living import ONE, OTHER, Living
from tests.hosts.parts import OwnParts


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield await Living.begun(store, tmp_path, monkeypatch)


MOVED = ring(3, 2)
ONE_LAYOUT = [[0, 1, 2, 3]]


def text(job: Mapping[str, Any] = OTHER, links: Any = MOVED, **transition: Any) -> str:
    return plan_text("moved", *links, job=job, transition=transition)


def back_rings(bench: Living) -> Any:
    return [list(ring) for ring in bench.job.spec.wanted.rings]


async def test_the_same_job_goes_on_with_other_rings_and_its_record_follows(bench: Living) -> None:
    first = bench.job
    report = await bench.change(text())
    assert bench.ranks.asked == ["look", "prepare", "go"] and not bench.ranks.launched
    assert (
        bench.job.id == first.id
        and back_rings(bench) == OTHER["rings"]
        and not bench.job.spec.changing
    )
    assert bench.ranks.runs["rings"] == [[3, 2, 1, 0]]
    assert [
        p.name
        for p in report.phases
        if p.name in ("stage", "prepare", "arm", "switch", "rings", "verify")
    ] == [*("stage", "prepare", "arm", "switch", "rings", "verify")]
    assert (
        report.ring_change.mode,
        report.ring_change.after,
        report.ring_change.worst_rank_ms,
        report.ring_change.note,
    ) == (
        "send",
        10,
        7.0,
        "",
    )
    assert report.job.run == first.run and not report.notes
    points = [
        p for p in read_points(bench.folder / report.run) if p.measurement.startswith("ring_change")
    ]
    assert [p.measurement for p in points] == ["ring_change", *["ring_change_rank"] * 4]
    for point in points:
        assert set(point.tags) == set(MEASUREMENTS[point.measurement].tags)
        assert set(point.fields) <= set(MEASUREMENTS[point.measurement].fields)


async def test_rings_alone_change_without_any_light_and_only_once(bench: Living) -> None:
    same = ring(1, 2)
    report = await bench.change(text(links=same))
    assert (
        back_rings(bench) == OTHER["rings"]
        and report.ring_change is not None
        and not bench.ranks.launched
    )
    bench.ranks.asked.clear()
    again = await bench.change(text(links=same))
    assert again.nothing_to_do and again.ring_change is None and bench.ranks.asked == []


async def test_rollback_turns_the_same_job_back(bench: Living) -> None:
    first = bench.job
    run = (await bench.change(text())).run
    before = before_run(bench.store, bench.lab, run)
    assert before is not None and before.wanted == first.spec.wanted
    await bench.back(before)
    assert (
        bench.job.id == first.id
        and back_rings(bench) == ONE["rings"]
        and bench.ranks.runs["rings"] == [[0, 1, 2, 3]]
    )
    assert not bench.ranks.launched


async def test_a_change_that_fails_after_the_turn_turns_the_job_back(
    bench: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dark(*_: Any) -> Any:
        raise NotVerified("no light")

    monkeypatch.setattr(Up, "_verify", dark)
    first = bench.job
    with pytest.raises(RolledBack, match="no light"):
        await bench.change(text())
    assert (
        bench.job.id == first.id
        and back_rings(bench) == ONE["rings"]
        and bench.ranks.runs["rings"] == [[0, 1, 2, 3]]
    )
    assert (
        bench.ranks.asked == ["look", "prepare", "go", "look", "prepare", "go"]
        and not bench.ranks.launched
    )


async def test_a_change_that_fails_before_the_light_drops_what_was_prepared(bench: Living) -> None:
    bench.points.fail = {len(bench.points.names) + 2: "refused"}  # arm
    with pytest.raises(TestbedError, match="arm refused"):
        await bench.change(text())
    assert (
        bench.ranks.asked[:3] == ["look", "prepare", "drop"] and back_rings(bench) == ONE["rings"]
    )
    assert bench.ranks.runs["rings"] == [[0, 1, 2, 3]] and not bench.ranks.launched


WRONG: list[tuple[str, TestbedError | str, str]] = [
    (
        "look",
        "absent",
        r"rank 2 \(gpu03\) of job mlp does not take part: launched by an older version",
    ),
    ("prepare", Unreachable("gpu03: the channel to its agent is gone"), "gpu03: the channel"),
    (
        "prepare",
        "silent",
        r"within 1 s; rank 2 \(gpu03\) is preparing at iteration 9, silent for 31 s",
    ),
]


@pytest.mark.parametrize(("op", "how", "message"), WRONG, ids=["absent", "unreachable", "silent"])
async def test_what_keeps_ranks_from_it_restarts_the_job_after_the_change_by_prefer(
    bench: Living, op: str, how: TestbedError | str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.change.ring_change.EARLIER_S", 0.0)
    bench.ranks.wrong[op] = how
    report = await bench.change(text(boundary_s=1))
    assert bench.ranks.launched == [("mlp", True, [[3, 2, 1, 0]])] and report.job.run == report.run
    (note,) = report.notes
    assert note.startswith("job mlp is restarted, as it cannot take over its rings while it runs: ")
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(note)


@pytest.mark.parametrize(("op", "how", "message"), WRONG, ids=["absent", "unreachable", "silent"])
async def test_and_refuses_by_require_before_anything_moves(
    bench: Living, op: str, how: TestbedError | str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.change.ring_change.EARLIER_S", 0.0)
    held, routes = bench.held(), bench.generations()
    bench.ranks.wrong[op] = how
    with pytest.raises(
        TestbedError, match=f"job mlp cannot take over its rings while it runs: .*{message}"
    ):
        await bench.change(text(boundary_s=1), "live")
    assert (bench.held(), bench.generations()) == (held, routes) and not bench.ranks.launched
    assert back_rings(bench) == ONE["rings"]


async def test_another_field_restarts_the_job_or_is_refused_and_is_named(bench: Living) -> None:
    deeper = {**OTHER, "args": {"iterations": 0, "hidden": 32}}
    with pytest.raises(
        Infeasible, match=r"cannot take over this plan while it runs: job.args.hidden differs"
    ):
        await bench.change(text(deeper, live="require"))
    report = await bench.change(text(deeper))
    assert (
        report.notes == ("job mlp is restarted: job.args.hidden differs from the running job's",)
        and bench.ranks.launched
    )
    assert report.ring_change is None


async def test_never_does_not_ask_the_ranks(bench: Living) -> None:
    report = await bench.change(text(), "restart")
    assert bench.ranks.asked == [] and len(bench.ranks.launched) == 1
    assert report.notes == ("job mlp is restarted: as --job restart asks",)
    report = await bench.change(text(ONE, live="never"))
    assert bench.ranks.asked == [] and len(bench.ranks.launched) == 2
    assert report.notes == ("job mlp is restarted: the plan says live: never",)


async def test_a_turn_that_did_not_happen_is_tried_once_more_without_light(bench: Living) -> None:
    bench.ranks.wrong["go"] = "silent"
    report = await bench.change(text(boundary_s=1))
    assert (
        bench.ranks.asked == ["look", "prepare", "go", "drop", "look", "prepare", "go"]
        and not bench.ranks.launched
    )
    assert (
        back_rings(bench) == OTHER["rings"]
        and not bench.job.spec.changing
        and report.ring_change.note == ""
    )


async def test_with_require_the_change_stays_up_if_the_ranks_fail_afterwards(bench: Living) -> None:
    ok = bench.ranks.ring_changes.prepare
    calls = []

    async def prepare(job: str, move: int, *more: Any, **rest: Any) -> Any:
        calls.append(move)
        bench.ranks.wrong["go"] = Refused("gpu02: out of memory")
        return await ok(job, move, *more, **rest)

    bench.ranks.ring_changes.prepare = prepare
    with pytest.raises(
        Refused,
        match=r"moved is up and stays up; its job keeps its earlier rings\n.*gpu02: out of memory",
    ):
        await bench.change(text(boundary_s=1), "live")
    assert len(calls) == 2 and not bench.ranks.launched and back_rings(bench) == ONE["rings"]
    current = bench.store.current(TENANCY)
    assert current is not None and current.plan_name == "moved"


async def test_the_job_pauses_while_it_is_dark_and_goes_on_whatever_its_rings(
    bench: Living,
) -> None:
    report = await bench.change(text(ONE, hold="always"))
    assert (
        bench.ranks.asked == ["prepare", "hold", "hold", "go"]
        and report.ring_change.mode == "hold"
        and not bench.ranks.launched
    )
    phases = [p.name for p in report.phases if p.name in ("arm", "hold", "switch", "rings")]
    assert phases == ["arm", "hold", "hold", "switch", "rings"], (
        "the job pauses, then hosts hold their packets"
    )
    assert back_rings(bench) == ONE["rings"]


async def test_ranks_get_as_many_iterations_as_a_pause_and_a_turn_need(bench: Living) -> None:
    await bench.change(text(OTHER, hold="always", boundary_s=7))
    (_, hold_s, lease_s), (_, _, kept_s), (_, go_s, _) = bench.ranks.limits
    assert (hold_s, go_s) == (14, 21) and lease_s == kept_s + 14 > 14, (
        "once all pause, the lease is what the light may take"
    )


async def test_ranks_that_changed_over_late_are_not_restarted(bench: Living) -> None:
    bench.ranks.wrong["go"], bench.ranks.later = "silent", ["prepared", "prepared", "changed"]
    first = bench.job

    async def prepare(job: str, move: int, *more: Any, **rest: Any) -> Any:
        bench.ranks.move = move
        return await ok(job, move, *more, **rest)

    ok = bench.ranks.ring_changes.prepare
    bench.ranks.ring_changes.prepare = prepare
    bench.ranks.later.insert(0, "idle")  # of the look before
    report = await bench.change(text(boundary_s=5))
    assert (
        bench.ranks.asked == ["look", "prepare", "go", "drop", "look", "look", "look"]
        and not bench.ranks.launched
    )
    assert (bench.job.id, back_rings(bench), bench.job.spec.changing) == (
        first.id,
        OTHER["rings"],
        0,
    )
    assert report.ring_change.note == "" and report.ring_change.after == 10 and not report.notes


async def test_a_change_waits_for_the_end_of_an_earlier_move(
    bench: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.change.ring_change.EARLIER_S", 0.0)
    bench.ranks.move, bench.ranks.later = 3, ["prepared", "prepared", "prepared", "void"]
    report = await bench.change(text(boundary_s=5))
    assert not bench.ranks.launched and back_rings(bench) == OTHER["rings"] and not report.notes


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "at the end of an iteration"])
async def test_a_change_that_fails_before_the_turn_leaves_the_job_as_it_was(
    bench: Living, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    async def dark(*_: Any, **__: Any) -> Any:
        if slow:
            bench.ranks.later = ["prepared", "prepared", "prepared", "void"]
        raise NotVerified("no light")

    monkeypatch.setattr("orchestrator.change.move.switch", dark)
    monkeypatch.setattr("orchestrator.change.ring_change.EARLIER_S", 0.0)
    first = bench.job
    with pytest.raises(TestbedError, match="no light"):
        await bench.change(text(boundary_s=5))
    assert bench.job.id == first.id and not bench.ranks.launched and not bench.job.spec.changing
    assert (
        back_rings(bench) == ONE["rings"]
        and "go" not in bench.ranks.asked
        and bench.ranks.asked.count("prepare") == 1
    )


async def test_a_void_move_does_not_make_an_earlier_one_known(bench: Living) -> None:
    """An earlier run died in its ring change: whether the ranks use other rings than the store has
    is unknown until they follow one.
    """
    bench.store.set_job_spec(bench.job.id, replace(bench.job.spec, changing=3))
    bench.ranks.wrong["go"] = "silent"
    ok = bench.ranks.ring_changes.prepare

    async def only_once(*args: Any, **more: Any) -> Any:
        found = await ok(*args, **more)
        bench.ranks.wrong["prepare"] = Refused("gpu02: out of memory")
        return found

    bench.ranks.ring_changes.prepare = only_once
    marks = []
    stop = bench.ranks.jobs.stop

    async def stop_job(*args: Any) -> Any:
        marks.append(bench.job.spec.changing)
        return await stop(*args)

    bench.ranks.jobs.stop = stop_job
    await bench.change(text(ONE, links=ring(1, 2), boundary_s=1))
    assert marks and marks[0] and bench.ranks.launched == [("mlp", True, ONE_LAYOUT)]


@pytest.mark.parametrize("mode", ["live", None])
@pytest.mark.parametrize("present", [True, False])
async def test_a_job_that_waits_for_missing_light_is_asked_once_that_is_there(
    bench: Living, mode: Mode | None, present: bool
) -> None:
    """An earlier run died with circuits broken: no iteration ends before there is light, so a ring
    change before it would fail.
    """
    first, ocs1, prepare = bench.job, bench.switches["ocs1"], bench.ranks.ring_changes.prepare
    bench.store.set_job_spec(first.id, replace(first.spec, changing=3))
    had, ocs1.held = ocs1.held, frozenset()
    bench.fleet.light()
    bench.ranks.state, bench.ranks.move = "prepared", 3

    async def answers(*args: Any, **more: Any) -> Any:
        if not ocs1.held:
            bench.ranks.wrong["prepare"] = "silent"
        return await prepare(*args, **more)

    async def drop_with_light(*_: Any) -> Any:
        if ocs1.held:
            bench.ranks.state = "void"
        return await look("", ())

    look = bench.ranks.ring_changes.states
    bench.ranks.ring_changes.prepare, bench.ranks.ring_changes.states = answers, drop_with_light
    report = await bench.change(
        text(boundary_s=1) if present else text(ONE, links=ring(1, 2), boundary_s=1), mode
    )
    assert (
        bench.job.id == first.id
        and not bench.ranks.launched
        and not bench.job.spec.changing
        and not report.notes
    )
    assert (
        bench.ranks.runs["rings"] == ([[3, 2, 1, 0]] if present else ONE_LAYOUT)
        and report.job.run == first.run
    )
    assert present or ocs1.held == had
    assert bench.ranks.asked[-2:] == ["prepare", "go"] and bench.ranks.asked.count("prepare") == 1


async def test_the_same_job_restarts_if_it_must(bench: Living) -> None:
    jobs = bench.context()[1].jobs
    plan = read_plan(plan_text("x", *ring(), job=ONE), "x", bench.lab)
    run, context = bench.context()
    with run:
        for restart in (False, True):
            await jobs.ensure(
                run.id,
                plan.job,
                context.recorder,
                changed=False,
                launch=True,
                restart=restart,
                sample=False,
            )
            assert len(bench.ranks.launched) == restart


async def test_a_job_that_cannot_pause_still_turns_and_by_require_refuses(bench: Living) -> None:
    bench.ranks.wrong["hold"] = Refused("gpu02: rank 1 is busy")
    report = await bench.change(text(hold="always", boundary_s=1))
    assert (
        bench.ranks.asked == ["look", "prepare", "hold", "drop", "look", "prepare", "go"]
        and not bench.ranks.launched
    )
    assert back_rings(bench) == OTHER["rings"] and report.notes == (
        "job mlp does not pause: gpu02: rank 1 is busy",
    )
    bench.ranks.wrong["hold"] = Refused("gpu02: rank 1 is busy")
    with pytest.raises(
        TestbedError, match="cannot take over its rings while it runs: gpu02: rank 1 is busy"
    ):
        await bench.change(text(ONE, links=ring(1, 2), hold="always", boundary_s=1), "live")
    assert back_rings(bench) == OTHER["rings"] and not bench.ranks.launched


async def test_a_pause_longer_than_hosts_grant_is_not_begun(
    bench: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.change.ring_change.MOST_S", 0.1)
    report = await bench.change(text(hold="always"))
    assert (
        "hold" not in bench.ranks.asked
        and back_rings(bench) == OTHER["rings"]
        and not bench.ranks.launched
    )
    assert len(report.notes) == 1 and "hosts pause a job for 0.1 s at most" in report.notes[0]


async def test_by_require_a_plan_without_light_to_move_changes_nothing_if_the_job_cannot_follow(
    bench: Living,
) -> None:
    was = bench.store.current(TENANCY)
    bench.ranks.wrong["prepare"] = Refused("gpu02: out of memory")
    with pytest.raises(
        Refused, match="cannot take over its rings while it runs: gpu02: out of memory"
    ):
        await bench.change(text(links=ring(1, 2)), "live")
    assert (
        bench.store.current(TENANCY) == was
        and back_rings(bench) == ONE["rings"]
        and not bench.job.spec.changing
    )
    bench.ranks.wrong["go"] = Refused("gpu02: out of memory")
    with pytest.raises(Refused, match="out of memory"):
        await bench.change(text(links=ring(1, 2)), "live")
    assert (
        bench.store.current(TENANCY) == was
        and not bench.job.spec.changing
        and not bench.ranks.launched
    )


async def test_what_became_of_the_job_is_in_the_words_of_its_case(bench: Living) -> None:
    ring_change = RingChange(bench.context()[1], TransitionPolicy(), "prefer")
    ring_change.record = bench.job
    found = {}
    for kind in ("none", "keep", "restart", "rings"):
        ring_change.decision = JobDecision(kind)  # type: ignore[arg-type]
        found[kind] = ring_change.left_as
    assert found == {
        "none": "its job does not run",
        "keep": "its job runs as before",
        "restart": "it is not known whether its job runs",
        "rings": "its job keeps its earlier rings",
    }
    ring_change.record = replace(bench.job, spec=replace(bench.job.spec, changing=7))
    assert ring_change.left_as == "it is not known which rings its job uses"
    ring_change.done = True
    assert ring_change.left_as == "its job runs with its next rings"


async def test_a_refusal_by_require_adopts_nothing(
    bench: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted: list[str] = []

    def take_over(*_: object) -> list[str]:
        adopted.append("adopted")
        return []

    monkeypatch.setattr("orchestrator.change.up.take_over", take_over)
    bench.ranks.wrong["look"] = "absent"
    monkeypatch.setattr("orchestrator.change.ring_change.EARLIER_S", 0.0)
    with pytest.raises(Refused, match="does not take part"):
        await bench.change(text(), "live")
    assert adopted == []
    await bench.change(text())
    assert adopted


async def test_a_pause_is_on_record_before_it_begins(bench: Living) -> None:
    jobs, job = bench.context()[1].jobs, bench.job
    hold, seen = bench.ranks.ring_changes.hold, []

    async def hold_job(*args: Any, **more: Any) -> Any:
        seen.append(bench.job.pause)
        return await hold(*args, **more)

    bench.ranks.ring_changes.hold = hold_job
    bench.ranks.wrong["hold"] = Refused("gpu02: rank 1 is busy")
    with pytest.raises(Refused, match="rank 1 is busy"):
        await _pause(jobs, job, 7, 1, 600.0, Recorder(Silent()))
    assert (
        seen[0] is not None
        and seen[0].move == 7
        and bench.job.pause is None
        and bench.ranks.asked[-1] == "drop"
    )
    await _pause(jobs, job, 8, 1, 600.0, Recorder(Silent()))
    pause = bench.job.pause
    assert (
        pause is not None
        and pause.move == 8
        and pause.until <= seen[1].until
        and bench.job.state == "paused"
    )
    assert [lease_s for op, _, lease_s in bench.ranks.limits if op == "hold"] == [660, 660, 600]


async def test_a_restart_by_a_rollback_has_its_reason(
    bench: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dark(*_: Any) -> Any:
        bench.ranks.wrong["prepare"] = Refused("gpu02: out of memory")
        raise NotVerified("no light")

    monkeypatch.setattr(Up, "_verify", dark)
    with pytest.raises(
        RolledBack,
        match=r"as before: .*; job mlp is restarted, as it cannot .*: gpu02: out of memory",
    ):
        await bench.change(text())
    assert bench.ranks.launched == [("mlp", True, ONE_LAYOUT)]


async def test_a_limit_too_short_for_a_turn_restarts_the_job_by_prefer(bench: Living) -> None:
    async with deadline(20.0, "up") as limit:
        bench.limit = limit
        report = await bench.change(text(boundary_s=60))
    assert len(bench.ranks.launched) == 1 and "takes about" in report.notes[0]


async def test_a_job_that_cannot_pause_is_not_paused_and_that_is_noted(bench: Living) -> None:
    bench.ranks.wrong["hold"] = Refused("gpu02: rank 1 is busy")
    report = await bench.change(text(ONE, hold="always"))
    assert bench.ranks.asked == ["prepare", "hold", "drop"] and report.ring_change is None
    assert report.notes == ("job mlp does not pause: gpu02: rank 1 is busy",)


async def test_a_move_under_way_is_named(bench: Living) -> None:
    bench.ranks.state, bench.ranks.move = "held", 3
    with pytest.raises(Refused, match=r"job mlp is paused \(move 3\)"):
        await Attempt(bench.session.hosts, bench.job, 4, 1.0).present()


async def test_a_turn_of_another_run_is_named_with_who_and_since_when(
    bench: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.change.ring_change.DROP_TAKES", 0)
    run, context = bench.context()
    bench.ranks.state, bench.ranks.move = "prepared", context.next_generation()
    message = rf"has another move under way \(move {bench.ranks.move}, of run {run.id}: up, ann on \S+ since \d\d:\d\d:\d\d\)"
    with pytest.raises(Refused, match=message):
        await bench.change(text(), "live")


# --- what it cost


def at(*took: float, first: int = 1) -> tuple[list[dict[str, Any]], list[int]]:
    """Iterations that took so long (ms), one right after the other."""
    ends, now = [], 0.0
    for ms in took:
        now += ms
        ends.append(int(now * 1e6))
    return [{"iter": first + n, "iter_ms": ms} for n, ms in enumerate(took)], ends


def test_the_time_that_a_job_stood_is_what_its_iterations_took_beyond_the_usual() -> None:
    records, ends = at(900, 200, 200, 200, 260, 236, 150, 150)
    assert standstill(records, ends, ends[3] + 1, 5) == Standstill(60 + 86, 200, 150)
    assert standstill(records, ends, ends[3] + 1, 6) == Standstill(60 + 36, 200, 150), (
        "the boundary counts for the earlier rings"
    )


def test_a_pause_between_two_iterations_counts() -> None:
    records, ends = at(900, 200, 200, 200, 200)
    later = [end + (int(500e6) if n >= 3 else 0) for n, end in enumerate(ends)]
    assert standstill(records, later, ends[2] + 1, 3).paused_ms == 500


def test_without_iterations_before_or_after_nothing_is_made_up() -> None:
    assert standstill([], [], 0, 3) == Standstill()
    records, ends = at(900, 200, 200)
    assert standstill(records, ends, 0, 3).paused_ms is None
    assert standstill(records, ends, ends[1] + 1, 3) == Standstill(0.0, 200, None)


async def test_a_turn_counted_in_collectives_is_placed_among_the_iterations_by_its_time() -> None:
    records = [{"iter": n, "iter_ms": 100.0, "t_wall_ns": n * 100_000_000} for n in range(1, 6)]
    written = [
        {"move": 3, "after": 800, "t_wall_ns": 210_000_000},
        {"move": 4, "after": 8450, "t_wall_ns": 350_000_000},
    ]

    class Hosts(OwnParts):
        async def tail(self, job: str, rank: str, file: str, offset: int) -> SimpleNamespace:
            assert (job, rank, file) == ("mlp-r1", "gpu01", "ring_changes.jsonl") and offset < 0
            return SimpleNamespace(
                text='"half a line"}\n'
                + "".join(json.dumps({**each, "rings": [[0, 1]]}) + "\n" for each in written)
            )

    session: Any = SimpleNamespace(hosts=Hosts())
    at_ns = await rings_changed_at(session, "mlp-r1", "gpu01", 4)
    assert at_ns == 350_000_000 and last_before(records, at_ns) == 2, "the third was under way"
    assert await rings_changed_at(session, "mlp-r1", "gpu01", 5) is None
    assert last_before([], at_ns) == 0


async def test_a_program_without_the_projects_back_end_rides_through_the_dark_unasked(
    bench: Living,
) -> None:
    programs = {"gpt": Program("gpt", ("gpt",), Iterations())}
    bench.lab = replace(bench.lab, programs=programs)
    ready: list[str] = []

    async def make_ready(job: Job) -> None:
        ready.append(job.program)

    bench.ranks.jobs.make_ready = make_ready
    job = {
        "name": "mlp",
        "workload": "program",
        "program": "gpt",
        "ranks": ONE["ranks"],
        "rings": ONE["rings"],
    }
    wanted = read_plan(text(job), "plan.json", bench.lab).job
    assert wanted is not None
    bench.store.set_job_spec(bench.job.id, spec_of(wanted, bench.lab, bench.job.run))
    report = await bench.change(text(job | {"rings": OTHER["rings"]}, hold="always"))
    assert (
        ready == ["gpt"]
        and not bench.ranks.asked
        and not bench.ranks.launched
        and report.ring_change is None
    )
    assert (
        "job mlp cannot pause while circuits are dark: its program has no back-end testbed"
        in report.notes
    )
    assert "hold" in [phase.name for phase in report.phases], "hosts hold its packets all the same"
