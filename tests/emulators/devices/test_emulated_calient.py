"""Calient over TL1: the grammar, the state model, the sessions, the light."""

import asyncio
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.devices.dialects.base import Dialect
from emulators.devices.dialects.calient_table import aids
from emulators.devices.families import device_from_config
from tests.emulators.emulated import Client, Device, Start

HEADER = rb"\r\n\n   SW \d\d-\d\d-\d\d \d\d:\d\d:\d\d\r\n"


async def make(client: Client, pair: str, name: str, kind: str = "2WAY") -> None:
    assert "M  e COMPLD" in await client.ask(f"ENT-CRS::{pair}:e::,{kind};")
    assert "M  a COMPLD" in await client.ask(f"ACT-CRS::{pair}:a::{name};")


async def state(client: Client, name: str) -> str:
    found = re.search(r"AS=\w+,OS=\w+,OC=\w+", await client.ask(f"RTRV-CRS:::s::SYSTEM,{name};"))
    assert found
    return found.group()


def denied(block: str, code: str) -> bool:
    return bool(re.search(rf"^M  \w+ DENY\n   {code}\n", block, re.M))


async def test_an_answer_has_the_layout_of_the_manuals_to_the_byte(calient: Device) -> None:
    client = await calient.connect()
    client.send("RTRV-HDR:::x1;")
    assert re.fullmatch(HEADER + rb"M  x1 COMPLD\r\n;", await client.reader.readuntil(b";"))
    client.send("RTRV-CRS:::x2::ALL;")
    assert re.fullmatch(
        HEADER + rb"M  x2 DENY\r\n   PLNA\r\n   /\* Login Not Active \*/\r\n;",
        await client.reader.readuntil(b";"),
    )


async def test_login_answers_with_an_alarming_notice_and_completes(calient: Device) -> None:
    client = await calient.connect()
    block = await client.ask("act-user::admin:1::emulated;")
    assert block.splitlines()[1:3] == ["M  1 COMPLD", '   "admin:admin,1"']
    assert (
        re.search(r"^   /\* NOTICE .*(denied|failed|invalid).*[^ ]\*/\n;$", block, re.M)
        and block.count("/*") == 1
    )
    again = await client.ask("ACT-USER::admin:2::emulated;")
    assert denied(again, "SNVS")
    assert "Already logged in" in again


@pytest.mark.parametrize(
    ("user", "password"), [("admin", "wrong"), ("nobody", "emulated"), ("admin", "")]
)
async def test_a_wrong_login_is_denied_and_opens_nothing(
    calient: Device, user: str, password: str
) -> None:
    client = await calient.connect()
    assert denied(await client.ask(f"ACT-USER::{user}:1::{password};"), "IDNV")
    assert denied(await client.ask("RTRV-CRS:::2::ALL;"), "PLNA")


async def test_commands_too_soon_after_login_are_not_logged_in_yet(start: Start) -> None:
    device = await start("calient-tl1", plna_s=0.05)
    client = await device.connect(login=True)
    assert denied(await client.ask("RTRV-CRS:::2::ALL;"), "PLNA")
    await asyncio.sleep(0.06)
    assert "COMPLD" in await client.ask("RTRV-CRS:::2::ALL;")


async def test_after_logout_commands_are_denied(calient: Device) -> None:
    client = await calient.connect(login=True)
    assert "COMPLD" in await client.ask("CANC-USER::admin:2;")
    assert denied(await client.ask("RTRV-NE:::3;"), "PLNA")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("MAKE-TEA:::5;", "IICM"),
        ("?!:::5;", "IISP"),
        ("RTRV-NE:::toolongtag;", "IICT"),
        ('RTRV-NE:"elsewhere"::5;', "IITA"),
        ("RTRV-PORT::9.9:5;", "IIAC"),
        ("ENT-CRS::1.1.1:5::,2WAY;", "IIAC"),
        ("ENT-CRS::1.1.1,9.9.9:5::,2WAY;", "IIAC"),
        ("ENT-CRS::1.1.1,1.1.1:5::,2WAY;", "IIAC"),
        ("ENT-CRS::1.1.1,1.1.2:5::,3WAY;", "IDNV"),
        ("ACT-CRS::1.1.1,1.1.2:5::1.1.1-1.1.2;", "IIAC"),
        ("RTRV-CRS:::5::SYSTEM,nothing;", "IIAC"),
    ],
)
async def test_a_wrong_command_is_denied_and_changes_nothing(
    calient: Device, command: str, code: str
) -> None:
    client = await calient.connect(login=True)
    client.send(command)
    assert denied(await client.block(), code)
    assert calient.plant.writes == 0


