"""What knows a job's traffic, in words: its shadow, functions of packet switches, what is sent and lost, checkpoints. Pure.

Each takes figures as `JobStatus` has them.
"""

from __future__ import annotations

from collections.abc import Mapping

from optics.plain import counted, seconds_text

Figures = Mapping[str, int | float | str]

WHOLE = 0.03
"""Bytes on the wire that are within this share of whole sums are not worth a word."""


def share_text(share: float) -> str:
    """
    >>> share_text(0.0312), share_text(0.71), share_text(0), share_text(0.0004)
    ('3.1 %', '71 %', '0 %', '0.04 %')
    """
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"


def shadow_words(found: Figures) -> str:
    """How a shadow follows: `shadow on gpu07: 312 of 312 iterations equal, checkpoint of iteration 312, 4.1 ms behind; ...`.

    Of a job that was launched without, why.
    """
    if "lacks" in found:
        return str(found["lacks"])
    words = f"shadow on {found['host']}: {found['equal']} of {found['iterations']} iterations equal"
    words += f", checkpoint of iteration {found['checkpoint']}"
    words += f", {seconds_text(float(found['lag_ms']) / 1e3)} behind" if "lag_ms" in found else ""
    words += (
        f"; {counted(int(found['fetched']), 'state')} fetched, {counted(int(found['lost']), 'packet')} lost"
        if found["fetched"] or found["lost"]
        else ""
    )
    words += f"; taps on {', '.join(str(found['taps']).split())}" if found.get("taps") else ""
    return words if found.get("state", "running") == "running" else f"{words}; it is {found['state']}"


def function_words(found: Figures) -> str:
    """What a packet switch does for a job: `aggregate at ideal: 15 of 64 slots, ...`."""
    words = f"{found['function']} at {found['segment']}"
    if found.get("state", "leased") != "leased":
        return f"{words}: " + (
            "its switch does not answer" if found["state"] == "silent" else "the switch has it no more: job stop"
        )
    noun = "entries" if found["function"] == "cache" else "slots"
    parts = [f"{found['size']} of {found['total']} {noun}" if "total" in found else f"{found['size']} {noun}"]
    if asked := int(found.get("gets", 0)):
        parts += [
            f"{share_text(int(found.get('hits', 0)) / asked)} of {asked} questions answered",
            f"{found.get('stored', 0)} in use",
        ]
    elif packets := int(found.get("packets_in", 0)):
        parts += [f"{packets} packets in", f"{found.get('sums', 0)} sums"]
        again = int(found.get("duplicates", 0)) / packets
        parts += [f"{share_text(again)} sent again"] if again else []
    parts += [f"lease {float(found['lease_left_s']):.0f} s"] if "lease_left_s" in found else []
    return f"{words}: {', '.join(parts)}"


def sent_words(found: Mapping[str, float]) -> str:
    """What is sent in place of whole sums; empty where that is about as much."""
    share = found["wire_bytes"] / found["whole_bytes"] if found["whole_bytes"] else 1.0
    return f"sends {share_text(share)} of what whole sums would take" if abs(share - 1) > WHOLE else ""


def lost_words(found: Mapping[str, float]) -> str:
    """What datagrams lost; empty where none carry sums."""
    if "lost_share" not in found:
        return ""
    again = found.get("resent_bytes", 0.0) / found["wire_bytes"] if found["wire_bytes"] else 0.0
    most, bound = share_text(found["lost_most"]), share_text(found["loss_bound"])
    words = f"sums lack {share_text(found['lost_share'])} ({most} at most, {bound} allowed)"
    return f"datagrams: {words}, {share_text(again)} sent again"


def save_words(found: Mapping[str, float]) -> str:
    """What checkpoints cost."""
    often = "every iteration" if found["every"] <= 1 else f"every {counted(round(found['every']), 'iteration')}"
    words = f"checkpoints stop training for {seconds_text(found['each_ms'] / 1e3)} {often}"
    return words if found["iteration_ms"] in (found["each_ms"], 0.0) else f"{words}, {found['iteration_ms']:.2g} ms an iteration"
