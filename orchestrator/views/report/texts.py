"""Texts of a report: how a run ended, its environment, its command."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping

from optics.plain import counted
from orchestrator.store.records import RunRecord
from orchestrator.views.report.gather import Source

_ENDS = {
    "ok": "It succeeded.",
    "rolled-back": "It failed and was rolled back: everything is as it was before.",
    "failed": "It failed.",
    "hands-needed": "It failed half way and could not be rolled back completely: manual repair was needed.",
    "interrupted": "It was interrupted.",
    "died": "The program died during the run. This report shows what it had recorded by then.",
    "running": "It is still running. This report shows what it has recorded so far.",
}


def ending(record: RunRecord) -> str:
    """How a run ended, in up to three sentences."""
    text = _ENDS.get(record.status, f"It ended as {record.status}.")
    if record.status == "failed" and not record.begun:
        text += " Nothing had been changed."
    if record.resolved_by and record.resolved_by != record.id:
        text += f" Run {record.resolved_by} has repaired it since."
    return text


def title(record: RunRecord) -> str:
    return f"{record.verb} {record.plan_name}".rstrip()


def command_of_run(source: Source) -> tuple[str, bool]:
    """The command of a run, and whether it is exactly as typed (else it is reconstructed from the
    store).
    """
    typed = source.environment.get("command") if source.environment else None
    if isinstance(typed, list) and typed:
        return shlex.join(map(str, typed)), True
    record = source.record
    lines = [f"plan {record.plan_name}"] if record.plan_name else []
    lines += [
        f"{k}={v}" for k, v in record.options.to_json().items() if v not in (None, False, [], ())
    ]
    verb = "plan --prewire" if record.verb == "prewire" else record.verb
    return f"testbed {verb}" + (f"   ({', '.join(lines)})" if lines else ""), False


def kind_of_devices(sources: Iterable[Source]) -> str:
    """The kind of devices to which the times on a page refer; shown next to every one of them."""
    kinds = {source.emulated for source in sources}
    scales: dict[str, set[float]] = {}
    unknown = False
    for source in sources:
        unknown = unknown or source.devices is None
        for device, scale in (source.devices or {}).items():
            scales.setdefault(device, set()).add(scale)
    where = (
        "emulated and real labs"
        if len(kinds) > 1
        else "emulated lab"
        if True in kinds
        else "real devices"
    )
    if None in kinds:
        where = "emulated or real: not recorded"
    all_scales = {scale for found in scales.values() for scale in found}
    if unknown or not all_scales:
        return f"{where}, time scale not recorded"
    if all_scales == {1.0}:
        return f"{where}, time scale x1"
    fast = ", ".join(
        f"{d} x{'/'.join(f'{s:g}' for s in sorted(found))}"
        for d, found in sorted(scales.items())
        if found != {1.0}
    )
    return f"{where}, time scale {fast}, others x1"


def machines(sources: Iterable[Source]) -> list[tuple[str, str]]:
    """Versions and machines of runs: name and value, all values if they differ."""
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
            (
                "machine: load when it began (1 min)",
                f"{min(known):.2f}" + (f" to {max(known):.2f}" if len(known) > 1 else ""),
            )
        )
    if noted < total:
        rows.append(
            (
                "not recorded",
                f"of {counted(total - noted, 'run')}: runs of older versions recorded nothing",
            )
        )
    return rows


def when(wall_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_s))


def was_up(record: RunRecord) -> bool:
    """Whether the run left its plan up: it succeeded, or only its job did not run (see
    `engine.change.up`).
    """
    return (
        record.status == "ok" or " is up and stays up; " in (record.message.splitlines() or [""])[0]
    )
