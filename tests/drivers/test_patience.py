"""How long a driver waits: slow switches, switches that work one circuit after the other, dumps
that take minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import drivers.link.base as link_base
from drivers.registry import built_in_drivers, driver_class, open_device
from drivers.rounds import Marks
from drivers.session.pairs import PairSwitch
from drivers.session.routes import RouteSwitch
from drivers.watch import FARTHEST, patience_s, watch
from optics import (
    Change,
    DeviceConfig,
    FrequencySlot,
    Port,
    Setting,
    SpectralRoute,
    TimedOut,
    Traits,
)
from tests.drivers.test_links_and_rounds import linked
from tests.drivers.test_tl1_manners import glimmer
from tests.drivers.tl1_device import circuits, driven

TRAITS = Traits(settle_s=0.01)


# a report that changes


@pytest.mark.usefixtures("clock")
async def test_a_device_that_goes_on_making_circuits_is_waited_for() -> None:
    made = 0

    async def read() -> int:
        nonlocal made
        made += 1
        return made

    seen = await watch(read, lambda report: report == 40, expected_s=0.01, patience_s=0.05)
    assert (seen.report, seen.done) == (40, True)
    assert seen.watched_s > 0.05, "the deadline was not reached, so this shows nothing"


@pytest.mark.usefixtures("clock")
async def test_a_report_that_never_stands_still_is_given_up_too() -> None:
    asked = 0

    async def read() -> int:
        nonlocal asked
        asked += 1
        return asked

    seen = await watch(read, lambda report: False, expected_s=0.001, patience_s=0.01)
    assert not seen.done and seen.watched_s == pytest.approx(FARTHEST * 0.01)


@pytest.mark.usefixtures("clock")
async def test_readings_that_never_stand_still_extend_nothing() -> None:
    asked = 0

    async def read() -> float:
        nonlocal asked
        asked += 1
        return asked / 100

    seen = await watch(read, lambda report: False, expected_s=0.001, patience_s=0.05, extends=False)
    assert not seen.done and seen.watched_s == pytest.approx(0.05)


# how long by family


@pytest.mark.parametrize(
    "driver", [name for name in built_in_drivers() if "patience_s" in driver_class(name).OPTIONS]
)
def test_the_patience_a_driver_documents_is_the_one_it_has(driver: str) -> None:
    found = driver_class(driver)
    family_s = float(found.OPTIONS["patience_s"].split("default ")[1].split(",")[0])
    scheme = found.EVIDENCE.schemes[0]
    address = "serial:///dev/null" if scheme == "serial" else f"{scheme}://127.0.0.1:9"
    device = open_device(DeviceConfig("ocs1", driver, address))
    assert device._patience_s == max(family_s, 10 * found.TRAITS.settle_s)  # type: ignore[attr-defined]
    assert family_s >= 6.0, "public clients of mirror switches wait 6 to 60 s"
    if issubclass(found, PairSwitch):
        assert family_s == found.PATIENCE_S


def test_the_inventory_decides_and_a_slow_trait_makes_more_patient() -> None:
    assert patience_s(TRAITS, "0.5", 10.0) == 0.5
    assert patience_s(Traits(settle_s=3.0), None, 10.0) == 30.0
    assert patience_s(TRAITS, None, 10.0 / 600) == 2.0, (
        "also what runs faster than life has time to answer"
    )


# Calient


class Calient:
    """A switch whose connections come up as `state` says: (seconds since ACT-CRS, its place) -> AS,
    OS, OC.
    """

    def __init__(
        self, state: Callable[[float, int], str], *, chassis: str = "S320", denied: str = ""
    ) -> None:
        self.state, self.chassis, self.denied = state, chassis, denied
        self.rows: dict[str, tuple[str, str]] = {}
        self.begun: dict[str, float] = {}
        self.sums = 0

    def __call__(self, verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "RTRV-NE":
            return [f'"SID:CHASSISTYPE={self.chassis}"']
        if verb == "ENT-CRS":
            self.rows[aid] = (rest.split(",")[0], rest.split(",")[1])
        elif verb == "ACT-CRS":
            self.begun.setdefault(aid, time.monotonic())
            return self.denied or []
        elif verb == "DLT-CRS":
            self.rows.pop(aid, None)
        elif verb == "RTRV-PORT-SUM":
            self.sums += 1
            return [f'"{aid}:INPWR=-3.0,OUTPWR=-50.0"']
        elif verb == "RTRV-CRS":
            return [self.row(place, aid) for place, aid in enumerate(self.rows)]
        return []

    def row(self, place: int, aid: str) -> str:
        (a, b), (group, kind) = aid.split(","), self.rows[aid]
        begun = self.begun.get(aid)
        state = (
            self.state(time.monotonic() - begun, place)
            if begun is not None
            else "AS=UMA,OS=RDY,OC=OK"
        )
        return f'"{a}>{b}:SRCPORT={a},DSTPORT={b},GRPNAME={group},CONNNAME={a}>{b},CONNTYPE={kind},{state},PS=UPR,AL=CL"'


IN_PROGRESS, GOOD = "AS=IS,OS=RDY,OC=OK", "AS=IS,OS=IS,OC=OK"
ONE = circuits(("1.1.1", "1.1.2"))


async def test_a_calient_that_takes_longer_than_two_seconds_keeps_its_circuit() -> None:
    switch = Calient(lambda since_s, _: GOOD if since_s > 2.3 else IN_PROGRESS)
    async with driven("calient-tl1", switch, patience_s="") as (device, heard):  # the default
        outcome = await device.apply(Change("ocs1", add=ONE))
    assert (outcome.observed, outcome.failed) == (ONE, {})
    assert not heard.verbs("CANC-CRS", "DLT-CRS")


async def test_a_calient_that_makes_one_circuit_after_the_other_is_let_finish() -> None:
    wanted = circuits(*((f"1.1.{n}", f"2.1.{n}") for n in range(1, 7)))
    switch = Calient(lambda since_s, place: GOOD if since_s > 0.2 * (place + 1) else IN_PROGRESS)
    async with driven("calient-tl1", switch, patience_s="0.5") as (device, heard):
        outcome = await device.apply(Change("ocs1", add=wanted))
    assert (outcome.observed, outcome.failed) == (wanted, {})
    assert not heard.verbs("CANC-CRS", "DLT-CRS")


async def test_a_circuit_that_is_under_way_is_not_deleted_because_its_activation_was_denied() -> (
    None
):
    switch = Calient(
        lambda since_s, _: GOOD if since_s > 0.15 else IN_PROGRESS, denied="SROF\n/* Failed */"
    )
    async with driven("calient-tl1", switch, patience_s="5") as (device, heard):
        outcome = await device.apply(Change("ocs1", add=ONE))
    assert (outcome.observed, outcome.failed) == (ONE, {})
    assert not heard.verbs("DLT-CRS")


async def test_what_came_up_in_the_last_moment_is_not_rolled_back() -> None:
    switch = Calient(lambda since_s, _: GOOD if switch.sums > 1 else "AS=IS,OS=IS,OC=FAIL")
    async with driven("calient-tl1", switch, patience_s="0.3") as (device, heard):
        outcome = await device.apply(Change("ocs1", add=ONE))
    assert (outcome.observed, outcome.failed) == (ONE, {})
    assert not heard.verbs("DLT-CRS")


@pytest.mark.parametrize("chassis", ["PXC", "S320"])
async def test_tables_of_old_calients_may_be_silent_for_longer_than_those_of_new_ones(
    chassis: str,
) -> None:
    switch = Calient(lambda *_: GOOD, chassis=chassis)
    async with driven("calient-tl1", switch, timeout_s=0.3) as (device, heard):
        heard.late_s["RTRV-CRS"] = 0.9
        if chassis == "PXC":
            assert await device.read() == frozenset()
        else:
            with pytest.raises(TimedOut, match="RTRV-CRS"):
                await device.read()


# commands whose answer was lost


async def test_a_patch_that_is_denied_because_it_is_being_made_is_waited_for() -> None:
    asked: list[float] = []

    def answer(verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "ENT-PATCH":
            asked.append(time.monotonic())
            return "SROF\n/* port in use */" if len(asked) > 1 else None  # the first answer is lost
        if verb == "RTRV-PATCH":
            return ['"1,17"'] if len(asked) > 1 and time.monotonic() - asked[1] > 0.3 else []
        return []

    async with driven("polatis-tl1", answer, timeout_s=0.3, patience_s="5") as (device, _):
        outcome = await device.apply(Change("ocs1", add=circuits(("1", "17"))))
    assert (outcome.observed, outcome.failed) == (circuits(("1", "17")), {})


async def test_a_patch_whose_removal_is_denied_because_it_is_going_is_waited_for() -> None:
    asked: list[float] = []

    def answer(verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "DLT-PATCH":
            asked.append(time.monotonic())
            return "SROF\n/* no such patch */" if len(asked) > 1 else None
        if verb == "RTRV-PATCH":
            return [] if len(asked) > 1 and time.monotonic() - asked[1] > 0.3 else ['"1,17"']
        return []

    async with driven("polatis-tl1", answer, timeout_s=0.3, patience_s="5") as (device, _):
        outcome = await device.apply(Change("ocs1", remove=circuits(("1", "17"))))
    assert (outcome.observed, outcome.failed) == (frozenset(), {})


async def test_a_calient_connection_whose_removal_is_denied_because_it_is_going_is_waited_for() -> (
    None
):
    switch = Calient(lambda *_: GOOD)
    removed: list[float] = []

    def answer(verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb in ("CANC-CRS", "DLT-CRS"):
            removed.append(time.monotonic())
            return "SROF\n/* Invalid Connection */" if len(removed) > 2 else None
        if verb == "RTRV-CRS" and len(removed) > 2 and time.monotonic() - removed[2] > 0.3:
            return []
        return switch(verb, aid, rest)

    switch.rows["1.1.1,1.1.2"], switch.begun["1.1.1,1.1.2"] = ("TESTBED", "1WAY"), 0.0
    async with driven("calient-tl1", answer, timeout_s=0.3, patience_s="5") as (device, _):
        outcome = await device.apply(Change("ocs1", remove=ONE))
    assert (outcome.observed, outcome.failed) == (frozenset(), {})


@dataclass(frozen=True)
class Spectrum:
    routes: frozenset[SpectralRoute]


class LateFilter(RouteSwitch[Spectrum]):
    """Loses the answer to its first command, refuses the second because it is carrying out the
    first, and shows it then.
    """

    commands, looks = 0, 0

    async def _look(self) -> Spectrum:
        self.looks += self.commands > 1
        return Spectrum(frozenset({ROUTE} if self.looks > 10 else set()))

    def _fault(self, route: SpectralRoute, seen: Spectrum) -> str:
        return ""

    async def _carry_out(
        self, removed: object, tuned: object, new: object, seen: object, marks: Marks[Setting]
    ) -> None:
        marks.write()
        self.commands += 1
        if self.commands == 1:
            raise TimedOut("wss1: no answer")
        marks.reasons[ROUTE] = "exists"


ROUTE = SpectralRoute(Port("wss1", "1"), Port("wss1", "2"), FrequencySlot.flexgrid(0, 4))


async def test_a_route_that_is_refused_because_it_is_being_made_is_waited_for() -> None:
    device = LateFilter(
        DeviceConfig("wss1", "late", "tcp://wss1", options={"patience_s": "5"}), TRAITS
    )
    outcome = await device.apply(Change("wss1", add=frozenset({ROUTE})))
    assert (outcome.observed, outcome.failed, device.commands) == ({ROUTE}, {}, 2)


# Glimmerglass


class LateGlimmerglass:
    """Circuits that are in fault, with light at the input, until they are steady."""

    def __init__(self, steady_after_s: float) -> None:
        self.after_s = steady_after_s
        self.made: dict[tuple[str, str], float] = {}

    def __call__(self, verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "RTRV-CRS-FIBER":
            now = time.monotonic()
            fault = {"CONNSTATE": "fault", "CONNCAUSE": "unknown"}
            return [
                glimmer(IPORTID=a, OPORTID=b, **({} if now - at > self.after_s else fault))
                for (a, b), at in self.made.items()
            ]
        if verb in ("ENT-CRS-FIBER", "DLT-CRS-FIBER"):
            for pair in zip(*(side.split("&") for side in aid.split(",")), strict=True):
                if verb.startswith("ENT"):
                    self.made[pair[0], pair[1]] = time.monotonic()
                else:
                    self.made.pop((pair[0], pair[1]), None)
        return []


async def test_a_glimmerglass_circuit_that_is_not_steady_yet_is_neither_deleted_nor_entered_again() -> (
    None
):
    wanted = circuits(("10001", "20002"))
    async with driven("glimmerglass-tl1", LateGlimmerglass(0.8), patience_s="5") as (device, heard):
        outcome = await device.apply(Change("ocs1", add=wanted))
    assert (outcome.observed, outcome.failed, outcome.writes) == (wanted, {}, 1)
    assert not heard.verbs("DLT-CRS-FIBER")


# bytes


async def test_an_answer_that_keeps_coming_may_take_longer_than_silence_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_base, "LONGEST", 2)

    async def dump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        for _ in range(30):
            writer.write(b"row\n")
            await asyncio.sleep(0.05)
        writer.write(b"end\n")

    heard = bytearray()

    def complete(data: bytes) -> bool:
        heard.extend(data)
        return b"end" in heard

    async with linked(dump, 0.5) as link:
        await link.exchange(b"dump\n", complete, question="dump")
    assert heard.count(b"row") == 30


async def test_an_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_base, "FARTHEST", 3)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"row\n")
            await asyncio.sleep(0.02)

    async with linked(endless, 0.2) as link:
        with pytest.raises(TimedOut, match='no answer to "dump"'):
            await link.exchange(b"dump\n", lambda data: False, question="dump")


async def test_alarms_are_no_sign_that_a_tl1_answer_will_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_base, "LONGEST", 2)
    monkeypatch.setattr(link_base, "FARTHEST", 1000)  # an answer that keeps coming: five minutes
    alarm = (
        b'\r\n\n   SID 26-01-01 12:00:00\r\n*C  1 REPT ALM CRS\r\n   "1.1.1-1.1.2:CR,LOS,SA"\r\n;'
    )
    async with driven(
        "polatis-tl1", lambda verb, *_: None if verb == "RTRV-PATCH" else [], timeout_s=0.3
    ) as (device, heard):
        heard.murmur = alarm
        async with asyncio.timeout(60):
            with pytest.raises(TimedOut, match="RTRV-PATCH"):
                await device.read()
