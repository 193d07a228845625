"""Waiting, with a limit: for light and for answers."""

from __future__ import annotations

import time

from conformance.check import check
from conformance.outcome import want
from conformance.subject import Subject, names_device, refused
from drivers.api import JobQueue
from optics import Progress, TimedOut


@check("a silent device raises a time-out that names it, within the time limit", "silence")
async def silence(s: Subject) -> None:
    async with s.another(timeout_s=s.quick_s) as device:
        await device.read()
        with s.known.wrong("hang"):
            began = time.monotonic()
            error = await refused(device.read)
            took_s = time.monotonic() - began
        want(isinstance(error, TimedOut), f"wanted TimedOut, got {type(error).__name__}: {error}")
        assert error is not None
        names_device(s, error)
        want(
            took_s < 4 * s.quick_s + 0.5, f"it took {took_s:.2f} s with a time-out of {s.quick_s} s"
        )


@check(
    "a device that stops answering at a write raises a time-out within the time limit, and nothing is claimed",
    "silence",
)
async def silence_at_a_write(s: Subject) -> None:
    async with s.another(timeout_s=s.quick_s) as device:
        await device.read()
        with s.known.wrong("hang", on="write"):
            began = time.monotonic()
            error = await refused(lambda: s.apply(add=s.light((1, 2)), device=device))
            took_s = time.monotonic() - began
            want(
                isinstance(error, TimedOut), f"wanted TimedOut, got {type(error).__name__}: {error}"
            )
            want(
                took_s < 16 * s.quick_s + 1.0,
                f"it took {took_s:.2f} s with a time-out of {s.quick_s} s",
            )
            await s.shows(())


@check(
    "apply returns when the device reports the change, within the promised settling time plus a margin",
    "settling",
    truth=False,
)
async def settles_in_time(s: Subject) -> None:
    for wanted in (s.light((1, 2)), s.light((3, 4), (5, 6))):
        outcome = await s.apply(add=wanted)
        want(not outcome.failed, f"{dict(outcome.failed)}")
        await s.shows(wanted)
        at_once = s.device.traits.at_once or len(wanted)
        promised_s = s.device.traits.settle_s * -(-len(wanted) // at_once)
        took_s = (outcome.settled_ns - outcome.sent_ns) / 1e9
        want(
            took_s <= 2 * promised_s + 5 * s.quick_s,
            f"{took_s:.2f} s for {len(wanted)} connections, {promised_s:.2f} s promised",
        )
        if s.truth:  # it uses this machine's clock
            early_s = (
                max(event[0] for event in s.known.events(s.began_s) if event[1] == "lit")
                - outcome.settled_ns / 1e9
            )
            want(
                early_s <= 0.001,
                f"it reported them settled {early_s * 1000:.0f} ms before they were lit",
            )
        await s.apply(remove=wanted)


@check("a device slower than promised is waited for", "settling", ports=4)
async def slower_than_promised(s: Subject) -> None:
    usual_s = s.known.settle_s()
    s.known.settle(usual_s + 0.1)
    try:
        wanted = s.light((1, 2), (3, 4))
        outcome = await s.apply(add=wanted)
        want(not outcome.failed, f"{dict(outcome.failed)}")
        lit = await s.until(
            lambda: s.listed(s.known.lit) - s.keys(s.foreign) == s.keys(wanted), 2.0
        )
        want(lit, "the connections were never lit")
    finally:
        s.known.settle(usual_s)


@check("the progress of a slow change is reported while it runs", "jobs", ports=4)
async def reports_progress(s: Subject) -> None:
    reports: list[Progress] = []
    assert isinstance(s.device, JobQueue)
    wanted = s.light((1, 2), (3, 4), (2, 1))
    listener, s.device.on_progress = s.device.on_progress, reports.append
    try:
        outcome = await s.apply(add=wanted)
    finally:
        s.device.on_progress = listener
    want(not outcome.failed, f"{dict(outcome.failed)}")
    want(reports, "no progress was reported")
    for progress in reports:
        want(
            progress.device == s.name and 0 <= progress.done <= progress.total,
            f"invalid progress: {progress}",
        )
        want(progress.eta_s is None or progress.eta_s >= 0, f"an end in the past: {progress}")
    counts = [progress.done for progress in reports]
    want(counts == sorted(counts), f"progress went backwards: {counts}")
    want(reports[-1].done == reports[-1].total, f"the last report was {reports[-1]}")
    await s.shows(wanted)
