"""Wrong, garbled and unsolicited answers of devices."""

from __future__ import annotations

from collections.abc import Iterable

from conformance.check import check
from conformance.checks.changes import made_moved_broken
from conformance.outcome import want
from conformance.subject import Subject
from optics import Setting, TestbedError


@check("answers may arrive in any pieces", "noise")
async def in_pieces(s: Subject) -> None:
    await _with_pieces(s, "split")


@check("answers may arrive one byte at a time", "noise")
async def byte_by_byte(s: Subject) -> None:
    await _with_pieces(s, "byte")


async def _with_pieces(s: Subject, how: str) -> None:
    s.known.pieces(how)
    try:
        want(await s.device.identify() == s.identity, "the identity differs")
        await made_moved_broken(s)
    finally:
        s.known.pieces("whole")


@check("unsolicited messages around and inside answers change nothing", "unsolicited", ports=3)
async def unsolicited_messages(s: Subject) -> None:
    for where in ("before", "inside", "after"):
        with s.known.wrong(f"unsolicited-{where}"):
            first, second = s.light((1, 2), (2, 1)), s.light((1, 3))
            for outcome in (await s.apply(add=first), await s.apply(remove=first, add=second)):
                want(not outcome.failed, f"a message {where} the answer: {dict(outcome.failed)}")
            await s.shows(second)
        await s.clear()


@check("repeating every answer, or splitting it in two, changes nothing", "noise", ports=3)
async def every_answer_spoiled(s: Subject) -> None:
    async with s.another(timeout_s=s.quick_s) as device:
        for kind in ("twice", "split"):
            with s.known.wrong(kind):
                first, second = s.light((1, 2), (2, 1)), s.light((1, 3))
                for remove, add in ((frozenset(), first), (first, second)):
                    outcome = await s.apply(remove=remove, add=add, device=device)
                    want(not outcome.failed, f"every answer {kind}: {dict(outcome.failed)}")
                await s.shows(second)
            await s.clear()


@check("a stale report is waited out", "settling", ports=4)
async def stale_reports(s: Subject) -> None:
    wanted = s.light((1, 2), (3, 4))
    with s.known.wrong("stale-read", on="read", seconds=0.15):
        outcome = await s.apply(add=wanted)
        want(
            outcome.observed - s.foreign == wanted,
            f"it returned {_names(outcome.observed)}, failed: {dict(outcome.failed)}",
        )
    await s.shows(wanted)


@check(
    "a garbled report is an error, or nearly right, but never an entirely different set of connections",
    "noise",
    ports=4,
)
async def garbled_reports(s: Subject) -> None:
    held = await s.make((1, 2), (3, 4))
    before = s.known.writes
    async with s.another(timeout_s=s.quick_s / 2) as device:
        await device.read()
        with s.known.wrong("garble", on="read"):
            for _ in range(8):
                try:
                    wrong = await device.read() ^ (held | s.foreign)
                except TestbedError:
                    continue
                # a digit may become another
                want(len(wrong) <= 6, f"three bytes garbled, {len(wrong)} settings misread")
    want(s.known.writes == before, "reading sent a command that changes the device")


def _names(settings: Iterable[Setting]) -> list[str]:
    return sorted(map(str, settings))
