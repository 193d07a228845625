"""Entry point of `testbed`; makes sure that this project's packages are imported, not others of the same name (`drivers`, ...).

Its own name is that of the distribution, and it imports no package of the project before that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).resolve().parent
"""The directory of the packages: the repository, or site-packages."""
PACKAGES = (
    "optics", "drivers", "conformance", "orchestrator", "emulators", "planner", "workloads", "agent", "playbooks", "inventory",
    "dashboards",
)  # fmt: skip


class OwnFirst:
    """A finder for sys.meta_path that finds the project's packages next to this file, whatever comes first on sys.path."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(HOME)]) if path is None and name in PACKAGES else None


def environment() -> dict[str, str]:
    """The environment for a Python process that runs a package of the project with `-m`, in any working directory."""
    path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def shadowed() -> dict[str, str]:
    """Packages of the project that `import` would find elsewhere, and where."""
    found = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        places = [Path(place).resolve() for place in (spec.submodule_search_locations or [spec.origin or "?"])] if spec else []
        if places and HOME / name not in places[:1]:
            found[name] = str(places[0])
    return found


def main() -> None:
    """Run the command line."""
    sys.meta_path.insert(0, OwnFirst)
    from orchestrator.cli.main import main as command

    command()
