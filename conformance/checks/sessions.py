"""Sessions: dropped, refused, shared; and concurrent callers."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from conformance.check import Effect, check
from conformance.outcome import NotTried, want
from conformance.subject import Subject, refused
from drivers.registry import open_device

GIVEN_UP_S = 5.0


@check("a session that was dropped while idle is opened again", "sessions", ports=1)
async def dropped_while_idle(s: Subject) -> None:
    held = await s.make((1, 1))
    async with s.another(options={"keep_alive_s": "0"}) as device:
        await device.read()
        with s.known.wrong("idle-drop", seconds=0.05):
            await asyncio.sleep(0.12)
        want(await device.read() - s.foreign == held, "it reports other connections afterwards")


@check(
    "a device at its session limit refuses, and accepts the next caller once a session is free",
    "sessions",
    effect=Effect.READS,
)
async def a_full_device_refuses(s: Subject) -> None:
    if s.scheme == "serial":
        raise NotTried("a serial line has no sessions")
    async with s.another(timeout_s=s.quick_s) as device:
        with s.known.wrong("login-limit", limit=0):
            error = await refused(device.read)
            want(error is not None, "the session was accepted despite the limit")
        want(
            await device.read() == s.foreign,
            "after the session was accepted it reports other connections",
        )


@check("requests of two callers do not mix", "two callers", ports=4)
async def two_callers(s: Subject) -> None:
    first, second = s.light((1, 2), (2, 1)), s.light((3, 4), (4, 3))
    one, seen, other, identity = await asyncio.gather(
        s.apply(add=first), s.device.read(), s.apply(add=second), s.device.identify()
    )
    want(not one.failed and not other.failed, f"failed: {dict(one.failed)} {dict(other.failed)}")
    want(identity == s.identity, "the identity differs")
    want(seen - s.foreign <= first | second, "it reports connections that were never made")
    await s.shows(first | second)


@check(
    "of two sessions that want the same port one gets it and the other is refused",
    "two callers",
    ports=9,
)
async def two_sessions_one_port(s: Subject) -> None:
    mine = s.one(1, 2)
    foreign = s.clashing(mine)
    _ = s.known
    async with s.another() as other:
        await other.read()
        outcomes = await asyncio.gather(s.apply(add=[mine]), s.apply(add=[foreign], device=other))
    lit = await s.world(
        frozenset(
            s.key(setting)
            for setting, o in zip((mine, foreign), outcomes, strict=True)
            if not o.failed
        )
    )
    want(
        len(lit) == 1 and lit <= s.keys([mine, foreign]),
        f"wanted one of the two lit, found {sorted(lit)}",
    )
    for setting, outcome in zip((mine, foreign), outcomes, strict=True):
        won = s.key(setting) in lit
        want(
            won is (setting not in outcome.failed),
            f"{setting}: lit: {won}, reported as failed: {setting in outcome.failed}",
        )


@check("the answer to a cancelled request is not taken for the next one's", "two callers", ports=1)
async def a_cancelled_question(s: Subject) -> None:
    held = await s.make((1, 1))
    with s.known.wrong("late", on="read", count=1, seconds=0.05):
        try:
            async with asyncio.timeout(0.01):
                await s.device.identify()
        except TimeoutError:
            pass
        await asyncio.sleep(0.06)
        want(await s.device.read() - s.foreign == held, "it reports other connections")


@check("a cancelled change leaves nothing behind, and the next change succeeds", "two callers")
async def given_up_midway(s: Subject) -> None:
    here, existing = s.light((1, 2), (3, 4)), s.light((1, 4), (3, 2))
    async with s.another() as device:
        for after in (1, 2):
            await s.apply(add=here, device=device)
            before = s.known.writes
            changing = asyncio.create_task(s.apply(remove=here, add=existing, device=device))
            await s.until(
                lambda before=before, after=after, task=changing: (  # type: ignore[misc]
                    s.known.writes >= before + after or task.done()
                ),
                10.0,
            )
            changing.cancel()
            await asyncio.wait({changing}, timeout=GIVEN_UP_S)
            want(
                changing.done(),
                f"cancelled after {after} writes, it is still running {GIVEN_UP_S:.0f} s later",
            )
            left = await device.read() - s.foreign
            outcome = await s.apply(remove=left - existing, add=existing, device=device)
            want(
                not outcome.failed,
                f"cancelled after {after} writes; the next change failed: {dict(outcome.failed)}",
            )
            await s.shows(existing)
            await s.apply(remove=existing, device=device)


@check(
    "a closed device leaves no session, no task and no thread behind",
    "sessions",
    effect=Effect.READS,
    ports=0,
)
async def closed_tidily(s: Subject) -> None:
    if s.scheme == "serial":
        raise NotTried("a serial line has no sessions")
    await s.device.read()
    before = s.known.sessions
    tasks = asyncio.all_tasks()
    device = open_device(replace(s.config, name=f"{s.name}-again"))
    await device.read()
    await device.close()
    mine = [task for task in asyncio.all_tasks() - tasks if device.name in task.get_name()]
    want(not mine, f"tasks still running: {mine}")
    threads = [thread.name for thread in threading.enumerate() if device.name in thread.name]
    want(not threads, f"threads still running: {threads}")
    closed = await s.until(lambda: s.known.sessions <= before, 2.0)
    want(closed, f"{s.known.sessions} sessions are open, {before} were open before")
