"""All that the simulation takes from the program, and every place where it puts something of its
own into it.

A module that moves, or a name that changes, is changed here and nowhere else below `tests/sim`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent import basics, fence
from agent.basics import VAR, Failure, unpack
from agent.daemon import FENCED, MECHANISMS, Server
from agent.fence import Fence
from agent.host.netlink import (
    DELNEIGH,
    DELROUTE,
    DELRULE,
    EXCL,
    GETLINK,
    GETRULE,
    NEWNEIGH,
    NEWROUTE,
    NEWRULE,
    U32,
    attr,
    attrs,
    links,
    mac_bytes,
    u32,
)
from agent.jobs import demand, handoff, heartbeats, job_socket
from agent.jobs import processes as job_processes
from agent.jobs.handoff import Handoff
from agent.jobs.processes import Jobs
from agent.jobs.rank import RANK_SENDS, Allowance, Rank
from agent.jobs.remains import MARK as JOB_MARK
from agent.measure import keeping
from agent.measure.probes import Probes
from agent.routes import generations
from agent.routes.arming import Arming
from agent.routes.generations import Generations
from agent.slots import operations as slots
from agent.slots.operations import Slots
from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer
from extensions.adapt.adapter import adapt
from extensions.adapt.service import KIND as ADAPTER
from extensions.adapt.service import AdaptOptions
from extensions.pacing.coordinator import coordinate, released
from extensions.pacing.measure import tenants
from extensions.pacing.options import CoordinateOptions
from extensions.pacing.service import KIND as COORDINATOR
from optics import (
    HandsNeeded,
    Infeasible,
    Interlock,
    Locked,
    Missing,
    RolledBack,
    TestbedError,
    Unreachable,
)
from orchestrator import processes
from orchestrator import session as sessions
from orchestrator.background import kind as services
from orchestrator.background.kind import STOP_S, StateFile
from orchestrator.background.options import ServiceOptions
from orchestrator.background.registry import kinds
from orchestrator.change import apply, job_back, move
from orchestrator.change import run as changes
from orchestrator.hosts import facts as facts_of
from orchestrator.hosts import plays, ssh
from orchestrator.hosts.facts import facts
from orchestrator.hosts.launch import layout
from orchestrator.hosts.runner import Play
from orchestrator.inventory.lab import Lab
from orchestrator.jobs import follow
from orchestrator.plan import stored
from orchestrator.plan.reader import read_plan
from orchestrator.queue.process import QUEUE
from orchestrator.queue.verb import queue_add, queue_serve
from orchestrator.services.guard.guard import guard
from orchestrator.services.guard.policy import FIRST_BACKOFF_S, Budget
from orchestrator.services.guard.process import GUARD, GuardOptions
from orchestrator.services.schedule import process as changing
from orchestrator.services.schedule import scheduler
from orchestrator.services.schedule.left import stop_left
from orchestrator.services.schedule.making import begin_schedule
from orchestrator.services.schedule.process import SCHEDULER, ScheduleOptions
from orchestrator.services.schedule.verb import run_schedule
from orchestrator.session import Command, load_lab
from orchestrator.settings import Settings
from orchestrator.store import database, keys
from orchestrator.store.database import Database
from orchestrator.store.fault import full
from orchestrator.store.file import private_file
from orchestrator.store.generations import generation_owners
from orchestrator.store.keys import key_of, lab_key, tenancy_of
from orchestrator.store.locks import Locks, locks_of, who
from orchestrator.store.one_store import StoreClaim
from orchestrator.store.options import UpOptions
from orchestrator.store.queue import HOLDING, drop, queued
from orchestrator.store.store import Store
from orchestrator.telemetry import environment
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import change as verbs
from orchestrator.verbs import status as survey
from tests.sim.stores import Stores
from workloads.collectives import ring_changes
from workloads.collectives.ring_changes import RingChanges
from workloads.collectives.sets import Layout, Sets, read_layout
from workloads.host.pace import CHECK_S, Pace
from workloads.progress import demand as demanded
from workloads.progress import heartbeat
from workloads.progress.demand import Demand
from workloads.progress.heartbeat import Heartbeat
from workloads.progress.waits import Unknown
from workloads.training.checkpoint import KEPT
from workloads.transport.accord import Accord

__all__ = [
    "ADAPTER",
    "CHECK_S",
    "COORDINATOR",
    "DELNEIGH",
    "DELROUTE",
    "DELRULE",
    "EXCL",
    "FENCED",
    "FIRST_BACKOFF_S",
    "GETLINK",
    "GETRULE",
    "GUARD",
    "HOLDING",
    "JOB_MARK",
    "KEPT",
    "MECHANISMS",
    "MOVERS",
    "NEWNEIGH",
    "NEWROUTE",
    "NEWRULE",
    "QUEUE",
    "RANK_SENDS",
    "SCHEDULER",
    "STOP_S",
    "U32",
    "VAR",
    "Accord",
    "AdaptOptions",
    "Allowance",
    "Arming",
    "Budget",
    "Command",
    "CoordinateOptions",
    "Demand",
    "DeviceServer",
    "Failure",
    "Fence",
    "Generations",
    "GuardOptions",
    "Handoff",
    "HandsNeeded",
    "Heartbeat",
    "Infeasible",
    "Interlock",
    "Jobs",
    "Lab",
    "Layout",
    "Locked",
    "Locks",
    "Missing",
    "Pace",
    "Play",
    "Probes",
    "Rank",
    "RingChanges",
    "RolledBack",
    "ScheduleOptions",
    "Server",
    "ServiceOptions",
    "Sets",
    "Settings",
    "Silent",
    "Slots",
    "Store",
    "TestbedError",
    "Unknown",
    "Unreachable",
    "UpOptions",
    "adapt",
    "attr",
    "attrs",
    "begin_schedule",
    "coordinate",
    "demanded",
    "device_from_config",
    "drop",
    "facts",
    "full",
    "generation_owners",
    "guard",
    "heartbeat",
    "key_of",
    "layout",
    "links",
    "load_lab",
    "locks_of",
    "mac_bytes",
    "of_jobs",
    "queue_add",
    "queue_serve",
    "queued",
    "read_layout",
    "released",
    "replaced",
    "run_schedule",
    "stop_left",
    "survey",
    "tenancy_of",
    "tenants",
    "u32",
    "unpack",
    "verbs",
    "who",
]


class Flush:
    """The sockets of a hold: there are none."""

    keep, meet = False, None

    def prepare(self, *_: object) -> dict[str, int]:
        return {"sockets": 0, "found": 0}

    def push(self) -> dict[str, int]:
        return {}

    def forget(self) -> None: ...


class StandIns:
    """What the lab puts in place of parts of the program."""

    disk_os: Any
    """`os` of agents."""
    disk_open: Any
    """`open` of agents."""

    def ansible(self, *argv: object) -> Any:
        """As `Ansible`; `play` may return a future."""

    def login(self, host: str, target: object, timeout_s: float) -> Any:
        """As `ssh.connect`; may return a future."""

    def proc(self, name: str) -> str:
        """A file below /proc of the operators' machine; empty if there is none."""
        return ""

    def synced(self, fd: int) -> None:
        """As `os.fsync`, on the operators' machine."""

    def began(self, store: Database) -> None:
        """A transaction begins. Raises: Killed."""

    def about_to_commit(self, store: Database) -> None:
        """It has changed something. Raises: Killed; StoreFailed - the disk is full."""

    def committed(self, store: Database, tables: Set[str]) -> None:
        """It is done, and has written to these tables. Raises: Killed."""

    def watch_over(self, settings: Settings, run: str) -> int:
        """Start a process that watches whether a run is confirmed in time; its number, 0 if there
        is none.
        """
        return 0

    def claimed(self, claim: StoreClaim) -> None:
        """A process shares the file that says which store keeps the lab."""

    def spawn(self, settings: Settings, argv: list[str], message: Path) -> Any:
        """As `processes.spawn`."""

    def stop_movers(self, settings: Settings, tenancy: str) -> Any:
        """As `registry.stop_movers`; may return a future."""
        return []

    def in_background(self, file: StateFile[Any]) -> None:
        """A process of a kind of which there is one has its file."""

    def more(self) -> Iterable[tuple[Any, str, Any]]:
        """What else is replaced: where, the name there, and by what."""
        return ()


