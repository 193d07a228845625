"""Port counters as an agent sends them: one reading, and batches of samples."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from optics import Garbled, HostName, HostPort
from orchestrator.hosts.api import AtDown, HostEvent, PortCounters

SAMPLE = ("rx_bytes", "tx_bytes", "rx_pkts", "tx_pkts", "drops", "errors", "oper")
"""The counters of one sample of one port, in this order; its time follows, in monotonic ns of this
machine.
"""
Samples: TypeAlias = "dict[HostPort, list[tuple[int, ...]]]"
_LARGEST = 16 << 20


def port_counters(
    host: HostName, answer: Mapping[str, Any], offset_ns: int
) -> dict[HostPort, PortCounters]:
    """Read the answer to `counters`. offset_ns: the host's clock minus this machine's."""
    downs = answer.get("downs", {})
    return {
        HostPort(host, int(n)): PortCounters(
            v["rx_bytes"],
            v["tx_bytes"],
            v["rx_pkts"],
            v["tx_pkts"],
            v["rx_dropped"] + v["tx_dropped"],
            bool(v["oper"]),
            _at_down(downs.get(n), offset_ns),
        )
        for n, v in answer["ports"].items()
    }


def _at_down(values: Mapping[str, int] | None, offset_ns: int) -> AtDown | None:
    if values is None or "tx_bytes" not in values:
        return None
    return AtDown(values["t_ns"] - offset_ns, values["rx_bytes"], values["tx_bytes"])


def counter_samples(event: HostEvent) -> Samples:
    """Read a `counters` event: per port its samples, oldest first, as `SAMPLE` has them and then
    their time.

    Raises: Garbled - it is not what an agent sends.
    """
    try:
        ports = [HostPort(event.host, int(n)) for n in event.values["numbers"]]
        unpack = zlib.decompressobj()
        raw = unpack.decompress(base64.b64decode(event.values["rows"], validate=True), _LARGEST)
        if not unpack.eof:
            raise ValueError("cut off, or too many")
        offset_ns = int(event.values["t_ns"]) - event.at_ns
        found: Samples = {port: [] for port in ports}
        lists = list(found.values())
        for row in struct.iter_unpack(f"=qQ{8 * len(ports)}Q", raw):
            at, carriers = row[0] - offset_ns, row[1]
            for k, into in enumerate(lists):
                rx_pkts, tx_pkts, rx_bytes, tx_bytes, rx_bad, tx_bad, rx_dropped, tx_dropped = row[
                    8 * k + 2 : 8 * k + 10
                ]
                lost = rx_dropped + tx_dropped
                into.append(
                    (
                        rx_bytes,
                        tx_bytes,
                        rx_pkts,
                        tx_pkts,
                        lost,
                        rx_bad + tx_bad,
                        carriers >> k & 1,
                        at,
                    )
                )
    except (KeyError, ValueError, TypeError, binascii.Error, zlib.error, struct.error) as error:
        raise Garbled(f"{event.host}: its samples are not readable: {error}") from None
    return found
