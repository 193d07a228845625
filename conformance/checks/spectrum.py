"""Wavelength-selective switches: slots, overlap, attenuation."""

from __future__ import annotations

from dataclasses import replace

from conformance.check import check
from conformance.outcome import NotTried, want
from conformance.subject import Subject, failed_exactly
from optics import FrequencySlot, Setting, SpectralRoute

ROUTES = ((1, 1), (2, 2), (3, 1))


@check("slots of one input are routed separately", "spectral", truth=False, ports=3)
async def slots_are_routed_apart(s: Subject) -> None:
    routes = s.light(*ROUTES)
    outcome = await s.apply(add=routes)
    want(not outcome.failed, f"{dict(outcome.failed)}")
    want(outcome.observed - s.foreign == routes, f"it reports {sorted(map(str, outcome.observed))}")
    await s.shows(routes)


@check(
    "a slot that overlaps another is refused and named; the existing one is left undisturbed",
    "spectral",
    truth=False,
    ports=4,
)
async def overlap_is_refused(s: Subject) -> None:
    (held,) = await s.make((1, 1))
    assert isinstance(held, SpectralRoute)
    wider = replace(
        held, slot=FrequencySlot(held.slot.low_mhz - 50_000, held.slot.high_mhz + 50_000)
    )
    for wrong in (s.clashing(held), wider):
        good = s.one(4, 2)
        outcome = await s.apply(add=[wrong, good])
        failed_exactly(s, outcome, [wrong])
        await s.shows([held, good])
        await s.apply(remove=[good])


@check(
    "attenuation is set, read back, and changed in place without going dark", "spectral", ports=2
)
async def attenuation_in_place(s: Subject) -> None:
    plain, other = s.one(1, 1), s.one(2, 2)
    assert isinstance(plain, SpectralRoute)
    if getattr(s.device, "max_attenuation_db", 1.0) == 0:
        raise NotTried("it sets no attenuation")
    for attenuation_db in (3.0, 5.5, 0.0):
        held = [route for route in await s.device.read() if s.key(route) == s.key(plain)]
        wanted = replace(plain, attenuation_db=attenuation_db)
        broken = sum(
            event[1] == "broken" and event[2:] == s.key(plain)
            for event in s.known.events(s.began_s)
        )
        outcome = await s.apply(remove=held, add=[wanted, other])
        want(not outcome.failed, f"{dict(outcome.failed)}")
        want(
            {wanted, other} == outcome.observed - s.foreign,
            f"wanted {wanted}, it reports {sorted(map(str, outcome.observed))}",
        )
        await s.shows([wanted, other])
        again = sum(
            event[1] == "broken" and event[2:] == s.key(plain)
            for event in s.known.events(s.began_s)
        )
        want(
            again == broken,
            f"the light went dark while the attenuation was set to {attenuation_db} dB",
        )


@check(
    "a slot off the device's grid, or outside its band, is refused, not rounded",
    "spectral",
    truth=False,
    ports=1,
)
async def no_slot_is_rounded(s: Subject) -> None:
    route = s.one(1, 1)
    assert isinstance(route, SpectralRoute)
    strange = [
        replace(route, slot=FrequencySlot(route.slot.low_mhz + 137, route.slot.high_mhz + 137)),
        replace(route, slot=FrequencySlot(150_000_000, 150_050_000)),
    ]
    for one in strange:
        outcome = await s.apply(add=[one])
        if one in outcome.failed:
            await s.shows(())
            continue
        want(
            one in outcome.observed,
            f"{one} is neither reported as failed nor as made: {sorted(map(str, outcome.observed))}",
        )
        await s.shows([one])
        await s.apply(remove=[one])


@check(
    "adjacent slots on the same path stay separate, or the second is refused and named",
    "spectral",
    truth=False,
    ports=2,
)
async def neighbours_stay_two(s: Subject) -> None:
    first = s.one(1, 1)
    assert isinstance(first, SpectralRoute)
    width_mhz = first.slot.high_mhz - first.slot.low_mhz
    second = replace(
        first, slot=FrequencySlot(first.slot.high_mhz, first.slot.high_mhz + width_mhz)
    )
    for changes in ([[first], [second]], [[first, second]]):
        failed: set[Setting] = set()
        for adding in changes:
            outcome = await s.apply(add=adding)
            failed |= outcome.failed.keys()
        made = {first, second} - failed
        want(made, "neither was made")
        seen = await s.device.read() - s.foreign
        want(
            seen == made,
            f"reported as failed: {sorted(map(str, failed))}; it reports {sorted(map(str, seen))}",
        )
        await s.clear()


@check("breaking a slot leaves the edges of its neighbours unchanged", "spectral", ports=4)
async def a_neighbour_keeps_its_edges(s: Subject) -> None:
    middle = s.one(1, 1)
    assert isinstance(middle, SpectralRoute)
    low, high = middle.slot.low_mhz, middle.slot.high_mhz
    exit_ = s.one(1, 2).egress
    adjacent = {
        replace(middle, slot=slot, egress=exit_)
        for slot in (FrequencySlot(2 * low - high, low), FrequencySlot(high, 2 * high - low))
    }
    await s.apply(add=adjacent)
    since = s.since(adjacent)
    outcome = await s.apply(add=[middle])
    want(not outcome.failed, f"{dict(outcome.failed)}")
    outcome = await s.apply(remove=[middle])
    want(not outcome.failed, f"{dict(outcome.failed)}")
    want(
        outcome.observed - s.foreign == adjacent, f"it reports {sorted(map(str, outcome.observed))}"
    )
    await s.shows(adjacent)
    want(s.since(adjacent) == since, "the adjacent slots were made again")


@check("a slot stays lit when another is broken", "spectral", truth=False, ports=2)
async def one_slot_alone(s: Subject) -> None:
    if len(s.egress) < 2:
        raise NotTried("the device has a single output")
    routes = await s.make((1, 1), (2, 2))
    closed = s.one(1, 1)
    outcome = await s.apply(remove=[closed])
    want(not outcome.failed, f"{dict(outcome.failed)}")
    await s.shows(routes - {closed})
