"""Which changes of a job its ranks can follow while they run, which restart it, and when it
pauses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optics.plan import Job, Plan, RingGroup, Traffic, Transfer, TransitionPolicy
from orchestrator.jobs.decision import JobDecision, cut_off, decide_job, pauses
from orchestrator.plan.target import Target
from orchestrator.session import load_lab, load_plan
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from tests.house.repository import ROOT

LAB = load_lab(ROOT / "inventory" / "emulated")
FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")
TRAIN = Job(
    "mlp", "train", FOUR, (FOUR,), {"iterations": 0, "hidden": 64}, {"OMP_NUM_THREADS": "1"}
)
OTHER = (FOUR, FOUR[::-1])


def running(job: Job, **spec: Any) -> JobRecord:
    return JobRecord(
        1,
        "lab",
        "r1",
        job.name,
        replace(JobSpec(job, "mlp.r1", "gloo"), **spec),
        "running",
        0.0,
        None,
        "",
    )


def test_without_a_running_job_or_a_wanted_one_nothing_becomes_of_it() -> None:
    assert decide_job(None, TRAIN, "prefer") == JobDecision("none")
    assert decide_job(running(TRAIN), None, "require") == JobDecision("keep")


@pytest.mark.parametrize(
    "job",
    [TRAIN, replace(TRAIN, predicted={"iteration_ms": 4.0})],
    ids=["the same", "another prediction"],
)
def test_a_job_that_its_ranks_already_run_is_kept(job: Job) -> None:
    for live in ("require", "prefer", "never"):
        assert decide_job(running(TRAIN), job, live) == JobDecision("keep")


def test_a_restart_that_is_asked_for_is_one_whatever_runs() -> None:
    for job in (TRAIN, replace(TRAIN, rings=OTHER), replace(TRAIN, name="other")):
        assert decide_job(running(TRAIN), job, "never", restart=True) == JobDecision("restart")
    assert decide_job(running(TRAIN), None, "never", restart=True) == JobDecision("keep"), (
        "there is nothing to launch"
    )


def test_a_job_of_unknown_rings_turns_to_them_again() -> None:
    assert decide_job(running(TRAIN, changing=7), TRAIN, "prefer") == JobDecision("rings")


FIVE = (*FOUR, "gpu05")
WIDER = replace(TRAIN, ranks=FIVE, rings=(FIVE,), joined=("gpu05",))


def test_ranks_that_a_training_gains_join_it_while_it_runs() -> None:
    for live in ("prefer", "require"):
        assert decide_job(running(TRAIN), WIDER, live) == JobDecision("join")
    less = replace(TRAIN, evicted={"gpu05": ""})
    back = replace(TRAIN, ranks=FIVE, rings=(FIVE,))
    assert decide_job(running(less), back, "prefer") == JobDecision("join")


@pytest.mark.parametrize(
    ("was", "job"),
    [
        (TRAIN, replace(WIDER, joined=())),
        (TRAIN, replace(WIDER, ranks=FIVE[::-1])),
        (TRAIN, replace(WIDER, args={"iterations": 9, "hidden": 64})),
        (replace(TRAIN, args={"compress": "fp16"}), replace(WIDER, args={"compress": "fp16"})),
        (replace(TRAIN, workload="allreduce"), replace(WIDER, workload="allreduce")),
        (WIDER, TRAIN),
    ],
    ids=["another training", "an order", "an argument", "compression", "no state", "fewer"],
)
def test_a_job_restarts_where_ranks_cannot_join_it(was: Job, job: Job) -> None:
    assert decide_job(running(was), job, "prefer").kind == "restart"
    assert decide_job(running(TRAIN), WIDER, "never").kind == "restart"


@pytest.mark.parametrize(
    ("was", "job"),
    [
        (TRAIN, replace(TRAIN, rings=OTHER)),
        (TRAIN, replace(TRAIN, rings=OTHER, predicted={"iteration_ms": 4.0})),
        (
            Job("r", "replay", FOUR, traffic=Traffic((RingGroup("g", 8, (FOUR,)),))),
            Job(
                "r",
                "replay",
                FOUR,
                traffic=Traffic((RingGroup("g", 8, OTHER),), (Transfer("gpu01", "gpu03", 9),)),
            ),
        ),
    ],
    ids=["rings", "rings and a prediction", "traffic"],
)
def test_other_rings_or_traffic_are_taken_over_by_policy(was: Job, job: Job) -> None:
    assert (
        decide_job(running(was), job, "prefer")
        == decide_job(running(was), job, "require")
        == JobDecision("rings")
    )
    assert decide_job(running(was), job, "never").kind == "restart"


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (replace(TRAIN, name="other"), "job.name differs"),
        (replace(TRAIN, workload="allreduce"), "job.workload differs"),
        (replace(TRAIN, ranks=FOUR[:3], rings=(FOUR[:3],)), "job.ranks differs"),
        (replace(TRAIN, args={"iterations": 0, "hidden": 32}), "job.args.hidden differs"),
        (replace(TRAIN, args={"iterations": 0}, rings=OTHER), "job.args.hidden differs"),
        (
            replace(TRAIN, env={"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}),
            "job.env.NCCL_DEBUG differs",
        ),
        (replace(TRAIN, backend="gloo"), "job.backend differs"),
        (
            replace(TRAIN, name="o", ranks=FOUR[::-1], args={}),
            "job.name, job.ranks, job.args.hidden, job.args.iterations differ ",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_other_field_restarts_the_job_and_is_named(job: Job, field: str) -> None:
    found = decide_job(running(TRAIN), job, "prefer")
    assert found.kind == "restart" and found.why.startswith(field)


def test_nccl_keeps_its_rings_until_it_is_launched_again() -> None:
    record = running(TRAIN, backend="nccl")
    assert decide_job(record, TRAIN, "prefer").kind == "keep"
    assert decide_job(record, replace(TRAIN, rings=OTHER), "prefer") == JobDecision(
        "restart", "job.backend is nccl, whose rings are fixed at the start of the job"
    )


# --- pausing


@pytest.mark.parametrize(
    ("hold", "dark_s", "nccl", "cut", "expected"),
    [
        ("auto", 0.06, False, True, False),
        ("auto", 0.1, False, True, True),
        ("auto", 5.0, False, False, False),
        ("auto", 0.06, True, False, True),
        ("auto", 0.0, True, True, False),
        ("always", 0.01, False, False, True),
        ("always", 0.0, False, True, False),
        ("never", 5.0, True, True, False),
    ],
)
def test_a_job_pauses_where_darkness_costs_it_more_than_a_pause(
    hold: Any, dark_s: float, nccl: bool, cut: bool, expected: bool
) -> None:
    assert pauses(TransitionPolicy(hold=hold), dark_s, nccl, cut) is expected


def plan(name: str) -> Plan:
    return load_plan(ROOT / "examples" / f"{name}.json", LAB)[0]


def test_ring_neighbours_are_cut_off_where_no_circuit_between_them_stays() -> None:
    wanted = plan("ring-12")
    assert wanted.job is not None
    record = running(wanted.job)

    def change(old: Any, new: Any) -> Target:
        return Target(new, (), {}, None, old)  # type: ignore[arg-type]

    links = tuple(
        _link(a, b)
        for a, b in zip(wanted.job.ranks, [*wanted.job.ranks[1:], wanted.job.ranks[0]], strict=True)
    )
    assert not cut_off(record, change(links, links), LAB, drained=False), "nothing goes dark"
    assert not cut_off(record, change(links, links[1:]), LAB, drained=True), (
        "the other half of the ring stays"
    )
    assert cut_off(record, change(links, links[1:]), LAB, drained=False), (
        "traffic is not moved to it"
    )
    assert cut_off(record, change(links, links[2:]), LAB, drained=True), (
        "one host has no circuit left"
    )


def _link(a: str, b: str) -> Any:
    from optics import HostPort, Link

    return Link(HostPort(a, 1), HostPort(b, 2))
