"""One emulated lab with a device of every family; the checks run in parallel, once, and the tests
examine their results. Of families with one session, `make test` has the checks of it for the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from conformance.check import Check
from conformance.lab import Lab, devices_lab, name_of
from conformance.run import Report, Verdict, chosen, imagined, run_many
from conformance.subject import Subject
from drivers.registry import known_drivers
from emulators.devices.families import WHERE, family

DRIVERS = tuple(sorted(set(known_drivers()) & set(WHERE)))


def _checks(driver: str) -> tuple[str, ...]:
    return tuple(check.name for check in chosen(imagined(driver, family(driver).login or ("", ""))))


ALIKE = (
    ("polatis-netconf", "lumentum-netconf", "openroadm-netconf"),
    ("polatis-restconf", "calient-rest", "waveshaper-http"),
    ("calient-tl1", "glimmerglass-tl1", "polatis-tl1"),
    ("polatis-scpi", "dicon-mxs", "dicon-scpi", "exfo-scpi", "santec-scpi", "thorlabs-osw"),
)
"""Drivers over the same module of `drivers/session/`."""
OF_A_SESSION = {
    *("answered-twice", "byte-by-byte", "every-answer-spoiled", "in-pieces", "split-and-merged"),
    *("unreadable-answers", "answers-too-late", "executed-late", "lost-with-the-connection"),
    *("vanished-without-a-word", "silence-at-a-write", "slower-than-promised", "stale-reports"),
    *("accepted-and-never-done", "half-done-batches", "a-stuck-port-fails-alone"),
    *("a-failed-port-is-not-claimed", "done-meanwhile"),
}
"""Checks of what that module and those below it do; a capability has others besides."""
REPEATED = {driver for _, *others in ALIKE for driver in others}
CHECKS = {driver: _checks(driver) for driver in DRIVERS}
"""Every driver with every check of what it declares."""


def cases() -> list[object]:
    return [
        pytest.param(
            driver,
            check,
            id=f"{driver}-{check}",
            marks=[pytest.mark.long] if driver in REPEATED and check in OF_A_SESSION else [],
        )
        for driver, checks in CHECKS.items()
        for check in checks
    ]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with devices_lab(DRIVERS) as running:
        yield running


def _run(lab: Lab, wanted: Mapping[str, set[str]]) -> dict[str, Report]:
    """Run the checks side by side; what failed in that crowd is judged once more alone, where no
    neighbour takes its time.
    """

    def subject(driver: str) -> Subject:
        return Subject(lab.devices[name_of(driver)], lab.truth(name_of(driver)))

    def only(names: Mapping[str, set[str]]) -> Callable[[Subject], tuple[Check, ...]]:
        return lambda subject: tuple(
            check for check in chosen(subject) if check.name in names[subject.config.driver]
        )

    found = asyncio.run(run_many([subject(driver) for driver in wanted], only(wanted)))
    failed = {
        d: {r.check.name for r in one.results if r.verdict is Verdict.FAILED}
        for d, one in found.items()
    }
    failed = {driver: names for driver, names in failed.items() if names}
    alone = asyncio.run(run_many([subject(driver) for driver in failed], only(failed), at_once=1))
    for driver, second in alone.items():
        again = {result.check.name: result for result in second.results}
        found[driver] = replace(
            found[driver], results=tuple(again.get(r.check.name, r) for r in found[driver].results)
        )
    return found


@pytest.fixture(scope="session")
def reports(lab: Lab, request: pytest.FixtureRequest) -> Mapping[str, Report]:
    """What the checks found that this session asks for."""
    wanted: dict[str, set[str]] = {}
    for item in request.session.items:
        found = getattr(item, "callspec", None)
        if found is None or "reports" not in getattr(item, "fixturenames", ()):
            continue
        driver = found.params["driver"]
        usual = {*CHECKS[driver]} - (OF_A_SESSION if driver in REPEATED else set())
        wanted.setdefault(driver, set()).update(
            [found.params["check"]] if "check" in found.params else usual
        )
    return _run(lab, wanted)
