"""What knows a job's traffic, in words: what is sent and lost, checkpoints, and its attachments.
Pure.

Each takes figures as `JobStatus` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optics.plain import counted, seconds_text, share_text
from orchestrator.views.attached import Figures, views

WHOLE = 0.03
"""Bytes on the wire that are within this share of whole sums are not worth a word."""


def attached_text(attached: Mapping[str, Sequence[Figures]]) -> list[str]:
    """A line for each of a job's attachments."""
    return [view.text(found) for view in views() for found in attached.get(view.key, ())]


def sent_text(found: Mapping[str, float]) -> str:
    """What is sent in place of whole sums; empty where that is about as much."""
    share = found["wire_bytes"] / found["whole_bytes"] if found["whole_bytes"] else 1.0
    return (
        f"sends {share_text(share)} of what whole sums would take" if abs(share - 1) > WHOLE else ""
    )


def lost_text(found: Mapping[str, float]) -> str:
    """What datagrams lost; empty where none carry sums."""
    if "lost_share" not in found:
        return ""
    again = found.get("resent_bytes", 0.0) / found["wire_bytes"] if found["wire_bytes"] else 0.0
    most, bound = share_text(found["lost_most"]), share_text(found["loss_bound"])
    text = f"sums lack {share_text(found['lost_share'])} ({most} at most, {bound} allowed)"
    return f"datagrams: {text}, {share_text(again)} sent again"


def save_text(found: Mapping[str, float]) -> str:
    """What checkpoints cost."""
    often = (
        "every iteration"
        if found["every"] <= 1
        else f"every {counted(round(found['every']), 'iteration')}"
    )
    text = f"checkpoints stop training for {seconds_text(found['each_ms'] / 1e3)} {often}"
    return (
        text
        if found["iteration_ms"] in (found["each_ms"], 0.0)
        else f"{text}, {found['iteration_ms']:.2g} ms an iteration"
    )
