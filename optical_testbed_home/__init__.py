"""Where the project's packages are: the ground that every other package stands on.

Makes sure that this project's packages are imported, not others of the same name (`drivers`, ...).
This package has the name of the distribution, so that no other hides it, and imports no package of
the project.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).resolve().parent.parent
"""The directory of the packages: the repository, or site-packages."""
PACKAGES = (
    "optics", "extensions", "drivers", "conformance", "orchestrator", "emulators", "planner", "workloads", "agent", "playbooks",
    "inventory", "dashboards",
)  # fmt: skip
IMPORTED = (
    "optics",
    "extensions",
    "drivers",
    "conformance",
    "orchestrator",
    "planner",
    "workloads",
    "agent",
)
"""Those that the program itself imports."""


class OwnFirst:
    """A finder for sys.meta_path that finds the project's packages next to this file, whatever
    comes first on sys.path.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return (
            PathFinder.find_spec(name, [str(HOME)]) if path is None and name in PACKAGES else None
        )


def own_first() -> None:
    """Have this process import the project's packages from here on; repeating it changes nothing.

    Raises: ImportError - this process has imported another package of one of these names already.
    """
    if OwnFirst not in sys.meta_path:
        sys.meta_path.insert(0, OwnFirst)
    for name in IMPORTED:
        found = sys.modules.get(name)
        if found is not None and str(HOME / name) not in [
            str(Path(place).resolve()) for place in getattr(found, "__path__", ())
        ]:
            raise ImportError(
                f"optical-testbed needs its own package {name!r}, but this process has imported another of that name from "
                f"{getattr(found, '__file__', None) or 'elsewhere'}: import optical_testbed first, or rename the other",
                name=name,
            )


def environment() -> dict[str, str]:
    """The environment for a Python process that runs a package of the project with `-m`, in any
    working directory.
    """
    path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def hidden_packages() -> dict[str, str]:
    """Packages of the project that `import` would find elsewhere, and where."""
    found = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        places = (
            [
                Path(place).resolve()
                for place in (spec.submodule_search_locations or [spec.origin or "?"])
            ]
            if spec
            else []
        )
        if places and HOME / name not in places[:1]:
            found[name] = str(places[0])
    return found
