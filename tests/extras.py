"""What the base installation does not have: packages of extras alone (pyproject.toml)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def installed(wanted: Iterable[str]) -> set[str]:
    """The distributions that these requirements bring, with what those require in turn."""
    found: set[str] = set()
    left = [Requirement(text) for text in wanted]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name == "optical-testbed":
            left += [Requirement(text) for extra in one.extras for text in EXTRAS[extra]]
            continue
        if name in found:
            continue
        found.add(name)
        try:
            deeper = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
        named = one.extras or {""}
        left += [
            need
            for need in deeper
            if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in named)
        ]
    return found


def only_in(extras: Iterable[str]) -> list[str]:
    """The modules that these extras bring and the base installation lacks."""
    base = installed(PROJECT["dependencies"])
    more = installed(text for extra in extras for text in EXTRAS[extra]) - base
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if re.fullmatch(r"\w+", module) and {canonicalize_name(owner) for owner in owners} <= more
    )
