"""What a host's workloads directory gives a program: torch finds the back-end there, under the name
of its distribution.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.hosts import facts
from tests.workloads.ranks import ROOT


def site(directory: Path) -> str:
    """Lay such a directory out; return it, for PYTHONPATH."""
    for name, content in facts.TORCH_BACKEND:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (directory / facts.TORCH_PACKAGE).symlink_to(ROOT / "workloads")
    return str(directory)
