"""Every driver of the registry against its emulator: one lab of all families, every check of `conformance`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from conformance.run import Report, Standing, Verdict
from tests.conformance.conftest import DRIVERS, cases

pytestmark = pytest.mark.timeout(600)
"""The first test waits for every check of every family: a minute on two cores, several on a busy machine."""


@pytest.mark.parametrize(("driver", "check"), [pytest.param(d, c, id=f"{d}-{c}") for d, c in cases()])
def test_a_driver_passes_a_check(driver: str, check: str, reports: Mapping[str, Report]) -> None:
    (result,) = [result for result in reports[driver].results if result.check.name == check]
    assert result.verdict is not Verdict.FAILED, f"{result.check.sentence}: {result.words}"


@pytest.mark.parametrize("driver", DRIVERS)
def test_everything_a_driver_declares_is_confirmed(driver: str, whole_reports: Mapping[str, Report]) -> None:
    report = whole_reports[driver]
    assert {name: standing for name, standing in report.standings.items() if name in report.declared} == dict.fromkeys(
        report.declared, Standing.CONFIRMED
    )
