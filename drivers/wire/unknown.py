"""Rows of a device's table that cannot be read: what else the table says counts, and their ports
are neither free nor known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from optics import DeviceName, Garbled, Port, Setting
from optics.plain import printable

R = TypeVar("R")
T = TypeVar("T")
ANY = "?"
"""The label under which a row is reported that names no port."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A row that cannot be read. ports: those that it may concern; if none, it may concern every
    port.
    """

    text: str
    ports: frozenset[str]

    def concerns(self, labels: Iterable[str]) -> bool:
        return not self.ports or not self.ports.isdisjoint(labels)

    @property
    def message(self) -> str:
        return f"unknown, its row is not understood: {' '.join(printable(self.text, keep='').split())[:120]!r}"


def sorted_out(
    rows: Iterable[R], parse: Callable[[R], T], strange: Callable[[R], Unknown]
) -> tuple[tuple[T, ...], frozenset[Unknown]]:
    """The rows that `parse` reads, and what `strange` makes of the others. Raises: Garbled -
    nothing that looks like this table.
    """
    good: list[T] = []
    odd: set[Unknown] = set()
    for row in rows:
        try:
            good.append(parse(row))
        except Garbled:
            odd.add(strange(row))
    if not good and (nameless := next((row for row in odd if not row.ports), None)):
        raise Garbled(f"not a row: {nameless.text[:120]!r}")
    return tuple(good), frozenset(odd)


def at(labels: Iterable[str], rows: Iterable[Unknown]) -> str:
    """Why none of these ports may be used, or called free; empty if no row concerns them."""
    asked = tuple(labels)
    row = next((row for row in rows if row.concerns(asked)), None)
    if row is None:
        return ""
    port = next((label for label in asked if label in row.ports), "")
    return f"port {port} is {row.message}" if port else f"any port may be {row.message}"


def holders(device: DeviceName, rows: Iterable[Unknown]) -> dict[Setting | Port, str]:
    """The ports of these rows, each with the row's own words."""
    return {
        Port(device, printable(label, keep="")[:40]): row.message
        for row in rows
        for label in row.ports or {ANY}
    }
