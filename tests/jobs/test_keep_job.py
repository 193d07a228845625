"""A job that runs may go on over a change, and its price is told where it is stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optics import Interlock, LinkKind, Setting
from optics.plan import Job, Plan, Schedule, Slot, WantedLink
from orchestrator.change.report import UpReport
from orchestrator.cli import render
from orchestrator.jobs.keep import apart, as_asked, consequence, ended, foretold, parted, together
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.target import Target, target
from orchestrator.session import load_lab, load_plan
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.phases import PhaseTime
from tests.house.repository import ROOT

LAB = load_lab(ROOT / "inventory" / "emulated")
TWELVE = ("ring-12", "topoopt-12", "parallel-ring-12", "torus-3x4")
NOTHING: dict[str, frozenset[Setting]] = {name: frozenset() for name in LAB.devices}


def plan(name: str) -> Plan:
    return load_plan(ROOT / "examples" / f"{name}.json", LAB)[0]


def goal(wanted: Plan) -> Target:
    return target(wanted, LAB, NOTHING, ())


def running(wanted: Plan) -> JobRecord:
    assert wanted.job is not None
    spec = JobSpec(wanted.job, "ddp-mlp.x", "gloo")
    return JobRecord(1, "lab", "2026-11-21-0007", "ddp-mlp", spec, "running", 0.0, None, "")


@pytest.mark.parametrize("name", TWELVE)
def test_the_job_of_every_twelve_host_example_runs_on_over_a_change_to_any_other(name: str) -> None:
    for other in TWELVE:
        together(running(plan(name)), plan(other))
        notes = as_asked(running(plan(name)), plan(other), "keep")
        assert notes == [] if other == name else "ddp-mlp keeps running as launched" in notes[0]


def test_the_twelve_host_examples_share_one_job_but_for_its_rings() -> None:
    jobs = [replace(job, rings=()) for name in TWELVE if (job := plan(name).job) is not None]
    assert len(jobs) == len(TWELVE) and all(job == jobs[0] for job in jobs)


def test_a_job_whose_hosts_a_plan_leaves_apart_cannot_run_on() -> None:
    wanted = plan("ring-12")
    part = replace(wanted, links=wanted.links[:5])
    with pytest.raises(Interlock) as refused:
        together(running(wanted), part)
    assert str(refused.value) == (
        "job ddp-mlp: gpu01 cannot reach gpu07 over this plan, and 50 more pairs of its hosts likewise, so it cannot go on; "
        "nothing was changed"
    )
    assert "testbed job stop, then this again" in refused.value.hint
    assert (
        "to launch ring-12's own job in its place: --job restart instead of --no-job"
        in refused.value.hint
    )
    with pytest.raises(Interlock) as refused:
        together(running(wanted), replace(part, job=None))
    assert "--job restart" not in refused.value.hint


def four(*pairs: tuple[int, int], kind: LinkKind = LinkKind.DUPLEX) -> tuple[WantedLink, ...]:
    return tuple(WantedLink(f"gpu{a:02d}", f"gpu{b:02d}", kind) for a, b in pairs)


def four_ranks() -> JobRecord:
    spec = JobSpec(Job("mlp", "train", ("gpu01/0", "gpu01/1", "gpu02", "gpu03")), "mlp.x", "gloo")
    return JobRecord(1, "lab", "run", "mlp", spec, "running", 0.0, None, "")


def test_hosts_reach_each_other_over_other_hosts_that_forward_and_no_way_against_a_one_way_link() -> (
    None
):
    job = four_ranks()
    assert parted(job, Plan("chain", four((1, 4), (4, 3), (3, 2)))) == [], (
        "over gpu04, which has no rank"
    )
    assert parted(job, Plan("circle", four((1, 2), (2, 3), (3, 1), kind=LinkKind.SIMPLEX))) == []
    assert parted(job, Plan("one way", four((1, 2), (1, 3), (3, 2), kind=LinkKind.SIMPLEX))) == [
        "gpu02 cannot reach gpu01",
        "gpu03 cannot reach gpu01",
        "gpu02 cannot reach gpu03",
    ]
    assert apart(job, Plan("without gpu03", four((1, 2)))) == (
        "job mlp: gpu01 cannot reach gpu03 over this plan, and 1 more pair of its hosts likewise"
    )


def test_over_slots_two_hosts_need_to_meet_in_one_of_them() -> None:
    def slots(*pairs: tuple[int, int]) -> Plan:
        return Plan(
            "slots", four((1, 4)), schedule=Schedule(tuple(Slot(four(pair)) for pair in pairs), 0.1)
        )

    assert parted(four_ranks(), slots((1, 2), (2, 3), (4, 3))) == []
    assert parted(four_ranks(), slots((1, 2), (2, 3))) == ["gpu01 cannot reach gpu03"]


def test_a_plan_tells_that_it_would_cut_a_running_job_and_what_to_do_first() -> None:
    wanted = plan("ring-12")
    part = replace(wanted, links=wanted.links[:5], job=None)
    text, why = foretold(running(wanted), part, goal(part), {}, launch=True, mode=None)
    assert (
        text
        == "ddp-mlp: gpu01 cannot reach gpu07 over this plan, and 50 more pairs of its hosts likewise"
    )
    assert why == f"job {text}; to end the job first: testbed job stop"
    again = replace(wanted, links=wanted.links[:5])
    for launch, mode in ((False, None), (True, "keep")):
        assert foretold(running(wanted), again, goal(again), {}, launch=launch, mode=mode)[1] == why  # type: ignore[arg-type]
    text, why = foretold(running(wanted), again, goal(again), {}, launch=True, mode="restart")
    assert "is stopped and launched again" in text and not why
    whole = replace(wanted, job=None)
    assert foretold(running(wanted), whole, goal(whole), {}, launch=True, mode=None)[1] == ""


def test_a_plan_whose_job_has_ended_tells_what_launches_it_again() -> None:
    wanted = plan("ring-12")
    finished = replace(running(wanted), state="finished", ended=1.0)
    still = replace(
        goal(wanted),
        change=target(
            wanted, LAB, goal(wanted).wanted, [s for h in goal(wanted).wanted.values() for s in h]
        ).change,
    )
    assert not still.moving
    notice = "ddp-mlp has finished; to launch it again: testbed job launch"
    assert foretold(finished, wanted, still, {}, launch=True, mode=None) == (notice, "")
    again = "ddp-mlp has finished; up launches it again"
    assert foretold(finished, wanted, still, {}, launch=True, mode="restart") == (again, "")
    assert foretold(finished, wanted, goal(wanted), {}, launch=True, mode=None) == (again, "")
    stopped = replace(finished, state="stopped")
    assert foretold(stopped, wanted, still, {}, launch=True, mode=None) == (
        "ddp-mlp stopped; up launches it again",
        "",
    )
    for launch, other in (
        (False, wanted),
        (True, replace(wanted, job=None)),
        (True, plan("topoopt-12")),
    ):
        assert foretold(finished, other, still, {}, launch=launch, mode=None) == ("", "")
    assert ended(JobStatus("mlp", "finished", iterations=300)) == (
        "job mlp has finished after 300 iterations; to launch it again: testbed job launch",
    )
    assert ended(JobStatus("mlp", "running")) == ended(None) == ()


def test_a_plan_tells_what_becomes_of_training() -> None:
    ring, topoopt = plan("ring-12"), plan("topoopt-12")
    usual = {"launch": 2.0, "job": 12.1, "stage": 2.6}
    assert consequence(running(ring), ring.job, False, usual) == "ddp-mlp keeps running"
    assert "dark for as long as the light moves" in consequence(
        running(ring), ring.job, True, usual
    )
    rings = "ddp-mlp goes on; its rings change at the end of an iteration"
    assert consequence(running(ring), topoopt.job, True, usual) == rings
    assert consequence(running(ring), topoopt.job, True, usual, "require") == rings
    assert topoopt.job is not None
    notice = consequence(running(ring), topoopt.job, True, usual, "never")
    assert notice.startswith(
        "ddp-mlp is stopped and launched again as this plan has it: the plan says live: never; training pauses about 14.1 s"
    )
    assert notice.endswith("(up --job keep: ddp-mlp keeps running)")
    assert "as --job restart asks; training pauses" in consequence(
        running(ring), topoopt.job, True, usual, "never", "restart"
    )
    kept = consequence(running(ring), topoopt.job, True, usual, mode="keep")
    assert kept.startswith("ddp-mlp keeps running; its links are dark") and kept.endswith(
        "; this plan's job comes with its next launch"
    )
    assert (
        consequence(running(ring), ring.job, False, usual, mode="keep") == "ddp-mlp keeps running"
    )
    deeper = replace(topoopt.job, args={**topoopt.job.args, "hidden": 7})
    notice = consequence(running(ring), deeper, True, usual)
    assert (
        "as this plan has it: job.args.hidden differs from the running job's; training pauses"
        in notice
    )
    assert (
        "job.args.hidden differs"
        in (notice := consequence(running(ring), deeper, True, usual, "require"))
        and "up refuses" in notice
    )
    assert "until the new one has made its first iteration" in consequence(
        running(ring), deeper, True, {}
    )


def test_up_tells_how_long_training_paused() -> None:
    phases = (
        PhaseTime("job", 0.9, "stopped ddp-mlp after 39 iterations", 4.0),
        PhaseTime("launch", 2.0, "train", 4.9),
        PhaseTime("job", 12.0, "ddp-mlp running", 6.9),
        PhaseTime("resume", 10.0, "ddp-mlp", 3.5),
    )
    report = UpReport("r", "ring", "emulated", phases=phases, pause_ms=10_400.0)
    output = render.up(report, False)
    assert "  training   paused for 10.4 s: the job was stopped and relaunched" in output, (
        "as the report says"
    )
    assert "training" not in render.up(replace(report, phases=phases[1:]), False), (
        "it was launched, and none ran before"
    )
    assert "training" not in render.up(replace(report, pause_ms=None), False), (
        "it has not continued yet"
    )
