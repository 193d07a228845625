"""Shared by `experiment compare` and `experiment reproduce`: a tenant's verbs, what makes the
measurements, and the end of a record with its page.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optics.errors import HandsNeeded, Interrupted, TestbedError
from optics.plain import counted
from orchestrator.background.work import ServiceNote
from orchestrator.cli.call import Call, engine
from orchestrator.extensions import module_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optics.plan import Mode
    from orchestrator.change.report import DownReport, UpReport
    from orchestrator.experiments.files.scenario.values import Scenario
    from orchestrator.experiments.scenario.judging import Samples
    from orchestrator.experiments.scenario.record import ComparisonRecord
    from orchestrator.experiments.scenario.runner import Runner
    from orchestrator.experiments.scenario.void import Slowed
    from orchestrator.jobs.report import JobStatus
    from orchestrator.views.report.gather import ReportedRuns


class Tenant:
    """The verbs of one tenant, as an operator would run them."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def up(self, plan: Path, *, launch: bool = False, mode: Mode | None = None) -> UpReport:
        from orchestrator.store.options import UpOptions

        return self._call.work_on_lab(engine.up, plan, UpOptions(launch_job=launch, job=mode))

    def launch(self) -> JobStatus:
        return self._call.work(engine.job_launch)

    def status(self) -> JobStatus:
        return self._call.work(engine.job_status)

    def stop(self) -> JobStatus:
        return self._call.work(engine.job_stop)

    def begin(self, extension: str, how: Any) -> Sequence[str]:
        """Begin its service as an arm says; what there is to say of it."""
        from orchestrator.cli.service import begun
        from orchestrator.experiments.files.scenario.values import arm_services

        kind, lines = module_of(extension, "service").KIND, []
        for options in arm_services()[extension].options(how):
            found = begun(self._call, kind, options)
            lines.append(
                found.message if isinstance(found, ServiceNote) else getattr(found, "last", "")
            )
        return [text for text in lines if text]

    def end(self, extension: str) -> None:
        """End what `begin` began. It may not run any more, or not have begun."""
        from orchestrator.cli.service import ended

        ended(self._call, module_of(extension, "service").KIND)

    def rollback(self, run: str) -> UpReport | DownReport:
        return self._call.work(engine.rollback, run)

    def down(self) -> DownReport:
        return self._call.work(engine.down)


def progress_of(kept: ComparisonRecord) -> str:
    """How many measurements there are: `4 measurements in 2 rounds, 1 void`."""
    from orchestrator.experiments.scenario.record import OPEN

    states = [slot["state"] for slot in kept.slots]
    made = sum(state not in OPEN for state in states)
    other = "".join(
        f", {count} {state}"
        for state in ("void", "stalled", "failed")
        if (count := states.count(state))
    )
    return f"{counted(made, 'measurement')} in {counted(kept.rounds, 'round')}{other}"


@contextmanager
def bounded(
    kept: ComparisonRecord, verbs: Mapping[str, Tenant], again: str, *, leaves: bool
) -> Iterator[None]:
    """Measure inside this block: what was measured is kept whatever ends it, and the message says
    so.

    again: the command that continues. leaves: whether the lab is brought to the promised state also
    after an interrupt. Raises: Interrupted; the errors of the block, with what became of the lab.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        kept.data["left"] = ""
        kept.save()
        state = (
            f"the lab was left {left_text(kept, verbs)}"
            if leaves
            else "the lab was left as it was when stopped"
        )
        raise Interrupted(
            f"{kept.name}: interrupted; {progress_of(kept)} are saved; {state}",
            hint=f"to continue: {again}; to see the state of the lab: testbed status",
        ) from None
    except TestbedError as error:
        left = (
            "" if isinstance(error, HandsNeeded) else f"; the lab was left {left_text(kept, verbs)}"
        )
        error.args = (f"{error}\n{kept.name}: {progress_of(kept)} are saved{left}",)
        error.hint = "; ".join(filter(None, (error.hint, f"to continue: {again}")))
        raise


def left_text(kept: ComparisonRecord, verbs: Mapping[str, Tenant]) -> str:
    """Bring the lab to the promised state; return its state in words, also if that failed."""
    from orchestrator.experiments.scenario.runner import leave

    try:
        return leave(kept, verbs)
    except TestbedError as worse:
        return f"where the measurement failed, because restoring it failed, too: {worse}"


def page_of(call: Call, kept: ComparisonRecord, out: Path | None) -> tuple[Path, Samples]:
    """Write the record's page; return its path, and the values measured."""
    from orchestrator.cli.report import written

    campaign, found = _measured(call, kept)
    return written(call, campaign, out), found


def _measured(call: Call, kept: ComparisonRecord) -> tuple[ReportedRuns, Samples]:
    """The record's runs, and the values that their journals have."""
    from orchestrator.views.report import questions
    from orchestrator.views.report.gather import gather
    from orchestrator.views.report.ledger import ledger
    from orchestrator.views.report.samples import metric_samples

    with call.store() as store:
        records = [
            r for slot in kept.slots for run in slot["runs"] if (r := store.get(run)) is not None
        ]
        campaign = gather(records, store, call.settings, kept.data["title"], kept.data)
    with ledger(
        list(campaign.journals.values()), (*questions.READ, "collective", "requests", "serving")
    ) as book:
        return campaign, metric_samples(book, kept.data)


def is_narrow(call: Call, kept: ComparisonRecord) -> bool:
    """Whether all intervals of a scenario are as narrow as it wants them by now."""
    from orchestrator.experiments.scenario.judging import narrow
    from orchestrator.views.report.measured import findings

    return narrow(findings(_measured(call, kept)[1], kept.data), kept.data["width"])


def runner_of(
    call: Call,
    kept: ComparisonRecord,
    scenario: Scenario,
    verbs: Mapping[str, Tenant],
    *,
    stalls: bool = True,
) -> Runner:
    """What makes the measurements of a record on the lab of the call."""
    from orchestrator import emulated
    from orchestrator.experiments.scenario import lab as own
    from orchestrator.experiments.scenario.runner import Runner

    inventory, k = call.settings.inventory, scenario.dilation
    prior = emulated.is_emulated(inventory) and (scenario.lab is None or scenario.lab.priority)
    return Runner(
        kept,
        scenario,
        verbs,
        lambda text: call.note(f"{kept.data['kind']:<10} {text}"),
        lambda ms: own.set_switching_time(inventory, k * ms),
        stalls=stalls,
        sleep=_sleep,
        share=lambda how: own.share(inventory, how),
        priority=own.RanksPriority(inventory) if prior else None,
        slowed=lambda slot: _slowed_by(call, kept, slot),
    )


def _sleep(seconds: float) -> None:
    """Sleep so that SIGTERM ends it as Ctrl-C does: the verbs before have put the default back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        time.sleep(seconds)
    finally:
        signal.signal(signal.SIGTERM, before)


def _slowed_by(call: Call, kept: ComparisonRecord, slot: Mapping[str, Any]) -> Slowed:
    """What slowed the ranks of a measurement down, from the journals of its jobs."""
    from orchestrator.views.report.ledger import ledger
    from orchestrator.views.report.samples import measured_slowed

    runs = {str(part["run"]) for parts in slot["jobs"].values() for part in parts}
    with ledger(
        [call.settings.run_dir(run) for run in sorted(runs)], ("iteration", "rank")
    ) as book:
        return measured_slowed(book, kept.data, slot)