MOVERS = tuple(kind for kind in kinds() if kind.moves_light)
_PURE: dict[tuple[Any, ...], Any] = {}
"""What pure functions said: each command is a process of its own and asks once, here one answer
serves them all.
"""
_ASKED: list[object] = []
"""What they were asked of, by identity: it lives as long as the answers."""


def _once(function: Callable[..., Any], key: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """The function, which is called once with each key."""

    def asked(*argv: Any, **more: Any) -> Any:
        known = (function, *key(*argv))
        if known not in _PURE:
            _ASKED.extend(argv)
            _PURE[known] = function(*argv, **more)
        return _PURE[known]

    return asked


def _of_one(what: object) -> tuple[Any, ...]:
    return (id(what),)


def _of_lab(lab: Lab, *more: Any) -> tuple[Any, ...]:
    """A lab; what else is given follows from it and from the folder that it was read from."""
    return id(lab), more[0] if more and isinstance(more[0], Path) else None


def _of_plan(text: str, name: str, lab: Lab) -> tuple[Any, ...]:
    return text, name, id(lab)


@lru_cache
def _key_of_all(name: str, addresses: tuple[str, ...]) -> str:
    return lab_key(name, addresses)


def _key_once(name: str, addresses: Iterable[str]) -> str:
    return _key_of_all(name, tuple(addresses))


def _texts(*texts: str) -> tuple[Any, ...]:
    return texts


def of_jobs(by: Any) -> Iterable[tuple[Any, str, Any]]:
    """Where agents and ranks meet what a machine is: processes and their files, sockets, threads.
    by: has a stand-in for each.
    """
    yield from (
        (job_processes, name, getattr(by, name))
        for name in ("os", "open", "pwd", "shutil", "subprocess")
    )
    yield from ((job_processes, name, getattr(by, name)) for name in ("kill_session", "kill_left"))
    yield from (
        (module, "start_time", by.start_time) for module in (job_processes, handoff, job_socket)
    )
    yield from ((handoff, name, getattr(by, name)) for name in ("job_socket", "clean"))
    yield follow, "try_lock", by.try_lock
    yield keeping, "open", by.open
    yield from ((module, "jobs_file", by.jobs_file) for module in (heartbeats, demand))
    yield ring_changes, "threading", by.threading
    yield from ((ring_changes, name, getattr(by, name)) for name in ("appears", "print"))


@contextmanager
def replaced(by: StandIns) -> Iterator[None]:
    """Put them in while the body runs."""
    transaction, acquire, stores = Database.transaction, StoreClaim.acquire, Stores(private_file)

    @contextmanager
    def watched(self: Database) -> Iterator[Any]:
        by.began(self)
        if self._db.in_transaction:
            with transaction(self) as db:
                yield db
            return
        with transaction(self) as db:
            was = db.total_changes
            touched: set[str] = db.touched  # type: ignore[attr-defined]
            touched.clear()
            yield db
            if changed := db.total_changes != was:
                by.about_to_commit(self)
        if changed:
            by.committed(self, touched)

    def claim(self: StoreClaim) -> None:
        acquire(self)
        by.claimed(self)

    enter, leave = StateFile.__enter__, StateFile.__exit__

    def entered(self: StateFile[Any]) -> StateFile[Any]:
        enter(self)
        by.in_background(self)
        return self

    def ended(self: StateFile[Any], *argv: Any) -> None:
        leave(self, *argv)
        self._fd = -1

    def left(self: Database, *argv: Any) -> None:
        stores.exit(self, *argv)

    read_lab: Callable[..., Lab] = sessions.read_lab  # type: ignore[attr-defined]
    with ExitStack() as patches:
        patches.callback(stores.close)
        for owner, name, new in (
            (Database, "transaction", watched),
            (Database, "__exit__", left),
            (sqlite3, "connect", stores.open),
            (database, "private_file", stores.private),
            (StoreClaim, "acquire", claim),
            (StateFile, "__enter__", entered),
            (StateFile, "__exit__", ended),
            (processes, "_proc", by.proc),
            (os, "fsync", by.synced),
            (sessions, "read_lab", _once(read_lab, _texts)),
            *(
                (sessions, name, _once(getattr(sessions, name), _of_lab))
                for name in ("_traits", "_options", "with_files")
            ),
            (sessions, "with_known_hosts", _once(sessions.with_known_hosts, _of_lab)),
            (Lab, "with_traits", _once(Lab.with_traits, _of_lab)),
            *(
                (module, "read_plan", _once(read_plan, _of_plan))
                for module in (sessions, stored, changing, move, job_back)
            ),
            (facts_of, "facts", _once(facts, _of_one)),
            (keys, "lab_key", _key_once),
            (ssh, "connect", by.login),
            (plays, "Ansible", by.ansible),
            (apply, "undisturbed", lambda expected_s=0.0: nullcontext()),
            (scheduler, "undisturbed", nullcontext),
            (
                services,
                "spawn",
                lambda settings, text, reported, *, lowly: by.spawn(settings, text, reported),
            ),
            (
                changes,
                "stop_movers",
                lambda settings, tenancy, movers: by.stop_movers(settings, tenancy),
            ),
            (changes, "watch_over", lambda settings, run: by.watch_over(settings, run)),
            (environment, "record_environment", lambda *text: None),
            (basics, "os", by.disk_os),
            (basics, "open", by.disk_open),
            (fence, "os", by.disk_os),
            (generations, "os", by.disk_os),
            (slots, "os", by.disk_os),
            (generations, "Flush", Flush),
            *by.more(),
        ):
            patches.enter_context(patch.object(owner, name, new, create=name in ("open", "print")))
        yield
