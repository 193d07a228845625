"""A ring change or a pause that cannot be had: said in words, with who and why, and nothing is
changed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.drills.crash_points import HERE, OTHER
from tests.drills.living_jobs import LivingJobs
from tests.end_to_end.conftest import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def short(drill: LivingJobs, boundary_s: float) -> None:
    """Rewrite the plan `present` with this bound."""
    drill.held[OTHER, "never"].write_text(
        drill.held[OTHER, "never"]
        .read_text()
        .replace('{"hold"', f'{{"boundary_s": {boundary_s}, "hold"')
    )


@pytest.mark.long
def test_a_silent_rank_is_named_and_nothing_is_changed(lab: Lab) -> None:
    """Its process is stopped, so no iteration ends either: the boundary does not come within
    `boundary_s`.
    """
    drill = LivingJobs(lab, seed=1411)
    short(drill, 3)
    run = lab.up(drill.held[HERE, "never"]).must()["job"]["run"]
    drill.run = run
    writes, light = lab.writes(), lab.light()
    with stopped(drill.job.ranks("gpu04")):
        answer = lab.up(drill.held[OTHER, "never"], "--job", "live")
        assert answer.exit_code not in (0, 7), answer
        assert "gpu04" in answer.envelope["message"] and re.search(
            r"\d+(\.\d+)? s", answer.envelope["message"]
        ), answer
        assert (lab.writes(), lab.light()) == (writes, light)
        status = lab.testbed("status").envelope["data"]
        assert status["plan"] == HERE and not status["unfinished"]
    assert not drill.lives() and not drill.quiet() and not drill.layout(HERE)
    assert lab.up(drill.held[OTHER, "never"], "--job", "live").must()["job"]["run"] == run


@pytest.mark.long
def test_a_boundary_that_does_not_come_in_time_changes_nothing(lab: Lab) -> None:
    drill = LivingJobs(lab, seed=1412)
    for plan in {drill.held[HERE, "never"], drill.held[OTHER, "never"]}:
        plan.write_text(
            plan.read_text().replace('"hidden": 512, "batch": 8', '"hidden": 2048, "batch": 1024')
        )
    short(drill, 1)
    drill.run = lab.up(drill.held[HERE, "never"]).must()["job"]["run"]
    writes, light = lab.writes(), lab.light()
    answer = lab.up(drill.held[OTHER, "never"], "--job", "live")
    assert answer.exit_code not in (0, 7) and "iteration" in answer.envelope["message"], answer
    assert re.search(r"\b1(\.0)? s\b", answer.envelope["message"]), answer
    assert (lab.writes(), lab.light()) == (writes, light)
    assert not drill.lives() and not drill.quiet() and not drill.layout(HERE)


@pytest.mark.long
def test_a_pause_ends_by_word_or_by_itself_and_has_a_limit(lab: Lab) -> None:
    """S21: nobody stays paused because whoever asked for it went away."""
    drill = LivingJobs(lab, seed=1413)
    drill.run = lab.up(drill.held[HERE, "never"]).must()["job"]["run"]
    idle = lab.testbed("job", "resume")
    assert idle.exit_code and "is not paused" in idle.envelope["message"], idle
    for text, output in (("2h", "3600 s"), ("0s", "--for"), ("soon", "--for")):
        refused = lab.testbed("job", "pause", "--for", text)
        assert refused.exit_code and output in refused.envelope["message"], refused
    assert drill.job.advances(2)

    lab.testbed("job", "pause", "--for", "10m").must()
    still = drill.job.iteration()
    time.sleep(1.0)
    assert drill.job.iteration() == still, "it is paused"
    again = lab.testbed("job", "pause", "--for", "1m")
    assert again.exit_code and "paused" in again.envelope["message"], again
    lab.testbed("job", "resume").must()
    assert not drill.lives()

    lab.testbed("job", "pause", "--for", "4s").must()
    assert not drill.lives() and not drill.quiet() and not drill.job.gapless()


@pytest.mark.long
def test_a_turn_while_another_is_under_way_is_refused_with_who_and_since_when(lab: Lab) -> None:
    drill = LivingJobs(lab, seed=1414)
    short(drill, 60)
    drill.run = lab.up(drill.held[HERE, "never"]).must()["job"]["run"]
    writes = lab.writes()
    with stopped(drill.job.ranks("gpu04")):
        first = lab.command("up", "--topology", drill.held[OTHER, "never"], "--job", "live")
        give_up = time.monotonic() + 60
        while "stage" not in lab.steps() or not lab.holders():
            assert time.monotonic() < give_up and first.poll() is None
            time.sleep(0.02)
        for argv in (
            ("up", "--topology", drill.held[HERE, "always"], "--job", "live"),
            ("job", "pause"),
        ):
            second = lab.testbed(*argv)
            assert second.exit_code == 4 and lab.writes() == writes, second
            assert re.search(
                rf"\(pid {first.pid}\) since \d\d:\d\d:\d\d: up {OTHER}", second.envelope["message"]
            ), second
            assert "--wait" in second.envelope["hint"]
    out, _ = first.communicate(timeout=100)
    assert first.returncode == 0, out
    assert not drill.lives() and not drill.layout(OTHER)
