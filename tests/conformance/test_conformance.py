"""One suite for every driver, over a real socket, against an emulator that shares nothing with it. The glass is the judge."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from drivers.api import PowerMeter
from drivers.registry import open_device
from optics import DeviceConfig, Garbled, Port, Refused, TimedOut, Unreachable
from tests.conformance.families import FAMILIES, SETTLE_S, Family, bench

DELIVERIES = ["whole", "split", "byte"]
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.driver)
deliveries = pytest.mark.parametrize("chunking", DELIVERIES)
NOISES = [(family, noise) for family in FAMILIES for noise in ("twice", "split", *family.unsolicited)]
each_write = pytest.mark.parametrize(
    ("family", "write"), [(family, write) for family in FAMILIES for write in family.writes], ids=lambda v: getattr(v, "driver", v)
)


@families
@deliveries
async def test_a_device_says_who_it_is_and_lists_its_ports(family: Family, chunking: str) -> None:
    async with bench(family, chunking=chunking) as b:
        identity = await b.device.identify()
        assert (identity.ingress, identity.egress) == (family.ingress, family.egress)
        assert identity.vendor and identity.model and identity.serial and identity.firmware
        assert b.writes == 0


@families
@deliveries
async def test_circuits_are_made_moved_and_broken_on_the_glass(family: Family, chunking: str) -> None:
    async with bench(family, chunking=chunking) as b:
        first = b.set((1, 2), (2, 1), (3, 4), (5, 6))
        made = await b.apply(add=first)
        assert b.glass == first
        b.honest(made)
        second = b.set((1, 4), (3, 2), (2, 6), (5, 1))  # every port reused
        moved = await b.apply(remove=first, add=second)
        assert b.glass == second
        b.honest(moved)
        assert not made.failed and not moved.failed
        broken = await b.apply(remove=second)
        assert b.glass == frozenset()
        b.honest(broken)
        assert await b.device.read() == frozenset()


@families
@deliveries
async def test_applying_again_writes_nothing(family: Family, chunking: str) -> None:
    async with bench(family, chunking=chunking) as b:
        wanted = b.set((1, 2), (2, 1), (7, 9))
        await b.apply(add=wanted)
        writes = b.writes
        again = await b.apply(remove=b.set((3, 3)), add=wanted)
        assert (b.writes, again.writes) == (writes, 0)
        assert again.observed == b.settings(wanted)
        assert not again.failed


@families
@deliveries
async def test_other_circuits_are_not_touched(family: Family, chunking: str) -> None:
    async with bench(family, chunking=chunking) as b:
        others = b.set((9, 10), (10, 9), (11, 12), (13, 13))
        await b.apply(add=others)
        since = {pair: b.server.plant.since(pair) for pair in others}
        first, second = b.set((1, 2), (2, 1), (3, 4)), b.set((1, 4), (3, 2))
        await b.apply(add=first)
        await b.apply(remove=first, add=second)
        assert b.glass == others | second
        assert {pair: b.server.plant.since(pair) for pair in others} == since


@families
async def test_a_busy_port_is_refused_and_the_rest_is_made(family: Family) -> None:
    async with bench(family) as b:
        foreign = b.set((1, 2))
        await b.apply(add=foreign)
        since = b.server.plant.since(*foreign)
        wrong, good = b.set((3, 2)), b.set((4, 5), (5, 4), (6, 7))
        outcome = await b.apply(add=wrong | good)
        assert b.glass == foreign | good
        assert outcome.failed.keys() == b.settings(wrong)
        assert all(len(words) > 10 for words in outcome.failed.values())
        assert b.server.plant.since(*foreign) == since
        b.honest(outcome)


@families
async def test_a_label_that_is_no_port_never_reaches_the_device(family: Family) -> None:
    async with bench(family) as b:
        bad = [("1),(@17);:oxc:swit:disc:all", "2"), ("1.1.1;DLT-CRS-ALL:::", "1.1.2"), ("", family.egress[0]), ("0", "x")]
        outcome = await b.apply(add=bad)
        assert len(outcome.failed) == len(bad)
        assert all("not a port" in words for words in outcome.failed.values())
        assert b.writes == 0


@families
async def test_a_port_beyond_the_device_fails_in_the_devices_words(family: Family) -> None:
    async with bench(family) as b:
        beyond = ("999", "1000") if family.driver == "polatis-scpi" else ("9.9.9", "9.9.8")
        outcome = await b.apply(add=[beyond, *b.set((1, 2))])
        assert b.glass == b.set((1, 2))
        ((_, words),) = outcome.failed.items()
        assert "refused" in words


@families
async def test_power_is_read_where_there_is_light(family: Family) -> None:
    async with bench(family) as b:
        assert isinstance(b.device, PowerMeter) == family.power
        assert isinstance(b.device, PowerMeter)
        await b.apply(add=b.set((1, 2)))
        lit, dark = Port("ocs1", family.egress[1]), Port("ocs1", family.egress[2])
        levels = await b.device.power([lit, dark])
        assert levels.keys() == {lit}
        assert -6.0 < levels[lit] < 0.5


@each_write
async def test_an_executed_command_whose_answer_is_lost_is_not_sent_again(family: Family, write: str) -> None:
    first, second = ((1, 2), (2, 1), (3, 4)), ((1, 4), (3, 2))

    async def writes(fault: bool) -> int:
        async with bench(family, options={"window": "1"} if family.driver == "calient-tl1" else {}) as b:
            await b.apply(add=b.set(*first))
            if fault:
                b.server.add_fault("drop-after", match=write, count=1)
            outcome = await b.apply(remove=b.set(*first), add=b.set(*second))
            assert b.glass == b.set(*second)
            assert not outcome.failed
            b.honest(outcome)
            return b.writes

    assert await writes(fault=True) == await writes(fault=False)


@each_write
@pytest.mark.parametrize("fault", ["swallow", "drop-before", "drop-after", "late", "twice", "garble", "split", "merge", "slow"])
async def test_a_fault_at_any_write_is_survived(family: Family, write: str, fault: str) -> None:
    async with bench(family, timeout_s=0.15) as b:
        first, second = b.set((1, 2), (2, 1), (3, 4), (9, 9)), b.set((1, 4), (3, 2), (9, 9))
        await b.apply(add=first)
        since = b.server.plant.since(family.pair(9, 9))
        b.server.add_fault(fault, match=write, count=1, **({"seconds": 0.25} if fault in ("late", "slow", "merge") else {}))
        outcome = await b.apply(remove=first - second, add=second - first)
        await asyncio.sleep(0.3 if fault == "slow" else 0)  # a delayed command may still be under way behind the answer
        assert b.glass == second
        assert not outcome.failed
        assert b.server.plant.since(family.pair(9, 9)) == since
        assert not b.server.plant.violations


@pytest.mark.parametrize(("family", "fault"), NOISES, ids=lambda v: getattr(v, "driver", v))
@deliveries
async def test_noise_around_every_answer_changes_nothing(family: Family, fault: str, chunking: str) -> None:
    async with bench(family, chunking=chunking) as b:
        b.server.add_fault(fault)
        first, second = b.set((1, 2), (2, 1)), b.set((1, 3))
        await b.apply(add=first)
        outcome = await b.apply(remove=first, add=second)
        assert b.glass == second
        assert not outcome.failed


@families
async def test_a_stale_map_is_waited_for(family: Family) -> None:
    async with bench(family) as b:
        b.server.add_fault("stale-read", match=family.reads, seconds=0.15)
        wanted = b.set((1, 2), (3, 4))
        outcome = await b.apply(add=wanted)
        assert outcome.observed == b.settings(wanted)
        assert b.glass == wanted
        assert outcome.settled_ns - outcome.acked_ns > 0.1e9


@families
async def test_a_refusal_is_reported_in_the_devices_words(family: Family) -> None:
    async with bench(family) as b:
        b.server.add_fault("refuse", match=family.makes[0])
        wanted = b.set((1, 2), (3, 4))
        outcome = await b.apply(add=wanted)
        assert outcome.failed.keys() == b.settings(wanted)
        assert all("refused" in words and family.makes[0] in words for words in outcome.failed.values())
        assert b.glass == frozenset()
        b.honest(outcome)


@families
async def test_a_refused_removal_leaves_the_circuit_and_says_so(family: Family) -> None:
    async with bench(family) as b:
        first = b.set((1, 2), (3, 4))
        await b.apply(add=first)
        b.server.add_fault("refuse", match=family.breaks[0])
        outcome = await b.apply(remove=first)
        assert outcome.failed.keys() == b.settings(first)
        assert b.glass == first
        b.honest(outcome)


@families
async def test_of_a_half_done_bulk_every_circuit_is_finished_or_reported(family: Family) -> None:
    async with bench(family) as b:
        b.server.add_fault("partial-bulk", match=family.makes[0], count=1)
        wanted = b.set((1, 2), (3, 4), (5, 6), (7, 8))
        outcome = await b.apply(add=wanted)
        assert {(s.ingress.label, s.egress.label) for s in outcome.failed} == wanted - b.glass
        b.honest(outcome)


@families
async def test_a_stuck_mirror_fails_alone(family: Family) -> None:
    async with bench(family) as b:
        b.server.add_fault("stuck-port", port=family.ingress[0])
        wanted = b.set((1, 2), (3, 4))
        outcome = await b.apply(add=wanted)
        assert outcome.failed.keys() == b.settings(b.set((1, 2)))
        assert b.glass == b.set((3, 4))
        assert outcome.observed == b.settings(b.set((3, 4)))
        b.server.remove_fault(b.server.list_faults()[0]["id"])  # type: ignore[arg-type]
        assert not (await b.apply(add=b.set((1, 2)))).failed  # nothing reserved was left behind


@families
@pytest.mark.parametrize("fault", ["reboot-keep", "reboot-lose"])
async def test_after_a_reboot_in_the_middle_the_wanted_map_stands_or_the_loss_is_an_error(family: Family, fault: str) -> None:
    async with bench(family, timeout_s=0.3) as b:
        first, second = b.set((1, 2), (3, 4)), b.set((1, 4), (3, 2))
        await b.apply(add=first)
        b.server.add_fault(fault, match=family.makes[0], count=1)
        try:
            outcome = await b.apply(remove=first, add=second)
        except (TimedOut, Unreachable):
            return  # still booting: nothing is claimed
        assert {(s.ingress.label, s.egress.label) for s in outcome.failed} == second - b.glass
        assert b.glass <= second


@families
async def test_a_silent_device_is_a_time_out_that_names_the_question(family: Family) -> None:
    async with bench(family, timeout_s=0.2) as b:
        await b.device.read()
        b.server.add_fault("hang")
        began = time.monotonic()
        with pytest.raises(TimedOut, match=family.reads):
            await b.device.read()
        assert time.monotonic() - began < 1.0


@families
async def test_a_device_that_hangs_at_a_write_is_a_time_out(family: Family) -> None:
    async with bench(family, timeout_s=0.2) as b:
        await b.device.read()
        b.server.add_fault("hang", match=family.makes[0])
        began = time.monotonic()
        with pytest.raises(TimedOut):
            await b.apply(add=b.set((1, 2)))
        assert time.monotonic() - began < 3.0
        assert b.glass == frozenset()


@families
async def test_garbage_is_quoted_and_nothing_is_written(family: Family) -> None:
    talks: list[asyncio.Task[None] | None] = []

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        try:
            while await reader.read(100):
                writer.write(b"\r\n\n   X 26-01-01 00:00:00\r\nHTTP/1.1 400 Bad Request\r\n;\r\n")
        except ConnectionError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    device = open_device(DeviceConfig("ocs1", family.driver, address, "u", "p", timeout_s=0.5))
    with pytest.raises(Garbled, match="ocs1"):
        await device.read()
    await device.close()
    server.close()
    await asyncio.gather(*(talk for talk in talks if talk))


@families
async def test_a_garbled_map_is_an_error_not_a_map(family: Family) -> None:
    async with bench(family, timeout_s=0.3) as b:
        await b.apply(add=b.set((1, 2), (3, 4)))
        writes = b.writes
        truth = b.settings(b.set((1, 2), (3, 4)))
        b.server.add_fault("garble", match=family.reads)
        for _ in range(20):
            try:
                assert len(await b.device.read() ^ truth) <= 2  # a port digit may turn into another port digit, no more
            except (Garbled, TimedOut, Refused):
                pass
        assert b.writes == writes


@families
async def test_an_unreachable_device_names_its_address(family: Family) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        device = open_device(DeviceConfig("ocs1", family.driver, address, "u", "p", timeout_s=0.5))
        with pytest.raises(Unreachable, match=f"ocs1: cannot connect to {address}: Connection refused"):
            await device.read()
        await device.close()


@families
async def test_an_idle_session_that_was_dropped_is_made_again(family: Family) -> None:
    async with bench(family, options={"keep_alive_s": "0"} if family.driver == "calient-tl1" else {}) as b:
        await b.apply(add=b.set((1, 2)))
        b.server.add_fault("idle-drop", seconds=0.05)
        await asyncio.sleep(0.15)
        assert await b.device.read() == b.settings(b.set((1, 2)))


@families
async def test_questions_of_two_tasks_do_not_mix(family: Family) -> None:
    async with bench(family) as b:
        a, c = b.set((1, 2), (2, 1)), b.set((3, 4), (4, 3))
        results = await asyncio.gather(b.apply(add=a), b.device.read(), b.apply(add=c), b.device.identify())
        assert not results[0].failed and not results[2].failed
        assert b.glass == a | c


@families
async def test_a_cancelled_question_does_not_answer_the_next_one(family: Family) -> None:
    async with bench(family) as b:
        await b.apply(add=b.set((1, 2)))
        b.server.add_fault("late", match="IDN|RTRV-NE", count=1, seconds=0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await b.device.identify()
        await asyncio.sleep(0.06)
        assert await b.device.read() == b.settings(b.set((1, 2)))


@families
async def test_a_device_slower_than_promised_is_waited_for(family: Family) -> None:
    slow_s = 6 * SETTLE_S
    async with bench(family, settle_s=slow_s, **({"bulk_settle_s": slow_s} if family.plant else {})) as b:
        outcome = await b.apply(add=b.set((1, 2), (3, 4)))
        await asyncio.sleep(slow_s)
        assert not outcome.failed
        assert b.glass == b.set((1, 2), (3, 4))
