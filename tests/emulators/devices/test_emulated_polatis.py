"""Polatis over SCPI: what is said, what is kept silent, and what the glass does."""

import asyncio

import pytest

from tests.emulators.emulated import Device, Start

STATE = ":oxc:swit:conn:stat?"


async def test_case_and_length_of_mnemonics_and_the_leading_colon_do_not_matter(
    polatis: Device,
) -> None:
    client = await polatis.connect()
    for spelling in (
        ":OXC:SWITCH:SIZE?",
        ":oxc:swit:size?",
        "oxc:switch:SIZE?",
        " :Oxc:Swit:Size? \r",
    ):
        assert await client.line(spelling) == "16,16"


async def test_set_commands_are_silent_and_make_light_after_the_settling_time(start: Start) -> None:
    polatis = await start("polatis-scpi", settle_s=0.1)
    client = await polatis.connect()
    client.send(":oxc:swit:conn:add (@1,2),(@17,18)\n")
    assert await client.line(STATE) == "(@),(@)"
    await polatis.settle()
    assert await client.line(STATE) == "(@1,2),(@17,18)"
    ((_, lit),) = polatis.light
    assert lit == {("1", "17"), ("2", "18")}
    assert polatis.plant.writes == 1


async def test_breaking_is_dark_before_the_next_answer(polatis: Device) -> None:
    client = await polatis.connect()
    client.send(":oxc:swit:conn:add (@1),(@17)\n")
    await polatis.settle()
    assert await client.line(f":oxc:swit:conn:sub (@1),(@17);{STATE}") == "(@),(@)"
    assert polatis.light[-1][1] == frozenset()


async def test_only_keeps_what_stays_and_frees_ports_before_their_reuse(start: Start) -> None:
    polatis = await start("polatis-scpi", settle_s=0.1)
    client = await polatis.connect()
    client.send(":oxc:swit:conn:add (@1,2,3),(@17,18,19)\n")
    await polatis.settle()
    stamp = polatis.plant.since(("1", "17"))
    client.send(":oxc:swit:conn:only (@1,2,3),(@17,19,18)\n")
    assert await client.line(":syst:err?") == '0,"No error"'
    assert polatis.lit() == {("1", "17")}
    await polatis.settle()
    assert await client.line(STATE) == "(@1,2,3),(@17,19,18)"
    assert polatis.plant.since(("1", "17")) == stamp
    assert not polatis.plant.violations


async def test_an_impossible_pair_is_not_made_and_only_the_error_queue_says_so(
    polatis: Device,
) -> None:
    client = await polatis.connect()
    client.send(":oxc:swit:conn:add (@1),(@17)\n:oxc:swit:conn:add (@1,2,3,99),(@18,17,19,20)\n")
    await polatis.settle()
    assert await client.line(STATE) == "(@1,3),(@17,19)"
    errors = await client.line(":system:error:all?")
    assert errors.count("in use") == 2
    assert "no in port 99" in errors
    assert await client.line(":syst:err?") == '0,"No error"'
    assert len(polatis.plant.violations) == 2


async def test_a_list_longer_than_the_other_changes_nothing(polatis: Device) -> None:
    client = await polatis.connect()
    assert (await client.line(":oxc:swit:conn:add (@1,2),(@17);:syst:err?")).startswith("-221,")
    assert polatis.plant.writes == 0


async def test_compound_queries_answer_in_one_line_and_paths_continue(polatis: Device) -> None:
    client = await polatis.connect()
    assert (
        await client.line(":oxc:swit:size?;conn:stat?;:syst:err?") == '16,16;(@),(@);0,"No error"'
    )


async def test_opc_answers_when_the_mirrors_rest(start: Start) -> None:
    device = await start("polatis-scpi", settle_s=0.1)
    client = await device.connect()
    assert await client.line("*OPC?") == "1"
    assert await client.line(":oxc:swit:conn:add (@1:3),(@19:17);*opc?") == "1"
    assert await client.line(STATE) == "(@1,2,3),(@19,18,17)"


@pytest.mark.parametrize(("line_end", "sent"), [("crlf", b"\r\n"), ("lf", b"\n"), ("cr", b"\r")])
async def test_an_answer_ends_as_the_firmware_ends_it(
    start: Start, line_end: str, sent: bytes
) -> None:
    client = await (await start("polatis-scpi", line_end=line_end)).connect()
    client.send(":oxc:swit:size?\n*stb?\n")
    assert await client.reader.readuntil(b"0" + sent) == b"16,16" + sent + b"0" + sent


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (":oxc:swit:nonsense?", "-113"),
        ("garbage \xff", "-113"),
        ("*tst?", "-113"),
        (":oxc:swit:conn:add", "-109"),
        (":oxc:swit:conn:add (@1:),(@17)", "-104"),
        (":oxc:swit:conn:port? 99", "-222"),
        (":oxc:swit:port:dis (@99)", "-222"),
        (":oxc:boot:mode PERHAPS", "-104"),
        (":pmon:pow? (@99)", "-222"),
    ],
)
async def test_a_wrong_message_is_silent_and_leaves_an_error(
    polatis: Device, message: str, code: str
) -> None:
    client = await polatis.connect()
    client.send(message + "\n")
    assert (await client.line(":syst:err?")).startswith(code + ",")
    assert polatis.plant.writes == 0


