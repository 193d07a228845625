"""Links and circuits as JSON values for the store, and back."""

from __future__ import annotations

from optics import Circuit, CrossConnect, DeviceName, HostPort, Link, LinkKind, Port, Setting, Slot, SpectralRoute
from optics.plan import Plan, Schedule
from orchestrator.fabric import circuits as light
from orchestrator.fabric.transition import per_device
from orchestrator.fabric.up_state import SlotsMade
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan


def path_data(circuit: Circuit) -> dict[str, object]:
    """A circuit's path as stored; needed where it could take another path too."""
    return {
        "transmitter": [circuit.transmitter.host, circuit.transmitter.number],
        "receiver": [circuit.receiver.host, circuit.receiver.number],
        "path": [
            [
                x.ingress.device,
                x.ingress.label,
                x.egress.label,
                *([x.slot.low_mhz, x.slot.high_mhz] if isinstance(x, SpectralRoute) else []),
            ]
            for x in circuit.path
        ],
    }


def stored_circuits(stored: object, lab: Lab) -> tuple[Circuit, ...]:
    """The circuits of a current plan, on their stored paths: over several devices there is more than one."""
    kept: dict[tuple[HostPort, HostPort], tuple[Setting, ...]] = {}
    for x in (stored.get("paths") if isinstance(stored, dict) else None) or ():
        kept[HostPort(*x["transmitter"]), HostPort(*x["receiver"])] = tuple(_stored_setting(*s) for s in x["path"])
    links = stored_links(stored)
    live = per_device(setting for path in kept.values() for setting in path)
    return light.circuits(links, lab, live)


def _stored_setting(device: DeviceName, ingress: str, egress: str, *edges: int) -> Setting:
    ports = Port(device, ingress), Port(device, egress)
    return SpectralRoute(*ports, Slot(*edges)) if edges else CrossConnect(*ports)


def link_data(link: Link) -> dict[str, str | int]:
    """A link as stored."""
    return {
        "a": link.a.host,
        "a_port": link.a.number,
        "b": link.b.host,
        "b_port": link.b.number,
        "kind": link.kind.value,
    }


def stored_plan(text: str, name: str, stored: object, lab: Lab) -> Plan:
    """The plan that is up, as it is written; of one with a schedule, the slot that is `stored`. Raises: as `read_plan`."""
    plan = read_plan(text, name, lab)
    made = slots_made(stored)
    return plan if plan.schedule is None else plan.slot(made.slot if made is not None else 0)


def slots_made(stored: object) -> SlotsMade | None:
    """What is stored of a schedule; None without one."""
    return SlotsMade.of_json(stored) if isinstance(stored, dict) and "slot" in stored else None


def unmade(schedule: Schedule, stored: object) -> tuple[int, ...]:
    """The slots that were not made and verified yet when this was stored."""
    made = slots_made(stored)
    return tuple(slot for slot in range(len(schedule.slots)) if made is None or slot not in made.made)


def stored_links(stored: object) -> tuple[Link, ...]:
    """The stored links of a current plan; empty if there are none."""
    listed = stored.get("links") if isinstance(stored, dict) else None
    return tuple(
        Link(HostPort(x["a"], x["a_port"]), HostPort(x["b"], x["b_port"]), LinkKind(x["kind"]))
        for x in listed or ()
        if isinstance(x, dict)
    )
