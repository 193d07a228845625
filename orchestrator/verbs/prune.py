"""Which runs can be deleted: the oldest of a user beyond a number to keep, except those that are
still needed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from optics import Missing
from orchestrator.settings import Settings, campaigns
from orchestrator.store.notes import tags_of
from orchestrator.store.records import RunRecord
from orchestrator.store.runs import folder_bytes, latest_begun, latest_change, rows_in_use
from orchestrator.store.store import Store
from orchestrator.telemetry import retention
from orchestrator.telemetry.influx_api import InfluxTarget

_RUN = re.compile(r"\d{4}-\d\d-\d\d-\d{4,}")


@dataclass(frozen=True, slots=True)
class Forgettable:
    """Runs older than those kept. going: to be removed, oldest first; staying: as old but still
    needed, with the reason.
    """

    going: tuple[RunRecord, ...]
    staying: tuple[tuple[str, str], ...]
    bytes: int


def forgettable(
    store: Store, settings: Settings, keep: int, target: InfluxTarget | None
) -> Forgettable:
    """The user's own runs except the newest `keep`. target: an InfluxDB that must have their
    journals before they are removed.
    """
    records = store.history(None, 0)
    beyond = [record for record in records if record.user == settings.user][keep:]
    why = dict(_needed(store, settings, records))
    tagged = tags_of(store, [record.id for record in beyond if record.id not in why])
    why |= {run: f"it has the tag {', '.join(tags)}" for run, tags in tagged.items() if tags}
    runs = settings.state_dir / "runs"
    if target is not None:
        unsent = retention.old(runs, 0.0, (), target)
        why |= {each.run: each.why for each in unsent if each.why and each.run not in why}
    going = tuple(record for record in reversed(beyond) if record.id not in why)
    staying = tuple((record.id, why[record.id]) for record in reversed(beyond) if record.id in why)
    return Forgettable(
        going, staying, sum(folder_bytes(settings.run_dir(record.id)) for record in going)
    )


def forget(store: Store, settings: Settings, going: Iterable[RunRecord]) -> bool:
    """Remove runs; whether the store's file is smaller now.

    The folders first, so that an interrupted removal is found and completed the next time.
    """
    for record in going:
        folder = settings.run_dir(record.id)
        if folder.exists():
            shutil.rmtree(folder)
        with store.transaction() as db:
            for table in ("steps", "notes", "tags"):
                db.execute(f"DELETE FROM {table} WHERE run=?", (record.id,))
            db.execute("DELETE FROM runs WHERE id=?", (record.id,))
    return store.shrink()


def _needed(
    store: Store, settings: Settings, records: Collection[RunRecord]
) -> Iterator[tuple[str, str]]:
    """Runs that must stay, and why."""
    by_id = {record.id: record for record in records}
    first = {**dict(_in_use(store, records)), **dict(_compared(settings))}
    open_ = list(first)
    while open_:  # rolling back one may need others
        record = by_id.get(open_.pop())
        if record is None:
            continue
        more = {record.options.of, record.options.resumes, record.options.unconfirmed} - {""}
        more |= {other.id for other in records if other.resolved_by == record.id}
        for run in more - first.keys():
            first[run] = f"`rollback` or `resume` of run {record.id} needs it"
            open_.append(run)
    yield from first.items()


def _in_use(store: Store, records: Collection[RunRecord]) -> Iterator[tuple[str, str]]:
    for lab, owner in {(record.lab, record.owner) for record in records}:
        for latest in (latest_change, latest_begun):
            with suppress(Missing):
                yield latest(store, lab, owner).id, "`rollback` or `resume` would begin with it"
    for record in records:
        if record.status == "running":
            yield record.id, "it still runs"
        elif record.unfinished:
            yield record.id, "it is unfinished"
    with store.transaction() as db:
        yield from rows_in_use(db)


def _compared(settings: Settings) -> Iterator[tuple[str, str]]:
    """The runs of comparisons, whose reports can be regenerated."""
    for path in sorted(campaigns(settings).glob("*/campaign.json")):
        with suppress(OSError):
            for run in _RUN.findall(path.read_text(encoding="utf-8", errors="replace")):
                yield run, f"the comparison {path.parent.name} is made of it"