async def test_the_status_byte_shows_waiting_errors_and_cls_forgets_them(polatis: Device) -> None:
    client = await polatis.connect()
    assert await client.line("bad\n*stb?") == "4"
    assert await client.line("*cls;*stb?") == "0"


async def test_power_is_read_with_two_decimals_where_the_model_has_meters(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    client = await device.connect()
    ingress, egress, free = (
        float(x) for x in (await client.line(":pmon:pow? (@1,17,18)")).strip("()").split(",")
    )
    assert -1.5 < ingress < 1.5
    assert -4.5 < egress < 0.5
    assert free == -60.0


@pytest.mark.parametrize(
    ("model", "answered"), [("I-OST-16x16-LU1-DMHNS", []), ("N-VST-16x16-LA1-DMHNV-701", ["17"])]
)
async def test_the_model_decides_which_ports_have_meters(
    start: Start, model: str, answered: list[str]
) -> None:
    device = await start("polatis-scpi", model=model)
    client = await device.connect()
    for port in ("1", "17"):
        answer = await client.line(f":pmon:pow? (@{port});:syst:err?")
        assert answer.startswith("(" if port in answered else "-200,")


async def test_no_more_than_256_ports_are_metered_at_once(start: Start) -> None:
    device = await start("polatis-scpi", size="192x192")
    client = await device.connect()
    ports = [str(n) for n in range(1, 258)]
    assert (await client.line(f":pmon:pow? (@{','.join(ports)});:syst:err?")).startswith("-222,")
    assert (await client.line(f":pmon:pow? (@{','.join(ports[:256])})")).count(",") == 255


async def test_a_disabled_port_is_dark_and_takes_no_new_circuit(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]])
    client = await device.connect()
    assert await client.line(":oxc:swit:port:dis (@1,2);stat? (@1,2,3)") == "(D,D,E)"
    assert device.lit() == set()
    assert "disabled" in await client.line(":oxc:swit:conn:add (@2),(@18);:syst:err?")
    client.send(":oxc:swit:port:enab (@1)\n")
    await device.settle()
    assert device.lit() == {("1", "17")}


@pytest.mark.parametrize(
    ("mode", "restored"), [("DARK", ""), ("RESTore", "1"), ("AUTosave", "1,2")]
)
async def test_boot_mode_decides_what_a_power_cycle_keeps(
    start: Start, mode: str, restored: str
) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]], boot_s=0.1)
    client = await device.connect()
    assert await client.line(f":oxc:boot:mode {mode};mode?") == mode[:4].upper()
    client.send(":oxc:swit:conn:add (@2),(@18)\n")
    await device.settle()
    device.server.add_fault("reboot-keep")
    assert await client.ended() == b""
    assert device.lit() == set()
    away = await device.connect()
    assert await away.ended() == b""
    await asyncio.sleep(0.15)
    client = await device.connect()
    assert (await client.line(STATE)).startswith(f"(@{restored})")


async def test_a_switch_that_boots_dark_forgets_what_was_there_before(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"]], boot_mode="dark", boot_s=0.0)
    device.server.add_fault("reboot-keep")
    await device.settle()
    assert device.lit() == set()


async def test_two_clients_see_one_switch(start: Start) -> None:
    polatis = await start("polatis-scpi", settle_s=0.1)
    one, other = await polatis.connect(), await polatis.connect()
    assert await one.line(f":oxc:swit:conn:add (@1),(@17);{STATE}") == "(@),(@)"
    await polatis.settle()
    assert await other.line(STATE) == "(@1),(@17)"


async def test_commands_closer_together_than_the_switch_can_take_are_lost(start: Start) -> None:
    device = await start("polatis-scpi", min_gap_s=0.05)
    client = await device.connect()
    client.send(":oxc:swit:conn:add (@1),(@17)\n:oxc:swit:conn:add (@2),(@18)\n")
    await asyncio.sleep(0.1)
    assert await client.line(STATE) == "(@1),(@17)"
    client.send("*IDN?\n")
    assert await client.silent()


async def test_reset_frees_and_opens_every_port(start: Start) -> None:
    device = await start("polatis-scpi", preset=[["1", "17"], ["2", "18"]])
    client = await device.connect()
    assert (
        await client.line(f":oxc:swit:port:dis (@2);*rst;{STATE};:oxc:swit:port:stat? (@2)")
        == "(@),(@);(E)"
    )
    assert device.lit() == set() and device.plant.writes == 2


async def test_the_network_address_is_told_as_a_real_one_does(polatis: Device) -> None:
    client = await polatis.connect()
    address = 'IP="192.168.1.1" Gateway="0.0.0.0" Mask="255.255.255.0" Broadcast="192.168.1.255"'
    for spelling in (":syst:comm:netw:addr?", ":SYSTEM:COMMUNICATE:NETWORK:ADDRESS?"):
        assert await client.line(spelling) == address
