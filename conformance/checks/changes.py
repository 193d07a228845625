"""Making, moving and breaking connections, and refusals."""

from __future__ import annotations

import re
from dataclasses import replace

from conformance.check import check
from conformance.outcome import Failed, NotTried, want
from conformance.subject import Subject, failed_exactly
from conformance.truth import Lit
from drivers.api import PortControl, PowerMeter
from optics import CrossConnect, FrequencySlot, Outcome, Port, Setting, SpectralRoute

FIRST = ((1, 2), (2, 1), (3, 4), (5, 6))
SECOND = ((1, 4), (3, 2), (2, 6), (5, 1))
"""The same inputs and outputs, each joined differently."""


def _good(outcome: Outcome) -> None:
    want(
        not outcome.failed,
        "; ".join(f"{setting}: {text}" for setting, text in outcome.failed.items()),
    )


async def made_moved_broken(s: Subject) -> None:
    first, second = s.light(*FIRST), s.light(*SECOND)
    made = await s.apply(add=first)
    _good(made)
    await s.shows(first)
    await s.honest(made)
    moved = await s.apply(remove=first, add=second)
    _good(moved)
    await s.shows(second)
    await s.honest(moved)
    broken = await s.apply(remove=second)
    _good(broken)
    await s.shows(())
    await s.honest(broken)
    want(await s.device.read() == s.foreign, "it still reports connections after all were removed")


@check("connections are made, moved with every port reused, and broken", "change", truth=False)
async def makes_moves_and_breaks(s: Subject) -> None:
    await made_moved_broken(s)


@check("one connection is made and broken again", "change", truth=False, ports=1)
async def makes_and_breaks_one(s: Subject) -> None:
    wanted = s.light((1, 1))
    outcome = await s.apply(add=wanted)
    _good(outcome)
    await s.shows(wanted)
    _good(await s.apply(remove=wanted))
    await s.shows(())


@check("a connection is made and reported even while no light enters it", "change", ports=2)
async def made_in_the_dark(s: Subject) -> None:
    wanted = s.light((1, 2))
    ingress = s.one(1, 2).ingress.label
    s.known.light(ingress, None)
    try:
        outcome = await s.apply(add=wanted)
        _good(outcome)
        want(
            outcome.observed - s.foreign == wanted,
            f"it reports {sorted(map(str, outcome.observed - s.foreign))}",
        )
        want(
            await s.device.read() - s.foreign == wanted, "a second query reports other connections"
        )
    finally:
        s.known.light(ingress, 0.0)
    _good(await s.apply(remove=wanted))


@check("applying a change a second time writes nothing", "change", truth=False, ports=3)
async def applies_again(s: Subject) -> None:
    wanted = await s.make((1, 2), (2, 1))
    outcome = await s.apply(remove=s.light((3, 3)), add=wanted)
    _good(outcome)
    want(outcome.writes == 0, f"{outcome.writes} writes")
    want(outcome.observed - s.foreign == wanted, "it reports other connections")


@check("connections that the change does not name are left undisturbed", "others stay lit")
async def others_are_untouched(s: Subject) -> None:
    others = await s.make((5, 6), (6, 5))
    since = s.since(others)
    first, second = s.light((1, 2), (2, 1), (3, 4)), s.light((1, 4), (3, 2))
    await s.apply(add=first)
    await s.apply(remove=first, add=second)
    await s.shows(others | second)
    want(s.since(others) == since, "connections that the change did not name were made again")


@check(
    "a connection to a port in use is refused and the rest is made",
    "refusals",
    truth=False,
    ports=9,
)
async def a_busy_port_is_refused(s: Subject) -> None:
    held = await s.make((1, 2))
    since = s.since(held) if s.truth else {}
    wrong, good = frozenset({s.clashing(*held)}), s.light((4, 5), (5, 4), (6, 7))
    outcome = await s.apply(add=wrong | good)
    failed_exactly(s, outcome, wrong)
    await s.shows(held | good)
    await s.honest(outcome)
    want(not s.truth or s.since(held) == since, "the connection that held the port was disturbed")


