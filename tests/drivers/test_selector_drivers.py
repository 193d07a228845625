"""Switches of one common port and its channels, and those that share their grammar: what is sent,
and what is believed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from drivers.api import CircuitSwitch
from drivers.registry import open_device
from drivers.santec_scpi import catalogue, rests
from optics import BadFile, Change, CrossConnect, DeviceConfig, Garbled, Outcome, Port, Refused
from tests.drivers.scripted import spoken_to

MOVE_S = 0.05


def circuit(ingress: str, egress: str) -> CrossConnect:
    return CrossConnect(Port("ocs1", ingress), Port("ocs1", egress))


async def change(
    device: CircuitSwitch, remove: Iterable[CrossConnect] = (), add: Iterable[CrossConnect] = ()
) -> Outcome:
    return await device.apply(Change("ocs1", frozenset(remove), frozenset(add)))


@dataclass
class Talker:
    """A device of a few lines; `answer` may return None for silence. heard: every line that is no
    question.
    """

    answer: Callable[[str], str | None]
    end: bytes = b"\n"
    heard: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def driver(self, name: str, **options: str) -> AsyncIterator[CircuitSwitch]:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            buffer = b""
            while data := await reader.read(4096):
                *lines, buffer = (buffer + data).split(self.end)
                for line in lines:
                    text = line.decode()
                    if not text.endswith("?"):
                        self.heard.append(text)
                    if (output := self.answer(text)) is not None:
                        writer.write(output.encode() + self.end)
            writer.close()

        traits = {"settle_s": MOVE_S}
        async with spoken_to(
            talk, name, traits=traits, options={"patience_s": "0.3", **options}
        ) as device:
            yield device


class Chassis:
    """A Santec chassis: a 1x4, a 2x6 and a 1x3 module; a command sent while one turns is lost."""

    def __init__(self) -> None:
        self.channels = {0: 1, 2: 1}
        self.errors: list[str] = []
        self.free_at = 0.0
        self.stuck = False

    def __call__(self, line: str) -> str | None:
        now = asyncio.get_running_loop().time()
        sizes = {0: 4, 2: 3}
        if line == "*IDN?":
            return "Santec,OSX-100,S123,1.0.0"
        if line == "MODule:CATalog?":
            return '"SX 1Ax4","SX 2Bx6","SX 1Ax3"'
        if line == "STAT:OPER:COND?":
            return "1" if self.stuck or now < self.free_at else "0"
        if line == "SYST:ERR?":
            return self.errors.pop(0) if self.errors else '0,"No error"'
        if asked := re.fullmatch(r"ROUTe(\d):CHANnel\?", line):
            return str(self.channels[int(asked[1])])
        if (order := re.fullmatch(r"ROUTe(\d):CHANnel (\d+)", line)) and now >= self.free_at:
            module, channel = int(order[1]), int(order[2])
            if channel > sizes[module] or channel == 2:
                self.errors.append('-222,"Data out of range"')
            else:
                self.channels[module], self.free_at = channel, now + MOVE_S
        return None


async def test_a_chassis_offers_its_modules_of_one_common_port_and_leaves_the_others_alone() -> (
    None
):
    async with Talker(Chassis()).driver("santec-scpi") as device:
        identity = await device.identify()
        assert (identity.ingress, identity.egress) == (
            ("0.in", "2.in"),
            ("0.1", "0.2", "0.3", "0.4", "2.1", "2.2", "2.3"),
        )
        assert await device.read() == {circuit("0.in", "0.1"), circuit("2.in", "2.1")}


async def test_a_circuit_is_moved_by_one_command() -> None:
    held = Talker(Chassis())
    async with held.driver("santec-scpi") as device:
        outcome = await change(device, {circuit("0.in", "0.1")}, {circuit("0.in", "0.3")})
    assert not outcome.failed and outcome.observed == {
        circuit("0.in", "0.3"),
        circuit("2.in", "2.1"),
    }
    assert held.heard == ["ROUTe0:CHANnel 3"]


async def test_each_module_waits_until_the_one_before_rests() -> None:
    held = Talker(Chassis())
    async with held.driver("santec-scpi") as device:
        old, new = (
            {circuit("0.in", "0.1"), circuit("2.in", "2.1")},
            {circuit("0.in", "0.4"), circuit("2.in", "2.3")},
        )
        outcome = await change(device, old, new)
    assert not outcome.failed and outcome.observed == new and outcome.writes == len(held.heard) == 2


async def test_what_another_caller_had_connected_while_this_one_waited_stays() -> None:
    chassis = Chassis()
    held = Talker(chassis)
    async with held.driver("santec-scpi", rest="4") as device:
        await change(device, {circuit("0.in", "0.1")})
        await asyncio.sleep(MOVE_S)
        counted = 0

        def answer(line: str) -> str | None:
            nonlocal counted
            counted += line == "STAT:OPER:COND?"
            if counted == 2:  # asked a second time: the map has been read, nothing is sent yet
                chassis("ROUTe0:CHANnel 3")
            return chassis(line)

        held.answer = answer
        held.heard.clear()
        outcome = await change(device, (), {circuit("0.in", "0.1")})
    assert chassis.channels[0] == 3 and not held.heard
    assert outcome.failed == {circuit("0.in", "0.1"): "ingress port 0.in is held by 0.in->0.3"}


async def test_a_circuit_without_a_successor_stays_where_no_channel_leads_nowhere() -> None:
    held = Talker(Chassis())
    async with held.driver("santec-scpi") as device:
        outcome = await change(device, {circuit("0.in", "0.1")})
    assert not held.heard and outcome.observed == {circuit("0.in", "0.1"), circuit("2.in", "2.1")}
    assert outcome.failed[circuit("0.in", "0.1")] == (
        "0.in is always connected with one of its channels: connect another one in the same change, "
        "or name one that leads nowhere in options.rest"
    )


async def test_a_circuit_ends_at_the_channel_that_leads_nowhere_and_that_channel_is_no_port() -> (
    None
):
    held = Talker(Chassis())
    async with held.driver("santec-scpi", rest="0:4") as device:
        identity = await device.identify()
        assert "0.4" not in identity.egress and "0.4" in identity.dark
        outcome = await change(device, {circuit("0.in", "0.1")})
        assert not outcome.failed and outcome.observed == {circuit("2.in", "2.1")}
        refused = await change(device, add={circuit("0.in", "0.4")})
    assert refused.failed == {circuit("0.in", "0.4"): "not a port of ocs1"} and held.heard == [
        "ROUTe0:CHANnel 4"
    ]


async def test_a_circuit_that_was_to_be_displaced_goes_even_if_the_new_one_is_refused() -> None:
    held = Talker(Chassis())
    async with held.driver("santec-scpi", rest="0:4") as device:
        outcome = await change(device, {circuit("0.in", "0.1")}, {circuit("0.in", "0.2")})
    assert outcome.failed == {
        circuit("0.in", "0.2"): 'refused "ROUTe0:CHANnel 2": -222, Data out of range'
    }
    assert outcome.observed == {circuit("2.in", "2.1")}


async def test_a_circuit_that_the_change_does_not_name_is_not_displaced() -> None:
    held = Talker(Chassis())
    async with held.driver("santec-scpi") as device:
        outcome = await change(device, add={circuit("0.in", "0.3")})
    assert (
        outcome.failed == {circuit("0.in", "0.3"): "ingress port 0.in is held by 0.in->0.1"}
        and not held.heard
    )


async def test_a_chassis_that_never_rests_is_sent_nothing() -> None:
    chassis = Chassis()
    chassis.stuck = True
    held = Talker(chassis)
    async with held.driver("santec-scpi") as device:
        outcome = await change(device, {circuit("0.in", "0.1")}, {circuit("0.in", "0.3")})
    assert (
        not held.heard
        and "not sent: the device has been busy for" in outcome.failed[circuit("0.in", "0.3")]
    )


@pytest.mark.parametrize(
    "text", ["", "SX", '"SX 1Ax0"', '"SX 1Ax24" "SX 1Ax24"', "1", '"SX 1Ax24",']
)
def test_a_list_of_modules_in_another_grammar_is_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        catalogue(text)


@pytest.mark.parametrize("text", ["none", "0", "1:", "24,12", "0:1,0:2", "3,1:2"])
def test_a_channel_of_rest_that_cannot_be_one_is_refused_with_the_inventory(text: str) -> None:
    with pytest.raises(ValueError, match="rest"):
        rests(text)


class Platform:
    """An LTB-8 with a 1x4 module at 1. lights: whether SCAN lights a module in its reset
    position.
    """

    def __init__(self, lights: bool) -> None:
        self.lights, self.open, self.channel, self.state = lights, False, 1, "READY"

    def __call__(self, line: str) -> str | None:
        fixed = {
            "*IDN?": "EXFO Inc.,LTB-8,1234,2.1",
            "LINS1:STATus?": self.state,
            "SYST:ERR?": '0,"No error"',
        }
        fixed["INST:CAT:FULL?"] = '"FTBx-1750",3,"FTBx-9160",1'
        if line in fixed:
            return fixed[line]
        verb = line.removeprefix("LINS1:ROUTe:")
        if verb == "PATH:CATalog?":
            return "1x4"
        if verb == "OPEN:STATe?":
            return str(int(self.open))
        if verb == "SCAN?":
            return str(self.channel)
        if verb in ("OPEN", "CLOSe"):
            self.open = verb == "OPEN"
        elif verb.startswith("SCAN "):
            self.channel, self.open = int(verb[5:]), self.open or self.lights
        return None


@pytest.mark.parametrize("lights", [True, False])
async def test_a_module_in_its_reset_position_is_opened_only_if_its_new_channel_is_dark(
    lights: bool,
) -> None:
    held = Talker(Platform(lights))
    async with held.driver("exfo-scpi") as device:
        assert await device.read() == frozenset()
        outcome = await change(device, add={circuit("1.in", "1.3")})
    assert not outcome.failed and outcome.observed == {circuit("1.in", "1.3")}
    assert held.heard == ["LINS1:ROUTe:SCAN 3", *([] if lights else ["LINS1:ROUTe:OPEN"])]


async def test_close_is_what_ends_the_light_of_an_exfo_module() -> None:
    platform = Platform(True)
    platform.open = True
    held = Talker(platform)
    async with held.driver("exfo-scpi") as device:
        outcome = await change(device, {circuit("1.in", "1.1")})
    assert not outcome.failed and not outcome.observed and held.heard == ["LINS1:ROUTe:CLOSe"]


async def test_a_module_that_reports_a_defect_is_an_error_in_its_own_word() -> None:
    platform = Platform(True)
    platform.state = "DEFECTIVE"
    async with Talker(platform).driver("exfo-scpi") as device:
        with pytest.raises(Refused, match="a module reports that it is DEFECTIVE"):
            await device.read()


class Matrix:
    """An MXS-9100 of 3 inputs and 4 outputs; sized: whether it reports that."""

    def __init__(self, sized: bool = True) -> None:
        self.sized, self.outputs = sized, {1: 0, 2: 4, 3: 0}

    def __call__(self, line: str) -> str | None:
        fixed = {
            "*IDN?": "DiCon Fiberoptics Inc, MG4, 91, A2",
            ":STAT?": "READY",
            ":SYST:ERR?": "0, No error",
            ":WEN?": "1",
        }
        if line in fixed:
            return fixed[line]
        if line == ":ROUT:PATH:CAT?":
            return "3x4" if self.sized else None
        if asked := re.fullmatch(r":ROUT(\d):SCAN\?", line):
            return str(self.outputs[int(asked[1])])
        if order := re.fullmatch(r":ROUT(\d):SCAN (\d)", line):
            self.outputs[int(order[1])] = int(order[2])
        return None


@pytest.mark.parametrize(("sized", "options"), [(True, {}), (False, {"size": "3x4"})])
async def test_lines_of_a_dicon_mxs_lead_with_a_colon_and_end_with_a_carriage_return_and_output_zero_is_dark(
    sized: bool, options: dict[str, str]
) -> None:
    held = Talker(Matrix(sized), b"\r")
    async with held.driver("dicon-mxs", **options) as device:
        identity = await device.identify()
        assert (identity.model, identity.serial, len(identity.ingress), len(identity.egress)) == (
            "MG4",
            "91",
            3,
            4,
        )
        outcome = await change(device, {circuit("2", "4")}, {circuit("1", "4"), circuit("2", "1")})
    assert not outcome.failed and outcome.observed == {circuit("1", "4"), circuit("2", "1")}
    assert held.heard == [":ROUT2:SCAN 0", ":ROUT1:SCAN 4", ":ROUT2:SCAN 1"]


class Kit:
    """A Thorlabs kit: the first answer after a change is the state before it."""

    def __init__(self) -> None:
        self.state = self.answer = "1"

    def __call__(self, line: str) -> str | None:
        if line == "I?":
            return "OSW22-1310E v1.0"
        if line == "S?":
            reported, self.answer = self.answer, self.state
            return reported
        self.state = line.removeprefix("S ")
        return None


async def test_an_old_answer_of_a_thorlabs_kit_is_not_believed() -> None:
    kit = Kit()
    async with Talker(kit).driver("thorlabs-osw", model="OSW12") as device:
        kit.state = "2"
        assert await device.read() == {circuit("1", "2")}


async def test_a_kit_that_names_another_model_than_the_inventory_is_refused() -> None:
    async with Talker(Kit()).driver("thorlabs-osw", model="OSW12") as device:
        with pytest.raises(
            Garbled, match=r"options.model is OSW12, it says 'OSW22-1310E v1.0': OSW22"
        ):
            await device.identify()
    async with Talker(Kit()).driver("thorlabs-osw", model="OSW22") as device:
        assert (await device.identify()).ingress == ("1", "2")


async def test_a_2x2_kit_moves_both_circuits_with_one_command() -> None:
    held = Talker(Kit())
    async with held.driver("thorlabs-osw", model="OSW22") as device:
        bar, cross = {circuit("1", "1"), circuit("2", "2")}, {circuit("1", "2"), circuit("2", "1")}
        outcome = await change(device, bar, cross)
    assert not outcome.failed and outcome.observed == cross and held.heard == ["S 2"]


@pytest.mark.parametrize(
    ("remove", "add", "text"),
    [
        ({("1", "1")}, {("1", "2")}, "it would end 2->2, which stays"),
        (
            {("1", "1"), ("2", "2")},
            set(),
            "the switch has no state without light: connect the other port in the same change",
        ),
        ({("1", "1")}, {("1", "2"), ("2", "2")}, "it would end 2->2, which stays"),
    ],
)
async def test_a_2x2_kit_ends_no_circuit_that_stays(
    remove: set[tuple[str, str]], add: set[tuple[str, str]], text: str
) -> None:
    held = Talker(Kit())
    async with held.driver("thorlabs-osw", model="OSW22") as device:
        outcome = await change(device, {circuit(*p) for p in remove}, {circuit(*p) for p in add})
    assert set(outcome.failed.values()) == {text} and not held.heard


def test_a_kit_of_another_model_is_refused_with_the_inventory() -> None:
    with pytest.raises(BadFile, match="model 'OSW44': OSW12 or OSW22"):
        open_device(
            DeviceConfig(
                "ocs1",
                "thorlabs-osw",
                "serial:///dev/ttyUSB0?baud=115200",
                options={"model": "OSW44"},
            )
        )
