"""Check a real device: first the checks that only read, then, with consent, those that use free
ports; then restore it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from conformance.check import Effect
from conformance.run import Report, Result, chosen, report, run_check
from conformance.subject import Subject
from optics import Change, Setting


async def run_on_hardware(
    subject: Subject,
    agreed: Callable[[str], Awaitable[None]],
    report_result: Callable[[Result], None] = lambda result: None,
    only: tuple[str, ...] = (),
) -> Report:
    """Run the checks that need no emulator. `agreed` is awaited, with a description of what
    follows, before light is moved.

    Settings found at the start are restored at the end, also after a failed check or an interrupted
    run. `report_result` is called after each check. Raises: whatever `agreed` raises; TestbedError
    - the device does not even identify itself.
    """
    await subject.inspect()
    found = subject.foreign
    checks = chosen(subject, only)
    results = []
    for check in (check for check in checks if check.effect is Effect.READS):
        results.append(await run_check(subject, check))
        report_result(results[-1])
    moving = [check for check in checks if check.effect is Effect.MOVES]
    if any(not check.truth and check.ports <= subject.lights for check in moving):
        await agreed(intention(subject, found))
    try:
        for check in moving:
            results.append(await run_check(subject, check))
            report_result(results[-1])
    finally:
        await restore(subject, found)
    return report(subject, results)


def intention(subject: Subject, found: frozenset[Setting]) -> str:
    """What moving light would affect, described for the device's owner."""
    enter = sorted(set(subject.ingress[: subject.lights]))
    leave = subject.egress[: subject.lights]
    identity = subject.identity
    return (
        f"{subject.name} ({identity.vendor} {identity.model} {identity.serial}) carries {len(found)} circuits, "
        f"which are left alone; light will be moved between free ports only: {_listed(enter)} to {_listed(leave)}"
    )


async def restore(subject: Subject, found: frozenset[Setting]) -> None:
    """Restore the settings the device had; nothing is sent if they are still in place."""
    now = await subject.device.read()
    if now != found:
        await subject.device.apply(Change(subject.name, now - found, found - now))


def _listed(labels: tuple[str, ...] | list[str]) -> str:
    return ", ".join(labels[:12]) + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")
