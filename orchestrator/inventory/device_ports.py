"""Which cables of fibres.yml end at ports that their device, by its own report, does not have.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from optics import DeviceName, Identity, Port
from optics.plain import summary
from orchestrator.inventory.edges import FibresEdge
from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.schema import attempt
from orchestrator.inventory.yaml_reader import read_yaml


def unsupported(who: Identity, label: str, *, enters: bool) -> str:
    """What is wrong with a port at which light is to enter a device, or to leave it, in words;
    empty: it is one.

    A device that reports no ports is taken to have all.
    """
    inside, outside = (who.ingress, who.egress) if enters else (who.egress, who.ingress)
    if not inside or label in inside:
        return ""
    here, place = ("enters", "leaves") if enters else ("leaves", "enters")
    found = (
        f"has port {label} where light {place}, not where it {here}"
        if label in outside
        else f"has no port {label}"
    )
    return f"{found} ({who.vendor} {who.model}: light {here} at {summary(inside, 'port')})"


def misplaced(
    text: str, name: str, reply: Mapping[DeviceName, Identity], used: Collection[Port]
) -> list[str]:
    """The ends of fibres and trunks at the ports `used` that their device lacks, each at its place
    in the text of fibres.yml.

    reply: what the devices that were asked say.
    """
    document = read_yaml(text, name)
    problems, edge = Problems(document), attempt(FibresEdge, document.value)
    ends: list[tuple[Path, Port, bool]] = []
    for index, fibre in enumerate(edge.fibres if edge is not None else ()):
        ends.append((("fibres", index, "enters"), Port(fibre.device, fibre.enters), True))
        ends.append((("fibres", index, "leaves"), Port(fibre.device, fibre.leaves), False))
    for index, trunk in enumerate(edge.trunks if edge is not None else ()):
        ends.append(
            (("trunks", index, "from", "port"), Port(trunk.start.device, trunk.start.port), False)
        )
        ends.append((("trunks", index, "to", "port"), Port(trunk.end.device, trunk.end.port), True))
    for path, port, enters in ends:
        who = reply.get(port.device)
        if (
            who is not None
            and port in used
            and (message := unsupported(who, port.label, enters=enters))
        ):
            problems.add(path, f"{port.device} {message}")
    return problems.lines()
