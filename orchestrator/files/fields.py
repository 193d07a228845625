"""Dataclasses from what the store says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from optics.errors import StoreFailed

T = TypeVar("T")


def of_fields(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass with these fields. Raises: StoreFailed - one is unknown or missing."""
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    needed = {
        n
        for n, f in known.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if wrong := sorted((values.keys() - known.keys()) | (needed - values.keys())):
        text = f"the store has a {kind.__name__} whose fields are not those of this version: {', '.join(wrong)}"
        raise StoreFailed(text, hint="testbed doctor")
    return kind(**values)


def stored(
    read: Callable[[type[T], Mapping[str, Any]], T],
) -> Callable[[type[T], Mapping[str, Any]], T]:
    """A reader of JSON that raises StoreFailed also where a part is missing or of another kind than
    it expects.
    """

    @wraps(read)
    def checked(kind: type[T], data: Mapping[str, Any]) -> T:
        try:
            return read(kind, data)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            text = f"the store has a {kind.__name__} that this version cannot read: {type(error).__name__}: {error}"
            raise StoreFailed(text, hint="testbed doctor") from error

    return checked
