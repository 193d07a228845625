"""Glimmerglass over TL1: the echo and the prompt, continued answers, rows of both firmwares, locks,
the light.
"""

import asyncio
import re

import pytest

from tests.emulators.emulated import Client, Device, Start

NEWER = (
    "IPORTID IPORTGROUP IPORTNAME IPORTCOMMENT INPWR OPORTID OPORTGROUP OPORTNAME OPORTCOMMENT OUTPWR SIGBAND PWRLOSS"
    " CONNID CONNNAME CONNSTATE CONNCAUSE CONNLOCK CONNLOCKUSER"
)
OLDER = "IPORTID IPORTNAME OPORTID OPORTNAME CONNID CONNSTATE CONNCAUSE INPWR OUTPWR PWRLOSS CONNLOCK CONNLOCKUSER"


@pytest.fixture
async def glimmerglass(start: Start) -> Device:
    return await start("glimmerglass-tl1", sid="LAB-OCS-3")


async def rows(client: Client, command: str) -> list[dict[str, str]]:
    block = await client.ask(command)
    assert re.search(r"^M  \w+ COMPLD$", block, re.M), block
    found = re.findall(r'^   "GGN:(.*)"$', block, re.M)
    return [dict(item.split("=", 1) for item in row.split(",")) for row in found]


def denied(block: str) -> bool:
    return bool(re.search(r"^M  \w+ DENY\n   [A-Z]{4}\n", block, re.M))


async def test_a_connection_begins_with_escapes_and_a_prompt_and_every_command_is_echoed(
    start: Start,
) -> None:
    device = await start("glimmerglass-tl1", sid="LAB-OCS-3", echo="twice")
    client = await device.connect()
    client.send("rtrv-system-info:::c;")
    raw = await client.reader.readuntil(b"\r\n;\r\n<")
    greeting, _, rest = raw.partition(b"\r\n<")
    assert greeting.startswith(b"\x1b[62;1")
    echo = b"rtrv-system-info:::c;"
    assert rest.startswith(echo + b"\r\n" + echo + b"\r\n\n   LAB-OCS-3 ")


async def test_echoes_come_once_or_twice_unless_told_otherwise(glimmerglass: Device) -> None:
    client = await glimmerglass.connect()
    counts = {
        (await client.ask(f"rtrv-system-info:::c{n};")).count(f"rtrv-system-info:::c{n};")
        for n in range(20)
    }
    assert counts == {1, 2}


async def test_the_system_says_its_licensed_size_and_its_serial_number(
    glimmerglass: Device,
) -> None:
    client = await glimmerglass.connect()
    (info,) = await rows(client, "rtrv-system-info:::c;")
    assert info["LicensedPortMatrix"] == "16x16"
    assert {"SerialNumber", "SystemType", "ChassisType", "SoftwareActiveVersion"} <= set(info)


async def test_a_duplex_connection_pairs_two_lists_by_position(glimmerglass: Device) -> None:
    client = await glimmerglass.connect()
    assert "M  mcon COMPLD" in await client.ask("ent-crs-fiber::10001&10002,20002&20001:mcon;")
    await glimmerglass.settle()
    assert glimmerglass.lit() == {("10001", "20002"), ("10002", "20001")}
    made = await rows(client, "rtrv-crs-fiber::10001&20001:c;")
    assert {(r["IPORTID"], r["OPORTID"], r["CONNSTATE"]) for r in made} == {
        ("10001", "20002", "steady"),
        ("10002", "20001", "steady"),
    }
    assert "M  c COMPLD" in await client.ask("dlt-crs-fiber::10001,20002:c;")
    assert glimmerglass.lit() == {("10002", "20001")}
    assert glimmerglass.plant.writes == 2


