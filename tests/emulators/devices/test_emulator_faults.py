"""Every fault by its name: what a client sees, and what the glass does."""

import asyncio
import re
from pathlib import Path

import pytest

from emulators.devices.faults import COMMAND_FAULTS, NAMES, PERSISTENT_FAULTS, Faults, fault
from tests.emulators.emulated import Device, Start, until

ADD = ":oxc:swit:conn:add (@1,2,3),(@17,18,19)\n"
STATE = ":oxc:swit:conn:stat?"
ALL = {("1", "17"), ("2", "18"), ("3", "19")}


# ---- triggers


def test_a_fault_strikes_what_matches_after_so_many_for_so_many_times() -> None:
    faults = Faults()
    number = faults.add(fault("refuse", match="^ent-crs", after=1, count=2))
    struck = [
        bool(faults.fire(command, True))
        for command in ["ENT-CRS::a", "RTRV-CRS", "ENT-CRS::b", "ENT-CRS::c", "ENT-CRS::d"]
    ]
    assert struck == [False, False, True, True, False]
    assert [(f["id"], f["kind"], f["fired"]) for f in faults.list()] == [(number, "refuse", 2)]
    faults.remove(number)
    assert not faults.armed
    assert faults.list() == []


def test_chance_is_seeded() -> None:
    def strikes(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.add(fault("hang", probability=0.5))
        return [bool(faults.fire("x", False)) for _ in range(64)]

    assert strikes(1) == strikes(1)
    assert strikes(1) != strikes(2)
    assert 16 < sum(strikes(1)) < 48


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("drop-affter", {}, "did you mean drop-after"),
        ("slow", {"second": 1}, "no field 'second'"),
        ("slow", {"seconds": "long"}, "could not convert"),
        ("refuse", {"match": "("}, "match '\\('"),
        ("stuck-port", {}, "which port"),
    ],
)
def test_a_fault_wrongly_described_is_refused_with_the_reason(
    kind: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fault(kind, **values)


async def test_a_fault_on_a_port_that_is_not_there_is_refused(polatis: Device) -> None:
    with pytest.raises(ValueError, match="ocs1 has no port 99"):
        polatis.server.add_fault("dark-port", port="99")
    assert polatis.server.list_faults() == []


# ---- commands that are not executed


async def test_refuse_says_no_in_the_manner_of_the_family(polatis: Device, calient: Device) -> None:
    polatis.server.add_fault("refuse", match="conn:add", count=1)
    client = await polatis.connect()
    client.send(ADD)
    assert (await client.line(":syst:err?")).startswith("-200,")
    calient.server.add_fault("refuse", match="ENT-CRS", count=1)
    client = await calient.connect(login=True)
    assert re.search(
        r"^M  5 DENY\n   SROF\n", await client.ask("ENT-CRS::1.1.1,1.1.2:5::,2WAY;"), re.M
    )
    assert polatis.plant.writes == calient.plant.writes == 0
    assert "COMPLD" in await client.ask("ENT-CRS::1.1.1,1.1.2:6::,2WAY;")


async def test_plna_denies_as_if_nobody_had_logged_in(calient: Device) -> None:
    client = await calient.connect(login=True)
    calient.server.add_fault("plna", count=1)
    assert "PLNA" in await client.ask("RTRV-NE:::1;")
    assert "COMPLD" in await client.ask("RTRV-NE:::2;")


async def test_swallow_loses_one_command_and_answers_the_next(polatis: Device) -> None:
    polatis.server.add_fault("swallow", match="conn:add", count=1)
    client = await polatis.connect()
    client.send(ADD)
    assert await client.line("*IDN?\n" + ":syst:err?")
    assert polatis.plant.writes == 0


async def test_hang_silences_the_session_and_no_other(polatis: Device) -> None:
    number = polatis.server.add_fault("hang", match="conn:stat", count=1)
    hung, other = await polatis.connect(), await polatis.connect()
    hung.send(f"{STATE}\n*IDN?\n")
    assert await hung.silent(0.05)
    assert await other.line(STATE) == "(@),(@)"
    polatis.server.remove_fault(number)
    assert (await hung.line()).startswith("Polatis,")


async def test_hang_may_end_by_itself(polatis: Device) -> None:
    polatis.server.add_fault("hang", match="conn:stat", count=1, seconds=0.05)
    client = await polatis.connect()
    client.send(f"{STATE}\n")
    before = polatis.server.loop.time()
    assert (await client.line("*IDN?")).startswith("Polatis,")
    assert polatis.server.loop.time() - before >= 0.04


async def test_drop_before_ends_the_connection_with_nothing_done(polatis: Device) -> None:
    polatis.server.add_fault("drop-before", match="conn:add", count=1)
    client = await polatis.connect()
    client.send(ADD)
    assert await client.ended() == b""
    await polatis.settle()
    assert polatis.lit() == set()
    assert polatis.plant.writes == 0


# ---- commands that are executed, replies that are not what they should be


async def test_drop_after_has_done_it_and_says_nothing(polatis: Device, calient: Device) -> None:
    polatis.server.add_fault("drop-after", match="conn:add", count=1)
    client = await polatis.connect()
    client.send(ADD)
    assert await client.ended() == b""
    await polatis.settle()
    assert polatis.lit() == ALL
    client = await calient.connect(login=True)
    await client.ask("INH-MSG:::1;")
    calient.server.add_fault("drop-after", match="ENT-CRS", count=1)
    client.send("ENT-CRS::1.1.1,1.1.2:5::,2WAY;")
    assert await client.ended() == b""
    client = await calient.connect(login=True)
    assert "AS=UMA" in await client.ask("RTRV-CRS:::6::ALL;")


async def test_slow_delays_the_deed_and_what_stands_behind_it(polatis: Device) -> None:
    polatis.server.add_fault("slow", match="conn:add", seconds=0.06, count=1)
    client = await polatis.connect()
    before = polatis.server.loop.time()
    client.send(ADD)
    assert await client.line("*IDN?")
    assert polatis.server.loop.time() - before >= 0.06
    await polatis.settle()
    assert polatis.light[0][0] - before >= 0.08


async def test_a_late_reply_arrives_behind_the_next_one(polatis: Device) -> None:
    polatis.server.add_fault("late", match="IDN", seconds=0.1, count=1)
    client = await polatis.connect()
    assert await client.line("*IDN?\n" + STATE) == "(@),(@)"
    assert (await client.line()).startswith("Polatis,")


async def test_a_reply_may_come_twice(polatis: Device) -> None:
    polatis.server.add_fault("twice", match="IDN", count=1)
    client = await polatis.connect()
    assert await client.line("*IDN?") == await client.line()
    assert await client.line(STATE) == "(@),(@)"


async def test_split_cuts_the_reply_where_told(polatis: Device) -> None:
    polatis.server.add_fault("split", match="IDN", count=1, at_byte=3, seconds=0.1)
    client = await polatis.connect()
    client.send("*IDN?\n")
    assert await client.reader.read(100) == b"Pol"
    assert (await client.reader.read(100)).startswith(b"atis,")


async def test_merge_holds_a_reply_for_the_next_or_for_a_while(polatis: Device) -> None:
    polatis.server.add_fault("merge", match="IDN", seconds=0.15)
    client = await polatis.connect()
    client.send("*IDN?\n")
    assert await client.silent(0.02)
    client.send(STATE + "\n")
    assert (await client.reader.read(200)).endswith(b"\r\n(@),(@)\r\n")
    assert (await client.line("*IDN?")).startswith("Polatis,")


async def test_garble_changes_bytes_and_not_the_length(polatis: Device) -> None:
    client = await polatis.connect()
    whole = await client.line("*IDN?")
    polatis.server.add_fault("garble", match="IDN", count=1, at_byte=2)
    client.send("*IDN?\n")
    garbled = await client.reader.readexactly(len(whole) + 2)
    assert [
        i for i, (a, b) in enumerate(zip(whole, garbled.decode("latin-1"), strict=False)) if a != b
    ] == [2]


@pytest.mark.parametrize("where", ["before", "inside", "after"])
async def test_a_message_nobody_asked_for(calient: Device, where: str) -> None:
    client = await calient.connect(login=True)
    calient.server.add_fault(f"unsolicited-{where}", match="RTRV-NE", count=1)
    client.send("RTRV-NE:::9;RTRV-HDR:::10;")
    raw = ""
    while "M  10 COMPLD\n;" not in raw:
        raw += await client.block() + "\n"
    alarm, answer, row = (
        raw.index("*C 1 REPT ALM CRS"),
        raw.index("M  9 COMPLD"),
        raw.index("SERIALNUMBER"),
    )
    assert {
        "before": alarm < answer,
        "inside": alarm < row and raw.index("SW ") < alarm,
        "after": alarm > row,
    }[where]
    assert raw.index("M  10 COMPLD") > alarm


async def test_a_message_inside_a_long_answer_stands_between_its_blocks(start: Start) -> None:
    device = await start("calient-tl1", block_rows=4)
    client = await device.connect(login=True)
    device.server.add_fault("unsolicited-inside", match="RTRV-PORT", count=1)
    client.send("RTRV-PORT::0:9;")
    raw = (await client.reader.readuntil(b'OUTRS=NPR"\r\n;')).decode()
    assert re.search(
        r"\r\n>\r\n\n   OCS1 [-: \d]+\r\n\*C 1 REPT ALM CRS\r\n.*\r\n;\r\n<\r\n\n   OCS1", raw
    )


async def test_scpi_too_may_say_what_nobody_asked(polatis: Device) -> None:
    polatis.server.add_fault("unsolicited-after", match="conn:add", count=1)
    client = await polatis.connect()
    client.send(ADD)
    assert (await client.line()).startswith("-240,")


async def test_a_stale_read_shows_how_it_was(polatis: Device, calient: Device) -> None:
    client = await polatis.connect()
    polatis.server.add_fault("stale-read", match="conn:stat", seconds=0.2, count=2)
    client.send(ADD)
    await polatis.settle()
    assert polatis.lit() == ALL
    assert await client.line(STATE) == "(@),(@)"
    await asyncio.sleep(0.2)
    assert await client.line(STATE) == "(@1,2,3),(@17,18,19)"
    client = await calient.connect(login=True)
    calient.server.add_fault("stale-read", match="RTRV-CRS", count=1)
    await client.ask("ENT-CRS::1.1.1,1.1.2:5::,2WAY;")
    assert "SRCPORT" not in await client.ask("RTRV-CRS:::6::ALL;")
    assert "SRCPORT" in await client.ask("RTRV-CRS:::7::ALL;")


async def test_a_partial_bulk_does_some_and_says_nothing(polatis: Device) -> None:
    polatis.server.add_fault("partial-bulk", match="conn:add", count=1)
    client = await polatis.connect()
    client.send(ADD)
    await polatis.settle()
    assert 0 < len(polatis.lit()) < 3
    assert polatis.lit() < ALL
    assert await client.line(":syst:err?") == '0,"No error"'


async def test_half_of_a_duplex_connection_may_fail(calient: Device) -> None:
    client = await calient.connect(login=True)
    calient.server.add_fault("partial-bulk", match="ACT-CRS", count=1)
    await client.ask("ENT-CRS::1.1.1,1.1.2:1::,2WAY;")
    assert "COMPLD" in await client.ask("ACT-CRS::1.1.1,1.1.2:2::1.1.1-1.1.2;")
    await calient.settle()
    assert len(calient.lit()) == 1
    assert "OC=FAIL" in await client.ask("RTRV-CRS:::3::ALL;")


@pytest.mark.parametrize(("kind", "lit"), [("reboot-keep", {("4", "20")}), ("reboot-lose", set())])
async def test_a_reboot_may_strike_in_the_middle_of_a_change(
    start: Start, kind: str, lit: set[tuple[str, str]]
) -> None:
    device = await start("polatis-scpi", preset=[["4", "20"]], boot_s=0.01)
    device.server.add_fault(kind, match="conn:add", count=1)
    client = await device.connect()
    client.send(ADD)
    await client.ended()
    assert device.light[-1][1] == frozenset()
    await asyncio.sleep(0.05)
    assert device.lit() == lit
    assert await (await device.connect()).line("*IDN?")


async def test_a_silent_failure_reports_success_and_moves_nothing(start: Start) -> None:
    reported = {
        "polatis-scpi": (ADD + ":syst:err?", '0,"No error"'),
        "dicon-scpi": ("X1 CH 1 2;SYST:ERR?", "+0, No Error"),
    }
    for number, (driver, (command, fine)) in enumerate(reported.items()):
        device = await start(driver, name=f"ocs{number}")
        client = await device.connect()
        device.server.add_fault("silent-failure", on="write", count=1)
        assert await client.line(command) == fine
        await device.settle()
        assert device.lit() == set()
    for number, (driver, command, pair) in enumerate(
        (
            ("glimmerglass-tl1", "ent-crs-fiber::10001,20001:c;", ("10001", "20001")),
            ("polatis-tl1", "ENT-PATCH::1,17:c:;", ("1", "17")),
        ),
        10,
    ):
        device = await start(driver, name=f"ocs{number}", username="u", password="p")
        device.server.add_fault("silent-failure", match="^ent-", count=1)
        client = await device.connect()
        assert "COMPLD" in await client.ask("ACT-USER::u:1::p;")
        for lit in (set(), {pair}):
            assert "COMPLD" in await client.ask(command)
            await device.settle()
            assert device.lit() == lit


async def test_a_silent_failure_on_calient_leaves_no_connection(calient: Device) -> None:
    client = await calient.connect(login=True)
    calient.server.add_fault("silent-failure", match="ENT-CRS", count=1)
    assert "COMPLD" in await client.ask("ENT-CRS::1.1.1,1.1.2:5::,2WAY;")
    assert "SRCPORT" not in await client.ask("RTRV-CRS:::6::ALL;")


async def test_half_duplex_makes_one_direction_of_a_pair(start: Start, calient: Device) -> None:
    device = await start("glimmerglass-tl1")
    client = await device.connect()
    device.server.add_fault("half-duplex", match="ent-crs", count=1)
    assert "COMPLD" in await client.ask("ent-crs-fiber::10001&10002,20002&20001:c;")
    await device.settle()
    assert device.lit() == {("10001", "20002")}
    client = await calient.connect(login=True)
    calient.server.add_fault("half-duplex", match="ACT-CRS", count=1)
    await client.ask("ENT-CRS::1.1.1,1.1.2:1::,2WAY;")
    assert "COMPLD" in await client.ask("ACT-CRS::1.1.1,1.1.2:2::1.1.1-1.1.2;")
    await calient.settle()
    assert calient.lit() == {("1.1.1", "1.1.2")}


async def test_an_ended_session_is_logged_out_or_gone(polatis: Device, calient: Device) -> None:
    client = await calient.connect(login=True)
    assert calient.server.add_fault("session-ended") == 0
    assert "PLNA" in await client.ask("RTRV-NE:::3;")
    client = await polatis.connect()
    polatis.server.add_fault("session-ended", match="size", count=1)
    assert await client.line("*IDN?")
    client.send(":oxc:swit:size?\n")
    assert await client.ended() == b""


async def test_the_clock_of_a_device_may_jump(calient: Device, polatis: Device) -> None:
    client = await calient.connect(login=True)
    before = await client.ask("RTRV-HDR:::1;")
    assert calient.server.add_fault("clock-step", seconds=-400 * 86400.0) == 0
    after = await client.ask("RTRV-HDR:::1;")
    years = [int(re.search(r"SW (\d\d)-", text)[1]) for text in (before, after)]  # type: ignore[index]
    assert years[0] - years[1] in (1, 2)
    with pytest.raises(ValueError, match="ocs1 shows no clock"):
        polatis.server.add_fault("clock-step")


async def test_a_robot_can_stall_only_where_there_is_one(polatis: Device) -> None:
    with pytest.raises(ValueError, match="ocs1 has no robot"):
        polatis.server.add_fault("robot-stalled")


def test_moves_of_a_robot_are_struck_by_faults_that_strike_no_command_there() -> None:
    faults = Faults(robot=True)
    for kind in ("robot-stalled", "half-duplex", "silent-failure"):
        faults.add(fault(kind, after=1, count=1))
        assert not faults.fire("connection create E3 to W4", True)
        assert [bool(faults.strike(kind)) for _ in range(3)] == [False, True, False]


# ---- by time


async def changed(device: Device, times: int) -> None:
    """Wait until the glass has changed so often."""
    for _ in range(100):
        if len(device.light) >= times:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the light path changed {len(device.light)} times, not {times}")


async def test_a_fault_may_begin_later_and_end_by_itself(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    device.server.add_fault("dark-port", port="1", at_s=0.1, for_s=0.1)
    device.server.add_fault("refuse", match="size", at_s=0.1, for_s=0.1)
    client = await device.connect()
    assert await client.line(":oxc:swit:size?;:syst:err?") == '16,16;0,"No error"'
    assert [f["state"] for f in device.server.list_faults()] == ["waiting", "waiting"]
    device.light.clear()
    await changed(device, 1)
    assert device.light[0][1] == frozenset()
    client.send(":oxc:swit:size?\n")
    assert (await client.line(":syst:err?")).startswith("-200,")
    await changed(device, 2)
    assert device.lit() == {("1", "17")}
    assert await client.line(":oxc:swit:size?;:syst:err?") == '16,16;0,"No error"'
    assert [f["state"] for f in device.server.list_faults()] == ["over", "over"]


async def test_a_fault_that_has_struck_as_often_as_it_was_to_is_over(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    device.server.add_fault("refuse", match="size", count=2)
    client = await device.connect()
    states = []
    for _ in range(2):
        states.append(device.server.list_faults()[0]["state"])
        client.send(":oxc:swit:size?\n")
        assert (await client.line(":syst:err?")).startswith("-200,")
    assert await client.line(":oxc:swit:size?;:syst:err?") == '16,16;0,"No error"'
    (found,) = device.server.list_faults()
    assert states == ["active", "active"] and (found["state"], found["fired"]) == ("over", 2)


async def test_a_reboot_may_be_set_for_later(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]], boot_s=0.01)
    client = await device.connect()
    assert device.server.add_fault("reboot-lose", at_s=0.05) == 1
    assert await client.line("*IDN?")
    assert await client.ended(0.5) == b""
    assert device.lit() == set()
    assert device.server.list_faults()[0]["state"] == "over"


# ---- faults that last as long as they are armed


async def test_a_locked_port_refuses_whatever_the_family_and_names_the_holder(
    start: Start, calient: Device
) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    number = device.server.add_fault("port-locked", port="1", user="ann")
    client = await device.connect()
    assert "locked by ann" in await client.line(":oxc:swit:conn:sub (@1),(@17);:syst:err?")
    assert device.lit() == {("1", "17")}
    device.server.remove_fault(number)
    assert await client.line(f":oxc:swit:conn:sub (@1),(@17);{STATE}") == "(@),(@)"
    device.server.add_fault("port-locked", port="18", user="ann")
    assert "locked by ann" in await client.line(":oxc:swit:conn:add (@2),(@18);:syst:err?")
    calient.server.add_fault("port-locked", port="1.1.2")
    client = await calient.connect(login=True)
    assert "locked by bench2" in await client.ask("ENT-CRS::1.1.1,1.1.2:1::,2WAY;")
    assert calient.plant.writes == 0


async def test_a_second_login_of_the_same_user_steals_the_session(
    polatis: Device, calient: Device
) -> None:
    for device in (polatis, calient):
        device.server.add_fault("session-stolen")
    first, second = await polatis.connect(), await polatis.connect()
    assert await first.ended() == b""
    assert await second.line("*IDN?")
    first, stranger = await calient.connect(login=True), await calient.connect()
    await calient.connect(login=True)
    assert await first.ended() == b""
    assert "M  1 COMPLD" in await stranger.ask("RTRV-HDR:::1;")


async def test_a_stuck_port_is_neither_made_nor_broken(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    number = device.server.add_fault("stuck-port", port="1")
    client = await device.connect()
    assert "stuck" in await client.line(":oxc:swit:conn:sub (@1),(@17);:syst:err?")
    assert device.lit() == {("1", "17")}
    device.server.add_fault("stuck-port", port="18")
    client.send(":oxc:swit:conn:add (@2),(@18)\n")
    await device.settle()
    assert await client.line(STATE) == "(@1),(@17)"
    device.server.remove_fault(number)
    assert await client.line(f":oxc:swit:conn:sub (@1),(@17);{STATE}") == "(@),(@)"


async def test_a_stuck_port_shows_as_failed_on_calient_and_is_an_alarm(calient: Device) -> None:
    client = await calient.connect(login=True)
    calient.server.add_fault("stuck-port", port="1.1.1")
    await client.ask("ENT-CRS::1.1.1,1.1.2:1::,1WAY;")
    assert "COMPLD" in await client.ask("ACT-CRS::1.1.1,1.1.2:2::1.1.1>1.1.2;")
    await calient.settle()
    assert "AS=IS,OS=IS,OC=FAIL" in await client.ask("RTRV-CRS:::3::ALL;")
    assert any("REPT ALM" in message for message in client.unasked)
    assert "COMPLD" in await client.ask("CANC-CRS::1.1.1,1.1.2:4::1.1.1>1.1.2;")
    assert ":CL," in client.unasked[-2]


async def test_a_failed_port_is_reported_as_such_and_dark(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    device.server.add_fault("failed-port", port="1")
    client = await device.connect()
    assert await client.line(":oxc:swit:port:stat? (@1,2)") == "(F,E)"
    assert device.light[-1][1] == frozenset()


async def test_a_dark_port_loses_the_light_and_not_the_circuit(start: Start) -> None:
    device = await start("calient-tl1", preset=[["1.1.1", "1.1.2"]])
    number = device.server.add_fault("dark-port", port="1.1.1/in")
    assert device.light[-1][1] == {("1.1.2", "1.1.1")}
    client = await device.connect(login=True)
    assert "OC=FAIL" in await client.ask("RTRV-CRS:::1::ALL;")
    device.server.remove_fault(number)
    assert len(device.light[-1][1]) == 2


async def test_a_drifting_connector_loses_more_and_more_until_it_is_cleaned(start: Start) -> None:
    device = await start("polatis-scpi", settle_s=0.0)
    client = await device.connect()
    assert await client.line(":oxc:swit:conn:add (@1),(@17);:syst:err?") == '0,"No error"'
    first = float((await client.line(":pmon:pow? (@17)")).strip("()"))
    number = device.server.add_fault("drift", port="17", db_per_hour=72_000)  # 20 dB per second
    await asyncio.sleep(0.2)
    later = float((await client.line(":pmon:pow? (@17)")).strip("()"))
    assert later < first - 2
    await until(lambda: not device.light[-1][1], 5.0)  # the light is lost without a request
    device.server.remove_fault(number)
    assert device.lit() == {("1", "17")}
    assert float((await client.line(":pmon:pow? (@17)")).strip("()")) == pytest.approx(
        first, abs=0.3
    )


async def test_extra_loss_shows_on_the_meter_and_then_in_the_dark(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    client = await device.connect()
    before = float((await client.line(":pmon:pow? (@17)")).strip("()"))
    number = device.server.add_fault("extra-loss", port="17", db=6.0)
    after = float((await client.line(":pmon:pow? (@17)")).strip("()"))
    assert before - after == pytest.approx(6.0, abs=0.2)
    assert device.lit() == {("1", "17")}
    device.server.add_fault("extra-loss", port="17", db=40.0)
    assert device.light[-1][1] == frozenset()
    device.server.remove_fault(number)
    assert device.lit() == set()


async def test_a_login_limit_counts_connections_or_logins(polatis: Device, calient: Device) -> None:
    for device in (polatis, calient):
        device.server.add_fault("login-limit", limit=1)
    first, second = await polatis.connect(), await polatis.connect()
    assert await second.ended() == b""
    assert await first.line("*IDN?")
    first, second = await calient.connect(login=True), await calient.connect()
    assert "SARB" in await second.ask("ACT-USER::admin:1::emulated;")
    await first.ask("CANC-USER::admin:2;")
    assert "COMPLD" in await second.ask("ACT-USER::admin:3::emulated;")


async def test_an_idle_drop_may_be_added_to_a_running_device(polatis: Device) -> None:
    client = await polatis.connect()
    assert await client.line("*IDN?")
    polatis.server.add_fault("idle-drop", seconds=0.03)
    assert await client.ended(0.2) == b""


async def test_faults_may_stand_in_the_configuration(start: Start) -> None:
    device = await start("polatis-scpi", faults=[{"kind": "refuse", "match": "conn:add"}])
    client = await device.connect()
    client.send(ADD)
    assert (await client.line(":syst:err?")).startswith("-200,")


def test_every_fault_has_a_test_here() -> None:
    text = Path(__file__).read_text()
    tested = set(re.findall(r'"([a-z-]+)"', text)) | {
        f"unsolicited-{where}" for where in ("before", "inside", "after")
    }
    assert tested >= NAMES == set(COMMAND_FAULTS) | set(PERSISTENT_FAULTS)
