"""Lost commands and answers, at every command of a change in turn: a lost answer is never retried
blindly.
"""

from __future__ import annotations

import asyncio

from conformance.check import check
from conformance.outcome import NotTried, want
from conformance.subject import Subject
from drivers.registry import driver_class
from optics import TimedOut, Unreachable

HERE, OTHER = ((1, 2),), ((1, 4),)
"""A connection that moves: one removal and one addition, with every command a change can need."""
BYSTANDER = ((3, 3),)
MOST = 40
"""The most commands that a move takes."""


async def _undisturbed(s: Subject) -> int:
    """How many writes the move takes when nothing fails; afterwards the connection is back."""
    before = s.known.writes
    outcome = await s.apply(remove=s.light(*HERE), add=s.light(*OTHER))
    want(not outcome.failed, f"the undisturbed move failed: {dict(outcome.failed)}")
    writes = s.known.writes - before
    await s.apply(remove=s.light(*OTHER), add=s.light(*HERE))
    want(writes > 0, "the move took no write")
    return writes


async def _at_every_write(
    s: Subject, kind: str, *, seconds: float | None = None, again: bool, wait_s: float = 0.0
) -> None:
    """Let the fault `kind` affect each write of a move in turn, forth and back; the result is as
    wanted each time.

    again: whether a command may be sent a second time (not executed, or effect unknown); then only
    the first and the last write are tried. wait_s: how long a delayed command may still be pending
    afterwards.
    """
    bystander = await s.make(*BYSTANDER)
    here, existing = await s.make(*HERE), s.light(*OTHER)
    writes = await _undisturbed(s)
    stamps = s.since(bystander)
    more = {} if seconds is None else {"seconds": seconds}
    async with s.another(timeout_s=s.quick_s, options={"window": "1"}) as device:
        await device.read()
        # each command that the fault affected, and the writes of its move
        affected: list[tuple[str, int]] = []
        # The fault also affects commands that the device refuses, which do not count as writes:
        # continue until it affects none.
        for nth in range(MOST) if not again else sorted({0, writes - 1}):
            violations, before = s.known.violations, s.known.writes
            with s.known.wrong(kind, on="write", after=nth, count=1, **more) as number:
                outcome = await s.apply(remove=here, add=existing, device=device)
                struck = s.known.fired(number)
            where = f"{kind} at write {nth + 1} of {writes}"
            want(
                struck or nth >= writes,
                f"{where}: the fault had no effect, the move took fewer writes than before",
            )
            want(not outcome.failed, f"{where}: {dict(outcome.failed)}")
            if wait_s:
                await asyncio.sleep(wait_s)
            seen = await s.world(s.keys(existing | bystander))
            want(
                seen == s.keys(existing | bystander),
                f"{where}: lit: {sorted(seen)}, wanted {sorted(s.keys(existing | bystander))}",
            )
            want(s.known.violations == violations, f"{where}: a port in use was driven")
            here, existing = existing, here
            if not struck:
                break
            affected.append((where, s.known.writes - before))
        # Some devices cannot read back staged settings (STAGES of the driver, in commands); these
        # may be staged once more, but not again. The last command applies them, and its effect can
        # be read. A driver that reads again may need fewer commands: what it deletes one by one at
        # first goes together then.
        stages = getattr(driver_class(s.config.driver), "STAGES", 0)
        for at, (where, done) in enumerate(affected, 1) if not again else ():
            most = writes + (stages if at < len(affected) else 0)
            want(done <= most, f"{where}: {done} commands reached the device, {most} are enough")
        want(
            s.since(bystander) == stamps,
            f"{kind}: a connection that the change did not name was made again",
        )


@check(
    "a command that was executed but not answered is not repeated: its effect is read back first",
    "lost answers",
)
async def executed_but_no_reply(s: Subject) -> None:
    await _at_every_write(s, "drop-after", again=False)


@check("a command lost with its session is detected and carried out", "lost answers")
async def lost_with_the_connection(s: Subject) -> None:
    await _at_every_write(s, "drop-before", again=True)


