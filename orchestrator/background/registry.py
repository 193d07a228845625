"""The kinds of services that there are, by name: who shows them or stops them knows none. Each is
imported when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any

from optics.errors import Usage
from orchestrator.background.kind import Kind
from orchestrator.background.state import S, ServiceState
from orchestrator.extensions import extension_parts
from orchestrator.settings import Settings

KINDS = {
    "guard": "orchestrator.services.guard.process:GUARD",
    "schedule": "orchestrator.services.schedule.process:SCHEDULER",
    "queue": "orchestrator.queue.process:QUEUE",
    "metrics": "orchestrator.views.metrics.process:EXPORTER",
    "sink": "orchestrator.telemetry.process:SINK",
}


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One kind of service, as `testbed service status` shows it. state: what it reports, `ended`,
    or `not started`. trouble: what keeps it from its work, or why it ended. message: all that it
    reports, if it runs.
    """

    service: str
    state: str = "not started"
    alive: bool = False
    pid: int = 0
    user: str = ""
    host: str = ""
    since: float = 0.0
    plan: str = ""
    log: str = ""
    trouble: str = ""
    message: str = ""


def by_path(function: str) -> Any:
    """What `module:name` stands for."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def kind(name: str) -> Kind[Any]:
    """The kind of this name."""
    if name in KINDS:
        found: Kind[Any] = by_path(KINDS[name])
    else:
        found = {each.name: each for each in extension_parts("service", "KIND")}[name]
    return found


def kinds() -> Iterator[Kind[Any]]:
    """All of them, those of extensions last."""
    return chain(map(kind, KINDS), extension_parts("service", "KIND"))


def names() -> list[str]:
    """The name of each."""
    return [*KINDS, *(each.name for each in extension_parts("service", "KIND"))]


def state(kind: Kind[S], settings: Settings, key: str, lab: str) -> S | None:
    """What the file of this kind says, for this plan (the tenancy of its owner) and lab; None if it
    never ran.
    """
    try:
        return kind.read(kind.path(settings, kind.key(settings, key, lab)))
    except Usage:  # no server is configured
        return None


def states(settings: Settings, key: str, lab: str) -> dict[str, Any]:
    """As `state`, of each kind, by name; without those that never ran."""
    return {
        each.name: existing
        for each in kinds()
        if (existing := state(each, settings, key, lab)) is not None
    }


def statuses(settings: Settings, key: str, lab: str) -> list[ServiceStatus]:
    """Each kind, as the operator is to see it."""
    return [_status(each.name, state(each, settings, key, lab)) for each in kinds()]


def _status(name: str, existing: ServiceState | None) -> ServiceStatus:
    if existing is None:
        return ServiceStatus(name)
    whose = {
        "pid": existing.pid,
        "user": existing.user,
        "host": existing.host,
        "since": existing.since,
        "plan": existing.plan,
        "log": existing.log,
    }
    if existing.alive:
        return ServiceStatus(
            name,
            existing.state,
            True,
            trouble=existing.trouble,
            message=str(existing),
            **whose,  # type: ignore[arg-type]
        )
    why = existing.error or ("" if existing.state == "ended" else f"killed while {existing.state}")
    return ServiceStatus(name, "ended", trouble=why, **whose)  # type: ignore[arg-type]


def stop_movers(settings: Settings, key: str, movers: Collection[str]) -> list[str]:
    """Stop the kinds `movers` for this owner, unless it is this process; return in words what was
    stopped.

    Raises: as `Kind.stop`.
    """
    stopped = []
    for each in map(kind, sorted(movers)):
        existing = each.running(settings, key)
        if (
            existing is not None
            and existing.pid != os.getpid()
            and each.stop(settings, key) is not None
        ):
            stopped.append(f"{each.noun}{existing.of} stopped (pid {existing.pid})")
    return stopped
