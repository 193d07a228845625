"""The header of a function's packets, and which packets are well formed at all
(docs/reference/functions-dialect.md).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC, VERSION = 0x4654, 1
ADD, SUM, WAIT = 1, 2, 3
GET, HIT, MISS, PUT, STORED = 16, 17, 18, 19, 20
HEADER_BYTES = 32

_HEADER = struct.Struct("<HBBI8sHHIQ")
assert _HEADER.size == HEADER_BYTES


class Header(NamedTuple):
    """What a worker says before the payload. number: of a chunk, or a key."""

    kind: int
    allocation: int
    token: bytes
    worker: int
    length: int
    epoch: int
    number: int


def parse(packet: memoryview) -> Header | None:
    """The header of a datagram; None if it is not as long as it says, or of another protocol."""
    if len(packet) < HEADER_BYTES:
        return None
    magic, version, *rest = _HEADER.unpack_from(packet)
    header = Header(*rest)
    if magic != MAGIC or version != VERSION or len(packet) != HEADER_BYTES + header.length:
        return None
    return header


def write(packet: memoryview, header: Header) -> None:
    """Put the header of an answer in front of a payload that is there already."""
    _HEADER.pack_into(packet, 0, MAGIC, VERSION, *header)
