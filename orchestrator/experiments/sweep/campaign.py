"""Has the workers run the trials that have no result yet, and keeps each result as it comes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from optics.errors import Refused, Unreachable
from orchestrator.experiments.files.sweep.values import Campaign, Trial
from orchestrator.experiments.sweep.record import CampaignRecord
from orchestrator.experiments.sweep.trial import Outcome, run_trial

if TYPE_CHECKING:
    from distributed import Client, Future

Slots = Mapping[str, int]
AHEAD = 4
"""Trials that wait at the scheduler for each that runs, so that no worker waits for this
process.
"""


@dataclass(slots=True)
class CampaignProgress:
    """How far a campaign is. done, failed: of `total` trials. left_s: seconds until the end, as
    results come now; None before each resource has given one, and at the end."""

    total: int
    done: int = 0
    failed: int = 0
    left_s: float | None = None


def trials_to_make(campaign: Campaign, record: CampaignRecord) -> list[Trial]:
    """The trials without a result, and those that failed, in their order."""
    found = []
    for trial in campaign.trials:
        result = record.result(trial.key)
        if result is None or result["state"] != "done":
            found.append(trial)
    return found


def carry_out(
    client: Client,
    campaign: Campaign,
    record: CampaignRecord,
    trials: Sequence[Trial],
    slots: Slots,
    show: Callable[[CampaignProgress], object],
) -> CampaignProgress:
    """Run the trials; one that fails is run again `campaign.retries` times, and then kept as
    failed.

    slots: for each resource that trials take (empty: none), how many run at a time. A trial whose
    worker died is run on another by the scheduler; if that happens too often it has failed as well.
    Raises: Unreachable - the scheduler is gone. Refused - a worker of another version joined. What
    had ended is kept.
    """
    from concurrent.futures import CancelledError

    from distributed import as_completed

    seen = CampaignProgress(len(campaign.trials), done=len(campaign.trials) - len(trials))
    version = str(record.data["version"])
    waiting = {
        resource: iter([trial for trial in trials if trial.resource == resource])
        for resource in slots
    }
    total = Counter(trial.resource for trial in trials)
    ended: Counter[str] = Counter()
    tried: dict[str, list[Outcome]] = {}
    in_progress: dict[str, Trial] = {}
    first: dict[str, float] = {}

    def submit(trial: Trial) -> Future:
        key = f"{campaign.name}-{trial.key}-{len(tried.setdefault(trial.key, []))}"
        in_progress[key] = trial
        return client.submit(
            run_trial,
            trial.task,
            version,
            key=key,
            resources={trial.resource: 1} if trial.resource else None,
            pure=False,
        )

    show(seen)
    begun = [
        submit(trial)
        for resource, count in slots.items()
        for trial in islice(waiting[resource], AHEAD * count)
    ]
    running = as_completed(begun, loop=client.loop)
    for future in running:
        trial = in_progress.pop(future.key)
        try:
            outcome: Outcome = future.result()
        except CancelledError as error:
            raise _ended(seen) from error
        except Refused:
            raise
        except Exception as error:  # its workers died, one after another
            outcome = Outcome(
                values={},
                error=f"{type(error).__name__}: {error}"[:2000],
                seconds=0.0,
                worker="",
                began=time.time(),
            )
        if client.status != "running":
            raise _ended(seen)
        future.release()
        attempts = tried[trial.key]
        attempts.append(outcome)
        if outcome["error"] and len(attempts) <= campaign.retries:
            running.add(submit(trial))
            continue
        record.keep(trial, attempts)
        del tried[trial.key]
        ended[trial.resource] += 1
        seen.failed += bool(outcome["error"])
        seen.done += not outcome["error"]
        now = time.monotonic()
        first.setdefault(trial.resource, now - outcome["seconds"] / slots[trial.resource])
        seen.left_s = _left({resource: now - at for resource, at in first.items()}, total, ended)
        show(seen)
        for another in islice(waiting[trial.resource], 1):
            running.add(submit(another))
    return seen


def _left(
    took_s: Mapping[str, float], total: Mapping[str, int], ended: Mapping[str, int]
) -> float | None:
    """Seconds until the last trial ends: of the resource whose trials take longest. None: unknown,
    or none is left.

    took_s: of each resource, from its first result, and what that took. The first trials wait for
    imports besides.
    """
    if took_s.keys() != total.keys():
        return None
    return (
        max(
            took / ended[resource] * (total[resource] - ended[resource])
            for resource, took in took_s.items()
        )
        or None
    )


def _ended(seen: CampaignProgress) -> Unreachable:
    text = f"the Dask scheduler is gone; {seen.done + seen.failed} of {seen.total} trials have ended and are kept"
    return Unreachable(
        text,
        hint="start the scheduler and its workers again, then testbed experiment sweep FILE --resume",
    )
