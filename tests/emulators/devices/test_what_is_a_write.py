"""Faults may strike writes alone: what a dialect takes for a write is what its device counts as
one.
"""

import pytest

from tests.emulators.devices.bench import Bench

EXFO = [
    "ROUT:SCAN 2",
    "ROUTe:SCAN:NEXT",
    "ROUT:SCAN:PREV",
    "ROUT:SCAN:ADJ",
    "ROUT:CLOSe",
    "ROUT:CLOS",
    "ROUT:OPEN",
    "RST",
]
EXFO_READS = [
    "ROUT:SCAN?",
    "ROUT:OPEN:STAT?",
    "ROUT:SCAN:ADJ:AUTO 1",
    "ROUT:SCAN:ADJ:AUTO?",
    "ROUT:SCAN:SYNC 1",
    "STAT?",
    "SNUM?",
]
LINES = {
    "santec-scpi": (
        [
            "CLOSe 2",
            "CLOS 3",
            "CLOSe",
            "ROUTe1:CHANnel 2",
            "ROUT0:CHAN 3",
            "ROUTe0:CLOSe 4",
            "ROUTe:CHANnel:ALL 1",
            "ROUT1:HOM",
            "*RST",
        ],
        [
            "CLOSe?",
            "CLOS?",
            "ROUTe0:CLOSe?",
            "ROUTe0:CHANnel?",
            "ROUTe0:COMMon?",
            "STAT:OPER:COND?",
            "MOD:SEL 1",
            "LCL 0",
            "SYST:ERR?",
        ],
    ),
    "exfo-scpi": (
        [f"LINS1:{line}" for line in EXFO] + ["*RST"],
        [f"LINS1:{line}" for line in EXFO_READS] + ["*IDN?", "*OPC?"],
    ),
    "dicon-mxs": (
        [
            "ROUT1:SCAN 2",
            ":ROUTE1:SCAN:NEXT",
            "NEXT",
            ":ROUT1:SCAN:PREV",
            ":ROUT1:CLOSE",
            ":ROUT1:OPEN",
            "*RCL 0",
            "*RST",
            "WEN 1",
        ],
        [
            ":ROUT1:SCAN?",
            ":ROUT1:OPEN:STAT?",
            "WEN?",
            "*SAV 1",
            "QCT?",
            "*OPC",
            "*ESR?",
            ":SYST:ERR?",
            ":STAT?",
        ],
    ),
    "thorlabs-osw": (["S 2", "S 1", "s 2"], ["S?", "S 3", "I?", "T?", "S"]),
}


@pytest.mark.parametrize("driver", sorted(LINES))
def test_what_the_dialect_takes_for_a_write_is_what_the_device_counts(driver: str) -> None:
    box = Bench(driver, transport="tcp")
    end = "\r" if driver == "dicon-mxs" else "\n"
    for line, is_write in [
        *((line, True) for line in LINES[driver][0]),
        *((line, False) for line in LINES[driver][1]),
    ]:
        before = box.plant.writes
        box.send(line, end=end)
        box.wait(1.0)
        assert (bool(box.dialect.writes.search(line)), box.plant.writes > before) == (
            is_write,
            is_write,
        ), line
