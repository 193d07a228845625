"""YAML with the position of every value. Text in, values and positions out."""

from __future__ import annotations

from typing import Any, NoReturn

import yaml

from optics import BadFile
from optics.errors import first_line
from orchestrator.inventory.positions import MAX_DEPTH, MAX_NODES, Document, Path, Spot, spell

MAX_NUMBER = 64  # characters of a number in YAML: one in base 60 takes quadratic time to read
_OWN_MESSAGES = (
    1 << 16
    # characters of a file that is not YAML, up to which PyYAML's own slow parser is used for its
    # better messages
)


def read_yaml(text: str, name: str) -> Document:
    """Parse one YAML document with the safe subset of tags; unknown tags (`!vault`) become their
    plain text.

    Raises: BadFile - not YAML, nested too deep, too large, or a key that appears twice in one
    mapping.
    """
    try:
        root = _compose(text, name)
    except BadFile:
        raise
    except yaml.MarkedYAMLError as error:
        mark, message = _slip(error, text)
        line, col = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise BadFile([f"{name}:{line}:{col}: not YAML: {message}"]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadFile([f"{name}:1:1: not YAML: {first_line(error)}"]) from None
    reader = _YamlReader(name)
    value = None if root is None else reader.value(root, ())
    if reader.found:
        raise BadFile(
            [f"{name}:{line}:{col}: {what}" for (line, col), what in sorted(reader.found)]
        )
    return Document(name, value, reader.values, reader.keys)


def _slip(error: yaml.MarkedYAMLError, text: str) -> tuple[Any, str]:
    """Where a text is not YAML, and why, in words about the text; the parser's own are about its
    grammar.
    """
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
        if (
            lines
            and len(lines[-1]) - len(lines[-1].lstrip(" ")) == mark.column
            and lines[-1].strip()[:1] != "-"
        ):
            around: list[int] = []
            for one in reversed(lines[:-1]):
                indent = len(one) - len(one.lstrip(" "))
                if (
                    one.strip()
                    and not one.lstrip().startswith("#")
                    and (not around or indent < around[-1])
                ):
                    around.append(indent)
            if around and mark.column not in around:
                deeper = [indent for indent in around if indent > mark.column]
                return (
                    mark,
                    f"{word[:40]!r} is indented by {mark.column}, its neighbours by {min(deeper, default=around[0])}",
                )
    return mark, problem


def _within_limits(text: str, name: str) -> None:
    """Refuse a file that is too deep or too large before nodes are made of it: libyaml's composer
    is recursive, without limit.

    Raises: BadFile. yaml.YAMLError - the text is not YAML; the text before that place is neither
    too deep nor too large.
    """
    depth = 0
    for count, event in enumerate(
        yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    ):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or count > 2 * MAX_NODES:  # a collection has two events
            what = (
                f"nested deeper than {MAX_DEPTH} levels"
                if depth > MAX_DEPTH
                else f"more than {MAX_NODES} values"
            )
            line, col = (mark.line + 1, mark.column + 1) if (mark := event.start_mark) else (1, 1)
            raise BadFile([f"{name}:{line}:{col}: {what}"])


def _compose(text: str, name: str) -> yaml.Node | None:
    """Compose with libyaml if PyYAML has it, ten times as fast; a text it refuses goes to PyYAML's
    own parser, for its messages.
    """
    try:
        _within_limits(text, name)
        return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        if len(text) > _OWN_MESSAGES:
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
        raise BadFile(
            [
                f"{self.name}:{spot}: {spell(path[:4])}: nested too deep or too large; an alias of itself?"
            ]
        )

    def scalar(self, node: yaml.Node, path: Path) -> Any:
        if len(node.value) > MAX_NUMBER and node.tag in (
            "tag:yaml.org,2002:int",
            "tag:yaml.org,2002:float",
        ):
            self.complain(
                node,
                f"{spell(path)}: the number {node.value[:8]}... of {len(node.value)} characters is too large",
            )
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
                for source in (
                    value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                ):
                    if isinstance(source, yaml.MappingNode):
                        self.count += len(source.value) + len(merged)
                        if self.count > MAX_NODES:
                            self.too_large(key_node, path)
                        merged = {
                            self.scalar(k, path): v
                            for k, v in source.value
                            if isinstance(k, yaml.ScalarNode)
                        } | merged
                continue
            key = self.scalar(key_node, path) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str | int):
                self.complain(
                    key_node, f"{spell(path) or 'the file'}: a key must be a word or a number"
                )
                continue
            if key in own:
                first = self.keys[(*path, key)][0]
                self.complain(
                    key_node, f"{spell((*path, key))}: the key appears twice, first in line {first}"
                )
                continue
            self.keys[(*path, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            own[key] = value_node
        return {key: self.value(value, (*path, key)) for key, value in (merged | own).items()}

    def complain(self, node: yaml.Node, what: str) -> None:
        self.found.append(((node.start_mark.line + 1, node.start_mark.column + 1), what))
