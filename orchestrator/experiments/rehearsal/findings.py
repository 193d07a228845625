"""What follows from a change and from what was measured of it: hosts cut off, dark links, the time
that traffic stands. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from optics import Circuit, DeviceName, HostName, LinkKind, Setting, SpectralRoute
from optics.plain import natural
from orchestrator.experiments.rehearsal.report import LinkDark, StallEstimate
from orchestrator.fabric.next_hops import distances, graph
from orchestrator.plan.target import Target
from orchestrator.store.records import StallPoint
from orchestrator.telemetry.phases import PhaseTime

Event = Sequence[object]
"""Of a device's light path: time (s), `making`, `lit` or `broken`, ingress, egress, and of spectral
routes two edges (MHz).
"""


def cut_off_pairs(goal: Target) -> tuple[tuple[HostName, HostName], ...]:
    """The ordered pairs of hosts that have a path now and none over the links that stay."""
    now, meanwhile = graph(goal.old_links), graph(goal.kept_links)
    hosts = sorted(now, key=natural)
    lost = (
        (source, host)
        for host in hosts
        for source in set(distances(now, host)) - set(distances(meanwhile, host))
    )
    return tuple(sorted(lost, key=lambda pair: (natural(pair[0]), natural(pair[1]))))


def links_dark(
    goal: Target, history: Mapping[DeviceName, Iterable[Event]], since_s: float
) -> tuple[LinkDark, ...]:
    """How long the light of every link with new light was away, from the events of the devices'
    light path since `since_s` (s).
    """
    events = {
        device: [e for e in found if float(str(e[0])) >= since_s]
        for device, found in history.items()
    }
    circuits = {(c.transmitter, c.receiver): c for c in goal.circuits}
    rows = []
    for link in goal.links:
        ends = [(link.a, link.b), (link.b, link.a)][: 2 if link.kind is LinkKind.DUPLEX else 1]
        made = [c for end in ends if (c := circuits.get(end)) is not None and _made(c, goal)]
        if made:
            dark = [ms for c in made if (ms := _dark_ms(c, events)) is not None]
            rows.append(LinkDark(str(link), max(dark, default=None)))
    return tuple(sorted(rows, key=lambda row: -(row.dark_ms or 0.0)))


def _made(circuit: Circuit, goal: Target) -> bool:
    return any(x in goal.change.made.get(x.ingress.device, ()) for x in circuit.path)


def _dark_ms(circuit: Circuit, events: Mapping[DeviceName, Sequence[Event]]) -> float | None:
    """From the first of its egress ports losing what it had to the last of its settings lit."""
    lit: list[float] = []
    broken: list[float] = []
    for setting in circuit.path:
        here = events.get(setting.ingress.device, ())
        lit += [float(str(e[0])) for e in here if e[1] == "lit" and _same(setting, e)]
        broken += [
            float(str(e[0]))
            for e in here
            if e[1] == "broken" and e[3] == setting.egress.label and not _same(setting, e)
        ]
    if not lit or not broken or max(lit) < min(broken):
        return None
    return (max(lit) - min(broken)) * 1e3


def _same(setting: Setting, event: Event) -> bool:
    edges = (
        [setting.slot.low_mhz, setting.slot.high_mhz] if isinstance(setting, SpectralRoute) else []
    )
    return list(event[2:]) == [setting.ingress.label, setting.egress.label, *edges]


def mode_of(phases: Iterable[PhaseTime]) -> str:
    """How traffic was treated while circuits were dark, in the words of the stall curve."""
    names = {phase.name for phase in phases}
    return "drained" if "drain" in names else "held" if "hold" in names else "sending"


def estimate_stall(
    points: Iterable[StallPoint], mode: str, dark_ms: float | None
) -> StallEstimate | None:
    """The time lost at that darkness between the curve's nearest points; beyond its ends the loss
    grows with the darkness.
    """
    curve = sorted((p.dark_ms, p.lost_ms) for p in points if p.mode == mode)
    if dark_ms is None or not curve:
        return None
    below = [point for point in curve if point[0] <= dark_ms]
    above = [point for point in curve if point[0] >= dark_ms]
    if below and above:
        (x0, y0), (x1, y1) = below[-1], above[0]
        lost = y0 if x1 == x0 else y0 + (y1 - y0) * (dark_ms - x0) / (x1 - x0)
    else:
        x, y = below[-1] if below else above[0]
        lost = max(0.0, y + dark_ms - x)
    return StallEstimate(mode, dark_ms, lost, len(curve))
