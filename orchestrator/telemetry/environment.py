"""The environment of a run, recorded next to its journal when it begins: the command as typed,
versions, devices and their speed, ports of packet switches.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.inventory.lab import Lab

FILE = "environment.json"
_PACKAGES = ("optical-testbed", "ansible-core", "asyncssh", "torch")


def versions() -> dict[str, str]:
    """The installed versions of the packages this program depends on; a package that is not
    installed is absent.
    """
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def record_environment(run_dir: Path, lab: Lab, inventory: Path) -> None:
    """Write the file; a run does not fail where that is not possible."""
    found = {
        "command": ["testbed", *sys.argv[1:]],
        "versions": versions(),
        "machine": {
            "name": platform.node(),
            "cores": os.cpu_count(),
            "load_1min": os.getloadavg()[0],
        },
        "emulated": (inventory / "emulator.yml").is_file(),
        "devices": {
            name: {"driver": d.driver, "time_scale": lab.time_scale(name)}
            for name, d in lab.devices.items()
        },
        "segments": {
            name: list(map(str, segment.ports.values())) for name, segment in lab.segments.items()
        },
    }
    with suppress(OSError):
        (run_dir / FILE).write_text(json.dumps(found, indent=1), encoding="utf-8")


def recorded_environment(run_dir: Path) -> dict[str, Any] | None:
    """The recorded environment; None if there is none or it cannot be read."""
    try:
        found = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
