"""What a check of `doctor` found."""

from __future__ import annotations

from dataclasses import dataclass

RDMA_OF = "RDMA of "
"""What a check of a host's RDMA ports is called, with the host."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One finding. `state`: ok, warn (works without) or fail. `works`: what still works in spite of
    it.

    area: machine, store, inventory or reach; it decides the exit code.
    """

    name: str
    state: str
    detail: str
    fix: str = ""
    works: str = ""
    area: str = "machine"
