"""The tables and texts a ROME prints. REAL: the tests of cloudshell-L1-w2w-rome keep one of
each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

WIDTHS = (17, 13, 12, 14, 8, 15, 9)  # REAL, each with the blank that parts it from the next
_TITLES = (
    "Port",
    "Admin Status",
    "Oper Status",
    "Port Status",
    "Counter",
    "ConnectedTo",
    "Logical",
)
Q_PORTS = 4  # REAL
_QUEUE_WIDTHS = (8, 10, 10, 19, 8, 20)
_QUEUE_TITLES = ("Request", "Port1", "Port2", "Command", "Source", "User")


@dataclass(frozen=True, slots=True)
class Label:
    """A port as it is printed: E129[1BE1] is the 129th female port, the first of matrix B; its
    logical port is B129 (REAL).

    column, names: its first and last column of the port table.
    """

    text: str
    matrix: str
    logical: str
    column: str
    names: str


def labels(
    ports: Iterable[str],
    logical: str,
    matrix_ports: int,
    brackets: Mapping[str, str],
    bare: bool = False,
    nameless: Collection[str] = (),
) -> dict[str, Label]:
    """Return the labels of ports such as E3; so many ports per matrix.

    logical: names the logical ports, "" by matrix; several letters, parted by commas, are of one
    matrix after the other. Q ports are four of either side, counted from the matrix's first (REAL:
    Q9 is from E161 on). brackets: what is printed between the brackets of a port, where it is not
    what it should be. bare: the first column is 1AE12 alone, the last E12,A12 (REAL). nameless:
    ports that have no name at all, 1AE130 (REAL).
    """
    letters = logical.upper().split(",")
    made = {}
    for port in ports:
        number = int(port[1:])
        index, inside = divmod(number - 1, matrix_ports)
        matrix = chr(ord("A") + index)
        bracket = brackets.get(port, f"1{matrix}{port[0]}{inside + 1}")
        letter = letters[min(index, len(letters) - 1)] or matrix
        name = (
            ""
            if port in nameless
            else f"Q{inside // Q_PORTS + 1}"
            if letter == "Q"
            else f"{letter}{number}"
        )
        text = f"{port}[{bracket}]"
        column = bracket if bare or port in nameless else text
        made[port] = Label(text, matrix, name, column, f"{port},{name}" if bare and name else name)
    return made


def _row(widths: tuple[int, ...], cells: Iterable[object]) -> str:
    return (
        " ".join(str(cell).ljust(width - 1) for cell, width in zip(cells, widths, strict=True))
        + "\n"
    )


def _head(widths: tuple[int, ...], titles: Iterable[str]) -> str:
    rule = " ".join("=" * (width - 1) for width in widths) + "\n"
    return rule + _row(widths, titles).rstrip() + "\n" + rule


PENDING = _head(_QUEUE_WIDTHS, _QUEUE_TITLES)


def pending_rows(rows: Iterable[tuple[object, ...]]) -> str:
    """Return the rows of the queue."""
    return "".join(_row(_QUEUE_WIDTHS, row).rstrip() + "\n" for row in rows)


def port_rows(
    names: Iterable[str],
    ports: Mapping[str, Label],
    peers: Mapping[str, str],
    counter: Mapping[str, int],
    locked: Collection[str],
    further: int,
) -> str:
    """Return the port table. further: blanks by which the columns from the counter on are further
    right; a row is no longer.
    """
    widths = (*WIDTHS[:3], WIDTHS[3] + further, *WIDTHS[4:6], WIDTHS[6] - further)
    rows = [
        _row(
            widths,
            (
                ports[name].column,
                "Locked" if name in locked else "Unlocked",  # REAL
                "Enabled",
                "Connected" if name in peers else "Disconnected",
                counter[name],
                # REAL: without a name, no peer
                ports[peers[name]].text if name in peers and ports[name].logical else "",
                ports[name].names,
            ),
        )
        for name in names
    ]
    return _head(widths, _TITLES) + "".join(rows)


def board(
    mode: str,
    model: str,
    serial: str,
    firmware: str,
    male: int,
    female: int,
    running: str,
    operations: int,
    up_s: float,
) -> str:
    """Return the output of `show board`; up_s: seconds since the last boot."""
    up = max(0, int(up_s))
    return (
        "CURR SW VERSION  creationDate(Feb 21 2019, 19:51:00)\n"
        "ROME STATUS      adminStatus(enabled) operStatus(enabled) alarmState(Cleared)\n"
        f"ROME STATE       {mode}\n"
        "ROME NAME        ROME\n"
        "ACTIVE UNITS     1\n"
        f"ROME TYPE        {model}\n"
        "RTOS             VxWorks (6.8) \n"
        f"BOARD            ver(LCU-100) rev(3) S/N({serial})\n"
        "MATRIX SIZE:\n"
        f"                 Matrix A: Male/West 1..{male}, Female/East 1..{female}\n"
        "\n"
        "IP               IP addr(192.168.1.2) subnet(255.255.255.0/0xffffff00)\n"
        "                 gateway(192.168.1.1) dns(192.168.1.1)\n"
        "ACTIVE SW BANK   1 \n"
        f"ACTIVE SW VER    {firmware}\n"
        f"STANDBY SW VER   {firmware}\n"
        f"UP TIME          {up // 86400} days,{up // 3600 % 24} hours,{up // 60 % 60} minutes and {up % 60} seconds"
        f" (total {up} seconds)\n"
        "Recovery         recovery was done\n"
        f"CONNECTIONS      connection execution is {running}\n"
        f"OPERATION COUNT  {operations}\n"
        "TIME SOURCE      MANUAL\n"
        "AUTHENTICATION   local\n"
        "CONNECTION TYPE  ssh and telnet\n"
    )
