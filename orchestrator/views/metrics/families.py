"""The figures of a lab as families of the OpenMetrics data model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from os.path import samestat
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from optics import SpectralRoute
from optics.errors import StoreFailed
from orchestrator.settings import Settings
from orchestrator.store.keys import key_of
from orchestrator.store.light import latest_light
from orchestrator.store.locks import locks_of
from orchestrator.store.runs import outcomes, running_jobs
from orchestrator.store.store import Store
from orchestrator.verify.power import LOS_DBM
from orchestrator.views.live import Watcher
from orchestrator.views.live.fabric import DARK, LIT, LOST, MAKING, LiveCircuit
from orchestrator.views.live.slots import WAITS
from orchestrator.views.metrics.counted import DARK_S, MOST_JOBS, Counted

STATES = (LIT, DARK, MAKING, LOST, WAITS)
RESULTS = ("ok", "failed", "rolled-back", "hands-needed", "interrupted", "died")
"""Every result of a verb is there from its first run on: Prometheus does not count what a series
begins with.
"""
JOB_STATES = ("starting", "running", "paused")

FAMILIES: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "testbed_build_info": (
        "gauge",
        ("version",),
        "the version of testbed that serves this; always 1",
    ),
    "testbed_circuits": (
        "gauge",
        ("lab", "device", "state"),
        "circuits by state and by the first device on their path; waits: for its slot of a schedule",
    ),
    "testbed_circuit_power_dbm": (
        "gauge",
        ("lab", "circuit"),
        "power at the receiver's end of a lit circuit when last measured",
    ),
    "testbed_circuit_margin_db": (
        "gauge",
        ("lab", "circuit"),
        "the same above the power at which light counts as lost",
    ),
    "testbed_light_measured_timestamp_seconds": (
        "gauge",
        ("lab",),
        "when the oldest of these readings was taken",
    ),
    "testbed_dark_seconds": (
        "histogram",
        ("lab",),
        "dark time of reconfigurations, the longest device of each",
    ),
    "testbed_runs": ("counter", ("lab", "verb", "result"), "runs that have ended"),
    "testbed_runs_running": ("gauge", ("lab",), "runs that have not ended"),
    "testbed_locks": ("gauge", ("lab", "kind", "state"), "locks held and waited for"),
    "testbed_jobs": (
        "gauge",
        ("lab", "state"),
        "jobs that have not ended, by their last known state",
    ),
    "testbed_job_iterations": ("counter", ("lab", "job_name"), "iterations of jobs of this name"),
    "testbed_job_iteration_seconds": (
        "counter",
        ("lab", "job_name"),
        "time that these iterations took",
    ),
    "testbed_job_loss": (
        "gauge",
        ("lab", "job_name"),
        "training loss of the latest iteration that has one",
    ),
    "testbed_journal_unread": ("counter", ("lab",), "lines of journals that are damaged"),
}
"""Kind, labels and meaning of each family."""
_KINDS: Mapping[str, type[Any]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


class LabMetrics:
    """The figures of the lab that `watcher` sees; counters never become less while it lives. Not
    for several threads at once.
    """

    def __init__(self, settings: Settings, store: Store, watcher: Watcher) -> None:
        self._settings, self._store, self._watcher = settings, store, watcher
        self._lab, self._key = watcher.picture.lab, key_of(watcher.picture.lab)
        self._counted = Counted(settings.runs_dir)
        self._ended: dict[str, tuple[str, str]] = {}
        self._file = store.path.stat()

    def families(self) -> list[Metric]:
        """All families as of now. Raises: StoreFailed - the store or the journals cannot be read,
        or a new store took its place.
        """
        if not self._same_store():
            raise StoreFailed(
                f"{self._store.path} was removed or replaced",
                hint="testbed service stop metrics, then testbed service start metrics",
            )
        self._watcher.refresh()
        if trouble := self._watcher.picture.trouble.get("files"):
            raise StoreFailed(trouble)
        found = {name: _empty(name) for name in FAMILIES}
        for name, labels, value in self._values():
            found[name].add_metric(labels, value)
        counted = self._counted
        limits = [*map(floatToGoString, DARK_S), "+Inf"]
        buckets = list(zip(limits, map(float, accumulate(counted.dark)), strict=True))
        found["testbed_dark_seconds"].add_metric([self._lab.name], buckets, counted.dark_seconds)
        return list(found.values())

    def _same_store(self) -> bool:
        try:
            return samestat(self._store.path.stat(), self._file)
        except OSError:
            return False

    def _values(self) -> Iterator[tuple[str, list[str], float]]:
        lab = self._lab.name
        yield "testbed_build_info", [_version()], 1
        yield from self._circuits(lab)
        running = self._runs()
        ended = Counter(self._ended.values())
        ended.update(
            {
                (verb, result): 0
                for verb in ("up", *{verb for verb, _ in ended})
                for result in RESULTS
            }
        )
        for key, number in sorted(ended.items()):
            yield "testbed_runs", [lab, *key], number
        yield "testbed_runs_running", [lab], running
        locks = locks_of(self._lab, self._settings, self._store).seen()
        for kind in ("run", "reservation"):
            for state in ("active", "waiting"):
                yield (
                    "testbed_locks",
                    [lab, kind, state],
                    sum(lock.kind == kind and lock.state == state for lock in locks),
                )
        jobs = running_jobs(self._store, self._key)
        for state in (*JOB_STATES, *sorted(jobs.keys() - set(JOB_STATES))):
            yield "testbed_jobs", [lab, state], jobs.get(state, 0)
        for job, count in sorted([*self._counted.jobs.items()][-MOST_JOBS:]):
            yield "testbed_job_iterations", [lab, job], count.iterations
            yield "testbed_job_iteration_seconds", [lab, job], count.seconds
            if count.loss is not None:
                yield "testbed_job_loss", [lab, job], count.loss
        yield "testbed_journal_unread", [lab], self._counted.unread

    def _circuits(self, lab: str) -> Iterator[tuple[str, list[str], float]]:
        picture = self._watcher.picture
        by: dict[tuple[str, str], int] = {
            (device, state): 0 for device in self._lab.devices for state in STATES
        }
        for circuit in picture.light.circuits.values():
            place = circuit.ports[0][0], picture.light.states.get(circuit.id, circuit.state)
            by[place] = by.get(place, 0) + 1
        for (device, state), number in by.items():
            yield "testbed_circuits", [lab, device, state], number
        plain = {
            str(s): str(replace(s, attenuation_db=0.0))
            for s in picture.state.held or ()
            if isinstance(s, SpectralRoute)
        }
        lit = {
            c.id: _path(c, plain)
            for c in picture.light.circuits.values()
            if picture.light.states.get(c.id) == LIT
        }
        shown = [
            p
            for p in latest_light(self._store, self._key)
            if p.out_dbm is not None and lit.get(p.circuit) == p.path
        ]
        for point in shown:
            assert point.out_dbm is not None
            yield "testbed_circuit_power_dbm", [lab, point.circuit], point.out_dbm
            yield (
                "testbed_circuit_margin_db",
                [lab, point.circuit],
                round(point.out_dbm - LOS_DBM, 3),
            )
        if shown:
            yield (
                "testbed_light_measured_timestamp_seconds",
                [lab],
                min(point.at for point in shown),
            )

    def _runs(self) -> int:
        """Take in the runs that have ended, and their journals; return the number of those that
        have not.
        """
        now = outcomes(self._store, self._key)
        self._counted.read(run for run, _, _ in now)
        self._ended |= {run: (verb, status) for run, verb, status in now if status != "running"}
        return sum(status == "running" for _, _, status in now)


def _empty(name: str) -> Any:
    kind, labels, meaning = FAMILIES[name]
    return _KINDS[kind](name, meaning, labels=labels)


def _path(circuit: LiveCircuit, plain: Mapping[str, str]) -> str:
    return " ".join(plain.get(setting, setting) for setting in circuit.path)


def _version() -> str:
    try:
        return version("optical-testbed")
    except PackageNotFoundError:
        return "unknown"
