"""The drill of living jobs acts in a state only if it sees it: what it accepts as which state, and
where it stops a command.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from orchestrator.hosts import Hello, RankState
from tests.drills.deadly import Points
from tests.drills.job_truth import HOSTS
from tests.drills.moments import STATES, Now

HERE, OTHER = {"ocs1": {("1", "101")}}, {"ocs1": {("1", "102")}}
NEITHER: dict[str, set[tuple[str, str]]] = {"ocs1": set()}


def seen(
    state: str,
    light: dict[str, set[tuple[str, str]]],
    *,
    pending: bool = False,
    ranks: int = 6,
    moves: int = 1,
) -> Now:
    """All ranks in one state; moves: how many moves they are in."""
    hellos = {
        host: Hello(host, installed=True, active=7, pending_s=3.0 if pending else None)
        for host in HOSTS
    }
    states = tuple(
        RankState(host, rank, state, move=40 + rank % moves)
        for rank, host in enumerate(HOSTS[:ranks])
    )
    return Now(dict(hellos), states, light, frozenset())


IS = {
    "preparing": seen("preparing", HERE, ranks=4),
    "prepared": seen("prepared", HERE),
    "held": seen("held", HERE),
    "dark": seen("held", NEITHER),
    "riding": seen("prepared", NEITHER),
    "changed": seen("changed", OTHER, pending=True),
    "confirmed": seen("changed", OTHER),
}


def test_each_state_is_seen_where_it_is_and_nowhere_else() -> None:
    assert set(IS) == set(STATES)
    for name, state in STATES.items():
        for other, now in IS.items():
            assert (state.missing(now, HERE, OTHER) == "") is (name == other), (name, other)


@pytest.mark.parametrize("name", sorted(set(STATES) - {"preparing"}))
def test_a_rank_that_is_missing_or_in_another_move_is_no_state(name: str) -> None:
    now = IS[name]
    for ranks in (
        now.ranks[:5],
        (*now.ranks[:5], RankState("gpu06", 5, now.ranks[0].state, move=3)),
    ):
        assert STATES[name].missing(Now(now.hellos, ranks, now.light, now.down), HERE, OTHER)


def test_a_command_stops_at_the_point_asked_for_until_it_may_go_on(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    points = Points(
        {"DRILL_LIKE": r"after gpu\d+ arm", "DRILL_NTH": "2", "DRILL_DO": f"wait {mark}"}
    )
    passed: list[str] = []

    def command() -> None:
        for name in ("gpu01 arm", "gpu02 hold", "gpu03 arm", "gpu04 arm"):
            points("before", name)
            points("after", name)
            passed.append(name)

    thread = threading.Thread(target=command, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < until, "it never stopped"
        time.sleep(0.005)
    assert mark.read_text() == "after gpu03 arm 1" and passed == ["gpu01 arm", "gpu02 hold"]
    mark.unlink()
    thread.join(60)
    assert passed == ["gpu01 arm", "gpu02 hold", "gpu03 arm", "gpu04 arm"] and not mark.exists()
