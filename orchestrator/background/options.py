"""Options of a service, declared once as fields of a class, from which the command line is made,
and the words that start one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

V = TypeVar("V", bool, int, float, str)
TIME = "TIME"
"""The metavar of a duration, a field in seconds."""


@dataclass(frozen=True, slots=True)
class Option:
    """name: as typed. once: `run` has it, `start` has not. least, most: of a number. known: all
    values that a text may have.
    """

    name: str
    help: str
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    known: tuple[str, ...] = ()
    once: bool = False


def option(default: V, name: str, help: str, **more: Any) -> V:
    """A field that is an option. more: as `Option`."""
    found: V = field(default=default, metadata={"option": Option(name, help, **more)})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What a service is started with; kinds add options. log: the file of its events. kept: its
    parent starts it again when it is killed. Raises: Usage - a class whose options do not all go
    together checks them when it is made."""

    log: str = ""
    kept: bool = False

    @classmethod
    def declared(cls) -> Iterator[tuple[str, Any, Option]]:
        """Each option: its field, its default, and how it is typed."""
        for each in fields(cls):
            if (found := each.metadata.get("option")) is not None:
                yield each.name, each.default, found

    def text(self) -> list[str]:
        """What is typed for them, defaults left out."""
        found: list[str] = []
        for name, default, option in self.declared():
            if (value := getattr(self, name)) != default:
                found += [option.name] if value is True else [option.name, shown(option, value)]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed(ServiceOptions):
    """Those that a service was started with, as they were typed."""

    words: tuple[str, ...] = ()

    def text(self) -> list[str]:
        return [*self.words]


def shown(option: Option, value: object) -> str:
    """A value as it is typed."""
    return (f"{value:g}" if isinstance(value, float) else str(value)) + (
        "s" if option.metavar == TIME else ""
    )
