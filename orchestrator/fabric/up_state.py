"""What is up of a plan: its links, and by which light and routes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optics import (
    Circuit,
    CrossConnect,
    DeviceName,
    FrequencySlot,
    HostPort,
    Link,
    LinkKind,
    Port,
    Setting,
    SpectralRoute,
)
from orchestrator.fabric.circuits import circuits
from orchestrator.fabric.transition import per_device
from orchestrator.files.fields import of_fields, stored
from orchestrator.inventory.lab import Lab
from orchestrator.results import Json, to_json


@dataclass(frozen=True, slots=True)
class SlotsMade:
    """How far a plan's schedule is: `slot` is the one that is up, `made` are those that were made
    and verified.
    """

    slot: int
    made: tuple[int, ...] = ()

    @classmethod
    @stored
    def of_json(cls, data: Mapping[str, Any]) -> SlotsMade:
        """The slots that `data` (`to_json` of them) describes. Raises: StoreFailed - it is not what
        this version writes.
        """
        return of_fields(cls, {**data, "made": tuple(data["made"])})


@dataclass(frozen=True, slots=True)
class UpState:
    """What is up of a plan. paths: of circuits over several devices, which could take others, too.
    slots: of one with a schedule.

    rules_sha: of the routes that its hosts have.
    """

    links: tuple[Link, ...] = ()
    paths: tuple[tuple[Setting, ...], ...] = ()
    rules_sha: str = ""
    slots: SlotsMade | None = None

    @classmethod
    def of(
        cls,
        links: Iterable[Link],
        over: Iterable[Circuit],
        rules_sha: str,
        slots: SlotsMade | None = None,
    ) -> UpState:
        """These links, over these circuits."""
        return cls(
            tuple(links), tuple(tuple(c.path) for c in over if len(c.path) > 1), rules_sha, slots
        )

    def circuits(self, lab: Lab) -> tuple[Circuit, ...]:
        """Its circuits, on their paths. Raises: as `circuits` - the inventory has changed since."""
        return circuits(
            self.links, lab, per_device(setting for path in self.paths for setting in path)
        )

    def to_json(self) -> dict[str, Json]:
        """As the store keeps it."""
        return {
            "links": [
                [link.a.host, link.a.number, link.b.host, link.b.number, link.kind.value]
                for link in self.links
            ],
            "paths": [[_setting_data(setting) for setting in path] for path in self.paths],
            "rules_sha": self.rules_sha,
            "slots": to_json(self.slots),
        }

    @classmethod
    @stored
    def of_json(cls, data: Mapping[str, Any]) -> UpState:
        """Read what `to_json` wrote. Raises: StoreFailed - it is not what this version writes."""
        read: dict[str, Any] = {
            "links": tuple(
                Link(HostPort(a, p), HostPort(b, q), LinkKind(kind))
                for a, p, b, q, kind in data["links"]
            ),
            "paths": tuple(tuple(_setting_of(*row) for row in path) for path in data["paths"]),
            "slots": SlotsMade.of_json(data["slots"]) if data["slots"] is not None else None,
        }
        return of_fields(cls, {**data, **read})


def _setting_data(setting: Setting) -> list[Json]:
    edges = (
        [setting.slot.low_mhz, setting.slot.high_mhz] if isinstance(setting, SpectralRoute) else []
    )
    return [setting.ingress.device, setting.ingress.label, setting.egress.label, *edges]


def _setting_of(device: DeviceName, ingress: str, egress: str, *edges: int) -> Setting:
    ports = Port(device, ingress), Port(device, egress)
    return SpectralRoute(*ports, FrequencySlot(*edges)) if edges else CrossConnect(*ports)
