"""A sample of the crash-point drill (`make drill NAME=crash_points` kills at every point)."""

from __future__ import annotations

import os

import pytest

from tests.drills.crash_points import HERE, OTHER, CrashPoints
from tests.drills.truth import Wanted, routes, wanted_light
from tests.end_to_end.conftest import Lab, ring

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


@pytest.mark.long
def test_up_killed_between_break_and_make_is_named_and_rolled_back_and_killed_before_confirm_is_resumed(
    lab: Lab,
) -> None:
    """S4: `kill -9` at two of the points, the next command says what is, resume and rollback both
    converge.
    """
    drill = CrashPoints(lab, ring((1, 2)), [("gpu01:p3", "gpu02:p3"), *ring((1, 2))[1:]])
    for name in (OTHER, HERE):
        lab.up(drill.plans[name]).must()
        drill.states[name] = Wanted(name, wanted_light(lab, drill.links[name]), routes(lab))
    drill.rolled_back("after ocs1 conn:sub 1")
    drill.resumed("before gpu02 confirm 1")
    assert not drill.tally.unreached and not drill.tally.problems, drill.tally
    assert (drill.tally.killed, drill.tally.rolled_back, drill.tally.resumed) == (2, 1, 1)
