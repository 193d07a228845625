"""TL1 text inside the frame: rows read by key, commands and lists of ports written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from optics import Garbled

_KEY = re.compile(r"\s*[A-Za-z][A-Za-z0-9_-]*\s*")
_AS_IT_IS = re.compile(r"[A-Za-z0-9_.@+-]+")


@dataclass(frozen=True, slots=True)
class Row:
    """A payload row read by key: `name:positional,positional:KEY=value,KEY=value`."""

    name: str
    positional: tuple[str, ...]
    fields: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        """The value of `key`. Raises: Garbled - the row has no such key."""
        try:
            return self.fields[key]
        except KeyError:
            raise Garbled(
                f"row {self.name!r} has no {key} (it has {', '.join(self.fields) or 'nothing'})"
            ) from None


def parse_row(row: str) -> Row:
    r"""Read one row; escaped quotes protect `:`, `,` and `=` inside a value.

    >>> parse_row('1.1.1:WX,NONE:INAS=IS,LABEL=\\"a,b\\"').fields["LABEL"]
    'a,b'
    """
    escaped = '\\"' in row
    name, *blocks = _split(row, ":")
    positional: list[str] = []
    fields: dict[str, str] = {}
    for block in blocks:
        for part in _split(block, ","):
            key, equals, value = part.partition("=")
            if equals and (known := _key(key)):
                fields[known] = (
                    value.strip().removeprefix('\\"').removesuffix('\\"')
                    if escaped
                    else value.strip()
                )
            elif part.strip() or len(blocks) > 1:
                positional.append(part.strip())
    return Row(name.strip(), tuple(positional), fields)


@lru_cache(maxsize=256)  # a dump repeats its eight keys in every row
def _key(text: str) -> str:
    return text.strip().upper() if _KEY.fullmatch(text) else ""


def _split(text: str, separator: str) -> list[str]:
    """Split outside escaped quotes."""
    if '\\"' not in text:
        return text.split(separator)
    parts: list[list[str]] = []
    inside = False
    for chunk in text.split(separator):
        if inside:
            parts[-1].append(chunk)
        else:
            parts.append([chunk])
        if chunk.count('\\"') % 2:
            inside = not inside
    return [separator.join(part) for part in parts]


def command(
    verb: str, aid: str, ctag: str, *blocks: str, tid: str = "", general: str | None = None
) -> str:
    """Write `VERB:TID:AID:CTAG:GENERAL:block:block;`. An empty target is the device at the other
    end of the connection.

    `general` "" writes the colon after the tag even where nothing follows, as Polatis clients do.

    >>> command("ACT-CRS", "1.1.1,1.1.2", "7", "1.1.1-1.1.2,LAB")
    'ACT-CRS::1.1.1,1.1.2:7::1.1.1-1.1.2,LAB;'
    >>> command("RTRV-PATCH", "", "8", tid='"lab 3"', general="")
    'RTRV-PATCH:"lab 3"::8:;'
    """
    tail = [general or "", *blocks] if blocks or general is not None else []
    return ":".join([verb, tid, aid, ctag, *tail]) + ";"


def quoted(text: str) -> str:
    """Write a user name or password so that the grammar cannot take it for punctuation.

    Raises: ValueError - characters no TL1 string can carry.
    """
    if _AS_IT_IS.fullmatch(text):
        return text
    if not text.isprintable() or not text.isascii() or '"' in text or "\\" in text:
        raise ValueError("only printable ASCII without quotes and backslashes can be sent")
    return f'"{text}"'


def identifier(name: str) -> str:
    """Write a name the device itself has shown (`1.1.1>1.1.2`, `uplink 7`), quoted only where it
    holds punctuation.

    Raises: ValueError - as `quoted`.
    """
    return name if re.fullmatch(r'[^\s;:,"\\]+', name) else quoted(name)


def target(sid: str) -> str:
    """Write the name a device gives itself as a target: quoted (Quali's Polatis shell does),
    nothing for `( nil )`.

    Raises: ValueError - as `quoted`.

    >>> target("Switch Room 4"), target("( nil )")
    ('"Switch Room 4"', '')
    """
    if not sid or re.fullmatch(r"\(\s*nil\s*\)", sid, re.IGNORECASE):
        return ""
    written = quoted(sid)
    return written if written.startswith('"') else f'"{written}"'


def port_lists(numbers: Iterable[int], longest: int) -> list[tuple[tuple[int, ...], str]]:
    """Write port numbers as lists of at most `longest`: `a&&b` for a range, else `a&b&c` (public
    Polatis clients; none mixes them).

    >>> [text for _, text in port_lists([3, 1, 2], 10)], [text for _, text in port_lists([1, 4, 5], 2)]
    (['1&&3'], ['1&4', '5'])
    """
    ordered = sorted(set(numbers))
    found: list[tuple[tuple[int, ...], str]] = []
    for at in range(0, len(ordered), longest):
        part = tuple(ordered[at : at + longest])
        run = len(part) > 2 and part[-1] - part[0] == len(part) - 1
        found.append((part, f"{part[0]}&&{part[-1]}" if run else "&".join(map(str, part))))
    return found
