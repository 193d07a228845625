"""JSON with the position of every value. Text in, values and positions out."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NoReturn

from optics import BadFile
from orchestrator.inventory.positions import (
    MAX_DEPTH,
    MAX_NODES,
    Document,
    Path,
    Problems,
    Spot,
    spell,
)

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_WORD = re.compile(r'[A-Za-z_+-][A-Za-z0-9_+-]*|"[^"\n]{1,18}"|.', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def read_json(text: str, name: str) -> Document:
    """Parse JSON (RFC 8259, duplicate keys and numbers out of range refused).

    Raises: BadFile - not JSON, at the first invalid place; or every duplicate key.
    """
    reader = _JsonReader(text, name)
    value = reader.document()
    document = Document(name, value, reader.values, reader.keys)
    if reader.duplicates:
        problems = Problems(document)
        for path, spot, first in reader.duplicates:
            problems.at(spot, f"{spell(path)}: the key appears twice, first in line {first[0]}")
        raise BadFile(problems.lines())
    return document


class _JsonReader:
    def __init__(self, text: str, name: str) -> None:
        self.text: str = text
        self.name, self.at = name, 0
        self.values: dict[Path, Spot] = {}
        self.keys: dict[Path, Spot] = {}
        self.count = 0
        self.duplicates: list[tuple[Path, Spot, Spot]] = []
        self.starts = [0] + [found.end() for found in re.finditer("\n", text)]

    def document(self) -> Any:
        if self.text.startswith("\ufeff"):
            self.fail("the file starts with a byte order mark; save it as plain UTF-8")
        value = self.value(())
        self.space()
        if self.at < len(self.text):
            self.fail(
                f"wanted the end of the file, found {self.word() if isinstance(value, dict | list) else 'more'}"
            )
        return value

    def value(self, path: Path) -> Any:
        self.space()
        self.values[path] = self.spot()
        self.count += 1
        if len(path) > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        if self.count > MAX_NODES:
            self.fail(f"more than {MAX_NODES} values")
        match self.peek():
            case "{":
                return self.mapping(path)
            case "[":
                return self.sequence(path)
            case '"':
                return self.string()
        found = _NUMBER.match(self.text, self.at)
        if found:
            return self.number(found)
        word = self.word()
        literal = word.strip("'")
        if literal not in _LITERALS:
            extra = (
                "; JSON has no NaN and no Infinity"
                if literal.strip("+-") in ("NaN", "Infinity")
                else ""
            )
            # A file that does not begin as one of ours is not quoted: a stranger's scenario can
            # name a file of secrets.
            ours = self.text.lstrip().startswith("{") or not word.startswith("'")
            self.fail(f"wanted a value, found {word if ours else 'something else'}{extra}")
        self.at += len(literal)
        return _LITERALS[literal]

    def mapping(self, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for _ in self.items("}"):
            spot = self.spot()
            if self.peek() != '"':
                self.fail(f"wanted a key in double quotes, found {self.word()}")
            key = self.string()
            inner = (*path, key)
            if key in result:
                self.duplicates.append((inner, spot, self.keys[inner]))
            self.keys.setdefault(inner, spot)
            self.space()
            if self.peek() != ":":
                self.fail(f"wanted ':' after the key, found {self.word()}")
            self.at += 1
            result[key] = self.value(inner)
        return result

    def sequence(self, path: Path) -> list[Any]:
        result: list[Any] = []
        for index in self.items("]"):
            result.append(self.value((*path, index)))
        return result

    def items(self, end: str) -> Iterator[int]:
        """Iterate over the items between brackets; the caller reads one item per step."""
        self.at += 1
        self.space()
        if self.peek() == end:
            self.at += 1
            return
        for index in range(len(self.text)):
            yield index
            self.space()
            if self.peek() == end:
                self.at += 1
                return
            if self.peek() != ",":
                self.fail(f"wanted ',' or '{end}', found {self.word()}")
            comma = self.at
            self.at += 1
            self.space()
            if self.peek() == end:
                self.at = comma
                self.fail(f"unexpected comma before '{end}'")

    def string(self) -> str:
        start, found = self.at, _STRING.match(self.text, self.at)
        assert found  # the pattern matches a quote alone, and the caller saw one
        if self.text[found.end() : found.end() + 1] != '"':
            stop = self.text[found.end() : found.end() + 1]
            self.at = start if stop in ("", "\n", "\r") else found.end()
            self.fail(
                "the string is not closed in its line"
                if self.at == start
                else "no such escape"
                if stop == "\\"
                else "a control character inside a string; write it as \\u00XX"
            )
        self.at = found.end() + 1
        value = found.group()[1:]
        if "\\" in value:
            value = str(json.loads(self.text[start : self.at]))
        if _SURROGATE.search(value):
            self.at = start
            self.fail("half of a surrogate pair is not a character")
        return value

    def number(self, found: re.Match[str]) -> int | float:
        text = found.group()
        if found.group(2) is None and found.group(3) is None:
            if len(text) > 20:
                self.fail(f"the number {text[:8]}... of {len(text)} digits is too large")
            value: int | float = int(text)
        else:
            value = float(text)
        if not math.isfinite(value):
            self.fail(f"the number {text[:20]} is too large")
        self.at = found.end()
        if self.at < len(self.text) and (self.text[self.at].isalnum() or self.text[self.at] == "."):
            self.fail(f"wanted the number to end here, found {self.word()}")
        return value

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found  # the pattern matches the empty string
        self.at = found.end()

    def peek(self) -> str:
        """The next character, or nothing at the end."""
        return self.text[self.at : self.at + 1]

    def word(self) -> str:
        found = _WORD.match(self.text, self.at)
        if found is None:
            return "the end of the file"
        return found.group() if found.group().startswith('"') else f"'{found.group()[:20]}'"

    def spot(self) -> Spot:
        line = bisect_right(self.starts, self.at)
        return line, self.at - self.starts[line - 1] + 1

    def fail(self, what: str) -> NoReturn:
        line, col = self.spot()
        raise BadFile([f"{self.name}:{line}:{col}: not JSON: {what}"])
