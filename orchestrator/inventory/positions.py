"""The position of each value in a user's file, so that every error has a line and a column. Text in, values and positions out."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import yaml

from optics import BadFile
from optics.errors import first_line

Path: TypeAlias = tuple[str | int, ...]
Spot: TypeAlias = tuple[int, int]
"""Line and column, both counted from 1; the column counts characters, as editors do."""

MAX_DEPTH = 64  # valid files nest no deeper than 8; the limit keeps a hostile one from exhausting the stack
MAX_NODES = 500_000  # a plan with as many fixed routes as one may have; the largest real inventory here has about 10 000 nodes
MAX_NUMBER = 64  # characters of a number in YAML: one in base 60 takes quadratic time to read
MAX_LINES = 100  # errors reported for one file
_OWN_WORDS = 1 << 16  # characters of a file that is not YAML, up to which PyYAML's own slow parser is used for its better messages


@dataclass(frozen=True)
class Document:
    """A parsed file: its plain value, and the spot of every value and of every mapping key, by path."""

    name: str
    value: Any
    values: dict[Path, Spot] = field(repr=False)
    keys: dict[Path, Spot] = field(repr=False)

    def spot(self, path: Path, *, key: bool = False) -> Spot:
        """The start of the value (or, with `key`, the key) at `path`; the nearest enclosing value if it is absent."""
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
        lines = [f"{self.document.name}:{line}:{col}: {what}" for (line, col), what in found[:MAX_LINES]]
        if len(found) > MAX_LINES:
            line, col = found[MAX_LINES][0]
            lines.append(f"{self.document.name}:{line}:{col}: and {len(found) - MAX_LINES} more mistakes from here on")
        return lines


def spell(path: Path) -> str:
    """`('links', 1, 'b')` as `links[1].b`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


# --- JSON ---------------------------------------------------------------------------------------------------------------------

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
            self.fail(f"wanted the end of the file, found {self.word() if isinstance(value, dict | list) else 'more'}")
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
            extra = "; JSON has no NaN and no Infinity" if literal.strip("+-") in ("NaN", "Infinity") else ""
            # A file that does not begin as one of ours is not quoted: a stranger's scenario can name a file of secrets.
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


# --- YAML ---------------------------------------------------------------------------------------------------------------------


