"""Polatis over TL1: every row of the published commands, sessions, shutters, flaps, attenuators."""

import re

import pytest

from emulators.devices.dialects.polatis_tl1 import PolatisTl1
from tests.emulators.emulated import Client, Device, Start, until


async def entered(device: Device) -> Client:
    client = await device.connect()
    assert "COMPLD" in await client.ask("ACT-USER::admin:1::root;")
    return client


async def rows(client: Client, command: str) -> list[str]:
    block = await client.ask(command)
    assert re.search(r"^M  \w+ COMPLD$", block, re.M), block
    return re.findall(r'^   "(.*)"$', block, re.M)


def denied(block: str) -> bool:
    return bool(re.search(r"^M  \w+ DENY\n   [A-Z]{4}\n", block, re.M))


@pytest.fixture
async def polatis(start: Start) -> Device:
    return await start("polatis-tl1", sid="ocs lab-1.x")


async def test_the_name_may_be_nil_until_somebody_logs_in(start: Start) -> None:
    polatis = await start("polatis-tl1", sid="ocs lab-1.x", nil_sid=True)
    client = await polatis.connect()
    assert "   ( nil ) " in await client.ask("RTRV-HDR:::a:;")
    assert "PLNA" in await client.ask("RTRV-PATCH:::a:;")
    assert denied(await client.ask("ACT-USER::admin:1::wrong;"))
    assert "   ocs lab-1.x " in await client.ask("act-user::admin:1::root;")
    assert "COMPLD" in await client.ask('RTRV-PATCH:"ocs lab-1.x"::2:;')
    assert "COMPLD" in await client.ask('RTRV-PATCH:""::3:;')
    assert "IITA" in await client.ask('RTRV-PATCH:"elsewhere"::4:;')


async def test_it_says_its_size_serial_number_and_type(start: Start) -> None:
    device = await start("polatis-tl1", size="8x24")
    client = await entered(device)
    assert await rows(client, "RTRV-EQPT::SYSTEM:c:::PARAMETER=SIZE;") == ["SYSTEM:SIZE=8x24"]
    (inventory,) = await rows(client, "RTRV-INV::OCS:c:;")
    assert inventory.endswith("SN=001705")
    (kind,) = await rows(client, "RTRV-NETYPE:::c:;")
    assert kind.count(",") == 3 and kind.startswith("Polatis,")


async def test_the_type_may_come_without_quotes(start: Start) -> None:
    client = await entered(await start("polatis-tl1", bare_netype=True))
    assert re.search(r"^   Polatis,[^\"]*$", await client.ask("RTRV-NETYPE:::c:;"), re.M)


async def test_patches_are_made_listed_and_taken_away(start: Start) -> None:
    polatis = await start("polatis-tl1", settle_s=0.1)
    client = await entered(polatis)
    for pair in ("1,17", "2,18", "3,20"):
        assert "COMPLD" in await client.ask(f"ENT-PATCH::{pair}:c:;")
    assert await rows(client, "RTRV-PATCH:::c:;") == []
    await polatis.settle()
    assert await rows(client, "RTRV-PATCH:::c:;") == ["1,17", "2,18", "3,20"]
    assert await rows(client, "RTRV-PATCH::20&1&7:c:;") == ["1,17", "3,20"]
    assert "COMPLD" in await client.ask("DLT-PATCH::1&17:c:;")
    assert polatis.lit() == {("2", "18"), ("3", "20")}
    assert "COMPLD" in await client.ask("DLT-PATCH::18:c:;")
    assert "COMPLD" in await client.ask("DLT-PATCH::ALL:c:;")
    assert polatis.lit() == set() and polatis.plant.writes == 6


