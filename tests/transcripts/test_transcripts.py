"""What devices are known to have said, played back over a socket: first to the parsers, then to the
drivers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drivers.api import CircuitSwitch, PortControl, PortHolders, PowerMeter
from drivers.link import open_link
from drivers.registry import open_device
from drivers.session.tl1 import Tl1Session, retrieve
from drivers.wire import tl1
from optics import Change, CrossConnect, DeviceConfig, Identity, Port, PortState
from tests.transcripts import player as transcripts
from tests.transcripts.player import GRADES, Player, names, read_transcript

PIECES = [None, 7, 1]


@asynccontextmanager
async def played(
    name: str, driver: str, piece: int | None
) -> AsyncIterator[tuple[CircuitSwitch, Player]]:
    async with Player(read_transcript(name), piece) as player:
        config = DeviceConfig(
            "ocs1", driver, f"tcp://127.0.0.1:{player.port}", "user", "password", timeout_s=2.0
        )
        device = open_device(config)
        try:
            yield device, player
        finally:
            await device.close()


def circuit(a: str, b: str) -> CrossConnect:
    return CrossConnect(Port("ocs1", a), Port("ocs1", b))


@pytest.mark.parametrize("name", names())
def test_every_transcript_states_its_source_and_its_grade(name: str) -> None:
    transcript = read_transcript(name)
    assert transcript.grade in GRADES
    assert len(transcript.source) > 20
    assert all(exchange.answer for exchange in transcript.exchanges)


def test_a_transcript_without_a_grade_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.txt").write_text("# source: somewhere public, long enough\n> A;\n< ;\n")
    monkeypatch.setattr(transcripts, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="no grade"):
        read_transcript("x")


@pytest.mark.parametrize("name", [name for name in names() if read_transcript(name).tl1])
@pytest.mark.parametrize("piece", PIECES)
async def test_every_tl1_transcript_is_read_as_one_answer_per_question(
    name: str, piece: int | None
) -> None:
    transcript = read_transcript(name)
    async with Player(transcript, piece) as player:
        reader, writer = await asyncio.open_connection("127.0.0.1", player.port)
        parser = tl1.Parser()
        for exchange in transcript.exchanges:
            writer.write(exchange.question.encode())
            answers: list[tl1.Reply] = []
            async with asyncio.timeout(5):
                while not answers:
                    messages = parser.feed(await reader.read(4096))
                    assert not [m for m in messages if isinstance(m, tl1.Unreadable)]
                    answers += [m for m in messages if isinstance(m, tl1.Reply)]
            written = [
                line.strip()[1:-1]
                for _, lines in exchange.answer
                for line in lines
                if line.strip().startswith('"')
            ]
            assert len(answers) == 1
            assert answers[0].completed
            assert [row for row in written if ",LOS," not in row] == list(answers[0].rows)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("piece", PIECES)
async def test_the_calient_driver_identifies_the_captured_switch(piece: int | None) -> None:
    async with Player(read_transcript("calient-inventory", "calient-login"), piece) as player:
        device = open_device(
            DeviceConfig(
                "ocs1", "calient-tl1", f"tcp://127.0.0.1:{player.port}", "zpollock", "password"
            )
        )
        labels = ("1.1.1", "1.1.2", "1.2.1", "6.1.1")
        try:
            assert await device.identify() == Identity(
                "Calient", "S162", "C00002227", "6.0-3", labels, labels
            )
            # Both captured connections are reserved: they hold ports and carry no light.
            assert await device.read() == frozenset()
            assert isinstance(device, PowerMeter)
            assert await device.power([Port("ocs1", "1.1.1")]) == {}
        finally:
            await device.close()
        assert player.asked[0].startswith("ACT-USER::zpollock:")


@pytest.mark.parametrize("piece", PIECES)
async def test_the_calient_driver_makes_and_breaks_the_recorded_circuit(piece: int | None) -> None:
    async with Player(read_transcript("calient-circuit", "calient-login"), piece) as player:
        device = open_device(
            DeviceConfig(
                "ocs1", "calient-tl1", f"tcp://127.0.0.1:{player.port}", "user", "password"
            )
        )
        wanted = frozenset({circuit("1.1.1", "1.1.2")})
        try:
            made = await device.apply(Change("ocs1", add=wanted))
            assert (made.observed, made.failed, made.writes) == (wanted, {}, 2)
            broken = await device.apply(Change("ocs1", remove=wanted))
            assert (broken.observed, broken.failed, broken.writes) == (frozenset(), {}, 2)
        finally:
            await device.close()
        steps = [
            question.split(":")[0]
            for question in player.asked
            if "-CRS" in question and "RTRV" not in question
        ]
        assert steps == ["ENT-CRS", "ACT-CRS", "CANC-CRS", "DLT-CRS"]


@pytest.mark.parametrize("piece", PIECES)
async def test_the_polatis_driver_reads_what_polatis_switches_say(piece: int | None) -> None:
    async with played("polatis-scpi", "polatis-scpi", piece) as (device, _):
        identity = await device.identify()
        assert (identity.vendor, identity.model, identity.serial, identity.firmware) == (
            "Polatis",
            "N-VST-192x192-LA1-DMHNV-701",
            "001705",
            "6.5.1.7",
        )
        assert (
            identity.ingress[0],
            identity.ingress[-1],
            identity.egress[0],
            identity.egress[-1],
        ) == ("1", "192", "193", "384")
        wanted = frozenset({circuit("1", "193"), circuit("2", "194"), circuit("3", "195")})
        outcome = await device.apply(Change("ocs1", add=wanted))
        assert (outcome.observed, outcome.failed, outcome.writes) == (wanted, {}, 1)
        assert isinstance(device, PowerMeter)
        assert await device.power([Port("ocs1", "193"), Port("ocs1", "194")]) == {
            Port("ocs1", "193"): -29.55,
            Port("ocs1", "194"): -30.05,
        }


@pytest.mark.parametrize("piece", PIECES)
async def test_the_santec_driver_waits_for_the_condition_of_a_chassis_and_uses_its_1xn_module(
    piece: int | None,
) -> None:
    async with played("santec-sx1", "santec-scpi", piece) as (device, player):
        identity = await device.identify()
        assert (identity.vendor, identity.model, identity.serial, identity.firmware) == (
            "Santec",
            "OSX-100",
            "SIM001",
            "1.0.0",
        )
        assert (identity.ingress, len(identity.egress), identity.egress[-1]) == (
            ("0.in",),
            24,
            "0.24",
        )
        old, new = frozenset({circuit("0.in", "0.1")}), frozenset({circuit("0.in", "0.3")})
        outcome = await device.apply(Change("ocs1", old, new))
        assert (outcome.observed, outcome.failed, outcome.writes) == (new, {}, 1)
        assert player.asked.count("STAT:OPER:COND?") == 4


async def test_the_map_of_a_polatis_switch_is_parallel_by_position() -> None:
    async with played("polatis-ost", "polatis-scpi", None) as (device, player):
        assert await device.read() == {circuit("1", "19"), circuit("2", "18"), circuit("3", "22")}
        assert isinstance(device, PowerMeter)
        assert await device.power([Port("ocs1", "19")]) == {}  # I-OST: no meters, and none asked
        assert not [question for question in player.asked if "pmon" in question]


@pytest.mark.parametrize("piece", PIECES)
async def test_the_glimmerglass_driver_reads_both_kinds_of_rows_in_two_blocks_behind_an_echo(
    piece: int | None,
) -> None:
    async with played("glimmerglass-rows", "glimmerglass-tl1", piece) as (device, _):
        identity = await device.identify()
        assert (identity.model, identity.serial, identity.firmware) == (
            "System300",
            "GG-0042",
            "4.2.1",
        )
        assert (identity.ingress[-1], identity.egress[0]) == ("10048", "20001")
        # The dark circuit stands; the one whose connection timer expired although it has light does
        # not.
        assert await device.read() == {circuit("10001", "20002"), circuit("10031", "20007")}
        assert isinstance(device, PowerMeter)
        ports = [Port("ocs1", label) for label in ("10001", "10003", "20002")]
        assert await device.power(ports) == {ports[0]: -3.12, ports[2]: -4.203}


async def test_a_lock_in_a_captured_row_is_reported_with_its_holder() -> None:
    async with played("glimmerglass-rows", "glimmerglass-tl1", None) as (device, player):
        outcome = await device.apply(Change("ocs1", remove=frozenset({circuit("10031", "20007")})))
        assert outcome.failed == {circuit("10031", "20007"): "port 10031 is locked by bench2"}
        assert not [question for question in player.asked if question.startswith("dlt")]


@pytest.mark.parametrize("piece", PIECES)
async def test_the_polatis_tl1_driver_reads_what_its_clients_expect(piece: int | None) -> None:
    async with played("polatis-tl1", "polatis-tl1", piece) as (device, _):
        identity = await device.identify()
        assert (identity.vendor, identity.model, identity.serial) == (
            "Polatis",
            "N-VST-192x192-LA1-DMHNV-701",
            "001705",
        )
        assert (identity.firmware, identity.ingress[-1], identity.egress[0]) == (
            "6.5.1.7",
            "192",
            "193",
        )
        assert await device.read() == {circuit("1", "193"), circuit("2", "200")}
        assert isinstance(device, PowerMeter) and isinstance(device, PortControl)
        assert await device.power([Port("ocs1", "193"), Port("ocs1", "200")]) == {
            Port("ocs1", "193"): -12.34
        }
        states = await device.port_states([Port("ocs1", "1"), Port("ocs1", "2")])
        assert set(states.values()) == {PortState.ENABLED}


async def test_the_calient_driver_takes_rows_names_and_meters_of_the_pxc_era() -> None:
    async with played("calient-pxc", "calient-tl1", None) as (device, player):
        assert await device.read() == {circuit("0.7b.4", "0.7b.6"), circuit("10.2a.2", "10.2a.1")}
        assert isinstance(device, PowerMeter)
        out, into = Port("ocs1", "0.7b.6"), Port("ocs1", "0.7b.6:in")
        for _ in range(2):
            assert await device.power([out, into]) == {out: -4.9, into: -3.4}
        asked = [
            question.split(":")[0]
            for question in player.asked
            if "POWER" in question or "-SUM" in question or "-DET-" in question
        ]
        # denied once, not asked again
        assert asked == ["RTRV-PORT-SUM", "RTRV-DET-EQPT", "RTRV-DET-EQPT"]


@pytest.mark.parametrize("piece", PIECES)
async def test_the_calient_driver_passes_a_notice_full_of_alarming_words_and_tells_who_holds_ports(
    piece: int | None,
) -> None:
    async with Player(
        read_transcript("calient-reserved-dark", "calient-login-fails"), piece
    ) as player:
        device = open_device(
            DeviceConfig(
                "ocs1", "calient-tl1", f"tcp://127.0.0.1:{player.port}", "operator", "password"
            )
        )
        try:
            assert await device.read() == {
                circuit("9.12b.3", "9.12b.4"),
                circuit("9.12b.4", "9.12b.3"),
            }
            assert isinstance(device, PortHolders)
            assert device.holders() == {
                circuit("1.4.2", "2.6.1"): "AS=UMA,OS=RDY,OC=OK in group 'WEST'",
                circuit("2.6.1", "1.4.2"): "AS=UMA,OS=RDY,OC=OK in group 'WEST'",
                circuit("3.1.7", "4.2.2"): "AS=UMA,OS=RDY,OC=FAIL in group 'WEST'",
            }
            # A connection is taken down under its own name, not under the one its ports would give
            # it.
            await device.apply(
                Change(
                    "ocs1",
                    remove=frozenset(
                        {circuit("9.12b.3", "9.12b.4"), circuit("9.12b.4", "9.12b.3")}
                    ),
                )
            )
        finally:
            await device.close()
        assert [
            question.split(":", 4)[4] for question in player.asked if question.startswith("DLT-CRS")
        ] == [":,BENCH,12B.3_TO_12B.4;"]


@pytest.mark.parametrize("piece", PIECES)
async def test_ninety_six_ports_in_four_blocks_are_one_answer(piece: int | None) -> None:
    async with Player(read_transcript("glimmerglass-96-ports"), piece) as player:
        session = Tl1Session(
            open_link(f"tcp://127.0.0.1:{player.port}", 2.0, "ocs1"), "", "", window=1
        )
        try:
            reply = await session.ask(retrieve("RTRV-CFG-FIBER", "10001&&10048&20001&&20048"))
        finally:
            await session.close()
    ports = {tl1.parse_row(row)["PORTID"] for row in reply.rows}
    assert len(reply.rows) == len(ports) == 96 and not reply.stray


@pytest.mark.parametrize("piece", PIECES)
async def test_the_glimmerglass_driver_reads_older_rows_and_tells_of_a_fault_that_has_light(
    piece: int | None,
) -> None:
    async with played("glimmerglass-older", "glimmerglass-tl1", piece) as (device, _):
        assert await device.read() == {circuit("10011", "20034"), circuit("10040", "20041")}
        assert isinstance(device, PortHolders) and isinstance(device, PowerMeter)
        words = "CONNSTATE=fault,CONNCAUSE=initial_connection_timer_expired"
        assert device.holders() == {circuit("10012", "20035"): words}
        ports = [Port("ocs1", label) for label in ("10040", "10011", "20041")]
        assert await device.power(ports) == {ports[0]: -6.204, ports[2]: -7.115}
