"""The points of a slot change in the journal: per device what it did, per host how wrong its
expectation was.
"""

from __future__ import annotations

from collections.abc import Mapping

from optics import DeviceName, Outcome
from orchestrator.hosts import HostEvent
from orchestrator.telemetry.journal import Journal


def record_slot_change(
    journal: Journal,
    plan: str,
    slot: int,
    cycle: int,
    outcomes: Mapping[DeviceName, Outcome],
    late_ns: int,
    lit_ns: int,
    duty: float,
) -> None:
    """Slot `slot` began. late_ns, lit_ns: of the slot before it. duty: of the latest slots, 0 to
    1.
    """
    shared = {
        "slot": slot,
        "cycle": cycle,
        "late_ms": late_ns / 1e6,
        "lit_ms": lit_ns / 1e6,
        "duty": duty,
    }
    for device, outcome in outcomes.items():
        fields = {**shared, "dark_ms": (outcome.settled_ns - outcome.sent_ns) / 1e6}
        journal.point("slot", {"plan": plan, "device": device}, fields, outcome.settled_ns)
    journal.flush()  # who watches sees the slot while it is there


def record_host(journal: Journal, plan: str, event: HostEvent) -> None:
    """A host is in a slot, by its event `slot`."""
    fields: dict[str, float | int] = {"slot": int(event.values["slot"])}
    for key, name in (("error_ns", "edge_error_ms"), ("dark_ns", "dark_ms"), ("lit_ns", "lit_ms")):
        if isinstance(event.values.get(key), int):
            fields[name] = event.values[key] / 1e6
    journal.point("slot_host", {"plan": plan, "host": event.host}, fields, event.at_ns)
