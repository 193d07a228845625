"""Jobs that go on while their circuits move: the same weights as a replay, whoever dies
meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.drills.crash_points import HERE, OTHER
from tests.drills.job_truth import HOSTS, Launch
from tests.drills.living_jobs import ACROSS, FROM, RINGS, TO, Case, LivingJobs, cycle
from tests.drills.living_trouble import Trouble
from tests.end_to_end.conftest import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


@pytest.mark.long
def test_after_turns_to_other_rings_and_back_the_weights_are_those_of_a_replay(lab: Lab) -> None:
    """S18: no iteration is lost or trained twice, and the journalled turns alone give the same
    weights bit by bit.
    """
    drill = LivingJobs(lab, seed=1401)
    first = lab.up(drill.held[HERE, "never"]).must()
    run = first["job"]["run"]
    for side in (OTHER, HERE):
        report = lab.up(drill.held[side, "never"], "--job", "live").must()
        assert report["job"]["run"] == run and report["ring_change"]["after"] > 0, report
        assert not drill.layout(side)
    assert not drill.job.gapless() and drill.job.lines("iterations.jsonl")[0]["iter"] == 1
    assert [t["after"] for t in drill.job.lines("ring_changes.jsonl")][-1] == report["ring_change"][
        "after"
    ]
    assert not Trouble(drill).weights()


@pytest.mark.long
def test_the_operator_killed_while_all_ranks_are_held_leaves_nobody_held(lab: Lab) -> None:
    """S18, S21: the lease ends, the same processes train on, status names the run, rollback
    converges.
    """
    drill = LivingJobs(lab, seed=1402)
    drill.ready()
    assert not drill.case(Case("operator", "held", "rollback"))
    assert not drill.job.gapless()


@pytest.mark.long
def test_over_other_circuits_on_the_same_rings_the_weights_are_those_of_a_job_never_moved(
    lab: Lab, tmp_path: Path
) -> None:
    drill = LivingJobs(lab, seed=1403)
    spec = {
        "name": "living",
        "workload": "train",
        "ranks": HOSTS,
        "rings": RINGS[HERE],
        "args": {"iterations": 0, **drill.args},
    }
    run = lab.up(lab.plan("one", FROM, job=spec)).must()["job"]["run"]
    for name, links in (
        ("two", TO),
        ("three", cycle(ACROSS, (4, 3)) + cycle(HOSTS, (2, 1))),
        ("one", FROM),
    ):
        report = lab.up(lab.plan(name, links, job=spec)).must()
        assert report["made"] and report["job"]["run"] == run
    assert drill.job.advances(1) and not drill.job.gapless()
    stopped = lab.testbed("job", "stop").must()
    reply = drill.job.summary()
    assert reply["weights_identical"] and reply["iterations"] == stopped["iterations"]
    never_moved = Launch(
        [[HOSTS.index(host) for host in one] for one in RINGS[HERE]], [], reply["iterations"]
    )
    assert drill.job.replayed(tmp_path, drill.args, [never_moved]) == reply["weights_sha256"]


@pytest.mark.long
def test_light_that_never_comes_a_rank_that_cannot_and_a_verification_that_fails_cost_the_job_nothing_but_time(
    lab: Lab,
) -> None:
    drill = LivingJobs(lab, seed=1404)
    drill.ready()
    trouble = Trouble(drill)
    assert not trouble.failed()
    assert not trouble.stuck("dark")
    assert not trouble.cannot()
    assert not trouble.in_a_row(2)
    assert not trouble.weights()


@pytest.mark.long
@pytest.mark.parametrize("who", ["agent", "watchdog", "rank"])
def test_whoever_dies_when_all_is_prepared_the_job_goes_on_or_is_resumed(
    lab: Lab, who: str
) -> None:
    drill = LivingJobs(lab, seed=1405)
    drill.ready()
    assert not drill.case(Case(who, "prepared"))
