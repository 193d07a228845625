"""Equalisation: attenuate spectral routes until every receiver gets the planned power. Measured,
bounded, never open-loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from drivers.api import CircuitSwitch
from optics import (
    Change,
    ChangeFailed,
    Circuit,
    Db,
    DeviceName,
    Locked,
    Outcome,
    Setting,
    SpectralRoute,
    TestbedError,
    TimedOut,
)
from optics.plan import Plan
from orchestrator.change.apply import apply_changes
from orchestrator.change.context import Context
from orchestrator.change.report import CircuitPower, EqualiseReport
from orchestrator.fabric.lightpath import Held, without_attenuation
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import SLOW_S, Target, switching_s
from orchestrator.verify.power import LOS_DBM, Reading, measure

ROUNDS = 5
"""Rounds of measuring and adjusting; accurate meters and attenuators need one, and one more to
verify.
"""
MOST_DB = 15.0
"""Range in which every wavelength-selective switch known here keeps its accuracy (Finisar: 0 to 15
dB typical, grade U; WaveShaper: 0 to 30). A driver whose device goes further, or less far (0: not
at all), says so with `max_attenuation_db`."""
STEP_DB = 0.1

Apply: TypeAlias = Callable[[Mapping[DeviceName, Change]], Awaitable[Mapping[DeviceName, Outcome]]]


def adjusted(
    path: Sequence[Setting], delta_db: Db, most_db: Mapping[DeviceName, Db]
) -> tuple[Setting, ...]:
    """The path with `delta_db` more attenuation (less if negative), from the receiver's end, each
    route within its range.
    """
    found = list(path)
    left = round(delta_db / STEP_DB) * STEP_DB
    for at in reversed(range(len(found))):
        setting = found[at]
        if isinstance(setting, SpectralRoute) and abs(left) >= STEP_DB / 2:
            most = max(most_db.get(setting.ingress.device, MOST_DB), setting.attenuation_db)
            wanted = min(max(setting.attenuation_db + left, 0.0), most)
            found[at] = replace(setting, attenuation_db=wanted)
            left -= wanted - setting.attenuation_db
    return tuple(found)


def changes(
    before: Iterable[Sequence[Setting]], after: Iterable[Sequence[Setting]]
) -> Mapping[DeviceName, Change]:
    """The change per device that gives these paths their new attenuation."""
    removed: dict[DeviceName, set[Setting]] = {}
    added: dict[DeviceName, set[Setting]] = {}
    for old_path, new_path in zip(before, after, strict=True):
        for old, new in zip(old_path, new_path, strict=True):
            if old != new:
                removed.setdefault(old.ingress.device, set()).add(old)
                added.setdefault(old.ingress.device, set()).add(new)
    return {
        device: Change(device, frozenset(removed[device]), frozenset(added[device]))
        for device in sorted(removed)
    }


async def equalise(
    devices: Mapping[DeviceName, CircuitSwitch],
    lab: Lab,
    circuits: Sequence[Circuit],
    held: Held,
    target_dbm: float,
    tolerance_db: Db,
    apply: Apply,
) -> EqualiseReport:
    """Bring every measured circuit with a spectral route to `target_dbm`; those that cannot reach
    it are in the report's notes.

    held: what the devices hold now. Raises: as `apply` and `PowerMeter.power`.
    """
    spectral = [c for c in circuits if any(isinstance(x, SpectralRoute) for x in c.path)]
    most = {
        name: float(getattr(device, "max_attenuation_db", MOST_DB))
        for name, device in devices.items()
    }
    holds: dict[DeviceName, frozenset[Setting]] = dict(held)
    writes, rounds = 0, 0
    refused: dict[object, str] = {}
    readings = await measure(devices, lab, spectral, holds)
    for rounds in range(ROUNDS + 1):
        wanted = [(r.path, _better(r, target_dbm, tolerance_db, most, refused)) for r in readings]
        asked = changes([old for old, _ in wanted], [new for _, new in wanted])
        if not asked or rounds == ROUNDS:
            break
        outcomes = await apply(asked)
        for name, outcome in outcomes.items():
            holds[name] = outcome.observed
            writes += outcome.writes
            refused |= {
                without_attenuation(setting): why for setting, why in outcome.failed.items()
            }
        readings = await measure(devices, lab, spectral, holds)
    rows = tuple(_row(r, target_dbm) for r in readings)
    notes = tuple(
        text for r in readings if (text := _why(r, target_dbm, tolerance_db, most, refused, rounds))
    )
    if blind := sum(not r.measured for r in readings):
        notes = (
            f"{blind} circuits have no meter where light leaves the last device: not equalised",
            *notes,
        )
    return EqualiseReport(target_dbm, tolerance_db, rounds, writes, rows, notes)


def _better(
    reading: Reading,
    target_dbm: float,
    tolerance_db: Db,
    most: Mapping[DeviceName, Db],
    refused: Mapping[object, str],
) -> tuple[Setting, ...]:
    """The path with its new attenuation; unchanged if near enough, dark, unmeasured or refused."""
    out = reading.out_dbm
    if (
        out is None
        or out < LOS_DBM
        or abs(out - target_dbm) <= tolerance_db
        or any(without_attenuation(x) in refused for x in reading.path)
    ):
        return reading.path
    return adjusted(reading.path, out - target_dbm, most)


def _row(reading: Reading, target_dbm: float) -> CircuitPower:
    out = reading.out_dbm
    off = None if out is None else round(out - target_dbm, 2)
    return CircuitPower(str(reading.circuit), out, off, reading.attenuation_db)


def _why(
    reading: Reading,
    target_dbm: float,
    tolerance_db: Db,
    most: Mapping[DeviceName, Db],
    refused: Mapping[object, str],
    rounds: int,
) -> str:
    """Why a circuit is not at its target; empty if it is."""
    out = reading.out_dbm
    if out is None:
        return (
            f"{reading.circuit}: dark where light leaves the last device: not equalised"
            if reading.measured
            else ""
        )
    if abs(out - target_dbm) <= tolerance_db:
        return ""
    off = f"{reading.circuit}: {out:.1f} dBm, {abs(out - target_dbm):.1f} dB {'below' if out < target_dbm else 'above'} the target"
    text = next(
        (
            refused[without_attenuation(x)]
            for x in reading.path
            if without_attenuation(x) in refused
        ),
        "",
    )
    if text:
        return f"{off}: {text}"
    if adjusted(reading.path, out - target_dbm, most) == reading.path:
        end = (
            "the attenuation is at its minimum: too little light"
            if out < target_dbm
            else "the attenuation is at its maximum"
        )
        return f"{off}: {end}"
    return f"{off} after {rounds} rounds"


async def equalise_plan(
    context: Context, plan: Plan, goal: Target, held: Held
) -> EqualiseReport | None:
    """Bring the receivers' power to the plan's target. The plan is already up: failures are
    reported, not rolled back.
    """
    accept = plan.acceptance
    if accept.target_dbm is None or not any(
        isinstance(x, SpectralRoute) for c in goal.circuits for x in c.path
    ):
        return None
    devices = context.session.devices
    crossed = {x.ingress.device for c in goal.circuits for x in c.path}
    serial = sum(switching_s(Change(d, add=held[d]), devices[d].traits) for d in crossed)
    if ROUNDS * serial > SLOW_S:
        with suppress(TimedOut):  # a fixed deadline: as many rounds as fit
            context.need(ROUNDS * serial, "equalisation")

    async def apply(wanted: Mapping[DeviceName, Change]) -> Mapping[DeviceName, Outcome]:
        applied = await apply_changes(context, wanted, "equalise")
        if applied.errors:
            raise ChangeFailed("\n".join(applied.problems))
        return applied.outcomes

    with context.recorder.phase("equalise") as phase:
        try:
            found = await equalise(
                devices,
                context.session.lab,
                goal.circuits,
                held,
                accept.target_dbm,
                accept.tolerance_db,
                apply,
            )
        except Locked:
            raise
        except TestbedError as error:
            phase.detail = f"not finished: {error.line}"
            return EqualiseReport(
                accept.target_dbm, accept.tolerance_db, notes=(f"equalise: {error}",)
            )
        after = (
            f" after {found.rounds} round{'s' if found.rounds > 1 else ''}" if found.rounds else ""
        )
        share = f"{found.within}/{len(found.circuits)} circuits within {accept.tolerance_db:g} dB of {accept.target_dbm:g} dBm"
        phase.detail = share + after
    return found
