"""Recognises a plan written for another lab, and reports it in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optics import BadFile
from optics.plain import summary
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Document, Path

FEW_ENDS = 6
"""With fewer wrong ends of links than this, each is reported at its place instead."""


def refuse_another_labs(document: Document, lab: Lab) -> None:
    """Raises: BadFile - one sentence if at least half of the ends the plan links are not in the
    lab.
    """
    ends: dict[str, Path] = {}
    for path, links in _lists(document.value):
        for index, link in enumerate(links if isinstance(links, list) else ()):
            for key in ("a", "b"):
                if isinstance(link, Mapping) and isinstance(text := link.get(key), str):
                    ends.setdefault(text, (*path, index, key))
    strange = [text for text in ends if not _is_present(text, lab)]
    if len(strange) < FEW_ENDS or len(strange) < len(ends) / 2:
        return
    (line, column), few = document.spot(ends[strange[0]]), summary(lab.hosts, "host")
    message = (
        f"{document.name}:{line}:{column}: this is a plan for another lab: {len(strange)} of the {len(ends)} hosts or ports "
        f"that it links are not in this one ({few}), the first is {strange[0]}"
    )
    raise BadFile(
        [message],
        hint="name its lab with --inventory, or write a plan for this one: docs/how-to/write-a-plan.md",
    )


def _lists(body: Any) -> Iterator[tuple[Path, Any]]:
    """The places of links in a plan file: its own, and those of each slot."""
    if not isinstance(body, Mapping):
        return
    yield ("links",), body.get("links")
    schedule = body.get("schedule")
    slots = schedule.get("slots") if isinstance(schedule, Mapping) else None
    for index, slot in enumerate(slots if isinstance(slots, list) else ()):
        if isinstance(slot, Mapping):
            yield ("schedule", "slots", index, "links"), slot.get("links")


def _is_present(end: str, lab: Lab) -> bool:
    """Whether the lab has the host of a link's end, and the port if one is named."""
    name, _, port = end.partition(":p")
    return name in lab.hosts and (
        not port or (port.isdecimal() and int(port) in lab.hosts[name].ports)
    )
