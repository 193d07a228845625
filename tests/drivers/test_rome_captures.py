"""ROME port tables as real panels print them: bare labels with two logical names, and connected
rows that do not say to what.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drivers.api import PortHolders
from drivers.registry import open_device
from drivers.wire import joblog
from optics import Change, CrossConnect, DeviceConfig, Garbled, Port
from tests.drivers.scripted import serving

HEAD = """\
================ ============ =========== ============= ======= ============== ========
Port             Admin Status Oper Status Port Status   Counter ConnectedTo    Logical
================ ============ =========== ============= ======= ============== ========
"""
# REAL: rows of a panel of two logical matrices, in the tests of Quali's driver; the rows of the far
# sides are made in their form.
MATRICES = HEAD + "".join(
    f"{line}\n"
    for line in (
        "1AE12            Unlocked     Enabled     Connected     17      W60[1AW60]     E12,A12 ",
        "1AE13            Unlocked     Enabled     Disconnected   17                     E13,Q3 ",
        "1BE33            Unlocked     Enabled     Connected     5       W237[1BW109]   E161,Q9 ",
        "1BE37            Unlocked     Enabled     Disconnected  7                      E165,Q10",
        "1AW60            Unlocked     Enabled     Connected     17      E12[1AE12]     W60,A60 ",
        "1BW22            Locked       Enabled     Disconnected  2                      W150,Q6 ",
        "1BW23            Unlocked     Enabled     Disconnected  0                      W151,Q6 ",
        "1BW109           Unlocked     Enabled     Connected     5       E161[1BE33]    W237,Q9 ",
        "1BW129           Unlocked     Enabled     Disconnected  0                              ",
    )
)
# REAL: the first row; connected, with neither peer nor name.
CHANGED = HEAD + "".join(
    f"{line}\n"
    for line in (
        "1AE1             Unlocked     Enabled     Connected     123           ",
        "E2[1AE2]         Unlocked     Enabled     Disconnected  0                      A2      ",
        "W1[1AW1]         Unlocked     Enabled     Disconnected  0                      A1      ",
        "W2[1AW2]         Unlocked     Enabled     Connected     111     E1[1AE1]       A2      ",
    )
)
BOARD = "ROME TYPE        ROME500\nBOARD            ver(LCU-100) rev(3) S/N(9727-4733-2222)\nACTIVE SW VER    1.10.2.10\n"
LOG = "02-03-2031 04:05 CONNECTION OPERATION SUCCEEDED:E11[1AE11]<->W12[1AW12] OP:connect"


class Panel:
    """A command line that answers with these tables, the last one from then on, and notes what it
    is asked to move.
    """

    def __init__(self, *tables: str, piece: int = 0) -> None:
        self.tables, self.piece = [*tables], piece
        self.asked: list[str] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ROME[TECH]# ")
        while line := (await reader.readline()).decode().strip():
            self.asked.append(line)
            data = (
                f"{line}\r\n{self.answer(line)}\r\nROME[TECH]# ".replace("\n", "\r\n")
                .replace("\r\r", "\r")
                .encode()
            )
            for at in range(0, len(data), self.piece or len(data)):
                writer.write(data[at : at + (self.piece or len(data))])
                await writer.drain()
        writer.close()

    def answer(self, line: str) -> str:
        match line:
            case "show board":
                return BOARD
            case "port show":
                return self.tables.pop(0) if len(self.tables) > 1 else self.tables[0]
            case "connection show pending":
                return "Connection execution status: enabled\n\nno request in process\n"
        return "OK - request added to pending queue (E1-W1)\n"

    @property
    def moves(self) -> list[str]:
        return [line for line in self.asked if "create" in line or "disconnect" in line]


@asynccontextmanager
async def driving(panel: Panel) -> AsyncIterator[Any]:
    options = {"check_s": "0.01", "move_budget_s": "1"}
    async with serving(panel.talk) as port:
        address = f"telnet://127.0.0.1:{port}"
        device = open_device(
            DeviceConfig("ocs1", "rome-cli", address, "", "", {"settle_s": 0.01}, 2.0, options)
        )
        try:
            yield device
        finally:
            await device.close()


def circuits(*pairs: tuple[str, str]) -> frozenset[CrossConnect]:
    return frozenset(CrossConnect(Port("ocs1", a), Port("ocs1", b)) for a, b in pairs)


def test_bare_labels_take_their_number_from_the_first_logical_name() -> None:
    table = joblog.port_table(MATRICES)
    assert not table.strange
    assert [(row.port, row.logical, row.peer) for row in table.rows.values()] == [
        ("E12", "A12", "W60"),
        ("E13", "Q3", None),
        ("E161", "Q9", "W237"),
        ("E165", "Q10", None),
        ("W60", "A60", "E12"),
        ("W150", "Q6", None),
        ("W151", "Q6", None),
        ("W237", "Q9", "E161"),
    ]
    assert [row.port for row in table.rows.values() if row.locked] == ["W150"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_such_a_table_torn_at_any_byte_joins_to_what_it_was(end: str) -> None:
    whole, table = joblog.port_table(MATRICES), MATRICES.replace("\n", end)
    for at in range(len(table) + 1):
        if not at or table[at - 1] != "\r":
            clean, logs = joblog.without_logs(table[:at] + end + LOG + end + end + table[at:])
            assert joblog.port_table(clean) == whole, at
            assert logs == [LOG]


@pytest.mark.parametrize("piece", [0, 7, 1])
async def test_a_panel_of_two_matrices_is_identified_and_read(piece: int) -> None:
    async with driving(Panel(MATRICES, piece=piece)) as device:
        identity = await device.identify()
        assert (identity.ingress, identity.egress) == (
            ("E12", "E13", "E161", "E165"),
            ("W60", "W150", "W151", "W237"),
        )
        assert await device.read() == circuits(("E12", "W60"), ("E161", "W237"))
        assert device.holders() == {}


async def test_a_panel_of_two_matrices_is_changed_by_the_same_numbers() -> None:
    made = MATRICES.replace(
        "Disconnected   17                     E13,Q3",
        "Connected      18     W151[1BW23]     E13,Q3",
    )
    panel = Panel(MATRICES, made)
    async with driving(panel) as device:
        outcome = await device.apply(Change("ocs1", frozenset(), circuits(("E13", "W151"))))
        assert not outcome.failed and outcome.observed == circuits(
            ("E12", "W60"), ("E161", "W237"), ("E13", "W151")
        )
        assert panel.moves == ["connection create E13 to W151"]
        (shut,) = circuits(("E165", "W150"))
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({shut})))
        assert outcome.failed == {shut: "port W150 is locked"}


async def test_a_bare_row_that_is_connected_has_the_number_that_its_peer_gives_it() -> None:
    async with driving(Panel(CHANGED)) as device:
        assert (await device.identify()).ingress == ("E1", "E2")
        assert await device.read() == circuits(("E1", "W2"))
        (held,) = circuits(("E1", "W1"))
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({held})))
        assert outcome.failed == {held: "port E1 is held by E1->W2"}


ALONE = "E2[1AE2]         Unlocked     Enabled     Connected     7                      A2      "


async def test_a_connected_row_without_a_peer_is_unknown_and_never_free() -> None:
    panel = Panel(CHANGED.replace(CHANGED.splitlines()[4], ALONE))
    async with driving(panel) as device:
        assert await device.read() == circuits(("E1", "W2"))
        assert isinstance(device, PortHolders) and [*device.holders()] == [Port("ocs1", "E2")]
        assert "Connected 7 A2" in device.holders()[Port("ocs1", "E2")]
        assert (await device.identify()).ingress == ("E1", "E2")
        (wanted,) = circuits(("E2", "W1"))
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({wanted})))
        assert outcome.failed[wanted].startswith(
            "port E2 is unknown, its row is not understood: 'E2[1AE2] Unlocked"
        )
        outcome = await device.apply(Change("ocs1", frozenset({wanted}), frozenset()))
        assert outcome.failed[wanted].startswith(
            "not known whether it is there: port E2 is unknown"
        )
        assert not panel.moves


async def test_a_connected_port_without_a_number_makes_what_it_reaches_unknown() -> None:
    stray = (
        CHANGED
        + "1AE99            Unlocked     Enabled     Connected     3       W1[1AW1]               \n"
    )
    async with driving(Panel(stray)) as device:
        await device.read()
        assert {port.label for port in device.holders()} == {"1AE99", "W1"}


async def test_a_row_of_another_form_hides_no_other_and_its_port_is_a_port_that_is_never_free() -> (
    None
):
    panel = Panel(
        CHANGED.replace(
            "Disconnected  0                      A2", "Maintenance   0                      A2"
        )
    )
    async with driving(panel) as device:
        assert await device.read() == circuits(("E1", "W2"))
        assert (await device.identify()).ingress == ("E1", "E2")
        (wanted,) = circuits(("E2", "W1"))
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({wanted})))
        assert "port E2 is unknown" in outcome.failed[wanted] and not panel.moves


async def test_two_rows_of_one_port_that_differ_make_it_unknown() -> None:
    twice = (
        CHANGED
        + "W1[1AW1]         Unlocked     Enabled     Connected     0                      A1      \n"
    )
    async with driving(Panel(twice)) as device:
        await device.read()
        assert [*device.holders()] == [Port("ocs1", "W1")]


async def test_a_row_that_is_not_understood_only_once_is_asked_about_again() -> None:
    torn = CHANGED.replace(
        "Disconnected  0                      A2", "Discon                               A2"
    )
    async with driving(Panel(torn, CHANGED)) as device:
        assert await device.read() == circuits(("E1", "W2")) and device.holders() == {}
    async with driving(Panel(torn, torn.replace("Discon", "Disco"), torn)) as device:
        with pytest.raises(Garbled, match='"port show": not a row: \'E2'):
            await device.read()