async def test_the_target_may_be_named_quoted_or_not(calient: Device) -> None:
    client = await calient.connect(login=True)
    for command in ('RTRV-NE:"SW"::5;', "rtrv-ne:sw::5;\r\n", "\n RTRV-NE:::5;"):
        assert "SERIALNUMBER" in await client.ask(command)


async def test_a_connection_is_reserved_then_moving_then_lit_then_reserved_then_gone(
    start: Start,
) -> None:
    calient = await start("calient-tl1", settle_s=0.1)
    client = await calient.connect(login=True)
    await client.ask("ENT-CRS::1.1.1,1.2.8:1::,2WAY;")
    assert await state(client, "1.1.1-1.2.8") == "AS=UMA,OS=RDY,OC=OK"
    assert calient.lit() == set()
    await client.ask("ACT-CRS::1.1.1,1.2.8:2::1.1.1-1.2.8;")
    assert await state(client, "1.1.1-1.2.8") == "AS=IS,OS=RDY,OC=OK"
    await calient.settle()
    assert await state(client, "1.1.1-1.2.8") == "AS=IS,OS=IS,OC=OK"
    assert calient.lit() == {("1.1.1", "1.2.8"), ("1.2.8", "1.1.1")}
    assert denied(await client.ask("DLT-CRS::1.1.1,1.2.8:3::,SYSTEM,1.1.1-1.2.8;"), "SNVS")
    await client.ask("CANC-CRS::1.1.1,1.2.8:4::,SYSTEM,1.1.1-1.2.8;")
    assert calient.lit() == set()
    assert await state(client, "1.1.1-1.2.8") == "AS=UMA,OS=RDY,OC=OK"
    await client.ask("dlt-crs:::dcon::1.1.1-1.2.8;")
    assert "Invalid Connection" in await client.ask("RTRV-CRS:::5::SYSTEM,1.1.1-1.2.8;")
    assert calient.plant.writes == 4


async def test_a_reserved_port_is_busy_and_the_refusal_names_the_holder(calient: Device) -> None:
    client = await calient.connect(login=True)
    await client.ask("ENT-CRS::1.1.1,1.1.2:1::LABX,1WAY;")
    refusal = await client.ask("ENT-CRS::1.1.1,1.1.3:2::,2WAY;")
    assert "Invalid Connection - port 1.1.1 busy in 1.1.1>1.1.2" in refusal
    assert "COMPLD" in await client.ask("ENT-CRS::1.1.2,1.1.1:3::,1WAY;")
    assert len(calient.plant.violations) == 1


async def test_names_need_not_come_from_ports_and_groups_are_checked(calient: Device) -> None:
    client = await calient.connect(login=True)
    await client.ask("ENT-CRS::1.1.1,1.1.2:1::LABX,1WAY,uplink_7;")
    assert "CONNNAME=uplink_7" in await client.ask("RTRV-CRS:::2::LABX,;")
    assert denied(await client.ask("ACT-CRS::1.1.1,1.1.2:3::uplink_7,OTHER;"), "IIAC")
    assert denied(await client.ask("ACT-CRS::1.1.1,1.1.3:3::uplink_7,LABX;"), "IIAC")
    assert "COMPLD" in await client.ask("ACT-CRS::1.1.1,1.1.2:4::uplink_7,LABX;")
    assert denied(await client.ask("ENT-CRS::1.1.3,1.1.4:5::,1WAY,uplink_7;"), "IDNV")


