"""TCP segments out of the blocks that a tap sends: blocks of the kernel's packet ring (packet(7),
TPACKET_V3), as they are.

What is in the packets comes from the data fabric, where anybody may have written it. Everything is
checked against the block's end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

BLOCK = struct.Struct("=6IQ")
"""tpacket_block_desc with tpacket_hdr_v1: version, private, status, packets, offset of the first,
length, sequence number.
"""
PACKET = struct.Struct("=6I2H")
"""tpacket3_hdr: offset of the next, s, ns, bytes captured, bytes on the wire, status, offsets of
link and network header.
"""
IP = struct.Struct("!BxHxxHxB")
TCP = struct.Struct("!4xI4xBB")
SYN, RST = 2, 4
FRAGMENT = 0x3FFF  # more fragments, or an offset

Segment = tuple[bytes, int, int, memoryview]
"""Source, destination and both ports, as in the packet (12 bytes); sequence number; flags;
payload.
"""


def segments(block: memoryview) -> Iterator[Segment]:
    """The TCP segments over IPv4 in a block; of a packet that is cut off what was captured. What is
    malformed is left out.
    """
    size = len(block)
    if size < BLOCK.size:
        return
    _, _, _, count, at, _, _ = BLOCK.unpack_from(block)
    for _ in range(min(count, size // PACKET.size)):
        if at + PACKET.size > size:
            return
        onward, _, _, captured, _, _, _, network = PACKET.unpack_from(block, at)
        segment = _segment(block, at + network, min(at + network + captured, size))
        if segment is not None:
            yield segment
        if onward < PACKET.size:
            return
        at += onward


def _segment(block: memoryview, ip: int, end: int) -> Segment | None:
    if ip + 40 > end:
        return None
    first, total, fragment, protocol = IP.unpack_from(block, ip)
    head = 4 * (first & 15)
    if first >> 4 != 4 or head < 20 or protocol != 6 or fragment & FRAGMENT:
        return None
    tcp = ip + head
    if tcp + 20 > end:
        return None
    sequence, length, flags = TCP.unpack_from(block, tcp)
    begin = tcp + 4 * (length >> 4)
    end = min(end, ip + total)  # a short frame is padded
    if begin < tcp + 20:
        return None
    return (
        bytes(block[ip + 12 : ip + 20]) + bytes(block[tcp : tcp + 4]),
        sequence,
        flags,
        block[begin : max(begin, end)],
    )
