"""Recognises a plan written for another lab, and reports it in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from optics import BadFile
from optics.plain import summary
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Document, Path

FEW_ENDS = 6
"""With fewer wrong ends of links than this, each is reported at its place instead."""


def refuse_another_labs(document: Document, lab: Lab) -> None:
    """Raises: BadFile - one sentence if at least half of the ends the plan links are not in the lab."""
    links = document.value.get("links") if isinstance(document.value, Mapping) else None
    ends: dict[str, Path] = {}
    for index, link in enumerate(links if isinstance(links, list) else ()):
        for key in ("a", "b"):
            if isinstance(link, Mapping) and isinstance(text := link.get(key), str):
                ends.setdefault(text, ("links", index, key))
    strange = [text for text in ends if not _is_there(text, lab)]
    if len(strange) < FEW_ENDS or len(strange) < len(ends) / 2:
        return
    (line, column), few = document.spot(ends[strange[0]]), summary(lab.hosts, "host")
    words = (
        f"{document.name}:{line}:{column}: this is a plan for another lab: {len(strange)} of the {len(ends)} hosts or ports "
        f"that it links are not in this one ({few}), the first is {strange[0]}"
    )
    raise BadFile([words], hint="name its lab with --inventory, or write a plan for this one: docs/how-to/write-a-plan.md")


def _is_there(end: str, lab: Lab) -> bool:
    """Whether the lab has the host of a link's end, and the port if one is named."""
    name, _, port = end.partition(":p")
    return name in lab.hosts and (not port or (port.isdecimal() and int(port) in lab.hosts[name].ports))