async def test_the_detail_of_a_named_connection_carries_powers(start: Start) -> None:
    device = await start("calient-tl1", preset=[["1.1.1", "1.1.2"]])
    client = await device.connect(login=True)
    block = await client.ask("RTRV-CRS:::1::SYSTEM,1.1.1-1.1.2;")
    for key in (
        "FORWARD-WORKINGPOWERINPUT",
        "FORWARD-WORKINGPOWEROUTPUT",
        "REVERSE-WORKINGPOWERINPUT",
        "REVERSE-WORKINGPOWEROUTPUT",
    ):
        assert re.search(rf",{key}=-?\d+\.\d", block)


async def test_ports_are_listed_all_by_module_and_one_by_one(calient: Device) -> None:
    client = await calient.connect(login=True)
    for aid, count in (("0", 16), ("1.2", 8), ("1.2.3", 1), ("1", 16)):
        assert (await client.ask(f"RTRV-PORT::{aid}:c;")).count("INRS=NPR") == count


async def test_deleting_everything_includes_what_is_active(start: Start) -> None:
    device = await start(
        "calient-tl1", preset=[["1.1.1", "1.1.2"], {"in": "1.1.3", "out": "1.1.4", "active": False}]
    )
    client = await device.connect(login=True)
    assert "COMPLD" in await client.ask("DLT-CRS-ALL:::;")
    assert "SRCPORT" not in await client.ask("RTRV-CRS:::::ALL;")
    assert device.light[-1][1] == frozenset()


async def test_changes_are_told_to_every_session_that_listens_and_no_other(calient: Device) -> None:
    actor, listener, deaf = [await calient.connect(login=True) for _ in range(3)]
    stranger = await calient.connect()
    assert "COMPLD" in await deaf.ask("INH-MSG:::1;")
    await actor.ask("ENT-CRS::1.1.1,1.1.2:7::,2WAY;")
    for notified in (actor.unasked.pop(), await listener.block()):
        assert re.search(r"^A  1 REPT DBCHG EVT CRS\n   \"SOURCE=7,", notified, re.M)
    assert await deaf.silent(0.02)
    assert await stranger.silent(0.02)


async def test_a_circuit_without_light_is_an_alarm_that_clears(start: Start) -> None:
    device = await start("calient-tl1", preset=[["1.1.1", "1.1.2"]])
    client = await device.connect(login=True)
    device.server.set_input("1.1.2", None)
    alarm = await client.block()
    assert re.search(r"^\*C 1 REPT ALM CRS\n   \"1.1.1-1.1.2:CR,", alarm, re.M)
    assert await state(client, "1.1.1-1.1.2") == "AS=IS,OS=IS,OC=FAIL"
    assert device.light[-1][1] == {("1.1.1", "1.1.2")}
    device.server.set_input("1.1.2", 0.0)
    assert "1.1.1-1.1.2:CL," in await client.block()
    assert await state(client, "1.1.1-1.1.2") == "AS=IS,OS=IS,OC=OK"


async def test_an_idle_session_is_dropped_and_a_busy_one_is_not(start: Start) -> None:
    device = await start("calient-tl1", idle_s=0.15)
    idle, busy = await device.connect(login=True), await device.connect(login=True)
    for _ in range(4):
        await asyncio.sleep(0.05)
        await busy.ask("rtrv-hdr:::pcon;")
    assert await idle.ended(0.1) == b""
    assert "COMPLD" in await busy.ask("RTRV-NE:::1;")


async def test_a_dump_takes_its_time_per_row_and_commands_behind_it_wait(start: Start) -> None:
    device = await start("calient-tl1", row_delay_s=0.005)
    client = await device.connect(login=True)
    before = device.server.loop.time()
    client.send("RTRV-PORT::0:1;RTRV-HDR:::2;")
    assert "M  1 COMPLD" in await client.block()
    assert device.server.loop.time() - before >= 16 * 0.005
    assert "M  2 COMPLD" in await client.block()


async def test_a_long_answer_comes_in_blocks_when_configured(start: Start) -> None:
    device = await start("calient-tl1", sid="SW", block_rows=6)
    client = await device.connect(login=True)
    client.send("RTRV-PORT::0:1;")
    raw = await client.reader.readuntil(b"\r\n;")
    between = rb"\r\n>\r\n<" + HEADER + rb"M  1 COMPLD\r\n"
    assert len(re.findall(between, raw)) == 2
    assert raw.count(b"INRS=NPR") == 16


