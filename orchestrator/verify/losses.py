"""Where light is lost: every section of every circuit against the loss model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from optics import Db, DeviceName, SpectralRoute
from optics.plain import counted
from orchestrator.inventory.lab import Lab
from orchestrator.verify.power import LOS_DBM, REPEATABILITY_DB, LossDrift, MeterPoint, Reading

PATH_SPREAD = 0.8
"""A path through a device may lose this share more or less than the typical one: 2.7 dB at most,
1.5 dB typical (Polatis data sheet as quoted by the TCD testbed notes)."""
TRUNK_SPREAD_DB = 0.6
"""The same for a trunk (dB): two connectors, each twice as bad as the 0.3 dB of a good one."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a circuit's path between two meters: a pass through a device, or a trunk. `where`
    names it, with its suspects.
    """

    where: str
    begin: MeterPoint
    end: MeterPoint
    expected_db: Db
    window_db: Db

    @property
    def loss_db(self) -> Db | None:
        """Measured loss (dB); None unless both ends are lit and carry only this circuit."""
        ends = (self.begin, self.end)
        if any(p.power is None or not p.lit or not p.alone for p in ends):
            return None
        return round((self.begin.power or 0.0) - (self.end.power or 0.0), 2)

    def trouble(self) -> str:
        """What is wrong with the loss, empty if it is within the window."""
        loss = self.loss_db
        if loss is None or abs(loss - self.expected_db) <= self.window_db:
            return ""
        window = f"expected {self.expected_db:.1f} +-{self.window_db:.1f} dB"
        if loss > self.expected_db:
            return f"loses {loss:.1f} dB between {self.begin.port} and {self.end.port}, {window}: {self.where}"
        more = f"{self.end.port} has {self.expected_db - loss:.1f} dB more light than {self.begin.port} explains"
        return f"{more}, {window}: {self.where}"


def sections(reading: Reading, lab: Lab, window_db: Db | None = None) -> Iterator[Section]:
    """The parts of a circuit's path between two meters. window_db: tolerance instead of the one
    from the parts' numbers.
    """
    settings = {setting.ingress: setting for setting in reading.path}
    for begin, end in pairwise(reading.points):
        meters = lab.traits_of(begin.port.device).meter_db + lab.traits_of(end.port.device).meter_db
        if begin.side == "in":
            setting = settings[begin.port]
            device = begin.port.device
            typical = lab.pass_loss_db(setting)
            expected = typical + (
                setting.attenuation_db if isinstance(setting, SpectralRoute) else 0.0
            )
            allowed = pass_window_db(lab, device)
            where = f"{device}, or the connector at {begin.port.label} or {end.port.label}"
        elif (trunk := lab.onward.get(begin.port)) is not None and trunk.end == end.port:
            expected, allowed, where = (
                trunk.loss_db,
                TRUNK_SPREAD_DB + meters,
                f"trunk {trunk.name}",
            )
        else:
            continue  # there is a device without meters in between
        yield Section(
            where, begin, end, round(expected, 2), allowed if window_db is None else window_db
        )


def pass_window_db(lab: Lab, device: DeviceName) -> Db:
    """How much more or less (dB) than the typical loss a pass through the device may lose, as its
    own two meters show it.
    """
    return (
        PATH_SPREAD * lab.insertion_loss_db(device)
        + REPEATABILITY_DB
        + 2 * lab.traits_of(device).meter_db
    )


def end_to_end_db(reading: Reading, lab: Lab) -> Db | None:
    """Loss (dB) from transmitter to receiver: measured between the meters, by the inventory in both
    fibres; None if unmeasured.
    """
    if reading.loss_db is None:
        return None
    ends = (reading.circuit.transmitter, reading.circuit.receiver)
    return round(
        reading.loss_db - reading.attenuation_db + sum(lab.fibres[port].loss_db for port in ends), 2
    )


def judge(
    readings: Iterable[Reading],
    lab: Lab,
    *,
    window_db: Db | None = None,
    max_loss_db: Db | None = None,
) -> tuple[bool, str, tuple[str, ...]]:
    """Light leaves every last device towards its receiver, and no part of the path loses more than
    the model allows.

    Otherwise name the part. max_loss_db: of a circuit end to end; it counts as exceeded only if the
    meters' specified accuracy leaves no doubt.
    """
    found = tuple(readings)
    dark = sorted(f"{r.circuit}: {why}" for r in found if (why := r.where_lost(lab)))
    weak: dict[str, str] = {}
    for reading in found:
        for section in sections(reading, lab, window_db):
            if trouble := section.trouble():
                weak.setdefault(str(reading.circuit), f"{reading.circuit}: {trouble}")
        total = end_to_end_db(reading, lab)
        if (
            total is not None
            and max_loss_db is not None
            and total - 2 * reading.meter_db > max_loss_db
        ):
            weak.setdefault(
                str(reading.circuit),
                f"{reading.circuit}: loses {total:.1f} dB from end to end, more than acceptance.max_loss_db = {max_loss_db:g}",
            )
    if dark or weak:
        parts = [f"{len(dark)} dark"] * bool(dark) + [
            f"{len(weak)} outside the loss window"
        ] * bool(weak)
        return (
            False,
            f"{' and '.join(parts)} of {counted(len(found), 'circuit')}",
            (*dark, *sorted(weak.values())),
        )
    margins = [r.out_dbm - LOS_DBM for r in found if r.out_dbm is not None]
    if found and not margins:
        return True, f"not measured: no meter on {counted(len(found), 'circuit')}", ()
    unmetered = (
        f", {len(found) - len(margins)} without a meter" if len(margins) < len(found) else ""
    )
    worst = f", worst margin +{min(margins):.1f} dB" if margins else ""
    return True, f"{len(margins)}/{len(found)} circuits lit{unmetered}{worst}", ()


def weaker(drifted: Iterable[LossDrift]) -> tuple[str, ...]:
    """Circuits that lose more than when first measured, by more than reconnection and the meters
    explain.
    """
    return tuple(
        f"{d.circuit}: {d.change_db:+.1f} dB since it was first measured"
        for d in drifted
        if d.certain and d.change_db > 0
    )
