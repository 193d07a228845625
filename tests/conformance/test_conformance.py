"""Every driver of the registry against its emulator: one lab of all families, every check of
`conformance`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from conformance.run import CapabilityStatus, Report, Verdict
from tests.conformance.conftest import DRIVERS, cases

pytestmark = pytest.mark.timeout(600)
"""The first test waits for every check of every family: a minute on two cores, several on a busy
machine.
"""


@pytest.mark.parametrize(("driver", "check"), cases())
def test_a_driver_passes_a_check(driver: str, check: str, reports: Mapping[str, Report]) -> None:
    (result,) = [result for result in reports[driver].results if result.check.name == check]
    assert result.verdict is not Verdict.FAILED, f"{result.check.sentence}: {result.message}"


@pytest.mark.parametrize("driver", DRIVERS)
def test_everything_a_driver_declares_is_confirmed(
    driver: str, reports: Mapping[str, Report]
) -> None:
    report = reports[driver]
    small = {name for name in report.declared if _too_small_for(name, report)}
    assert {
        name: status for name, status in report.statuses.items() if name in report.declared
    } == {
        name: CapabilityStatus.NOT_TRIED if name in small else CapabilityStatus.CONFIRMED
        for name in report.declared
    }
    assert not small or driver == "thorlabs-osw"  # two states, none of them dark


def _too_small_for(capability: str, report: Report) -> bool:
    """Whether every check of it needs more free connections than the device has."""
    tried = [result.message for result in report.results if result.check.capability == capability]
    return bool(tried) and all(
        text.startswith("needs ") and "free connections" in text for text in tried
    )