async def test_a_circuit_shows_all_fields_of_newer_firmware_and_a_user_who_locks_nothing(
    start: Start,
) -> None:
    device = await start("glimmerglass-tl1", preset=[["10001", "20007"]])
    client = await device.connect()
    (row,) = await rows(client, "rtrv-crs-fiber::10001:c;")
    assert " ".join(row) == NEWER
    assert (row["CONNSTATE"], row["CONNCAUSE"], row["CONNLOCK"], row["CONNLOCKUSER"]) == (
        "steady",
        "none",
        "0",
        "admin",
    )
    named = ("IPORTGROUP", "IPORTNAME", "OPORTGROUP", "OPORTNAME", "CONNNAME", "CONNID", "SIGBAND")
    assert [row[key] for key in named] == [
        "OpenGroup",
        "IN1",
        "OpenGroup",
        "OUT7",
        "IN1",
        "0",
        "1550",
    ]


async def test_the_loss_is_near_the_difference_of_the_powers_and_seldom_equal_to_it(
    start: Start,
) -> None:
    device = await start("glimmerglass-tl1", older=True, preset=[["10001", "20007"]])
    client = await device.connect()
    seen = [row for _ in range(20) for row in await rows(client, "rtrv-crs-fiber::10001:c;")]
    off_db = [float(row["INPWR"]) - float(row["OUTPWR"]) - float(row["PWRLOSS"]) for row in seen]
    assert max(map(abs, off_db)) < 0.1 and len({round(each, 3) for each in off_db}) > 2


async def test_every_port_has_a_row_so_a_circuit_has_two_and_an_output_without_one_shows_its_meter(
    start: Start,
) -> None:
    device = await start("glimmerglass-tl1", preset=[["10002", "20007"]])
    client = await device.connect()
    everything = await rows(client, "rtrv-crs-fiber::all:c;")
    ports = [(row["IPORTID"], row["OPORTID"]) for row in everything]
    assert len(ports) == 32 and [
        n for n, pair in enumerate(ports) if pair == ("10002", "20007")
    ] == [1, 22]
    alone = everything[16]
    assert (alone["IPORTID"], alone["OPORTID"], alone["INPWR"], alone["PWRLOSS"]) == (
        "0",
        "20001",
        "NA",
        "NA",
    )
    assert -56 < float(alone["OUTPWR"]) < -44


async def test_long_answers_are_cut_into_blocks_by_their_bytes(start: Start) -> None:
    """26, 26, 24 and 20 rows: so the log of a 48x48 of 2016 is cut."""
    device = await start("glimmerglass-tl1", sid="BD0472", size="48x48", echo="none")
    client = await device.connect()
    client.send("RTRV-CFG-FIBER::10001&&10048&20001&&20048:1;")
    blocks = (await client.reader.readuntil(b"\r\n;")).decode().split("\r\n>\r\n<\r\n\n")
    assert [block.count("GGN:PORTID=") for block in blocks] == [26, 26, 24, 20]


async def test_ports_have_the_names_and_the_band_the_lab_gives_them(start: Start) -> None:
    device = await start("glimmerglass-tl1", names={"20003": "to rack 7"}, group="A", band_nm=1310)
    client = await device.connect()
    (first, third) = await rows(client, "rtrv-cfg-fiber::10001&20003:c;")
    assert (
        first | {"PORTGROUP": "A", "PORTNAME": "IN1", "SIGBAND": "1310", "STMAXSEV": "DI"} == first
        and "CSFLTSEV" not in first
    )
    assert third | {"PORTNAME": "to rack 7", "SIGTHRESH": "1310", "CSFLTSEV": "CR"} == third
    with pytest.raises(ValueError, match="names: no port 30001"):
        await start("glimmerglass-tl1", name="ocs2", names={"30001": "x"})


