"""Where an emulated device answers: the address of the inventory, read by the emulators' own
eyes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from emulators.devices.transports.listeners import SCHEMES
from emulators.devices.transports.pty import DEFAULT_BAUD

LOOPBACK = ("127.0.0.1", "localhost")
_VISA_TCP = re.compile(r"TCPIP\d*::(?P<host>[^:]+)::(?P<port>\d+)::SOCKET", re.IGNORECASE)
_VISA_SERIAL = re.compile(r"ASRL(?P<path>/.+)::INSTR", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """`port` of 127.0.0.1, or for a serial line the path of its link and its speed (baud; 0: any;
    VISA names none).
    """

    scheme: str
    port: int = 0
    path: str = ""
    baud: int = DEFAULT_BAUD


def parse(text: str, baud: int = DEFAULT_BAUD) -> Address:
    """Read an address; `baud` if a serial line names none. A VISA resource is served as its
    transport. Raises ValueError.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "visa":
        resource, _, _ = rest.partition("?")
        if found := _VISA_SERIAL.fullmatch(resource):
            return Address("serial", path=found["path"], baud=0)
        if not (found := _VISA_TCP.fullmatch(resource)):
            raise ValueError(
                f"address {text}: an emulated device is TCPIP::127.0.0.1::PORT::SOCKET or ASRL/PATH::INSTR to VISA"
            )
        scheme, rest = "tcp", f"{found['host']}:{found['port']}"
    if scheme == "serial":
        path, _, query = rest.partition("?")
        texts = dict(parse_qsl(query, keep_blank_values=True))
        speed = texts.pop("baud", str(baud))
        if not path.startswith("/") or texts or not speed.isdecimal():
            raise ValueError(f"address {text}: an emulated serial line is serial:///PATH?baud=N")
        return Address("serial", path=path, baud=int(speed))
    _, _, where = rest.rpartition("@")
    host, _, port = where.rstrip("/").rpartition(":")
    if scheme not in SCHEMES or host not in LOOPBACK or not port.isdecimal():
        wanted = ", ".join(f"{s}://127.0.0.1:PORT" for s in SCHEMES if s != "serial")
        raise ValueError(
            f"address {text}: an emulated device answers on {wanted} or serial:///PATH?baud=N"
        )
    return Address(scheme, int(port))
