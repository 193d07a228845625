"""What a report says in words: how a run ended, on what it ran, how it was asked."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping

from optics.plain import counted
from orchestrator.store.records import RunRecord
from orchestrator.views.report.gather import Source

_ENDS = {
    "ok": "It did what was asked.",
    "rolled-back": "It failed and was taken back: everything is as it was before.",
    "failed": "It failed.",
    "hands-needed": "It failed half way and could not be taken back whole: hands were needed.",
    "interrupted": "It was interrupted.",
    "died": "The program died on its way. What follows is what it had written by then.",
    "running": "It is still running. What follows is what it has written so far.",
}


def ending(record: RunRecord) -> str:
    """How a run ended, in a sentence or three."""
    words = _ENDS.get(record.status, f"It ended as {record.status}.")
    if record.status == "failed" and not record.begun:
        words += " Nothing had been changed."
    if record.resolved_by and record.resolved_by != record.id:
        words += f" Run {record.resolved_by} put it right since."
    return words


def title(record: RunRecord) -> str:
    return f"{record.verb} {record.plan_name}".rstrip()


def command(source: Source) -> tuple[str, bool]:
    """The command of a run, and whether it is exactly what was typed (else it is made from what the store kept)."""
    typed = source.environment.get("command") if source.environment else None
    if isinstance(typed, list) and typed:
        return shlex.join(map(str, typed)), True
    record = source.record
    said = [f"plan {record.plan_name}"] if record.plan_name else []
    said += [f"{k}={v}" for k, v in record.options.items() if v not in (None, False, [], ())]
    return f"testbed {record.verb}" + (f"   ({', '.join(said)})" if said else ""), False


def speeds(sources: Iterable[Source]) -> str:
    """What the times on a page are times of; belongs beside every one of them."""
    kinds = {source.emulated for source in sources}
    scales: dict[str, set[float]] = {}
    unknown = False
    for source in sources:
        unknown = unknown or source.devices is None
        for device, scale in (source.devices or {}).items():
            scales.setdefault(device, set()).add(scale)
    where = "emulated and real labs" if len(kinds) > 1 else "emulated lab" if True in kinds else "real devices"
    if None in kinds:
        where = "whether emulated or real was not recorded"
    all_scales = {scale for found in scales.values() for scale in found}
    if unknown or not all_scales:
        return f"{where}, time scale not recorded"
    if all_scales == {1.0}:
        return f"{where}, time scale x1"
    fast = ", ".join(f"{d} x{'/'.join(f'{s:g}' for s in sorted(found))}" for d, found in sorted(scales.items()) if found != {1.0})
    return f"{where}, time scale {fast}, others x1"


def machines(sources: Iterable[Source]) -> list[tuple[str, str]]:
    """Versions and machines of runs: name and value, all values where they differ."""
    found: dict[str, dict[str, None]] = {}
    noted = 0
    total = 0
    for source in sources:
        total += 1
        if source.environment is None:
            continue
        noted += 1
        machine, versions = source.environment.get("machine"), source.environment.get("versions")
        if isinstance(versions, Mapping):
            for name, value in versions.items():
                found.setdefault(str(name), {})[str(value)] = None
        if isinstance(machine, Mapping):
            for name, value in machine.items():
                if name != "load_1min":
                    found.setdefault(f"machine: {name}", {})[str(value)] = None
    rows = [(name, ", ".join(values)) for name, values in found.items()]
    loads = [
        s.environment["machine"]["load_1min"]
        for s in sources
        if s.environment and isinstance(s.environment.get("machine"), Mapping)
    ]
    known = [float(x) for x in loads if isinstance(x, (int, float))]
    if known:
        rows.append(
            ("machine: load when it began (1 min)", f"{min(known):.2f}" + (f" to {max(known):.2f}" if len(known) > 1 else ""))
        )
    if noted < total:
        rows.append(("not recorded", f"of {counted(total - noted, 'run')}: runs of older versions noted nothing"))
    return rows


def when(wall_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_s))


def stood(record: RunRecord) -> bool:
    """Whether the run left its plan up: it did what was asked, or only its job did not run (`engine.change.up` says so)."""
    return record.status == "ok" or " is up and stays up; " in (record.message.splitlines() or [""])[0]
