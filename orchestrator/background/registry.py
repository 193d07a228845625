"""The kinds of services that there are, by name: who shows them or stops them knows none. Each is imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from orchestrator.background.kind import Kind
from orchestrator.settings import Settings

KINDS = {
    "guard": "orchestrator.services.guard.process:GUARD",
    "turn": "orchestrator.services.schedule.process:TURNER",
    "adapt": "extensions.adapt.service:KIND",
    "coordinate": "orchestrator.services.sharing.process:COORDINATOR",
    "queue": "orchestrator.queue.process:QUEUE",
    "serve metrics": "orchestrator.views.metrics.process:EXPORTER",
}


def kind(name: str) -> Kind[Any]:
    """The kind of this name."""
    module, _, called = KINDS[name].partition(":")
    found: Kind[Any] = getattr(import_module(module), called)
    return found


def kinds() -> Iterator[Kind[Any]]:
    """All of them."""
    return map(kind, KINDS)


def states(settings: Settings, key: str, lab: str) -> dict[str, Any]:
    """What the file of each kind says, for this plan (the slice of its owner) and lab, by name; without those that never ran."""
    read = ((each.name, each.read(each.path(settings, lab if each.of == "lab" else key))) for each in kinds())
    return {name: state for name, state in read if state is not None}


def stop_movers(settings: Settings, key: str) -> list[str]:
    """Stop what moves light for this owner in the background, unless it is this process; return in words what was stopped.

    Raises: as `Kind.stop`.
    """
    stopped = []
    for each in kinds():
        there = each.running(settings, key) if each.moves_light else None
        if there is not None and there.pid != os.getpid() and each.stop(settings, key) is not None:
            stopped.append(f"{each.noun}{there.of} stopped (pid {there.pid})")
    return stopped
