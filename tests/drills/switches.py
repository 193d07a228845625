"""The two kinds of emulated switch of the bench and of the simulation: their ports, and what hands
do to them.
"""

from __future__ import annotations

from emulators.devices.dialects.calient_table import Connection
from emulators.devices.dialects.calient_tl1 import CalientTl1
from emulators.devices.dialects.polatis_scpi import PolatisScpi
from emulators.devices.server import DeviceServer

Pair = tuple[str, str]


def labels(driver: str, ingress: int, egress: int) -> Pair:
    """Two ports of a 16x16 device by number, as its faceplate has them."""
    if driver == "polatis-scpi":
        return str(ingress), str(16 + egress)
    return (
        f"1.{(ingress - 1) // 8 + 1}.{(ingress - 1) % 8 + 1}",
        f"1.{(egress - 1) // 8 + 1}.{(egress - 1) % 8 + 1}",
    )


def made_by_hand(server: DeviceServer, pair: Pair) -> None:
    """A circuit comes about that no run made."""
    dialect = server.dialect
    if isinstance(dialect, PolatisScpi):
        dialect.preset(*pair)
    elif isinstance(dialect, CalientTl1):
        dialect.table.preset(Connection("", *pair, "1WAY", active=True))
    if hasattr(server, "loop"):
        server.changed()