async def test_matrix_and_trailer_are_shown_when_configured(start: Start) -> None:
    device = await start("calient-tl1", matrix=True, trailer="\r\n", preset=[["1.1.1", "1.2.1"]])
    client = await device.connect(login=True)
    client.send("RTRV-CRS:::1::ALL;")
    raw = await client.reader.readuntil(b";\r\n")
    assert b',AL=CL,MATRIXUSED=31.1"' in raw


@pytest.mark.parametrize(
    ("keep", "lit"),
    [("reboot-keep", {("1.1.1", "1.1.2"), ("1.1.2", "1.1.1")}), ("reboot-lose", set())],
)
async def test_a_power_cycle_ends_sessions_and_keeps_circuits_or_not(
    start: Start, keep: str, lit: set[tuple[str, str]]
) -> None:
    device = await start("calient-tl1", boot_s=0.02, preset=[["1.1.1", "1.1.2"]])
    client = await device.connect(login=True)
    device.server.add_fault(keep)
    assert device.light[-1][1] == frozenset()
    await client.ended()
    await asyncio.sleep(0.06)
    assert device.lit() == lit
    client = await device.connect(login=True)
    assert ("SRCPORT" in await client.ask("RTRV-CRS:::1::ALL;")) == bool(lit)


STORY = (
    b"act-user::admin:1::emulated;RTRV-NE:::2;\r\nENT-CRS::1.1.1,1.1.2:3::LABX,1WAY,\"odd;name\";"
    b"ACT-CRS::1.1.1,1.1.2:4::\"odd;name\",LABX;RTRV-CRS:::5::ALL;?;CANC-CRS::1.1.1,1.1.2:6::,LABX,odd;"
)  # fmt: skip


def answers(dialect: Dialect[object], pieces: list[bytes]) -> bytes:
    session = dialect.open(0.0)
    assert session is not None
    out = b""
    for piece in pieces:
        dialect.receive(session, piece, 1.0)
        dialect.tick(1.0)
    dialect.tick(2.0)  # the rows of a dump have had their time
    for _, _, data in dialect.drain():
        out += data or b""
    return out


@given(cuts=st.lists(st.integers(1, len(STORY) - 1), unique=True).map(sorted))
def test_commands_may_be_cut_anywhere(cuts: list[int]) -> None:
    ends = [0, *cuts, len(STORY)]
    pieces = [STORY[a:b] for a, b in pairwise(ends)]

    def fresh() -> Dialect[object]:
        return device_from_config("ocs1", "calient-tl1", {"epoch_s": 0.0, "row_delay_s": 0.0})[1]

    whole = answers(fresh(), [STORY])
    assert whole.count(b"M  ") == 7
    assert answers(fresh(), pieces) == whole


def test_port_names_count_eight_to_a_module() -> None:
    assert aids(16)[0] == "1.1.1"
    assert aids(16)[7:9] == ("1.1.8", "1.2.1")
    assert aids(16)[-1] == "1.2.8"


async def test_the_telnet_port_shows_a_prompt_before_commands_and_after_answers(
    start: Start,
) -> None:
    device = await start("calient-tl1", sid="SW")
    device.server.dialect.transport = "telnet"
    client = await device.connect()
    assert await client.reader.readuntil(b"agent> ") == b"\r\nagent> "
    client.send("RTRV-HDR:::x1;")
    assert (await client.reader.readuntil(b"agent> ")).endswith(b"M  x1 COMPLD\r\n;\r\nagent> ")
    client.send("RTRV-NE:::x2;")
    assert (await client.reader.readuntil(b"agent> ")).endswith(b"*/\r\n;\r\nagent> ")


async def test_alarms_told_to_a_session_come_again_once_it_allows_them(calient: Device) -> None:
    client = await calient.connect(login=True)
    for command, notified in (("INH-MSG:::1;", 0), ("ALW-MSG:::2;", 1)):
        assert "COMPLD" in await client.ask(command)
        await client.ask(f"ENT-CRS::1.1.{1 + 2 * notified},1.1.{2 + 2 * notified}:e::,2WAY;")
        assert len(client.unasked) == notified


