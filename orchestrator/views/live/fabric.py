"""The circuits of a lab as lines between host ports, each with its state. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from optics import DeviceName, HostPort, Setting
from optics.values import setting_id
from orchestrator.fabric.lightpath import LightMap, Trace
from orchestrator.fabric.transition import per_device
from orchestrator.inventory.lab import Lab
from orchestrator.store.records import Belonging

LIT, DARK, MAKING, LOST = "lit", "dark", "making", "lost"
"""Carries light; goes dark to be moved; is being made; should carry light, but its receiver has no
carrier.
"""


@dataclass(frozen=True, slots=True)
class LiveCircuit:
    """One circuit. ports: of every pass the device and the id that journals give it; path: the
    settings as they print.
    """

    sender: HostPort
    receiver: HostPort
    path: tuple[str, ...]
    ports: tuple[tuple[DeviceName, str], ...]
    state: str = LIT
    owner: str = ""

    @property
    def id(self) -> str:
        return f"{self.sender}->{self.receiver}"


def live_circuits(
    lab: Lab,
    held: Mapping[Setting, Belonging],
    remove: Collection[str] = (),
    add: Collection[str] = (),
) -> dict[str, LiveCircuit]:
    """The circuits that the settings make, by id. remove, add: settings being taken down and made
    now, as they print.

    A path that reaches no receiver is not a circuit.
    """
    if not remove and not add:
        return {
            w.id: w
            for w in (_live_circuit(t, held, LIT) for t in _traces(lab, held))
            if w is not None
        }
    before = {s: b for s, b in held.items() if str(s) not in add}
    after = {s: b for s, b in held.items() if str(s) not in remove}
    found: dict[str, LiveCircuit] = {}
    for trace in _traces(lab, before):
        leaving = any(str(s) in remove for s in trace.path)
        if (circuit := _live_circuit(trace, held, DARK if leaving else LIT)) is not None:
            found[circuit.id] = circuit
    for trace in _traces(lab, after):
        made = any(str(s) in add for s in trace.path)
        if (circuit := _live_circuit(trace, held, MAKING if made else LIT)) is not None and (
            made or circuit.id not in found
        ):
            found[circuit.id] = circuit
    return found


def _traces(lab: Lab, held: Mapping[Setting, Belonging]) -> list[Trace]:
    return list(LightMap(per_device(held), lab).traces())


def _live_circuit(
    trace: Trace, held: Mapping[Setting, Belonging], state: str
) -> LiveCircuit | None:
    if trace.receiver is None:
        return None
    ports = tuple((s.ingress.device, setting_id(s)) for s in trace.path)
    owners = sorted({held[s].owner for s in trace.path})
    return LiveCircuit(
        trace.transmitter,
        trace.receiver,
        tuple(map(str, trace.path)),
        ports,
        state,
        ", ".join(owners),
    )
