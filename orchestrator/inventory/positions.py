"""The position of each value in a user's file, so that every error has a line and a column. Text
in, values and positions out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
Spot: TypeAlias = tuple[int, int]
"""Line and column, both counted from 1; the column counts characters, as editors do."""

# valid files nest no deeper than 8; the limit keeps a hostile one from exhausting the stack
MAX_DEPTH = 64
# a plan with as many fixed routes as one may have; the largest real inventory here has about 10 000
# nodes
MAX_NODES = 500_000
MAX_LINES = 100  # errors reported for one file


@dataclass(frozen=True)
class Document:
    """A parsed file: its plain value, and the spot of every value and of every mapping key, by
    path.
    """

    name: str
    value: Any
    values: dict[Path, Spot] = field(repr=False)
    keys: dict[Path, Spot] = field(repr=False)

    def spot(self, path: Path, *, key: bool = False) -> Spot:
        """The start of the value (or, with `key`, the key) at `path`; the nearest enclosing value
        if it is absent.
        """
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, (1, 1))


class Problems:
    """Collects everything wrong with one file; `lines` gives it in the order of the file."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found: list[tuple[Spot, str]] = []

    def add(self, path: Path, what: str, *, key: bool = False) -> None:
        """Report an error of the value at `path`, or with `key` of its key."""
        where = spell(path)
        self.at(self.document.spot(path, key=key), f"{where}: {what}" if where else what)

    def at(self, spot: Spot, what: str) -> None:
        """Report an error at a line and column."""
        self._found.append((spot, what))

    def __bool__(self) -> bool:
        return bool(self._found)

    def lines(self) -> list[str]:
        found = sorted(dict.fromkeys(self._found))
        lines = [
            f"{self.document.name}:{line}:{col}: {what}" for (line, col), what in found[:MAX_LINES]
        ]
        if len(found) > MAX_LINES:
            line, col = found[MAX_LINES][0]
            lines.append(
                f"{self.document.name}:{line}:{col}: and {len(found) - MAX_LINES} more mistakes from here on"
            )
        return lines


def spell(path: Path) -> str:
    """`('links', 1, 'b')` as `links[1].b`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
