"""The line protocol of a rotor: tagged replies of data lines and one final line; maps as
`3>19 4>20`.

Source: the dialect assumed in `docs/reference/rotor-dialect.md`; no vendor publishes one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drivers.wire.scpi import Lines
from optics import Garbled

Pair = tuple[int, int]

_FINAL = re.compile(r"OK|ERR (\d{2}) (.*)")
_PAIR = re.compile(r"([1-9]\d{0,4})>([1-9]\d{0,4})")
_COUNT = re.compile(r"0|[1-9]\d{0,17}")
_POWER = re.compile(r"POWER ([1-9]\d{0,4}) ([+-]?\d{1,3}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one command. code: 0 for OK, else the two digits of the error, whose words are
    `text`.
    """

    lines: tuple[str, ...] = ()
    code: int = 0
    text: str = ""


@dataclass(slots=True)
class Replies:
    """Cuts the replies to `tags` (in this order) from a stream; events, and replies to other tags,
    are left out.
    """

    tags: Sequence[str]
    found: list[Reply] = field(default_factory=list)
    _lines: Lines = field(default_factory=Lines)
    _data: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> bool | None:
        """Take bytes; True when all replies are complete, None if none of this belongs to them.
        Raises: Garbled.
        """
        own = None
        for line in self._lines.feed(data):
            if len(self.found) == len(self.tags):
                break
            if line.startswith("! ") or line == "!":
                continue
            tag, _, rest = line.partition(" ")
            if re.fullmatch(r"#\d{1,9}", tag) is None:
                raise Garbled(f"a line without the command's tag: {line[:120]!r}")
            if tag != self.tags[len(self.found)]:
                continue  # late: of a question that was given up
            own = False
            if (final := _FINAL.fullmatch(rest.strip())) is None:
                self._data.append(rest.strip())
                continue
            self.found.append(Reply(tuple(self._data), int(final[1] or 0), final[2] or ""))
            self._data = []
        return True if len(self.found) == len(self.tags) else own


def write_pairs(pairs: Iterable[Pair]) -> str:
    """Pairs sorted by ingress.

    >>> write_pairs([(4, 20), (3, 19)]), write_pairs([])
    ('3>19 4>20', '-')
    """
    return " ".join(f"{a}>{b}" for a, b in sorted(pairs)) or "-"


def parse_pairs(text: str) -> frozenset[Pair]:
    """Read pairs as `write_pairs` writes them. Raises: Garbled - another text, or a port twice."""
    tokens = [] if text.strip() == "-" else text.split()
    found = [_PAIR.fullmatch(word) for word in tokens]
    if not text.strip() or None in found:
        raise Garbled(f"not pairs of ports: {text[:120]!r}")
    pairs = frozenset((int(match[1]), int(match[2])) for match in found if match)
    if len({a for a, _ in pairs}) != len(tokens) or len({b for _, b in pairs}) != len(tokens):
        raise Garbled(f"a port in two circuits: {text[:120]!r}")
    return pairs


def fields_after(keyword: str, line: str) -> str:
    """The rest of a data line that must begin with `keyword`. Raises: Garbled."""
    first, _, rest = line.partition(" ")
    if first != keyword:
        raise Garbled(f"not a line {keyword}: {line[:120]!r}")
    return rest.strip()


def one(keyword: str, lines: Sequence[str]) -> str:
    """The words of the only data line, which begins with `keyword`. Raises: Garbled."""
    if len(lines) != 1:
        raise Garbled(
            f"{len(lines)} data lines instead of one {keyword}: {' / '.join(lines)[:120]!r}"
        )
    return fields_after(keyword, lines[0])


def count(text: str) -> int:
    """A whole number, 0 or more. Raises: Garbled."""
    if not _COUNT.fullmatch(text):
        raise Garbled(f"not a whole number: {text[:80]!r}")
    return int(text)


def counts(text: str, most: int) -> tuple[int, ...]:
    """Exactly `most` whole numbers. Raises: Garbled."""
    parts = text.split()
    if len(parts) != most:
        raise Garbled(f"not {most} whole numbers: {text[:120]!r}")
    return tuple(map(count, parts))


def parse_identity(lines: Sequence[str]) -> tuple[str, str, str, str]:
    """Vendor, model, serial number, firmware. Raises: Garbled."""
    vendor, *rest = parts = [part.strip() for part in one("ID", lines).split(",")]
    if len(parts) != 4:
        raise Garbled(f"not an identity of four parts: {lines[0][:120]!r}")
    model, serial, firmware = rest
    return vendor, model, serial, firmware


def parse_map(lines: Sequence[str]) -> tuple[frozenset[Pair], frozenset[Pair]]:
    """Circuits that have settled, and those that have not yet. Raises: Garbled."""
    if len(lines) != 2:
        raise Garbled(f"not the lines MAP and MOVING: {' / '.join(lines)[:120]!r}")
    settled, moving = (
        parse_pairs(fields_after("MAP", lines[0])),
        parse_pairs(fields_after("MOVING", lines[1])),
    )
    parse_pairs(write_pairs([*settled, *moving]))  # no port in both
    return settled, moving


def parse_failures(lines: Iterable[str]) -> dict[Pair, str]:
    """What each pair of a partly done command failed with. Raises: Garbled."""
    failed = {}
    for line in lines:
        pair, _, why = fields_after("FAILED", line).partition(" ")
        (key,) = parse_pairs(pair) or {None}
        if key is None:
            raise Garbled(f"not a pair of ports: {line[:120]!r}")
        failed[key] = why.strip()
    return failed


def parse_power(lines: Iterable[str]) -> dict[int, float]:
    """Power (dBm) by port. Raises: Garbled."""
    found = {}
    for line in lines:
        match = _POWER.fullmatch(line)
        if match is None or int(match[1]) in found:
            raise Garbled(f"not the power of one more port: {line[:120]!r}")
        found[int(match[1])] = float(match[2])
    return found


@dataclass(frozen=True, slots=True)
class Program:
    """A stored program: times in microseconds, and the circuits of each slot."""

    dwell_us: int
    dark_window_us: int
    slots: tuple[frozenset[Pair], ...]

    @property
    def crc(self) -> str:
        """Its checksum as the device computes it.

        >>> Program(450000, 50000, (frozenset({(1, 18), (2, 17)}), frozenset())).crc
        '5836d5d3'
        """
        text = f"{len(self.slots)} {self.dwell_us} {self.dark_window_us}\n"
        text += "".join(f"{k} {write_pairs(pairs)}\n" for k, pairs in enumerate(self.slots))
        return f"{zlib.crc32(text.encode('ascii')):08x}"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rotor is, times in microseconds of its clock. state: MANUAL, STOPPED, WAITING,
    TURNING. slot: None set by hand. dark_window: whether light of `slot` is still to come."""

    state: str
    slot: int | None
    dark_window: bool
    cycle: int
    until_us: int | None


def parse_position(lines: Sequence[str]) -> Position:
    """Read an answer to `POS?`. Raises: Garbled."""
    tokens = one("POS", lines).split()
    if (
        len(tokens) != 6
        or tokens[0] not in ("MANUAL", "STOPPED", "WAITING", "TURNING")
        or tokens[2] not in ("DAY", "NIGHT")
    ):
        raise Garbled(f"not a position: {lines[0][:120]!r}")
    state, slot, phase, cycle, _, until = tokens
    return Position(
        state,
        None if slot == "-" else count(slot),
        phase == "NIGHT",
        count(cycle),
        None if until == "-" else count(until),
    )