@check("a command lost without any answer is detected and carried out", "lost answers")
async def vanished_without_a_word(s: Subject) -> None:
    await _at_every_write(s, "swallow", again=True)


@check("a late answer is not taken for the answer to the next command", "lost answers")
async def answers_too_late(s: Subject) -> None:
    late_s = s.quick_s * 1.3
    await _at_every_write(s, "late", seconds=late_s, again=True, wait_s=late_s)


@check("a command executed late does no harm", "lost answers")
async def executed_late(s: Subject) -> None:
    late_s = s.quick_s * 1.3
    await _at_every_write(s, "slow", seconds=late_s, again=True, wait_s=late_s)


@check("a repeated answer is used once", "noise")
async def answered_twice(s: Subject) -> None:
    await _at_every_write(s, "twice", again=True)


@check("after an unreadable answer the device is queried for what was done", "noise")
async def unreadable_answers(s: Subject) -> None:
    await _at_every_write(s, "garble", again=True)


@check("split answers are joined and merged answers are separated", "noise")
async def split_and_merged(s: Subject) -> None:
    await _at_every_write(s, "split", again=True)
    await s.clear()
    await _at_every_write(s, "merge", seconds=0.02, again=True)


@check(
    "after a reboot in the middle of a change the device's report is used, not the plan", "reboot"
)
async def reboots_in_the_middle(s: Subject) -> None:
    _alone(s)
    kind = "reboot-keep" if s.device.traits.latching else "reboot-lose"
    first, second = s.light((1, 2), (3, 4)), s.light((1, 4), (3, 2))
    async with s.another(timeout_s=s.quick_s) as device:
        for nth in range(2):
            await s.apply(add=first)
            with s.known.wrong(kind, on="write", after=nth, count=1):
                try:
                    outcome = await s.apply(remove=first, add=second, device=device)
                except (TimedOut, Unreachable):
                    outcome = None  # still booting: nothing is claimed
            await _up_again(s)
            if outcome is not None:
                seen = await s.world(s.keys(outcome.observed) - s.keys(s.foreign))
                want(
                    s.keys(outcome.observed) - s.keys(s.foreign) == seen,
                    f"it reports {sorted(map(str, outcome.observed))}, lit: {sorted(seen)}",
                )
                want(
                    s.keys(outcome.failed) == s.keys(second) - seen,
                    f"reported as failed: {sorted(map(str, outcome.failed))}",
                )
            await s.clear()


@check("connections survive a loss of power", "latching")
async def light_survives_a_power_cut(s: Subject) -> None:
    _alone(s)
    lights = await s.make((1, 2), (2, 1))
    s.known.fault("reboot-keep")
    await _up_again(s)
    await s.shows(lights)
    want(
        await s.device.read() - s.foreign == lights, "after the reboot it reports other connections"
    )


@check(
    "after a reboot that lost all connections the device reports none, and they can be made again",
    "reboot",
)
async def lost_by_a_reboot(s: Subject) -> None:
    _alone(s)
    lights = await s.make((1, 2), (2, 1))
    s.known.fault("reboot-lose")
    await _up_again(s)
    await s.shows(())
    want(await s.device.read() == s.foreign, "it reports connections that no longer exist")
    await s.make((1, 2), (2, 1))
    await s.shows(lights)


def _alone(s: Subject) -> None:
    if s.foreign:
        raise NotTried("it carries foreign connections, which a reboot would break")


async def _up_again(s: Subject, patience_s: float = 10.0) -> None:
    """Wait until the device answers and its mirrors have settled."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            reported = s.keys(await s.device.read() - s.foreign)
            if reported == await s.world():
                return
        except (TimedOut, Unreachable):
            if loop.time() > deadline:
                raise
        want(
            loop.time() < deadline,
            f"{patience_s:.0f} s after a reboot the report and the true state still differ",
        )
        await asyncio.sleep(0.02)
