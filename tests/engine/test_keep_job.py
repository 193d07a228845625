"""A job that runs may go on over a change, and its price is told where it is stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from optics import Infeasible, Setting
from optics.plan import Plan
from orchestrator.cli import render
from orchestrator.engine.change.keep_job import consequence, fits
from orchestrator.plan.target import Target, target
from orchestrator.results import PhaseTime, UpReport, to_json
from orchestrator.session import load_lab, load_plan
from orchestrator.store.records import JobRecord
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
    spec = {"wanted": to_json(wanted.job), "on_hosts": "ddp-mlp.x", "backend": "gloo"}
    return JobRecord(1, "lab", "2026-11-21-0007", "ddp-mlp", json.loads(json.dumps(spec)), "running", 0.0, None, "")


@pytest.mark.parametrize("name", TWELVE)
def test_the_job_of_every_twelve_host_example_runs_on_over_a_change_to_any_other(name: str) -> None:
    for other in TWELVE:
        wanted = plan(other)
        assert "ddp-mlp keeps running as launched" in fits(running(plan(name)), wanted, goal(wanted), LAB)


def test_the_twelve_host_examples_share_one_job_but_for_its_rings() -> None:
    jobs = [replace(job, rings=()) for name in TWELVE if (job := plan(name).job) is not None]
    assert len(jobs) == len(TWELVE) and all(job == jobs[0] for job in jobs)


def test_a_job_whose_hosts_a_plan_leaves_apart_cannot_run_on() -> None:
    wanted = plan("ring-12")
    part = replace(wanted, links=wanted.links[:5])
    with pytest.raises(Infeasible, match="ddp-mlp cannot keep running: ring-12 does not join gpu01 and gpu07, nor 50 more pairs"):
        fits(running(wanted), part, goal(part), LAB)


def test_a_plan_tells_what_becomes_of_training() -> None:
    ring, topoopt = plan("ring-12"), plan("topoopt-12")
    usual = {"launch": 2.0, "job": 12.1, "stage": 2.6}
    assert consequence(running(ring), ring.job, False, usual) == "ddp-mlp keeps running"
    assert "dark for as long as the light moves" in consequence(running(ring), ring.job, True, usual)
    rings = "ddp-mlp goes on; its rings change at the end of an iteration"
    assert consequence(running(ring), topoopt.job, True, usual) == rings
    assert consequence(running(ring), topoopt.job, True, usual, "require") == rings
    assert topoopt.job is not None
    told = consequence(running(ring), topoopt.job, True, usual, "never")
    assert told.startswith(
        "ddp-mlp is stopped and launched again as this plan has it: the plan says live: never; training pauses about 14.1 s"
    )
    assert told.endswith("(up --job keep: ddp-mlp keeps running)")
    assert "as --job restart asks; training pauses" in consequence(running(ring), topoopt.job, True, usual, "never", "restart")
    kept = consequence(running(ring), topoopt.job, True, usual, mode="keep")
    assert kept.startswith("ddp-mlp keeps running; its links are dark") and kept.endswith(
        "; this plan's job comes with its next launch"
    )
    assert consequence(running(ring), ring.job, False, usual, mode="keep") == "ddp-mlp keeps running"
    deeper = replace(topoopt.job, args={**topoopt.job.args, "hidden": 7})
    told = consequence(running(ring), deeper, True, usual)
    assert "as this plan has it: job.args.hidden differs from the running job's; training pauses" in told
    assert (
        "job.args.hidden differs" in (told := consequence(running(ring), deeper, True, usual, "require")) and "up refuses" in told
    )
    assert "until the new one has made its first iteration" in consequence(running(ring), deeper, True, {})


def test_up_tells_how_long_training_paused() -> None:
    phases = (
        PhaseTime("job", 0.9, "stopped ddp-mlp after 39 iterations", 4.0),
        PhaseTime("launch", 2.0, "train", 4.9),
        PhaseTime("job", 12.0, "ddp-mlp running", 6.9),
        PhaseTime("resume", 10.0, "ddp-mlp", 3.5),
    )
    report = UpReport("r", "ring", "emulated", phases=phases, pause_ms=10_400.0)
    said = render.up(report, False)
    assert "  training   paused for 10.4 s: the job was stopped and relaunched" in said, "as the report says"
    assert "training" not in render.up(replace(report, phases=phases[1:]), False), "it was launched, and none ran before"
    assert "training" not in render.up(replace(report, pause_ms=None), False), "it has not continued yet"
