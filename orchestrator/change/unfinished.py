"""What unfinished runs left: done, not done, foreign, as devices and hosts report now."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from optics import DeviceName, Setting
from optics.values import short, sort_key
from orchestrator.change.context import Context
from orchestrator.change.snapshot import NONE, before_of, held_of
from orchestrator.fabric.lightpath import among
from orchestrator.session import Observation
from orchestrator.store.keys import lab_of, owner_of
from orchestrator.store.records import RunRecord
from orchestrator.store.store import Store
from orchestrator.store.verbs import verb_of


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that stopped before its end, as devices and hosts report now: what it did, what it did
    not, what others did since.

    resume, undo: the commands that continue it and roll it back, empty if there is nothing to roll
    back. begun: it may have changed something.
    """

    run: str
    what: str
    status: str
    started: float
    done: tuple[str, ...] = ()
    not_done: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    resume: str = ""
    undo: str = ""
    begun: bool = True

    def lines(self) -> list[str]:
        """As lines of text, the commands last."""
        ended = {"died": "died before its end", "interrupted": "was interrupted"}.get(
            self.status, "stopped before its end"
        )
        lines = [
            f"run {self.run} ({self.what}) {ended}"
            + ("" if self.begun else " before it changed anything")
        ]
        for what, found in (
            ("done", self.done),
            ("not done", self.not_done),
            ("foreign", self.foreign),
        ):
            lines += [f"  {what + ':':<10}{line}" for line in found]
        undo = f"   {'roll back' if self.begun else 'leave it'}: {self.undo}" if self.undo else ""
        return [*lines, f"  continue: {self.resume}{undo}"]


def left_behind(store: Store, key: str, seen: Observation) -> tuple[Unfinished, ...]:
    """Every run of the tenancy `key` that did not finish and was not resolved since, newest
    first.
    """
    current, owner = store.current(key), owner_of(key)
    foreign_now = frozenset(s for s, by in store.owners(lab_of(key)).items() if by.owner != owner)
    return tuple(
        unfinished_state(record, *store.journalled(record.id), seen, foreign_now)
        for record in store.unfinished(lab_of(key), owner)
        if record.status == "died" or current is None or current.run != record.id
    )


def announce(context: Context, seen: Observation) -> list[str]:
    """Warn the operator, before anything else, of unfinished runs; return the lines."""
    lines = [
        line for run in left_behind(context.store, context.tenancy, seen) for line in run.lines()
    ]
    for line in lines:
        context.recorder.progress.note(line)
    return lines


def unfinished_state(
    record: RunRecord,
    before: Any,
    target: Any,
    seen: Observation,
    foreign_now: Collection[Setting] = (),
) -> Unfinished:
    """What an unfinished run left, as the devices and hosts report now."""
    # there is nothing to go back to: it began in a slot and ended in one, or between two
    if record.verb == "schedule":
        return Unfinished(
            record.id,
            record.what,
            record.status,
            record.started,
            resume="testbed service start schedule",
        )
    resume, undo = f"testbed resume {record.id}", f"testbed rollback {record.id}"
    if verb_of(record.verb).back:
        # it started from a state other runs left unfinished: there is nothing to go back to
        undo = ""
    if before is None:
        return Unfinished(
            record.id,
            record.what,
            record.status,
            record.started,
            resume=resume,
            undo=undo,
            begun=False,
        )
    observed, hellos = (
        seen.settings,
        {h: hello for h, hello in seen.hellos.items() if hello.installed},
    )
    was, wanted = before_of(before), held_of(target["settings"])
    done, missing, foreign = [], [], []
    for device in sorted(set(wanted) | set(was.owned)):
        if device not in observed:
            missing.append(f"{device}: does not answer, so what it holds is not known")
            continue
        old, new, held = was.owned.get(device, NONE), wanted.get(device, NONE), observed[device]
        make, remove = new - among(new, old), old - among(old, new)
        existing, still = among(make, held), among(remove, held)
        if make or remove:
            done.append(
                f"{device}: {len(existing)}/{len(make)} made, {len(remove) - len(still)}/{len(remove)} removed"
            )
        missing += _listed(device, "not made", make - existing) + _listed(
            device, "not removed", still
        )
        kept = among(old, new)
        missing += _listed(device, "lost", kept - among(kept, held))
        if device not in was.others:  # it was not read, so what others made before is not known
            continue
        known = old | new | was.others[device]
        foreign += _listed(
            device, "made by others meanwhile", held - among(held, known) - among(held, foreign_now)
        )
    if (generation := target["generation"]) is not None:
        on = [h for h, hello in hellos.items() if hello.active == generation]
        if on or any(was.generations.get(h) != hello.active for h, hello in hellos.items()):
            done.append(f"hosts: {len(on)} of {len(target['hosts'])} run the new routes")
    return Unfinished(
        record.id,
        record.what,
        record.status,
        record.started,
        tuple(done),
        tuple(missing),
        tuple(foreign),
        resume=resume,
        undo=undo,
    )


def _listed(device: DeviceName, what: str, settings: Iterable[Setting]) -> list[str]:
    names = [short(s) for s in sorted(settings, key=sort_key)]
    if not names:
        return []
    return [
        f"{device}: {what}: {', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}"
    ]
