"""The times of a schedule."""

from __future__ import annotations

import pytest

from orchestrator.services.schedule.goals import Times


def test_devices_that_are_told_every_slot_pass_light_while_hosts_still_get_ready_and_those_that_turn_alone_do_not() -> (
    None
):
    times = Times(dwell_s=0.25, dark_window_s=0.06, guard_s=0.01, late_s=0.125)
    assert times.duty(stored=False) == pytest.approx(0.26 / 0.31)
    assert times.duty(stored=True) == pytest.approx(0.25 / 0.31)