async def test_older_firmware_has_fewer_fields_and_three_decimals(start: Start) -> None:
    device = await start(
        "glimmerglass-tl1", older=True, preset=[["10001", "20007"]], locks={"20007": "bench2"}
    )
    client = await device.connect()
    (row,) = await rows(client, "rtrv-crs-fiber::20007:c;")
    assert " ".join(row) == OLDER
    assert re.fullmatch(r"-?\d+\.\d{3}", row["INPWR"])
    (free,) = await rows(client, "rtrv-crs-fiber::10002:c;")
    assert (free["OPORTID"], free["OUTPWR"], free["PWRLOSS"], free["CONNSTATE"]) == (
        "0",
        "0.000",
        "0.000",
        "single",
    )
    assert (free["CONNID"], free["IPORTNAME"], free["CONNLOCK"], free["CONNLOCKUSER"]) == (
        "0",
        "",
        "0",
        "",
    )
    without = await (
        await start("glimmerglass-tl1", name="ocs2", older=True, lock_fields=False)
    ).connect()
    assert "CONNLOCK" not in (await rows(without, "rtrv-crs-fiber::10002:c;"))[0]


async def test_unconnected_ports_are_listed_as_single(glimmerglass: Device) -> None:
    client = await glimmerglass.connect()
    everything = await rows(client, "rtrv-crs-fiber::all:c;")
    assert len(everything) == 32
    assert {(r["CONNSTATE"], r["CONNID"]) for r in everything} == {("single", "0")}
    assert (
        everything[0]["OPORTID"] == "0"
        and everything[0]["OUTPWR"] == everything[0]["PWRLOSS"] == "NA"
    )


@pytest.mark.parametrize(
    ("dark_first", "cause"),
    [(True, "initial_connection_timer_expired"), (False, "input_loss_of_light")],
)
async def test_a_dark_circuit_is_a_fault_with_its_cause(
    glimmerglass: Device, dark_first: bool, cause: str
) -> None:
    client = await glimmerglass.connect()
    if dark_first:
        glimmerglass.server.set_input("10001", None)
    await client.ask("ent-crs-fiber::10001,20001:c;")
    await glimmerglass.settle()
    glimmerglass.server.set_input("10001", None)
    (row,) = await rows(client, "rtrv-crs-fiber::10001:c;")
    assert (row["CONNSTATE"], row["CONNCAUSE"]) == ("fault", cause)
    assert -56 < float(row["INPWR"]) < -44


async def test_ranges_and_lists_are_taken_and_long_answers_continue_under_a_new_header(
    start: Start,
) -> None:
    device = await start("glimmerglass-tl1", sid="LAB-OCS-3", echo="once", block_rows=1)
    client = await device.connect()
    client.send("RTRV-CFG-FIBER::10003&&10003&20003&&20003:71;")
    raw = (await client.reader.readuntil(b"\r\n;")).decode().replace("\r", "")
    lines = raw[raw.index("RTRV") :].split("\n")
    assert lines[0] == "RTRV-CFG-FIBER::10003&&10003&20003&&20003:71;"
    assert lines[1] == "" and re.fullmatch(r"   LAB-OCS-3 \d\d-\d\d-\d\d \d\d:\d\d:\d\d", lines[2])
    assert lines[3] == "M  71 COMPLD" and lines[4].startswith('   "GGN:PORTID=10003,PORTGROUP=')
    assert lines[5:8] == [">", "<", ""]
    assert (
        lines[9] == "M  71 COMPLD"
        and lines[10].startswith('   "GGN:PORTID=20003,')
        and lines[10].endswith(',CSFLTSEV=CR"')
    )
    assert lines[11] == ";"


async def test_powers_are_read_of_all_ports(glimmerglass: Device) -> None:
    client = await glimmerglass.connect()
    powers = await rows(client, "rtrv-port-power::all:c;")
    assert len(powers) == 32 and all(
        re.fullmatch(r"-?\d+\.\d{3}", row["PORTPOWER"]) for row in powers
    )
    assert all(-56 < float(row["PORTPOWER"]) < -44 for row in powers[16:])
    assert {row["PORTPOWER"][-1] for row in powers} > {"0"}


