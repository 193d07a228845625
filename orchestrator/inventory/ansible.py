"""Reads the part of an Ansible YAML inventory that a lab needs: groups, children, inherited
variables, host ranges. Values only.

Precedence is Ansible's: a child group overrides its parent, among groups of equal depth the later
name wins, the host wins over all. Templates (`{{ }}`) are not evaluated, except
`{{ inventory_hostname }}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from optics.plain import did_you_mean
from orchestrator.inventory.positions import Document, Path, Problems

_RANGE = re.compile(r"\[(?:(\d+):(\d+)|([a-zA-Z]):([a-zA-Z]))(?::(\d+))?\]")
_MAX_RANGE = 4096  # hosts one pattern may name; the project's largest lab has 250


@dataclass
class InventoryHost:
    """One host: its variables after inheritance, and for each the path of its value in the file."""

    name: str
    path: Path
    variables: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Path] = field(default_factory=dict)


@dataclass
class _Group:
    depth: int = 0
    members: dict[str, Path] = field(default_factory=dict)
    parents: set[str] = field(default_factory=set)
    variables: dict[str, tuple[Any, Path]] = field(default_factory=dict)


def read_inventory(document: Document, problems: Problems) -> dict[str, InventoryHost]:
    """The hosts of the inventory in the order of the file; errors go to `problems`."""
    reader = _Reader(problems)
    if document.value is None:
        problems.add((), "the file is empty; wanted groups of hosts")
        return {}
    if not isinstance(document.value, Mapping):
        problems.add(
            (), "wanted a mapping of groups, such as `all: {children: {gpu: {hosts: {...}}}}`"
        )
        return {}
    for name, body in document.value.items():
        reader.group(str(name), body, (name,), None)
    return reader.resolve()


class _Reader:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.groups: dict[str, _Group] = {}
        self.own: dict[str, dict[str, tuple[Any, Path]]] = {}
        self.first: dict[str, Path] = {}

    def group(self, name: str, body: Any, path: Path, parent: str | None) -> None:
        group = self.groups.setdefault(name, _Group())
        if parent is not None:
            group.parents.add(parent)
        for key, value in self.mapping(body, path):
            inner = (*path, key)
            if key == "vars":
                group.variables |= {
                    str(key): (var, (*inner, key)) for key, var in self.mapping(value, inner)
                }
            elif key == "children":
                for child, child_body in self.mapping(value, inner):
                    self.group(str(child), child_body, (*inner, child), name)
            elif key == "hosts":
                for pattern, host_vars in self.mapping(value, inner):
                    self.hosts(group, str(pattern), host_vars, (*inner, pattern))
            else:
                hint = did_you_mean(key, ("hosts", "vars", "children"))
                self.problems.add(inner, f"a group has hosts, vars and children{hint}", key=True)

    def mapping(self, value: Any, path: Path) -> Iterator[tuple[str | int, Any]]:
        if value is None:
            return
        if not isinstance(value, Mapping):
            self.problems.add(path, "wanted a mapping")
            return
        yield from value.items()

    def hosts(self, group: _Group, pattern: str, host_vars: Any, path: Path) -> None:
        names = expand(pattern)
        if names is None:
            self.problems.add(
                path,
                f"the range in {pattern} is empty or names more than {_MAX_RANGE} hosts",
                key=True,
            )
            return
        for name in names:
            group.members[name] = path
            self.first.setdefault(name, path)
            found = self.own.setdefault(name, {})
            found |= {
                str(key): (value, (*path, key)) for key, value in self.mapping(host_vars, path)
            }

    def depth(self, name: str, seen: frozenset[str] = frozenset()) -> int:
        parents = self.groups[name].parents - {name}
        if name in seen:
            return 0
        return 1 + max(
            (self.depth(parent, seen | {name}) for parent in parents),
            default=0 if name == "all" else 1,
        )

    def ancestors(self, name: str) -> set[str]:
        found, open_ = {name}, [name]
        while open_:
            for parent in self.groups[open_.pop()].parents - found:
                found.add(parent)
                open_.append(parent)
        return found

    def resolve(self) -> dict[str, InventoryHost]:
        depths = {name: self.depth(name) for name in self.groups}
        of: dict[str, set[str]] = {name: {"all"} & set(self.groups) for name in self.first}
        for group_name, group in self.groups.items():
            above = self.ancestors(group_name)
            for member in group.members:
                of[member] |= above
        result = {}
        for name, path in self.first.items():
            host = InventoryHost(name, path)
            layers = [
                self.groups[group].variables
                for group in sorted(of[name], key=lambda group: (depths[group], group))
            ]
            for layer in [*layers, self.own[name]]:
                for key, (value, place) in layer.items():
                    host.variables[key] = _named(value, name)
                    host.places[key] = place
            result[name] = host
        return result


def _named(value: Any, host: str) -> Any:
    """The value with the host's name in place of `{{ inventory_hostname }}`, in mappings too."""
    if isinstance(value, str):
        return value.replace("{{ inventory_hostname }}", host)
    if isinstance(value, Mapping):
        return {key: _named(inner, host) for key, inner in value.items()}
    return value


def expand(pattern: str) -> list[str] | None:
    """`gpu[01:12]` as its host names (leading zeros kept, `[a:f]` and a step allowed); None for an
    empty or endless range.
    """
    found = _RANGE.search(pattern)
    if found is None:
        return [pattern]
    first, last, alpha, omega, step_text = found.groups()
    step = int(step_text or 1)
    low, high = (int(first), int(last)) if first else (ord(alpha), ord(omega))
    if step < 1 or high < low or (high - low) // step >= _MAX_RANGE:
        return None
    names: list[str] = []
    for number in range(low, high + 1, step):
        middle = (
            str(number).zfill(len(first) if first.startswith("0") else 0) if first else chr(number)
        )
        rest = expand(pattern[: found.start()] + middle + pattern[found.end() :])
        if rest is None or len(names) + len(rest) > _MAX_RANGE:
            return None
        names += rest
    return names