@check("connections made by another session are reported and left unchanged", "read")
async def foreign_lights_are_reported(s: Subject) -> None:
    async with s.another() as other:
        foreign = s.light((1, 2), (2, 1))
        await s.apply(add=foreign, device=other)
        want(
            await s.device.read() - s.foreign == foreign,
            "connections made by another session are not reported",
        )
        since = s.since(foreign)
        _good(await s.apply(add=s.light((3, 4))))
        await s.apply(remove=s.light((3, 4)))
        want(s.since(foreign) == since, "a connection of the other session was disturbed")
        await s.shows(foreign)


@check("a label that is not a port never reaches the device", "refusals", truth=False, ports=1)
async def no_label_is_a_command(s: Subject) -> None:
    example = s.one(1, 1)
    junk = (
        "$(reboot)",
        "`reboot`",
        "&&16",
        " ",
        "<x/>",
        '"',
        "'",
        "\r\nreset",
        ";reset",
        "|x",
        "%0d",
        "&id=deleteall",
        "\u0663",
    )
    labels = [
        *((s.ingress[0] + more, s.egress[0]) for more in junk),
        *((s.ingress[0], s.egress[0] + more) for more in junk),
        ("1),(@17);:oxc:swit:disc:all", "2"),
        ("1.1.1;DLT-CRS-ALL:::", "1.1.2"),
        ("", s.egress[0]),
        (s.ingress[0] + "\n", s.egress[0]),
        (s.ingress[0], '"/><edit-config>'),
        ("0", "x"),
        (f"../{s.ingress[0]}", s.egress[0]),
    ]
    bad = frozenset(
        replace(example, ingress=Port(s.name, a), egress=Port(s.name, b)) for a, b in labels
    )
    before = s.truth.writes if s.truth else 0
    outcome = await s.apply(add=bad)
    failed_exactly(s, outcome, bad)
    for setting, text in outcome.failed.items():
        want(
            "not a port" in text,
            f"{setting.ingress.label!r}: wanted the words 'not a port', got {text!r}",
        )
    want(outcome.writes == 0 and (not s.truth or s.truth.writes == before), "a command was sent")


@check(
    "a connection to a port that the device does not have fails alone, with a reason",
    "refusals",
    truth=False,
    ports=4,
)
async def a_port_beyond_the_device(s: Subject) -> None:
    example, good = s.one(1, 2), s.one(3, 4)
    beyond = re.sub(r"\d+(?=\D*$)", "997", example.egress.label)
    if beyond in s.identity.egress or beyond == example.egress.label:
        raise NotTried("no port label outside its range can be formed")
    wrong = replace(example, egress=Port(s.name, beyond))
    outcome = await s.apply(add=[wrong, good])
    failed_exactly(s, outcome, [wrong])
    await s.shows([good])


@check(
    "a setting of another kind, or of another device, is refused and named",
    "refusals",
    truth=False,
    ports=1,
)
async def another_kind_is_refused(s: Subject) -> None:
    one = s.one(1, 1)
    stranger: Setting
    if isinstance(one, SpectralRoute):
        stranger = CrossConnect(one.ingress, one.egress)
    else:
        stranger = SpectralRoute(one.ingress, one.egress, FrequencySlot.flexgrid(0, 4))
    elsewhere = replace(
        one,
        ingress=Port("elsewhere", one.ingress.label),
        egress=Port("elsewhere", one.egress.label),
    )
    outcome = await s.apply(add=[stranger, elsewhere])
    failed_exactly(s, outcome, [stranger, elsewhere])
    want(outcome.writes == 0, f"{outcome.writes} writes")


