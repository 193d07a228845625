"""Login, keep-alive and reservations of the Calient driver, against its emulator."""

from __future__ import annotations

import asyncio

import pytest

from drivers.registry import open_device
from optics import Change, DeviceConfig, Refused
from tests.conformance.families import FAMILIES, SETTLE_S, Family, bench

CALIENT = FAMILIES[1]


async def test_a_login_not_active_yet_is_waited_for() -> None:
    async with bench(CALIENT) as b:
        b.server.add_fault("plna", match="INH-MSG|RTRV", count=3)
        assert await b.device.read() == frozenset()


async def test_a_login_taken_away_is_made_again_and_nothing_is_lost() -> None:
    async with bench(CALIENT) as b:
        await b.apply(add=b.set((1, 2), (2, 1)))
        b.server.add_fault("plna", match="CANC-CRS|ENT-CRS", count=2)
        outcome = await b.apply(remove=b.set((1, 2), (2, 1)), add=b.set((1, 3)))
        assert b.light == b.set((1, 3))
        assert not outcome.failed


async def test_a_session_that_never_becomes_active_ends_in_the_devices_words() -> None:
    async with bench(CALIENT) as b:
        await b.device.read()
        b.server.add_fault("plna", match="RTRV-CRS")
        with pytest.raises(Refused, match="PLNA"):
            await b.device.read()


async def test_the_session_is_kept_alive_while_idle() -> None:
    async with bench(CALIENT, options={"keep_alive_s": "0.05"}) as b:
        await b.device.read()
        b.server.add_fault("idle-drop", seconds=0.2)
        session = b.device._session  # type: ignore[attr-defined]
        await asyncio.sleep(0.5)
        assert session._link.alive


async def test_inhibiting_messages_may_be_denied() -> None:
    async with bench(CALIENT, options={"silence": "true"}) as b:
        b.server.add_fault("refuse", match="INH-MSG")
        assert await b.device.read() == frozenset()
        assert [asked for asked in b.server.list_faults() if asked["fired"]]


async def test_messages_are_not_inhibited_unless_that_is_asked_for() -> None:
    async with bench(CALIENT) as b:
        b.server.add_fault("hang", match="INH-MSG")
        assert await b.device.read() == frozenset()


async def test_a_reserved_connection_of_ours_is_finished_or_cleared() -> None:
    rows = [
        {"in": "1.1.1", "out": "1.1.2", "type": "1WAY", "group": "TESTBED", "active": False},
        {"in": "1.1.3", "out": "1.1.4", "type": "2WAY", "group": "TESTBED", "active": False},
    ]
    async with bench(CALIENT, preset=rows) as b:
        assert await b.device.read() == frozenset()
        wanted = b.set((1, 2), (3, 5))  # the first is finished, the second stands in the way
        outcome = await b.apply(add=wanted)
        assert not outcome.failed
        assert b.light == wanted
        b.honest(outcome)


async def test_a_reservation_of_somebody_else_is_refused_by_name_and_not_touched() -> None:
    rows = [
        {
            "in": "1.1.1",
            "out": "1.1.2",
            "type": "1WAY",
            "group": "LABX",
            "name": "theirs",
            "active": False,
        }
    ]
    async with bench(CALIENT, preset=rows) as b:
        outcome = await b.apply(add=b.set((1, 3), (4, 5)))
        ((setting, text),) = outcome.failed.items()
        assert str(setting) == "ocs1:1.1.1->1.1.3"
        assert (
            text
            == "port 1.1.1 is held by 1.1.1->1.1.2, connection 'theirs' of group 'LABX' (AS=UMA,OS=RDY,OC=OK)"
        )
        assert b.light == b.set((4, 5))
        b.server.add_fault("stuck-port", port="1.2.8")  # unrelated
        assert outcome.writes == 2


async def test_an_adopted_connection_under_another_name_is_removed_with_its_own_group() -> None:
    rows = [
        {
            "in": "1.1.1",
            "out": "1.1.2",
            "type": "2WAY",
            "group": "LABX",
            "name": "uplink_7",
            "active": True,
        }
    ]
    async with bench(CALIENT, preset=rows) as b:
        await asyncio.sleep(SETTLE_S)
        assert await b.device.read() == b.settings(b.set((1, 2), (2, 1)))
        outcome = await b.apply(remove=b.set((1, 2), (2, 1)))
        assert not outcome.failed
        assert b.light == frozenset()


@pytest.mark.parametrize("lost", [None, "CANC-CRS", "DLT-CRS", "ENT-CRS", "ACT-CRS"])
async def test_half_of_a_two_way_connection_survives_the_removal_of_the_other(
    lost: str | None,
) -> None:
    async with bench(CALIENT) as b:
        await b.apply(add=b.set((1, 2), (2, 1)))
        if lost:
            b.server.add_fault("drop-after", match=lost, count=1)
        outcome = await b.apply(remove=b.set((2, 1)))
        assert not outcome.failed
        assert b.light == b.set((1, 2))
        b.honest(outcome)


async def test_twelve_pairs_take_half_the_commands() -> None:
    async with bench(CALIENT) as b:
        pairs = [(n, n + 1) for n in range(1, 13, 2)]
        outcome = await b.apply(add=b.set(*pairs, *[(y, x) for x, y in pairs]))
        assert outcome.writes == 12
        assert len(b.light) == 12


async def test_a_password_tl1_cannot_carry_is_refused_before_anything_is_sent() -> None:
    async with bench(CALIENT) as b:
        device = open_device(
            DeviceConfig("ocs1", "calient-tl1", f"tcp://127.0.0.1:{b.server.port}", "admin", 'a"b')
        )
        with pytest.raises(Refused, match="cannot be sent over TL1"):
            await device.read()
        await device.close()


async def test_a_reservation_that_could_not_be_activated_is_given_back() -> None:
    async with bench(CALIENT) as b:
        fault = b.server.add_fault("refuse", match="ACT-CRS")
        assert b.settings(b.set((1, 2))) == (await b.apply(add=b.set((1, 2)))).failed.keys()
        b.server.remove_fault(fault)
        address = f"tcp://127.0.0.1:{b.server.port}"
        other = open_device(
            DeviceConfig(
                "ocs1", "calient-tl1", address, "admin", "secret", options={"group": "OTHER"}
            )
        )
        try:
            outcome = await other.apply(Change("ocs1", add=b.settings(b.set((1, 2)))))
            assert not outcome.failed
        finally:
            await other.close()


@pytest.mark.parametrize(
    "family",
    [family for family in FAMILIES if family.driver.endswith("-tl1")],
    ids=lambda family: family.driver,
)
@pytest.mark.parametrize("chunking", ["whole", "split", "byte"])
async def test_a_tl1_switch_is_driven_through_telnet_with_its_prompt_and_echo(
    family: Family, chunking: str
) -> None:
    async with bench(family, chunking=chunking, scheme="telnet") as b:
        assert (await b.device.identify()).egress == family.egress
        b.server.add_fault("unsolicited-inside")
        first, second = b.set((1, 2), (2, 1), (3, 4)), b.set((1, 4), (3, 2))
        await b.apply(add=first)
        assert b.light == first
        b.server.add_fault("drop-after", match=f"(?i){family.makes[-1]}", count=1)
        outcome = await b.apply(remove=first, add=second)
        assert b.light == second
        assert not outcome.failed
        b.honest(outcome)
