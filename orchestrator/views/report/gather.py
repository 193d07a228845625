"""Collect the runs of a report, with their records in the store and in their directories."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optics.errors import BadFile
from orchestrator.experiments.scenario.dilated import at_other_dilations
from orchestrator.settings import Settings
from orchestrator.store.keys import tenancy_key
from orchestrator.store.records import JobRecord, RunRecord
from orchestrator.store.store import Store
from orchestrator.store.verbs import verb_of
from orchestrator.telemetry import environment
from orchestrator.telemetry.lineprotocol import INT_MAX
from orchestrator.telemetry.reader import Recorded, Stretch, part_files


@dataclass(frozen=True, slots=True)
class Source:
    """One run. before: the state it found (as `Before.to_json`), None if it did not get that far.
    devices: by how much each runs faster than a real one; emulated: None if the run did not record
    it and its inventory no longer exists.

    was, now: the runs whose journals hold the iterations of the job that ran before and of the one
    that ran after; empty: none. until: when the next change of these circuits began (wall s): what
    the job did from then on is not of this run. segments: host ports at each packet switch, as the
    run recorded them.
    """

    record: RunRecord
    folder: Path
    before: Any
    environment: Mapping[str, Any] | None
    emulated: bool | None
    devices: Mapping[str, float] | None
    was: str = ""
    now: str = ""
    until: float = float("inf")
    segments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def journalled(self) -> bool:
        """Whether any part of its journal exists."""
        return bool(part_files(self.folder))

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan it was given, as in its file; empty if there was none."""
        try:
            found = json.loads(self.record.plan_text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class ReportedRuns:
    """The runs of a report, oldest first. journals: every journal it reads, the jobs' too.
    comparison: as `compare` keeps it.
    """

    name: str
    sources: tuple[Source, ...]
    journals: Mapping[str, Path]
    comparison: Mapping[str, Any] = field(default_factory=dict)

    @property
    def single(self) -> bool:
        return len(self.sources) == 1 and not self.comparison


def gather(
    records: Iterable[RunRecord],
    store: Store,
    settings: Settings,
    name: str,
    comparison: Mapping[str, Any] | None = None,
) -> ReportedRuns:
    """Collect the records of these runs."""
    ordered = sorted({r.id: r for r in records}.values(), key=lambda r: (r.started, r.id))
    jobs = _jobs(store)
    changes = {lab: _changes(store, lab) for lab in {record.lab for record in ordered}}
    inventories: dict[str, tuple[bool | None, Mapping[str, float] | None]] = {}
    sources = []
    for record in ordered:
        folder = settings.run_dir(record.id)
        noted = environment.recorded_environment(folder)
        if noted is not None:
            emulated, devices = noted.get("emulated"), _scales(noted.get("devices"))
        else:
            if record.inventory not in inventories:
                inventories[record.inventory] = _from_inventory(Path(record.inventory))
            emulated, devices = inventories[record.inventory]
        before = store.journalled(record.id)[0]
        was, now = _jobs_around(record, before, jobs)
        until = _until(record, changes[record.lab])
        sources.append(
            Source(record, folder, before, noted, emulated, devices, was, now, until, _ports(noted))
        )
    runs = [
        word for source in sources for word in (source.record.id, source.was, source.now) if word
    ]
    journals = {
        run: settings.run_dir(run)
        for run in dict.fromkeys(runs)
        if part_files(settings.run_dir(run))
    }
    if comparison:
        comparison = {**comparison, "other_dilations": at_other_dilations(settings, comparison)}
    return ReportedRuns(name, tuple(sources), journals, comparison or {})


def recorded(record: RunRecord, store: Store, settings: Settings) -> Recorded:
    """A run's journal; if it changed circuits or rings, with what the job that it found did until
    the next change of them.
    """
    folder = settings.run_dir(record.id)
    if not _changed(record):
        return Recorded(folder)
    was, _ = _jobs_around(record, store.journalled(record.id)[0], _jobs(store))
    until = _until(record, _changes(store, record.lab))
    if was in ("", record.id):
        return Recorded(folder)
    begin_ns, end_ns = (
        int(at * 1e3) * 10**6 if at < float("inf") else INT_MAX for at in (record.started, until)
    )
    return Recorded(folder, (Stretch(settings.run_dir(was), begin_ns, end_ns),))


def _changed(run: RunRecord) -> bool:
    """Whether a run has changed circuits or a job's rings, as far as is known; one that was refused
    has not.
    """
    verb = verb_of(run.verb)
    return run.begun and (verb.light or verb.lasting)


def _changes(store: Store, lab: str) -> list[RunRecord]:
    return [run for run in store.history(lab, limit=0) if _changed(run)]


def _until(record: RunRecord, changes: Iterable[RunRecord]) -> float:
    """When the next change of the circuits of a run began (wall s)."""
    later = (
        run.started for run in changes if run.owner == record.owner and run.started > record.started
    )
    return min(later, default=float("inf"))


def _jobs(store: Store) -> dict[int, JobRecord]:
    """All jobs by number, oldest first."""
    found: dict[int, JobRecord] = {}
    while (job := store.job(len(found) + 1)) is not None:
        found[job.id] = job
    return found


def _jobs_around(record: RunRecord, before: Any, jobs: Mapping[int, JobRecord]) -> tuple[str, str]:
    """The runs that launched the job that ran when this run began, and the one that ran when it had
    ended.

    The latter is the one that this run launched, else the former if it went on: what anybody
    launched later is none of this run.
    """
    mine = [job for job in jobs.values() if job.lab == tenancy_key(record.lab, record.owner)]
    if isinstance(before, dict) and verb_of(record.verb).light:  # it asked the ranks
        was = jobs.get(before.get("job") or 0)
    else:
        older = [job for job in mine if job.started < record.started and job.run != record.id]
        was = (
            older[-1]
            if older and (older[-1].ended is None or older[-1].ended >= record.started)
            else None
        )
    launched = any(job.run == record.id for job in mine)
    kept = was is not None and (was.ended is None or was.ended > (record.ended or float("inf")))
    return (
        was.run if was is not None else "",
        record.id if launched else was.run if was is not None and kept else "",
    )


def _scales(devices: Any) -> Mapping[str, float] | None:
    if not isinstance(devices, dict):
        return None
    return {
        name: float(d.get("time_scale", 1.0)) for name, d in devices.items() if isinstance(d, dict)
    }


def _ports(noted: Mapping[str, Any] | None) -> Mapping[str, tuple[str, ...]]:
    listed = (noted or {}).get("segments")
    return (
        {k: tuple(map(str, v)) for k, v in listed.items() if isinstance(v, list)}
        if isinstance(listed, dict)
        else {}
    )


def _from_inventory(inventory: Path) -> tuple[bool | None, Mapping[str, float] | None]:
    """The values of the present inventory, for runs that recorded none."""
    from orchestrator.files.reading import text_of
    from orchestrator.inventory.yaml_reader import read_yaml

    try:
        devices = read_yaml(text_of(inventory / "devices.yml"), "devices.yml").value["devices"]
        return (inventory / "emulator.yml").is_file(), _scales(devices)
    except (OSError, ValueError, KeyError, TypeError, BadFile):
        return None, None