@pytest.mark.parametrize(
    "command",
    [
        "ENT-PATCH::17,1:c:;",
        "ENT-PATCH::2&3,18:c:;",
        "ENT-PATCH::2&2,18&19:c:;",
        "ENT-PATCH::3&&2,18&&19:c:;",
        "ENT-PATCH::2,99:c:;",
        "ENT-PATCH::2:c:;",
        "DLT-PATCH::5:c:;",
        "DLT-PATCH::x:c:;",
        "RTRV-PATCH::1&&9999999:c:;",
        "RTRV-EQPT::KETTLE:c:::PARAMETER=SIZE;",
        "ED-EQPT::TIMEOUT:c:::ADMIN=soon;",
        "SET-PORT-ATTEN::1:c:::MODE=ABSOLUTE,LEVEL=-5;",
        "SET-PORT-ATTEN::17:c:::MODE=LOUD,LEVEL=-5;",
        "SET-PORT-ATTEN::17:c:::MODE=ABSOLUTE,LEVEL=nan;",
        "set-port-pmon::1&&4:c:::wave=red;",
        "OPR-PORT-FLAP::1:c:;",
        "ENT-PORT-FLAP::1:c::1000,0,1;",
    ],
)
async def test_a_wrong_command_is_denied_and_changes_nothing(start: Start, command: str) -> None:
    device = await start("polatis-tl1", preset=[["1", "17"]])
    client = await entered(device)
    assert denied(await client.ask(command))
    assert device.plant.writes == 0 and device.lit() == {("1", "17")}


async def test_shutters_are_read_closed_and_opened(start: Start) -> None:
    device = await start("polatis-tl1", preset=[["1", "17"]])
    client = await entered(device)
    assert await rows(client, "RTRV-PORT-SHUTTER::1&&3:c:;") == ["1:OPEN", "2:OPEN", "3:OPEN"]
    assert "COMPLD" in await client.ask("OPR-PORT-SHUTTER::1:c:;")
    device.server.add_fault("failed-port", port="18")
    assert await rows(client, "RTRV-PORT-SHUTTER::1&17&18:c:;") == [
        "1:CLOSED",
        "17:OPEN",
        "18:FAILED",
    ]
    assert device.lit() == set()
    assert denied(await client.ask("ENT-PATCH::1,18:c:;"))
    assert "COMPLD" in await client.ask("RLS-PORT-SHUTTER::1:c:;")
    await device.settle()
    assert device.lit() == {("1", "17")}


async def test_powers_and_monitors_are_read_by_port(start: Start) -> None:
    device = await start("polatis-tl1", preset=[["1", "17"]])
    client = await entered(device)
    powers = await rows(client, "RTRV-PORT-POWER::1&&32:c:;")
    assert len(powers) == 32 and all(re.fullmatch(r"\d+:-?\d+\.\d\d", row) for row in powers)
    assert "COMPLD" in await client.ask("set-port-pmon::1&&4:1:::wave=1310;")
    monitors = await rows(client, "RTRV-PORT-PMON::4&5:c:;")
    assert [row.split(":")[1].split(",")[0] for row in monitors] == ["1310", "1550"]
    assert (await rows(client, "RTRV-EQPT::PMON:c:::PARAMETER=CONFIG;"))[0].startswith(
        "PMON::PORT=1,MODE="
    )
    blind = await entered(await start("polatis-tl1", name="ocs2", model="I-OST-16x16-LU1-DMHNS"))
    assert denied(await blind.ask("RTRV-PORT-POWER::1&&32:c:;"))


async def test_a_label_may_hold_what_separates_commands(polatis: Device) -> None:
    client = await entered(polatis)
    assert "COMPLD" in await client.ask('ED-PORT-LABEL::2:123:::LABEL="rack 7; a:b,c=d";')
    assert isinstance(polatis.server.dialect, PolatisTl1)
    assert polatis.server.dialect.labels == {"2": "rack 7; a:b,c=d"}


