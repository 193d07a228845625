"""The times of a schedule, and the routes that its hosts have in them."""

from __future__ import annotations

import pytest

from orchestrator.plan.reader import read_plan
from orchestrator.services.schedule.goals import Times, generation_rules, slot_goals
from tests.properties.labs import macs
from tests.services.schedule.fabric import HERE, plan_text


def test_devices_that_are_told_every_slot_pass_light_while_hosts_still_get_ready_and_those_that_turn_alone_do_not() -> (
    None
):
    times = Times(dwell_s=0.25, dark_window_s=0.06, guard_s=0.01, late_s=0.125)
    assert times.duty(stored=False) == pytest.approx(0.26 / 0.31)
    assert times.duty(stored=True) == pytest.approx(0.25 / 0.31)


@pytest.mark.parametrize("hold", [True, False])
def test_hosts_that_do_not_hold_keep_the_routes_of_a_slot_while_it_is_dark(hold: bool) -> None:
    plan = read_plan(plan_text(hold=hold), "round.json", HERE)
    assert plan.schedule is not None
    goals = slot_goals(plan, plan.schedule, HERE, {})
    found = generation_rules(
        goals, (11, 12, 13), (21, 22, 23), plan.schedule, HERE, macs(HERE), plan.hosts
    )
    for day, dark in ((11, 21), (12, 22), (13, 23)):
        assert found[day]["gpu01"], "one of the others is reached"
        assert found[dark] == (dict.fromkeys(plan.hosts, frozenset()) if hold else found[day])
