"""DiCon GP600: what autosweep says to one, what is silent, and what the glass does."""

import pytest

from tests.emulators.emulated import Device, Start


@pytest.fixture
async def dicon(start: Start) -> Device:
    return await start("dicon-scpi", size="4x6")


async def test_it_says_who_it_is_what_it_holds_and_how_large_it_is(dicon: Device) -> None:
    client = await dicon.connect()
    assert await client.line("*IDN?") == "Dicon Fiberoptics Inc, GP600, 19A0M10D0117, 7.0"
    assert await client.line("SYST:CONF?") == "X1"
    assert await client.line("X1 DIM?") == "4,6"
    assert await client.line("SYST:ERR?") == "+0, No Error"
    assert "1550" in (await client.line("X1 WAVESAVAIL?")).split(",")


async def test_an_input_is_turned_without_a_word_and_off_again_with_output_zero(
    dicon: Device,
) -> None:
    client = await dicon.connect()
    assert await client.line("X1 CH 1?") == "1,0"
    client.send("X1 CH 1 2\n")
    await dicon.settle()
    assert await client.line("X1 CH 1?") == "1,2"
    assert dicon.lit() == {("1", "2")}
    assert await client.line("X1 CH 1 5;X1 CH 1?") == "1,0"
    await dicon.settle()
    assert dicon.lit() == {("1", "5")}
    assert await client.line("X1 CH 1 0;X1 CH 1?") == "1,0"
    assert dicon.lit() == set() and dicon.plant.writes == 3


async def test_an_output_that_is_taken_is_left_alone_and_only_the_error_queue_says_so(
    dicon: Device,
) -> None:
    client = await dicon.connect()
    client.send("X1 CH 1 2\nX1 CH 3 3\n")
    await dicon.settle()
    client.send("X1 CH 3 2\n")
    await dicon.settle()
    assert dicon.lit() == {("1", "2"), ("3", "3")}
    assert (await client.line("SYST:ERR?")).startswith("-221, Settings conflict")
    assert await client.line("SYST:ERR?") == "+0, No Error"
    assert len(dicon.plant.violations) == 1


async def test_the_error_query_does_not_like_a_leading_colon(dicon: Device) -> None:
    client = await dicon.connect()
    client.send(":SYST:ERR?\n")
    assert (await client.line("SYST:ERR?")).startswith("-113, ")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("X1 CH 9 1", -222),
        ("X1 CH 1 9", -222),
        ("X1 CH 1", -109),
        ("X1 CH a 1", -104),
        ("X2 CH 1 1", -113),
        ("X1 W 900", -222),
    ],
)
async def test_a_wrong_message_is_silent_and_leaves_an_error(
    dicon: Device, message: str, code: int
) -> None:
    client = await dicon.connect()
    client.send(message + "\n")
    assert (await client.line("SYST:ERR?")).startswith(f"{code}, ")
    assert dicon.plant.writes == 0


async def test_reset_turns_every_input_off_and_the_wavelength_can_be_set(start: Start) -> None:
    device = await start("dicon-scpi", preset=[["1", "2"], ["2", "1"]])
    client = await device.connect()
    assert await client.line("RESET;X1 CH 1?") == "1,0"
    assert device.lit() == set()
    assert await client.line("X1 W 1310;X1 W?") == "1310"


@pytest.mark.parametrize(("autosave", "back"), [("1", {("1", "2")}), ("0", set())])
async def test_autosave_decides_what_a_power_cycle_keeps(
    start: Start, autosave: str, back: set[tuple[str, str]]
) -> None:
    device = await start("dicon-scpi", boot_s=0.0)
    client = await device.connect()
    assert await client.line(f"WEN {autosave};X1 CH 1 2;SYST:ERR?") == "+0, No Error"
    await device.settle()
    device.server.add_fault("reboot-keep")
    await device.settle()
    assert device.lit() == back


async def test_without_autosave_what_was_there_before_does_not_come_back(start: Start) -> None:
    device = await start("dicon-scpi", preset=[["1", "2"]], boot_s=0.0)
    device.server.add_fault("reboot-keep")
    await device.settle()
    assert device.lit() == set()


# ---- other products of the vendor


async def test_a_matrix_module_answers_as_its_lab_asks(start: Start) -> None:
    device = await start(
        "dicon-scpi", size="8x8", module=True, model="MEMS UFA", preset=[["1", "3"], ["2", "1"]]
    )
    client = await device.connect()
    client.send("ID?\n")
    assert await client.reader.readuntil(b"\n") == b"DiCon Fiberoptics Inc, MEMS UFA\r\n"
    assert [await client.line(f"X1 CH? {n}") for n in (1, 2, 3)] == ["3", "1", "0"]
    client.send("X1 CH * 0\n")
    assert await client.line("SYST:ERR?") == "+0, No Error"
    assert device.lit() == set() and device.plant.writes == 1


async def test_a_matrix_module_starts_anew_on_request(start: Start) -> None:
    device = await start("dicon-scpi", module=True, autosave=True, preset=[["1", "3"]], boot_s=0.0)
    client = await device.connect()
    client.send("REBOOT\n")
    await client.ended()
    await device.settle()
    assert device.lit() == {("1", "3")}


@pytest.mark.parametrize("message", ["X1 CH? 1", "X1 CH * 0", "ID?", "REBOOT"])
async def test_a_chassis_does_not_know_the_words_of_a_module(start: Start, message: str) -> None:
    device = await start("dicon-scpi", preset=[["1", "2"]])
    client = await device.connect()
    client.send(message + "\n")
    assert (await client.line("SYST:ERR?")).split(",")[0] in ("-113", "-104")
    assert device.lit() == {("1", "2")}


async def test_an_mxs_9100_says_it_is_an_mg4_and_knows_no_x1(start: Start) -> None:
    device = await start("dicon-scpi", model="MG4", serial="[serial]", firmware="[revision]")
    client = await device.connect()
    client.send("*IDN?\r")
    assert await client.line() == "DiCon Fiberoptics Inc, MG4, [serial], [revision]"
    client.send("STAT?\r\nSYST:CONF?\rX1 DIM?\rSYST:ERR?\r")
    assert [await client.line(), (await client.line()).split(",")[0]] == ["READY", "-113"]