async def test_the_idle_time_of_sessions_can_be_set(start: Start) -> None:
    device = await start("polatis-tl1", idle_s=0.1)
    assert await (await device.connect()).ended(0.5) == b""
    client = await entered(device)
    assert "COMPLD" in await client.ask("ED-EQPT::TIMEOUT:123:::ADMIN=60;")
    assert await client.reader.read(2) == b"\r\n" and await client.silent(0.2)
    assert "COMPLD" in await client.ask("RTRV-HDR:::c:;")


async def test_a_flap_takes_the_light_away_and_brings_it_back_so_often(start: Start) -> None:
    device = await start("polatis-tl1", preset=[["1", "17"], ["2", "18"]], settle_s=0.01)
    client = await entered(device)
    assert "COMPLD" in await client.ask("ENT-PORT-FLAP::17:123::80,40,2;")
    assert device.lit() == {("1", "17"), ("2", "18")}
    device.light.clear()
    assert "COMPLD" in await client.ask("OPR-PORT-FLAP::17:123:;")
    assert device.lit() == {("2", "18")}
    await until(lambda: len(device.light) >= 4)
    assert [("1", "17") in lit for _, lit in device.light] == [False, True, False, True]
    assert all(("2", "18") in lit for _, lit in device.light)


async def test_a_released_flap_leaves_the_port_open(start: Start) -> None:
    device = await start("polatis-tl1", preset=[["1", "17"]])
    client = await entered(device)
    await client.ask("ENT-PORT-FLAP::1:1::10000,10000,0;")
    await client.ask("OPR-PORT-FLAP::1:2:;")
    assert device.lit() == set()
    assert "COMPLD" in await client.ask("RLS-PORT-FLAP::1:3:;")
    await device.settle()
    assert device.lit() == {("1", "17")}


async def test_attenuators_weaken_hold_and_converge(start: Start) -> None:
    device = await start("polatis-tl1", preset=[["1", "17"]])
    client = await entered(device)
    before = device.plant.true_dbm(("out", "17"), 0.0)

    def now_dbm() -> float:
        return float(device.plant.true_dbm(("out", "17"), 0.0))

    assert len(await rows(client, "RTRV-EQPT::ATTEN:123:::PARAMETER=CONFIG;")) == 16
    assert "COMPLD" in await client.ask("SET-PORT-ATTEN::17:123:::MODE=RELATIVE,LEVEL=3,REFS=;")
    assert now_dbm() == pytest.approx(before - 3.0)
    assert await rows(client, "RTRV-PORT-ATTEN::17:1:;") == ["17:MODE=RELATIVE,LEVEL=3.00,REFS="]
    assert "COMPLD" in await client.ask("SET-PORT-ATTEN::17:123:::MODE=RELATIVE,LEVEL=10,REFS=1;")
    assert now_dbm() == pytest.approx(-10.0)
    assert "COMPLD" in await client.ask("SET-PORT-ATTEN::17:123:::MODE=ABSOLUTE,LEVEL=-8;")
    device.server.set_input("1", -1.0)
    assert now_dbm() == pytest.approx(-8.0)
    assert "COMPLD" in await client.ask("SET-PORT-ATTEN::17:123:::MODE=CONVERGED,LEVEL=-9;")
    device.server.set_input("1", -2.0)
    assert now_dbm() == pytest.approx(-10.0)
    assert "COMPLD" in await client.ask("SET-PORT-ATTEN::17:123:::MODE=NONE;")
    assert now_dbm() == pytest.approx(before - 2.0)


@pytest.mark.parametrize(("mode", "back"), [("AUTOSAVE", {("1", "17")}), ("DARK", set())])
async def test_the_boot_mode_decides_what_a_power_cycle_keeps(
    start: Start, mode: str, back: set[tuple[str, str]]
) -> None:
    device = await start("polatis-tl1", preset=[["1", "17"]], boot_mode=mode, boot_s=0.0)
    device.server.add_fault("reboot-keep")
    await device.settle()
    assert device.lit() == back