@check(
    "refusals of the device are reported, each item with its reason, and nothing else is claimed",
    "refusals",
    ports=4,
)
async def refusals_are_reported(s: Subject) -> None:
    wanted = s.light((1, 2), (3, 4))
    with s.known.wrong("refuse", on="write"):
        outcome = await s.apply(add=wanted)
        failed_exactly(s, outcome, wanted)
        await s.shows(())
        await s.honest(outcome)
    _good(await s.apply(add=wanted))
    with s.known.wrong("refuse", on="write"):
        outcome = await s.apply(remove=wanted)
        failed_exactly(s, outcome, wanted)
        await s.shows(wanted)
        await s.honest(outcome)


@check(
    "a change that is accepted but never carried out is reported, distinct from a refusal",
    "refusals",
    ports=4,
)
async def accepted_and_never_done(s: Subject) -> None:
    wanted, texts = s.light((1, 2), (3, 4)), {}
    for kind in ("refuse", "silent-failure"):
        with s.known.wrong(kind, on="write"):
            outcome = await s.apply(add=wanted)
            failed_exactly(s, outcome, wanted)
            await s.shows(())
            await s.honest(outcome)
            texts[kind] = {re.sub(r"\S*\d\S*", "#", text) for text in outcome.failed.values()}
        await s.clear()
    same = texts["refuse"] & texts["silent-failure"]
    want(not same, f"the same words for refused and for not carried out: {sorted(same)}")
    _good(await s.apply(add=wanted))


@check("a port locked by another client is not driven", "refusals", ports=6)
async def a_locked_port_is_not_driven(s: Subject) -> None:
    locked, good = s.one(1, 2), s.one(3, 4)
    with s.known.wrong("port-locked", port=locked.egress.label):
        outcome = await s.apply(add=[locked, good])
        failed_exactly(s, outcome, [locked])
        await s.shows([good])
    _good(await s.apply(add=[locked]))
    with s.known.wrong("port-locked", port=locked.egress.label):
        outcome = await s.apply(remove=[locked, good])
        failed_exactly(s, outcome, [locked])
        await s.shows([locked])


@check(
    "a connection that cannot be broken keeps its ports: they are not driven for another",
    "refusals",
    ports=6,
)
async def what_stays_is_not_driven_over(s: Subject) -> None:
    held, good = s.one(1, 2), s.one(3, 4)
    (before,) = await s.make((1, 2))
    since = s.since([before])
    over = replace(held, egress=s.one(1, 5).egress)
    with s.known.wrong("port-locked", port=held.egress.label):
        outcome = await s.apply(remove=[held], add=[over, good])
        failed_exactly(s, outcome, [held, over])
        await s.shows([held, good])
    want(s.since([before]) == since, f"{held} was disturbed")


@check(
    "breaking one of two opposite connections leaves the other lit", "change", truth=False, ports=2
)
async def one_of_two_outcomes(s: Subject) -> None:
    existing, back = s.one(1, 2), s.one(2, 1)
    await s.make((1, 2), (2, 1))
    outcome = await s.apply(remove=[existing])
    _good(outcome)
    await s.shows([back])
    want(outcome.observed - s.foreign == {back}, f"it reports {sorted(map(str, outcome.observed))}")


@check(
    "every item of a batch that the device carries out in part is completed or reported", "refusals"
)
async def half_done_batches(s: Subject) -> None:
    wanted = s.light(*FIRST)
    with s.known.wrong("partial-bulk", on="write", count=1):
        outcome = await s.apply(add=wanted)
    missing = s.keys(wanted) - await s.world(s.keys(wanted - outcome.failed.keys()))
    want(
        s.keys(outcome.failed) == missing,
        f"not lit: {sorted(missing)}, reported: {sorted(map(str, outcome.failed))}",
    )
    await s.honest(outcome)


@check("a stuck port fails alone and leaves nothing reserved", "refusals", ports=4)
async def a_stuck_port_fails_alone(s: Subject) -> None:
    stuck, good = s.one(1, 2), s.one(3, 4)
    port = stuck.egress.label if s.spectral else stuck.ingress.label
    with s.known.wrong("stuck-port", port=port):
        outcome = await s.apply(add=[stuck, good])
        failed_exactly(s, outcome, [stuck])
        await s.shows([good])
        want(
            outcome.observed - s.foreign == {good},
            f"it reports {sorted(map(str, outcome.observed))}",
        )
    _good(await s.apply(add=[stuck]))
    await s.shows([stuck, good])