def read_yaml(text: str, name: str) -> Document:
    """Parse one YAML document with the safe subset of tags; unknown tags (`!vault`) become their plain text.

    Raises: BadFile - not YAML, nested too deep, too large, or a key that appears twice in one mapping.
    """
    try:
        root = _compose(text, name)
    except BadFile:
        raise
    except yaml.MarkedYAMLError as error:
        mark, words = _slip(error, text)
        line, col = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise BadFile([f"{name}:{line}:{col}: not YAML: {words}"]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadFile([f"{name}:1:1: not YAML: {first_line(error)}"]) from None
    reader = _YamlReader(name)
    value = None if root is None else reader.value(root, ())
    if reader.found:
        raise BadFile([f"{name}:{line}:{col}: {what}" for (line, col), what in sorted(reader.found)])
    return Document(name, value, reader.values, reader.keys)


def _slip(error: yaml.MarkedYAMLError, text: str) -> tuple[Any, str]:
    """Where a text is not YAML, and why, in words about the text; the parser's own are about its grammar."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or error.context or ""
    if mark is None:
        return None, problem
    if "quoted scalar" in (error.context or "") and "end of stream" in problem:
        return error.context_mark, "a quote that is not closed"
    if "cannot start any token" in problem and "\\t" in problem:
        return mark, "a tab; lines are indented by spaces"
    if problem == "mapping values are not allowed here":
        return mark, "the line before lacks its colon, or this one is indented too deep"
    if problem == "could not find expected ':'":
        return error.context_mark or mark, "a key without a colon"
    if problem.startswith("expected <block end>"):
        lines = text.splitlines()[: mark.line + 1]
        word = lines[-1].strip().partition(":")[0] if lines else ""
        if lines and len(lines[-1]) - len(lines[-1].lstrip(" ")) == mark.column and lines[-1].strip()[:1] != "-":
            around: list[int] = []
            for one in reversed(lines[:-1]):
                indent = len(one) - len(one.lstrip(" "))
                if one.strip() and not one.lstrip().startswith("#") and (not around or indent < around[-1]):
                    around.append(indent)
            if around and mark.column not in around:
                deeper = [indent for indent in around if indent > mark.column]
                return mark, f"{word[:40]!r} is indented by {mark.column}, its neighbours by {min(deeper, default=around[0])}"
    return mark, problem


def _within_limits(text: str, name: str) -> None:
    """Refuse a file that is too deep or too large before nodes are made of it: libyaml's composer is recursive, without limit.

    Raises: BadFile. yaml.YAMLError - the text is not YAML; the text before that place is neither too deep nor too large.
    """
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or count > 2 * MAX_NODES:  # a collection has two events
            what = f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_NODES} values"
            line, col = (mark.line + 1, mark.column + 1) if (mark := event.start_mark) else (1, 1)
            raise BadFile([f"{name}:{line}:{col}: {what}"])


def _compose(text: str, name: str) -> yaml.Node | None:
    """Compose with libyaml if PyYAML has it, ten times as fast; a text it refuses goes to PyYAML's own parser, for its messages."""
    try:
        _within_limits(text, name)
        return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        if len(text) > _OWN_WORDS:
            raise
    return yaml.compose(text, Loader=yaml.SafeLoader)


class _YamlReader:
    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.values: dict[Path, Spot] = {}
        self.keys: dict[Path, Spot] = {}
        self.found: list[tuple[Spot, str]] = []
        self.scalars = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.count += 1
        spot = (node.start_mark.line + 1, node.start_mark.column + 1)
        if len(path) > MAX_DEPTH or self.count > MAX_NODES:
            self.too_large(node, path)
        self.values[path] = spot
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def too_large(self, node: yaml.Node, path: Path) -> NoReturn:
        spot = f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"
        raise BadFile([f"{self.name}:{spot}: {spell(path[:4])}: nested too deep or too large; an alias of itself?"])

    def scalar(self, node: yaml.Node, path: Path) -> Any:
        if len(node.value) > MAX_NUMBER and node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
            self.complain(node, f"{spell(path)}: the number {node.value[:8]}... of {len(node.value)} characters is too large")
            return None
        try:
            value = self.scalars.construct_object(node)
        except yaml.constructor.ConstructorError:
            return str(node.value)
        except ValueError as error:
            self.complain(node, f"{spell(path)}: {error}")
            return None
        return value if isinstance(value, str | int | float | bool | None) else str(node.value)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str | int, Any]:
        own: dict[str | int, yaml.Node] = {}
        merged: dict[str | int, yaml.Node] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    if isinstance(source, yaml.MappingNode):
                        self.count += len(source.value) + len(merged)
                        if self.count > MAX_NODES:
                            self.too_large(key_node, path)
                        merged = {self.scalar(k, path): v for k, v in source.value if isinstance(k, yaml.ScalarNode)} | merged
                continue
            key = self.scalar(key_node, path) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str | int):
                self.complain(key_node, f"{spell(path) or 'the file'}: a key must be a word or a number")
                continue
            if key in own:
                first = self.keys[(*path, key)][0]
                self.complain(key_node, f"{spell((*path, key))}: the key appears twice, first in line {first}")
                continue
            self.keys[(*path, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            own[key] = value_node
        return {key: self.value(value, (*path, key)) for key, value in (merged | own).items()}

    def complain(self, node: yaml.Node, what: str) -> None:
        self.found.append(((node.start_mark.line + 1, node.start_mark.column + 1), what))
