"""The kinds of services that there are, by name: who shows them or stops them knows none. Each is imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from orchestrator.background.kind import Kind
from orchestrator.background.state import S
from orchestrator.extensions import extension_parts
from orchestrator.settings import Settings

KINDS = {
    "guard": "orchestrator.services.guard.process:GUARD",
    "turn": "orchestrator.services.schedule.process:TURNER",
    "queue": "orchestrator.queue.process:QUEUE",
    "serve metrics": "orchestrator.views.metrics.process:EXPORTER",
}


def kind(name: str) -> Kind[Any]:
    """The kind of this name."""
    if name in KINDS:
        module, _, called = KINDS[name].partition(":")
        found: Kind[Any] = getattr(import_module(module), called)
    else:
        found = {each.name: each for each in extension_parts("service", "KIND")}[name]
    return found


def kinds() -> Iterator[Kind[Any]]:
    """All of them, those of extensions last."""
    return chain(map(kind, KINDS), extension_parts("service", "KIND"))


def state(kind: Kind[S], settings: Settings, key: str, lab: str) -> S | None:
    """What the file of this kind says, for this plan (the slice of its owner) and lab; None if it never ran."""
    return kind.read(kind.path(settings, lab if kind.of == "lab" else key))


def states(settings: Settings, key: str, lab: str) -> dict[str, Any]:
    """As `state`, of each kind, by name; without those that never ran."""
    return {each.name: there for each in kinds() if (there := state(each, settings, key, lab)) is not None}


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
