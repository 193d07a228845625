"""The version of the program that a worker runs: the distribution's, and a hash of the sources,
which tell two commits apart.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "optics",
    "extensions",
    "drivers",
    "planner",
    "orchestrator",
    "agent",
    "workloads",
    "emulators",
)
_HOME = Path(__file__).resolve().parents[3]


@cache
def of_program() -> str:
    """`0.1.0+1f3a...`, of what is installed where this runs, and the Python that runs it."""
    try:
        number = version("optical-testbed")
    except PackageNotFoundError:
        number = "0"
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((_HOME / package).rglob("*.py")):
            digest.update(str(path.relative_to(_HOME)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{number}+{digest.hexdigest()[:12]}, Python {'.'.join(platform.python_version_tuple()[:2])}"
