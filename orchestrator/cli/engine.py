"""What the command line asks of the engine, as a type: `orchestrator.engine.verbs` has these functions.

Every function raises an error of `optics.errors`; `timeout_s` bounds the whole call. Cancelling one makes it finish or take
back the step in hand and then raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.results import (
    ConfirmReport,
    DownReport,
    JobLogs,
    JobStatus,
    PlanReport,
    PrewireReport,
    UpReport,
    WatchReport,
)
from orchestrator.settings import Settings
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Progress
from orchestrator.verify.report import PowerReport, VerifyReport
from orchestrator.verify.state import DevicesReport, StatusReport


class Engine(Protocol):
    """The verbs that touch the lab."""

    async def up(
        self,
        inventory: Path,
        plan_path: Path,
        *,
        dry_run: bool,
        launch_job: bool,
        avoid: tuple[str, ...] = (),
        relabel: bool = False,
        adopt: tuple[str, ...] = (),
        progress: Progress,
        store: Store,
        settings: Settings,
        timeout_s: float,
        rollback: bool = True,
        expected: str = "",
        confirm_s: float | None = None,
    ) -> UpReport:
        """Bring the plan up; with `dry_run` read and compute everything and write nothing.

        rollback: take back what fails. expected: the fingerprint of a saved plan. relabel: interchangeable hosts may change places.
        adopt: circuits of others that become ours. confirm_s: it is taken back unless `confirm` comes within this time (s).
        """
        ...

    async def prewire(
        self,
        inventory: Path,
        plan_path: Path,
        *,
        relabel: bool = False,
        progress: Progress,
        store: Store,
        settings: Settings,
        timeout_s: float,
    ) -> PrewireReport:
        """Have slow devices make, in the dark, what `up` of this plan will want of them."""
        ...

    async def resume(
        self, inventory: Path, run: str, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> UpReport | DownReport | PrewireReport:
        """Go on with a run that stopped on its way."""
        ...

    async def rollback(
        self, inventory: Path, run: str | None, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> UpReport | DownReport:
        """Bring back what was before a run, None: before the latest change."""
        ...

    async def restore(self, inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float) -> UpReport:
        """Bring the plan that is up back after devices or hosts lost it."""
        ...

    async def confirm(
        self, inventory: Path, run: str | None, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> ConfirmReport:
        """Make a change that waits to be confirmed stand, None: whichever does."""
        ...

    async def watch(
        self, inventory: Path, run: str | None, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> WatchReport:
        """Wait until a change is confirmed, and take it back when nobody does in time."""
        ...

    async def plan(
        self,
        inventory: Path,
        plan_path: Path,
        *,
        avoid: tuple[str, ...] = (),
        relabel: bool = False,
        adopt: tuple[str, ...] = (),
        progress: Progress,
        store: Store,
        settings: Settings,
        timeout_s: float,
    ) -> PlanReport:
        """The diff between the plan and the lab; writes nothing."""
        ...

    async def down(self, inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float) -> DownReport:
        """Stop the job, take down what is ours, restore the hosts."""
        ...

    async def status(
        self, inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> StatusReport:
        """The lab as it answers now; what does not answer is in the report, not an error."""
        ...

    async def verify(
        self,
        inventory: Path,
        *,
        rungs: Sequence[str] = (),
        qualify: bool = False,
        collective: bool = False,
        beside_job: bool = False,
        progress: Progress,
        store: Store,
        settings: Settings,
        timeout_s: float,
    ) -> VerifyReport:
        """The verification ladder against the current plan, or some rungs of it; what does not answer is in the report."""
        ...

    async def devices(
        self, inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> DevicesReport:
        """Every device as it answers now; one that does not is in the report, not an error."""
        ...

    async def devices_power(
        self,
        inventory: Path,
        *,
        device: str | None,
        history: bool,
        progress: Progress,
        store: Store,
        settings: Settings,
        timeout_s: float,
    ) -> PowerReport:
        """Power along every circuit, kept in the store; `history`: what changed since each was first measured."""
        ...

    async def job_launch(
        self, inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> JobStatus:
        """Launch the job of the current plan."""
        ...

    async def job_status(
        self, inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> JobStatus:
        """The job as its ranks report it now."""
        ...

    async def job_logs(
        self,
        inventory: Path,
        *,
        lines: int,
        host: str | None,
        progress: Progress,
        store: Store,
        settings: Settings,
        timeout_s: float,
    ) -> JobLogs:
        """The last lines each rank wrote."""
        ...

    async def job_stop(
        self, inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float
    ) -> JobStatus:
        """Stop the job and say how it ended."""
        ...


if TYPE_CHECKING:
    import orchestrator.engine.verbs

    _checked: Engine = orchestrator.engine.verbs
