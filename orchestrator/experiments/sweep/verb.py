"""A campaign from its file to its tables, as the command line and the Python API run it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optics.errors import BadFile, Interrupted, Missing
from optics.plain import counted, reason, seconds_text
from orchestrator.experiments.files.sweep.reader import read_campaign
from orchestrator.experiments.files.sweep.values import Campaign
from orchestrator.experiments.sweep import record
from orchestrator.experiments.sweep.campaign import (
    CampaignProgress,
    Slots,
    carry_out,
    trials_to_make,
)
from orchestrator.experiments.sweep.cluster import concurrent_trials, dask_client, installed
from orchestrator.experiments.sweep.onlab import clear_left
from orchestrator.experiments.sweep.tables import write_tables
from orchestrator.experiments.sweep.version import of_program
from orchestrator.files.reading import attentive, text_of
from orchestrator.settings import Settings
from orchestrator.telemetry.progress import Progress


def load_campaign(path: Path) -> Campaign:
    """The campaign of a file, with the files it names. Raises: BadFile - everything wrong with
    it.
    """
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(
            [f"{path}: {reason(error)}"], hint="examples/sweeps/ has files to start from"
        ) from error
    with attentive(str(path)):
        return read_campaign(text, str(path), lambda word: text_of(path.parent / word))


def carried_out(
    settings: Settings,
    campaign: Campaign,
    progress: Progress,
    where: str = "local",
    workers: int | None = None,
    *,
    resume: bool,
    again: str,
) -> tuple[record.CampaignRecord, CampaignProgress]:
    """Run the trials that have no result yet. where: `local`, or the address of a Dask scheduler;
    workers: of `local`, one a core.

    again: the command that continues, for messages. Raises: Missing, BadFile, Locked - as
    `dask_client`, `begin_campaign`. Refused, Unreachable - as `concurrent_trials`, `carry_out`.
    Interrupted.
    """
    installed()
    with record.campaign_lock(settings, campaign.name):
        kept = record.begin_campaign(settings, campaign, of_program(), resume=resume)
        trials = trials_to_make(campaign, kept)
        seen = CampaignProgress(len(campaign.trials), len(campaign.trials) - len(trials))

        def show(now: CampaignProgress) -> None:
            nonlocal seen
            seen = now
            left = "" if now.left_s is None else f", about {seconds_text(now.left_s)} left"
            text = f"{now.failed or 'none'} failed{left}"
            progress.update("trials", now.done + now.failed, now.total, text)

        try:
            if trials:
                folder = kept.folder / ".dask"
                resources = sorted({trial.resource for trial in trials})
                progress.phase("workers", where)
                with (
                    _interruptible(),
                    dask_client(
                        where, workers or os.cpu_count() or 1, folder, settings.state_dir, resources
                    ) as client,
                ):
                    slots = concurrent_trials(client, resources)
                    progress.done("workers", f"{where}: {_at_once(slots)} at a time")
                    progress.phase("trials", campaign.title)
                    carry_out(client, campaign, kept, trials, slots, show)
                    progress.done("trials", f"{seen.done} done, {seen.failed} failed")
        except KeyboardInterrupt:
            text = f"{campaign.name}: interrupted; {seen.done + seen.failed} of {seen.total} trials have ended and are kept"
            raise Interrupted(text, hint=f"to continue: {again}") from None
        finally:
            if where == "local":
                for trouble in clear_left(settings):
                    progress.note(trouble)
            try:
                write_tables(kept)
            except Missing as error:
                progress.note(f"no Parquet file was written: {error}; {error.hint}")
    return kept, seen


def _at_once(slots: Slots) -> str:
    return ", ".join(
        f"{counted(count, f'trial of {resource}' if resource else 'trial')}"
        for resource, count in slots.items()
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that its processes end with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