async def test_a_port_is_edited_shut_and_opened(start: Start) -> None:
    device = await start("calient-tl1", preset=[{"in": "1.1.1", "out": "1.1.2", "type": "1WAY"}])
    client = await device.connect(login=True)
    assert "COMPLD" in await client.ask('ED-PORT::1.1.1:c::ALIAS="rack 7",AS=OOS;')
    assert "ALIAS=rack 7," in await client.ask("RTRV-PORT-SUM::1.1.1:c;")
    assert "INAS=OOS,INOS=IS" in await client.ask("RTRV-PORT::1.1.1:c;")
    assert device.lit() == set()
    await client.ask("ED-PORT::1.1.1:c::AS=IS;")
    await device.settle()
    assert device.lit() == {("1.1.1", "1.1.2")}
    for wrong in (
        "ED-PORT::9.9.9:c::AS=IS;",
        "ED-PORT::1.1.1:c::AS=SIDEWAYS;",
        "ED-PORT::1.1.1:c::;",
        "ED-PORT::1.1.1:c::X=1;",
    ):
        assert "DENY" in await client.ask(wrong)
    assert device.plant.writes == 2


async def test_older_switches_have_letters_in_their_port_names_and_power_by_the_port(
    start: Start,
) -> None:
    device = await start(
        "calient-tl1",
        ports=["0.1b.1", "0.1b.2", "10.2a.1"],
        matrix=True,
        preset=[["0.1b.1", "10.2a.1"]],
    )
    client = await device.connect(login=True)
    detail = await client.ask("rtrv-det-eqpt::10.2a.1:pmon;")
    assert re.search(
        r'"10\.2a\.1:INOPTICALPOWER=-?\d+\.\d,OUTOPTICALPOWERWORKING=-?\d+\.\d"', detail
    )
    for nothing in ("PORT", "", "0.1b"):
        assert denied(await client.ask(f"rtrv-det-eqpt::{nothing}:pmon;"), "IIAC")
    assert (await client.ask("RTRV-PORT::0.1b:c;")).count("INRS=NPR") == 2
    assert "MATRIXUSED=31.1" in await client.ask("rtrv-crs::,:c::,,;")


async def test_a_row_of_an_older_switch_begins_with_its_ports_whatever_its_name_and_is_deleted_by_either(
    start: Start,
) -> None:
    rows = [
        {
            "in": f"10.13a.{n}",
            "out": f"10.13a.{n + 1}",
            "name": f"13A.{n}_TO",
            "group": "TEST",
            "active": False,
        }
        for n in (1, 3)
    ]
    device = await start(
        "calient-tl1", ports=[f"10.13a.{n}" for n in (1, 2, 3, 4)], matrix=True, preset=rows
    )
    client = await device.connect(login=True)
    begins = '"10.13a.1-10.13a.2:SRCPORT=10.13a.1,DSTPORT=10.13a.2,GRPNAME=TEST,CONNNAME=13A.1_TO,CONNTYPE=2WAY,'
    assert begins in await client.ask("rtrv-crs::,:cmon::,,;")
    assert "COMPLD" in await client.ask("dlt-crs:::dcon::10.13a.1-10.13a.2;")
    assert "COMPLD" in await client.ask("dlt-crs:::dcon::13A.3_TO;")
    assert "SRCPORT" not in await client.ask("rtrv-crs::,:c::,,;")


async def test_a_reserved_connection_that_gets_no_light_has_failed_optically(start: Start) -> None:
    device = await start(
        "calient-tl1", preset=[{"in": "1.1.1", "out": "1.1.2", "type": "1WAY", "active": False}]
    )
    client = await device.connect(login=True)
    assert await state(client, "1.1.1>1.1.2") == "AS=UMA,OS=RDY,OC=OK"
    device.server.set_input("1.1.1", None)
    assert await state(client, "1.1.1>1.1.2") == "AS=UMA,OS=RDY,OC=FAIL"


