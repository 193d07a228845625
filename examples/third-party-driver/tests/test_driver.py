"""The Acme driver in front of the Acme emulator: what the plugin `testbed` gives, used from
outside.
"""

from __future__ import annotations

import pytest

from conformance.check import all_checks
from conformance.device import Opened
from drivers.registry import known_drivers


def test_an_inventory_may_name_the_driver() -> None:
    assert "acme-line" in known_drivers()


def test_the_driver_keeps_what_it_declares(device: Opened) -> None:
    report = device.conform()
    assert report.ok, [(result.check.name, result.message) for result in report.failed]
    assert {"identify", "read", "change", "refusals"} <= {
        n for n, existing in report.statuses.items() if existing == "confirmed"
    }


@pytest.mark.parametrize(
    "check",
    [check.name for check in all_checks() if not check.truth and check.capability == "change"],
)
def test_a_change_is_what_it_should_be(device: Opened, check: str) -> None:
    report = device.conform(check)
    assert report.ok, report.failed[0].message


def test_a_circuit_is_made_and_read_back(device: Opened) -> None:
    wanted = device.light((1, 2), (2, 1))
    outcome = device.apply(add=wanted)
    assert not outcome.failed
    assert device.read() == wanted
