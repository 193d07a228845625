"""The path of a host port's light from end to end, with the loss that is expected and the power that
meters see at each part. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optics import Db, Dbm, HostPort, SpectralRoute
from orchestrator.fabric.lightpath import LightMap
from orchestrator.inventory.lab import Lab
from orchestrator.results import JsonReport
from orchestrator.verify.power import LOS_DBM, Reading


@dataclass(frozen=True, slots=True)
class FibreHop:
    """One part of a path: a `fibre` or `trunk` between two ends, or a `pass` through a device.

    name: of the cable or device. expected_db: its loss, deliberate attenuation included. in_dbm,
    out_dbm: power at its ends where a meter reads this light alone; seen_db: their difference, where
    both have light (`LOS_DBM`): below it a meter reads its own noise. panels:
    the positions of patch panels that the light passes, in its direction.
    """

    kind: str
    name: str
    start: str
    end: str
    expected_db: Db
    in_dbm: Dbm | None = None
    out_dbm: Dbm | None = None
    seen_db: Db | None = None
    panels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceReport(JsonReport):
    """Where the light of a port goes. ends: the receiver, or why it reaches none; lost: where light
    is lost, as far as meters show.
    """

    lab: str
    port: str
    receiver: str
    ends: str
    hops: tuple[FibreHop, ...]
    expected_db: Db
    lost: str = ""


def traced(port: HostPort, lights: LightMap, reading: Reading | None, lab: Lab) -> TraceReport:
    """The path of `port`'s light through what the devices hold. reading: of its circuit."""
    fibre = lab.fibres[port]
    path = lights.follow(fibre.enters, fibre.slot)
    seen = {(p.side, p.port): p.power for p in (reading.points if reading else ()) if p.alone}
    start, end = port, fibre.enters
    hops = [
        _seen(
            FibreHop(
                "fibre",
                fibre.name,
                str(start),
                str(end),
                fibre.loss_db,
                fibre.tx_dbm,
                seen.get(("in", end)),
                panels=fibre.panels,
            )
        )
    ]
    for setting in path:
        attenuation = setting.attenuation_db if isinstance(setting, SpectralRoute) else 0.0
        into, out = seen.get(("in", setting.ingress)), seen.get(("out", setting.egress))
        loss = round(lab.pass_loss_db(setting) + attenuation, 4)
        device, end = setting.ingress.device, setting.egress
        hops.append(
            _seen(FibreHop("pass", device, str(setting.ingress), str(end), loss, into, out))
        )
        if (trunk := lab.onward.get(end)) is not None:
            into = seen.get(("in", trunk.end))
            hops.append(
                _seen(
                    FibreHop(
                        "trunk",
                        trunk.name,
                        str(end),
                        str(trunk.end),
                        trunk.loss_db,
                        out,
                        into,
                        panels=trunk.panels,
                    )
                )
            )
            end = trunk.end
    receiver = lab.receivers.get(end) if path and path[-1].egress == end else None
    if receiver is not None:
        last = lab.fibres[receiver]
        hops.append(
            FibreHop(
                "fibre",
                last.name,
                str(end),
                str(receiver),
                last.loss_db,
                seen.get(("out", end)),
                panels=last.panels[::-1],
            )
        )
        ends = str(receiver)
    elif path and path[-1].egress == end:
        ends = f"light leaves {end}, where fibres.yml has no cable"
    else:
        ends = f"light arrives at {end}, where the device has no circuit"
    total = round(sum(hop.expected_db for hop in hops), 4)
    lost = reading.where_lost(lab) if reading is not None else ""
    return TraceReport(lab.name, str(port), str(receiver or ""), ends, tuple(hops), total, lost)


def _seen(hop: FibreHop) -> FibreHop:
    if hop.in_dbm is None or hop.out_dbm is None or min(hop.in_dbm, hop.out_dbm) < LOS_DBM:
        return hop
    return replace(hop, seen_db=round(hop.in_dbm - hop.out_dbm, 2))