async def test_a_reverse_connection_is_told_by_its_ports_not_by_its_name(start: Start) -> None:
    reverse = {
        "in": "1.1.2",
        "out": "1.1.1",
        "type": "1WAY",
        "name": "1.1.1<1.1.2",
        "group": "LABX",
    }
    device = await start("calient-tl1", preset=[reverse, ["1.1.3", "1.1.4"]])
    client = await device.connect(login=True)
    row = await client.ask("RTRV-CRS:::c::LABX,;")
    assert "1.1.1<1.1.2:SRCPORT=1.1.2,DSTPORT=1.1.1,GRPNAME=LABX" in row and "1.1.3" not in row
    assert ("1.1.2", "1.1.1") in device.lit()
    assert "COMPLD" in await client.ask("CANC-CRS::1.1.2,1.1.1:1::,LABX,1.1.1<1.1.2;")
    assert "COMPLD" in await client.ask("DLT-CRS::1.1.2,1.1.1:1::,LABX,1.1.1<1.1.2;")


async def test_a_row_begins_with_the_ports_byte_by_byte_whatever_the_name(start: Start) -> None:
    preset = [{"in": "1", "out": "1", "type": "1WAY", "name": "LOOPBACK_001", "active": False}]
    device = await start("calient-tl1", size="24x24", ports="numbers", preset=preset)
    client = await device.connect(login=True)
    block = await client.ask("rtrv-crs;")
    assert block.splitlines()[1:] == [
        "M  0 COMPLD",
        '   "1>1:SRCPORT=1,DSTPORT=1,GRPNAME=SYSTEM,CONNNAME=LOOPBACK_001,CONNTYPE=1WAY,AS=UMA,OS=RDY,OC=OK,PS=UPR,AL=CL"',
        ";",
    ]
    assert (await client.ask("RTRV-PORT::0:c;")).count("INRS=NPR") == 24
    assert (await client.ask("RTRV-PORT::1:c;")).count("INRS=NPR") == 1
    assert "COMPLD" in await client.ask("dlt-crs::1,1:::1>1;")  # the title does for the name
    assert "SRCPORT" not in await client.ask("rtrv-crs;")


async def test_port_names_may_end_with_a_fourth_number(start: Start) -> None:
    device = await start("calient-tl1", size="18x18", ports="parts")
    client = await device.connect(login=True)
    await make(client, "1.1.1/2,1.2.1/1", "1.1.1/2-1.2.1/1")
    await device.settle()
    assert device.lit() == {("1.1.1/2", "1.2.1/1"), ("1.2.1/1", "1.1.1/2")}
    with pytest.raises(
        ValueError, match="ports: wanted a list of labels or numbers or parts, seen 'letters'"
    ):
        device_from_config("ocs1", "calient-tl1", {"ports": "letters"})
    with pytest.raises(ValueError, match="ports: wanted a list of labels, seen 'numbers'"):
        device_from_config("ocs1", "polatis-scpi", {"ports": "numbers"})


@pytest.mark.parametrize(
    ("preset", "connections"),
    [
        ([], "CONNNAME1=NONE,CONNSTATE1=NONE"),
        (
            [{"in": "1.1.1", "out": "1.1.2", "type": "1WAY", "active": False}],
            "CONNNAME1=1.1.1>1.1.2,CONNSTATE1=NONE",
        ),
        ([{"in": "1.1.1", "out": "1.1.2", "type": "1WAY"}], "CONNNAME1=1.1.1>1.1.2,CONNSTATE1=ACT"),
    ],
)
async def test_the_sum_of_a_port_says_active_or_none_byte_by_byte(
    start: Start, preset: list[dict[str, object]], connections: str
) -> None:
    client = await (await start("calient-tl1", meters=False, preset=preset)).connect(login=True)
    block = await client.ask("RTRV-PORT-SUM::1.1.1;")
    assert block.splitlines()[1:] == [
        "M  0 COMPLD",
        f'   "1.1.1:ALIAS=NONE,INPWR=NONE,OUTPWR=NONE,{connections},CONNNAME2=NONE,CONNSTATE2=NONE"',
        ";",
    ]


async def test_a_connection_is_deleted_by_its_name_alone_without_a_ctag(start: Start) -> None:
    preset = [{"in": "1.1.1", "out": "1.1.2", "type": "1WAY", "active": False}]
    device = await start("calient-tl1", preset=preset)
    client = await device.connect(login=True)
    assert "M  0 COMPLD" in await client.ask("DLT-CRS:::::1.1.1>1.1.2;")
    assert "SRCPORT" not in await client.ask("RTRV-CRS:::::ALL;")
