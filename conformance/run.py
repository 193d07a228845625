"""Run checks on a subject, one after another, and report for each declared capability whether it is
confirmed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from conformance.capability import CAPABILITIES
from conformance.check import Check, Effect, all_checks
from conformance.outcome import NotTried
from conformance.subject import Subject
from drivers.registry import driver_class, evidence
from optics import DeviceConfig, TestbedError

CHECK_S = 60.0
"""Time limit of a check (s); one that exceeds it waits for something that will not happen."""


class Verdict(StrEnum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class CapabilityStatus(StrEnum):
    """Whether a capability is confirmed."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    NOT_TRIED = "not tried"
    NOT_DECLARED = "not declared"


@dataclass(frozen=True, slots=True)
class Result:
    """One check's outcome; `message`: why it failed or was not tried; `seconds`: how long it
    took.
    """

    check: Check
    verdict: Verdict
    message: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """A run. declared: the capabilities the driver claims."""

    driver: str
    device: str
    identity: str
    emulated: bool
    declared: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.verdict is Verdict.FAILED)

    def status(self, capability: str) -> CapabilityStatus:
        """Confirmed if at least one check passed and none failed."""
        if capability not in self.declared:
            return CapabilityStatus.NOT_DECLARED
        verdicts = {
            result.verdict for result in self.results if result.check.capability == capability
        }
        if Verdict.FAILED in verdicts:
            return CapabilityStatus.NOT_CONFIRMED
        return (
            CapabilityStatus.CONFIRMED if Verdict.PASSED in verdicts else CapabilityStatus.NOT_TRIED
        )

    @property
    def statuses(self) -> dict[str, CapabilityStatus]:
        return {name: self.status(name) for name in CAPABILITIES}


def declared(subject: Subject) -> tuple[str, ...]:
    """The capabilities that the subject's driver declares."""
    return tuple(
        name for name, c in CAPABILITIES.items() if c.declared(subject.device, subject.config)
    )


def chosen(subject: Subject, only: Iterable[str] = ()) -> tuple[Check, ...]:
    """The checks of declared capabilities, or those named in `only`. Raises: ValueError - there is
    no such check.
    """
    checks = all_checks()
    names = set(only)
    if unknown := names - {check.name for check in checks}:
        raise ValueError(f"there is no check {sorted(unknown)[0]!r}")
    mine = declared(subject)
    return tuple(
        check for check in checks if check.capability in mine and (not names or check.name in names)
    )


async def run_check(subject: Subject, check: Check) -> Result:
    """Run one check and clean up after it, whatever its outcome."""
    began = subject.began_s = time.monotonic()

    def result(verdict: Verdict, text: str = "") -> Result:
        return Result(check, verdict, text, time.monotonic() - began)

    if check.truth and subject.truth is None:
        return result(Verdict.NOT_TRIED, "needs an emulator")
    if check.ports > subject.lights:
        return result(
            Verdict.NOT_TRIED, f"needs {check.ports} free connections, there are {subject.lights}"
        )
    violations = subject.truth.violations if subject.truth else 0
    problems: list[str] = []
    not_tried = ""
    try:
        async with asyncio.timeout(CHECK_S):
            await check.body(subject)
    except NotTried as why:
        not_tried = str(why)
    except TimeoutError as error:
        problems.append(str(error) or f"not finished after {CHECK_S:.0f} s")
    except AssertionError as error:
        problems.append(str(error) or "an assertion failed")
    # a driver may raise anything
    except (TestbedError, OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
        problems.append(f"{type(error).__name__}: {error}")
    try:
        if subject.truth:
            subject.truth.mend()
            subject.truth.pieces("whole")
        if check.effect is Effect.MOVES or problems:
            async with asyncio.timeout(CHECK_S):
                await subject.clear()
    except (AssertionError, TestbedError, OSError, RuntimeError, ValueError) as error:
        if not any(problem.endswith(str(error)) for problem in problems):
            problems.append(f"afterwards: {error}")
    if (
        subject.truth
        and subject.truth.violations != violations
        and check.capability != "two callers"
    ):
        problems.append("a port that carried one light was driven for another")
    if problems:
        return result(Verdict.FAILED, "; ".join(problems))
    return result(Verdict.NOT_TRIED, not_tried) if not_tried else result(Verdict.PASSED)


async def run(
    subject: Subject,
    checks: Sequence[Check] | None = None,
    report_result: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Read the subject's state, run the checks and return the report. `report_result` is called
    after each check.
    """
    try:
        await subject.inspect()
    except TestbedError:
        if subject.truth is None or not subject.identity.ingress:
            raise
        subject.choose()  # a driver that cannot read yet: each check reports what is missing
    results = []
    for check in checks if checks is not None else chosen(subject):
        results.append(await run_check(subject, check))
        report_result(results[-1])
    return report(subject, results)


def report(subject: Subject, results: Iterable[Result]) -> Report:
    """The report of `results` on the subject."""
    identity = subject.identity
    text = " ".join(
        word
        for word in (identity.vendor, identity.model, identity.serial, identity.firmware)
        if word
    )
    return Report(
        subject.config.driver,
        subject.name,
        text,
        subject.truth is not None,
        declared(subject),
        tuple(results),
    )


async def run_many(
    subjects: Sequence[Subject],
    only: Callable[[Subject], Sequence[Check]] = chosen,
    notify: Callable[[Subject, Result], None] = lambda subject, result: None,
    at_once: int = 4,
) -> dict[str, Report]:
    """Run the checks of several subjects, `at_once` subjects in parallel; return the reports by
    driver.

    A check mostly waits for a device; a few in parallel use one processor fully. Slow families
    start first. `notify` is called after each check.
    """
    lock = asyncio.Semaphore(at_once)
    kinds = {subject: driver_class(subject.config.driver).TRAITS.settle_s for subject in subjects}

    async def one(subject: Subject) -> Report:
        async with lock:
            try:
                return await run(subject, only(subject), lambda result: notify(subject, result))
            # not even its identity can be read: everything failed
            except (TestbedError, OSError, ValueError) as error:
                text = f"{type(error).__name__}: {error}"
                return report(
                    subject, [Result(check, Verdict.FAILED, text, 0.0) for check in only(subject)]
                )
            finally:
                await subject.device.close()

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(subject)) for subject in sorted(subjects, key=lambda s: -kinds[s])
        ]
    return {task.result().driver: task.result() for task in tasks}


def imagined(driver: str, login: tuple[str, str] = ("", "")) -> Subject:
    """A subject that is never queried: what its driver declares is known without a device. Raises:
    BadFile.
    """
    scheme = evidence(driver).schemes[0]
    address = "serial:///dev/null" if scheme == "serial" else f"{scheme}://127.0.0.1:9"
    return Subject(DeviceConfig(driver, driver, address, *login))