@check("a port with failed hardware is never reported as lit", "refusals", ports=4)
async def a_failed_port_is_not_claimed(s: Subject) -> None:
    bad, good = s.one(1, 2), s.one(3, 4)
    with s.known.wrong("failed-port", port=bad.egress.label if s.spectral else bad.ingress.label):
        outcome = await s.apply(add=[bad, good])
        if not outcome.failed and not isinstance(s.device, PowerMeter | PortControl):
            raise NotTried(
                "the device reports where its mirrors are, and can see neither light nor a failed port"
            )
        failed_exactly(s, outcome, [bad])
        await s.shows([good])


@check(
    "the ready signal is awaited once, before anything is written, and its error stops the change",
    "ready",
    ports=4,
)
async def ready_is_awaited_once(s: Subject) -> None:
    seen: list[int] = []

    async def ready() -> None:
        seen.append(s.known.writes)

    before = s.known.writes
    _good(await s.apply(add=s.light((1, 2), (2, 1)), ready=ready))
    want(
        seen == [before], f"awaited {len(seen)} times, at {seen} writes; expected once, at {before}"
    )

    class Stop(Exception):
        pass

    async def stop() -> None:
        raise Stop

    before = s.known.writes
    try:
        await s.apply(remove=s.light((1, 2)), add=s.light((3, 4)), ready=stop)
    except Stop:
        pass
    else:
        raise Failed("the error raised by the ready signal was swallowed")
    want(s.known.writes == before, "a command was sent although the ready signal failed")
    await s.shows(s.light((1, 2), (2, 1)))


@check("a set of connections takes no more writes than single commands would", "at once", ports=6)
async def a_set_is_made_together(s: Subject) -> None:
    single = (await s.apply(add=s.light((1, 2)))).writes
    rest = s.light((3, 4), (5, 6), (6, 5))
    many = (await s.apply(add=rest)).writes
    want(many <= single * len(rest), f"{many} writes for {len(rest)} connections, {single} for one")
    await s.shows(s.light((1, 2)) | rest)


@check(
    "a change made by another session while the ready signal is awaited is left undisturbed",
    "ready",
    ports=9,
)
async def done_meanwhile(s: Subject) -> None:
    if s.scheme == "serial":
        raise NotTried("a serial line knows no callers")
    mine, good = s.one(1, 2), s.one(4, 5)
    for foreign in {s.clashing(mine), replace(mine, egress=s.one(1, 4).egress)}:
        await _meanwhile(s, frozenset(), frozenset({mine, good}), foreign)
        await _meanwhile(s, frozenset({mine}), frozenset({good}), foreign)


async def _meanwhile(
    s: Subject, remove: frozenset[Setting], add: frozenset[Setting], foreign: Setting
) -> None:
    """Apply the change; before it begins another session replaces `remove` with `foreign`, which
    must persist.
    """
    _good(await s.apply(add=remove))
    since: dict[Lit, float] = {}
    async with s.another() as other:

        async def ready() -> None:
            _good(await s.apply(remove=remove, add=[foreign], device=other))
            await s.shows([foreign])
            since.update(s.since([foreign]))

        outcome = await s.apply(remove=remove, add=add, ready=ready)
    good = {setting for setting in add if not _touch(setting, foreign)}
    failed_exactly(s, outcome, add - good)
    await s.shows({foreign, *good})
    want(s.since([foreign]) == since, f"{foreign}, made meanwhile, was disturbed")
    await s.clear()


def _touch(one: Setting, other: Setting) -> bool:
    slots = [setting.slot for setting in (one, other) if isinstance(setting, SpectralRoute)]
    apart = len(slots) == 2 and not slots[0].overlaps(slots[1])
    return not apart and (one.ingress == other.ingress or one.egress == other.egress)
