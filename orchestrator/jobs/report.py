"""What is known of a job, as frozen values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.results import JsonReport


@dataclass(frozen=True, slots=True)
class JobStatus(JsonReport):
    """One job. `state`: none, starting, running, paused, stopped, finished, failed. `exit_codes`:
    by rank, once it has ended.

    iteration_ms: median of the latest iterations. busbw_mbps: nccl-tests' bus bandwidth, megabytes
    per second (1e6), next to what the plan's links should give. The expected ones are the plan's.
    time_scale: of times here to those of the designed workload. busy: fraction of the time that the
    processors of rank 0's host were busy. resumed_from: the iteration whose checkpoint it resumed
    from; 0: it started from scratch. damaged: that of the newest checkpoint passed over for it, as
    it was damaged. hosts: how many its ranks are on. late: which of them are slow or silent, in
    words. attached: figures of what it has beside its ranks, by kind; `missing`: what is missing
    there. sent: as the measurement `collective`. saves: how long training stands for a checkpoint
    (`each_ms`), one in `every` iterations. bad_records: lines of its iterations that are no
    records, and are left out; bad_record: what is wrong with the latest, or with the file.
    """

    name: str
    state: str
    workload: str = ""
    backend: str = ""
    ranks: int = 0
    iterations: int = 0
    iteration_ms: float | None = None
    busbw_mbps: float | None = None
    busbw_expected_mbps: float | None = None
    exit_codes: Mapping[int, int] = dataclasses.field(default_factory=dict)
    detail: str = ""
    run: str = ""
    started: float | None = None
    """Wall time (s since the epoch)."""
    iteration_expected_ms: float | None = None
    time_scale: float = 1.0
    busy: float | None = None
    resumed_from: int = 0
    hosts: int = 0
    late: tuple[str, ...] = ()
    attached: Mapping[str, tuple[Mapping[str, int | float | str], ...]] = dataclasses.field(
        default_factory=dict
    )
    sent: Mapping[str, float] | None = None
    saves: Mapping[str, float] | None = None
    bad_records: int = 0
    bad_record: str = ""
    damaged: int = 0

    @property
    def limit(self) -> str:
        """As `held_up`."""
        known = self.iteration_ms is not None and self.iteration_expected_ms
        return (
            held_up(self.iteration_ms / self.iteration_expected_ms - 1, self.busy) if known else ""  # type: ignore[operator]
        )


ALIVE = ("starting", "running", "paused")
"""States of a job whose ranks are there."""


SLOW, BUSY = 0.10, 0.75
"""An iteration this much longer than predicted, with processors this busy on average, was not
limited by links alone.
"""


def held_up(off: float | None, busy: float | None) -> str:
    """What other than the links made iterations longer than predicted, by the share `off`; empty:
    nothing measured.
    """
    if off is None or off <= SLOW or busy is None or busy < BUSY:
        return ""
    return f"the hosts' processors were busy {busy:.0%} of the time: they, and not the links, may have set the pace"


@dataclass(frozen=True, slots=True)
class JobLogs(JsonReport):
    """The last lines each rank wrote, by `rank 0 (gpu01)` and the like."""

    name: str
    lines: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