async def test_a_port_locked_by_another_user_refuses_and_names_him(start: Start) -> None:
    device = await start(
        "glimmerglass-tl1",
        preset=[["10001", "20001"]],
        locks={"10001": "bench2", "10005": "bench2"},
    )
    client = await device.connect()
    assert "locked by bench2" in await client.ask("dlt-crs-fiber::10001,20001:c;")
    assert "locked by bench2" in await client.ask("ent-crs-fiber::10005,20005:c;")
    (row,) = await rows(client, "rtrv-crs-fiber::10001:c;")
    assert (row["CONNLOCK"], row["CONNLOCKUSER"]) == ("1", "bench2")
    assert device.lit() == {("10001", "20001")} and device.plant.writes == 0


@pytest.mark.parametrize(
    "command",
    [
        "ent-crs-fiber::10001&10002,20002:c;",
        "ent-crs-fiber::20001,10001:c;",
        "ent-crs-fiber::10001&10001,20001&20002:c;",
        "ent-crs-fiber::10099,20001:c;",
        "ent-crs-fiber::10001:c;",
        "ent-crs-fiber::10002,20001:c;",
        "dlt-crs-fiber::10001,20002:c;",
        "rtrv-crs-fiber::1&&999999:c;",
        "rtrv-port-power::5~6:c;",
        "dlt-crs-fiber::10002:c;",
        "dlt-crs-fiber::10001&10002:c;",
        "dlt-crs-fiber::10099:c;",
        "ent-crs-fiber::all,all:c;",  # two ports are taken
        "ed-param:::c:::NAME=PowerMonitoringPeriod;",
        "make-tea:::c;",
    ],
)
async def test_a_wrong_command_is_denied_and_changes_nothing(start: Start, command: str) -> None:
    device = await start("glimmerglass-tl1", preset=[["10001", "20001"]])
    client = await device.connect()
    assert denied(await client.ask(command))
    assert device.plant.writes == 0 and device.lit() == {("10001", "20001")}


async def test_an_account_is_asked_for_only_where_there_is_one(
    start: Start, glimmerglass: Device
) -> None:
    client = await glimmerglass.connect()
    assert "COMPLD" in await client.ask("act-user::anyone:1::anything;")
    guarded = await (
        await start("glimmerglass-tl1", name="ocs2", username="ann", password="pw")
    ).connect()
    assert "PLNA" in await guarded.ask("rtrv-crs-fiber::all:c;")
    assert denied(await guarded.ask("act-user::ann:1::wrong;"))
    assert "COMPLD" in await guarded.ask("act-user::ann:1::pw;")
    assert "COMPLD" in await guarded.ask("rtrv-crs-fiber::all:c;")


async def test_circuits_come_back_after_a_power_cycle(start: Start) -> None:
    device = await start("glimmerglass-tl1", preset=[["10001", "20001"]], boot_s=0.0)
    device.server.add_fault("reboot-keep")
    await asyncio.sleep(0.05)
    assert device.lit() == {("10001", "20001")}


async def test_where_nobody_logs_in_a_full_device_takes_no_connection(glimmerglass: Device) -> None:
    glimmerglass.server.add_fault("login-limit", limit=1)
    first, second = await glimmerglass.connect(), await glimmerglass.connect()
    assert await second.ended() == b""
    assert "COMPLD" in await first.ask("rtrv-system-info:::c;")


# ---- what labs' clients send every day


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("dlt-crs-fiber::10010:1:::OPMODE=Async;", {("10001", "20001"), ("10002", "20002")}),
        ("dlt-crs-fiber::20001:1;", {("10010", "20011"), ("10002", "20002")}),
        ("dlt-crs-fiber::10001&20001&10002:1;", {("10010", "20011")}),
        ("dlt-crs-fiber::all:1;", set()),
        ("DLT-CRS-FIBER::all,all:1:::opmode=sync;", set()),
    ],
)
async def test_a_connection_is_ended_by_one_of_its_ports_and_all_of_them_by_a_word(
    start: Start, command: str, left: set[tuple[str, str]]
) -> None:
    made = [["10001", "20001"], ["10002", "20002"], ["10010", "20011"]]
    device = await start("glimmerglass-tl1", preset=made)
    client = await device.connect()
    assert "M  1 COMPLD" in await client.ask(command)
    await device.settle()
    assert device.lit() == left


