"""What the routes of a table come to, address by address."""

from __future__ import annotations

import socket

SHORTEST = 24
"""Bits of a prefix, at least: an address of each is listed for jobs and for sockets that wait."""


def first_and_bits(prefix: str) -> tuple[int, int]:
    """Read 10.255.0.64/26; without a length, a single address. Raises: OSError, ValueError - it is
    none, or too short.
    """
    address, _, bits = prefix.partition("/")
    first, length = int.from_bytes(socket.inet_aton(address), "big"), int(bits or 32)
    if not SHORTEST <= length <= 32 or first & ((1 << (32 - length)) - 1):
        raise ValueError(f"{prefix!r} is no prefix of {SHORTEST} to 32 bits with zeros after them")
    return first, length


def expanded(routes: list[list[str]]) -> dict[str, list[str]]:
    """The route of every address that has one: of the longest prefix; one without an interface is
    none.
    """
    found: dict[str, list[str]] = {}
    read = [(*first_and_bits(row[0]), row) for row in routes]
    for first, length, row in sorted(read, key=lambda each: each[1]):
        for n in range(first, first + (1 << (32 - length))):
            address = socket.inet_ntoa(n.to_bytes(4, "big"))
            if row[2]:
                found[address] = row
            else:
                found.pop(address, None)
    return found
