"""Tables of SONiC switches and Telescent panels."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.transcript import read_transcript
from drivers.wire import sonic, telescent
from drivers.wire.telescent import Cell
from optics import Garbled

CLI = Path(__file__).parent.parent / "transcripts" / "cli"
DOCUMENT = {
    exchange.question: "\n".join(line for _, lines in exchange.answer for line in lines)
    for exchange in read_transcript(CLI / "sonic-tables.txt").exchanges
}
STATUS, CONFIG = (
    DOCUMENT["show ocs cross-connect status"],
    DOCUMENT["show ocs cross-connect config"],
)
PAIRS = {(1, 1), (2, 5), (12, 32)}


def test_the_tables_of_the_design_document_are_read() -> None:
    assert sonic.status(STATUS) == dict.fromkeys(PAIRS, ("tuned", "tuned"))
    assert sonic.config(CONFIG) == PAIRS
    assert sonic.port_column(DOCUMENT["show ocs port config"]) == {
        "1A": "force_blocked",
        "1B": "normal",
        "2A": "normal",
        "2B": "normal",
    }
    assert sonic.port_column(DOCUMENT["show ocs port status"])["2A"] == "tuned"


def test_an_empty_table_and_one_printed_twice_are_read() -> None:
    assert sonic.config("\n".join(CONFIG.split("\n")[:2])) == frozenset()
    assert sonic.config(f"{CONFIG}\n\n{CONFIG}\n") == PAIRS
    with pytest.raises(Garbled, match="differ"):
        sonic.config(f"{CONFIG}\n{CONFIG[:-22]}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("12A       32B", "12A       31B"),
        ("tuned            tuned", "tuned"),
        ("2A-5B ", "2B-5A "),
        ("-", ""),
        ("2A-5B", "1A-1B"),
    ],
)
def test_a_malformed_status_is_garbled(old: str, new: str) -> None:
    with pytest.raises(Garbled):
        sonic.status(STATUS.replace(old, new))


def test_ports_are_sorted_as_numbers() -> None:
    assert sonic.ports("OCS_PORT|10A\nOCS_PORT|2A\nOCS_PORT|1B\n") == (("2A", "10A"), ("1B",))
    for text in ("", "OCS_PORT|1A", "OCS_PORT|1C OCS_PORT|1A", "(error) NOAUTH"):
        with pytest.raises(Garbled):
            sonic.ports(text)


def test_what_is_no_sonic_is_garbled() -> None:
    with pytest.raises(Garbled):
        sonic.version("Linux ocs1 6.1.0")
    assert (
        sonic.version("SONiC Software Version: SONiC.x\nHwSKU: OCS-V\nSerial Number: N/A\n").serial
        == ""
    )


def test_a_complaint_is_the_line_that_speaks_of_an_error() -> None:
    output = 'Usage: config [OPTIONS] COMMAND\nTry -h\n\nError: No such command "ocs".\n'
    assert sonic.complaint(output) == 'Error: No such command "ocs".'
    assert sonic.unknown_command(output)
    assert sonic.complaint("") == "it printed nothing"


@given(st.text(alphabet="id123AB-_ \ntunedside", max_size=80))
def test_anything_is_a_table_or_garbled(text: str) -> None:
    for read in (
        sonic.status,
        sonic.config,
        sonic.port_column,
        sonic.ports,
        telescent.switch_state,
    ):
        try:
            read(text)
        except Garbled:
            pass


def panel(*cells: str) -> str:
    """Rows as the public client reads them, in colours."""
    rows = [cells[at : at + 12] for at in range(0, len(cells), 12)]
    return "\n".join(
        f"R{n}#O " + " ".join(f"\x1b[32m{cell:<7}\x1b[0m" for cell in row)
        for n, row in enumerate(rows)
    )


FREE = [f"F{n}" for n in range(24)]


def test_an_address_is_the_row_times_twelve_and_the_column() -> None:
    cells = ["N0", *FREE[1:]]
    cells[3], cells[13], cells[14] = "A7", "AL1", "M2"
    found = telescent.switch_state(panel(*cells))
    assert found[13] == Cell("AL", 1)
    assert found[0].absent and not found[14].allocated
    assert telescent.allocated(found) == {(7, 3), (1, 13)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "R0#O F1",
        panel(*FREE[:11]),
        panel(*FREE).partition("\n")[2],  # the first row is missing
        panel(*FREE[:12]) + "\n" + panel("A5", *FREE[1:12]),  # row 0 twice, and different
        panel(*FREE[:12]).replace("F3 ", "F? "),
    ],
)
def test_a_malformed_panel_is_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        telescent.switch_state(text)


def test_an_ingress_at_two_egress_ports_is_garbled() -> None:
    with pytest.raises(Garbled, match="two egress"):
        telescent.allocated(telescent.switch_state(panel("A1", "A1", *FREE[2:12])))


def test_a_refusal_has_one_of_two_words_in_it() -> None:
    assert (
        telescent.complaint("\x1b[31mERROR: port 1 is locked\x1b[0m\n") == "ERROR: port 1 is locked"
    )
    assert telescent.complaint("java.lang.NullPointerException: x") != ""
    assert telescent.complaint("OK: request 1 accepted") == ""