async def test_ending_all_connections_of_an_empty_switch_is_no_mistake_and_a_lock_prevents_it(
    start: Start,
) -> None:
    client = await (await start("glimmerglass-tl1")).connect()
    assert "M  1 COMPLD" in await client.ask("dlt-crs-fiber::all:1;")
    locked = await start(
        "glimmerglass-tl1", name="ocs2", preset=[["10001", "20001"]], locks={"10001": "bench2"}
    )
    assert "locked by bench2" in await (await locked.connect()).ask("dlt-crs-fiber::all:1;")


async def test_all_inputs_are_connected_to_all_outputs_by_position(glimmerglass: Device) -> None:
    client = await glimmerglass.connect()
    assert "M  1 COMPLD" in await client.ask("ENT-CRS-FIBER::all,all:1:::opmode=sync;")
    await glimmerglass.settle()
    assert glimmerglass.lit() == {(f"{10_001 + n}", f"{20_001 + n}") for n in range(16)}


async def test_a_parameter_is_taken_and_the_band_of_a_port_is_told(glimmerglass: Device) -> None:
    client = await glimmerglass.connect()
    assert "M  1 COMPLD" in await client.ask("ED-PARAM:::1:::NAME=PowerMonitoringPeriod,VAL=5;")
    assert await rows(client, "rtrv-sigtype-fiber::20003:2;") == [
        {"PORTID": "20003", "PORTNAME": "OUT3", "SIGTYPE": "1550"}
    ]


@pytest.mark.parametrize(
    ("indents", "header", "row"), [((2, 2), "  ", "  "), ((2, 0), "  ", ""), ((3, 3), "   ", "   ")]
)
async def test_an_answer_of_firmware_of_2005_is_what_its_users_kept_byte_by_byte(
    start: Start, indents: tuple[int, int], header: str, row: str
) -> None:
    device = await start(
        "glimmerglass-tl1", sid="o01gva.datatag.org", older=True, echo="twice", indents=indents
    )
    device.server.set_input("10001", None)
    device.server.set_input("10002", None)
    client = await device.connect()
    assert "COMPLD" in await client.ask("ent-crs-fiber::10002,20015:1;")
    await device.settle()
    await client.reader.readuntil(b"\r\n<")
    client.send("rtrv-crs-fiber::10001&10002:1;")
    output = "<" + (await client.reader.readuntil(b"\r\n;\r\n<")).decode().replace("\r", "")
    output = re.sub(
        r"=-\d\d\.\d{3}", "=-NN.NNN", re.sub(r"PWRLOSS=-?\d\.\d\d\d", "PWRLOSS=N.NNN", output)
    )
    assert re.sub(r"\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "<time>", output) == (
        "<rtrv-crs-fiber::10001&10002:1;\nrtrv-crs-fiber::10001&10002:1;\n\n"
        f"{header}o01gva.datatag.org <time>\nM  1 COMPLD\n"
        f'{row}"GGN:IPORTID=10001,IPORTNAME=,OPORTID=0,OPORTNAME=,CONNID=0,CONNSTATE=single,CONNCAUSE=none,'
        'INPWR=-NN.NNN,OUTPWR=0.000,PWRLOSS=N.NNN,CONNLOCK=0,CONNLOCKUSER="\n'
        f'{row}"GGN:IPORTID=10002,IPORTNAME=,OPORTID=20015,OPORTNAME=,CONNID=0,CONNSTATE=fault,'
        "CONNCAUSE=initial_connection_timer_expired,"
        'INPWR=-NN.NNN,OUTPWR=-NN.NNN,PWRLOSS=N.NNN,CONNLOCK=0,CONNLOCKUSER="\n;\n<'
    )


async def test_indents_are_two_numbers(start: Start) -> None:
    with pytest.raises(ValueError, match="indents: wanted two numbers of blanks"):
        await start("glimmerglass-tl1", indents=[3])
