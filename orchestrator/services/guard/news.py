"""What the guard says of light that went or came. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from optics import HostPort, Link
from orchestrator.fabric.circuits import receivers
from orchestrator.fabric.detour import FlapDamping, link_text
from orchestrator.results import Json

REPORTED_LOSSES = 3
"""A link that loses its light more often than this without a long calm between is reported as
flapping, once.
"""


def flaps(links: Collection[Link], damping: FlapDamping) -> frozenset[Link]:
    """Those whose light went so often that each further loss is no news."""
    return frozenset(link for link in links if damping.losses.get(link, 0) > REPORTED_LOSSES)


def of_light(
    lost: frozenset[Link],
    restored: frozenset[Link],
    flapping: frozenset[Link],
    damping: FlapDamping,
    carriers: Mapping[HostPort, bool],
    after_ms: float | None,
) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """Event, words and fields of each link that lost its light or has it again. after_ms: from the
    first loss until now.
    """
    for link in sorted(lost - flapping, key=link_text):
        dark = sorted(p for p in receivers([link]) if carriers.get(p) is False)
        text = f"{link_text(link)}: no light at {', '.join(map(str, dark)) or 'the adjacent port'}"
        yield (
            "dark",
            text,
            {"link": link_text(link), "ports": [str(p) for p in dark], "after_ms": after_ms},
        )
    for link in sorted(restored - flapping, key=link_text):
        held = damping.hold(link)
        text = f"{link_text(link)}: light is back; used again once lit for {held:g} s"
        yield "light", text, {"link": link_text(link), "hold_s": held}
    for link in sorted(flapping & lost, key=link_text):
        losses = damping.losses[link]
        if losses == REPORTED_LOSSES + 1:
            text = f"{link_text(link)}: flaps; not used until it stays lit for longer, and further losses are not reported"
            yield "flapping", text, {"link": link_text(link), "losses": losses}
