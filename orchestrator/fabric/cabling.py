"""Finds swapped and misplaced fibres: which transmitter each receiver sees, compared with the plan.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from optics import HostPort, Link, LinkKind
from orchestrator.fabric.lightpath import Held, LightMap
from orchestrator.inventory.lab import Lab

Received: TypeAlias = Mapping[HostPort, HostPort | None]
"""Receiver -> the transmitter whose light arrives there, None if none is known."""
MOST_SWAPS = 8
"""Swaps searched for in one check; with more faults than this, each receiver is reported
separately.
"""


def senders(links: Iterable[Link]) -> dict[HostPort, HostPort]:
    """Receiver -> its planned transmitter."""
    found: dict[HostPort, HostPort] = {}
    for link in links:
        found[link.b] = link.a
        if link.kind is LinkKind.DUPLEX:
            found[link.a] = link.b
    return found


def led(held: Held, lab: Lab) -> dict[HostPort, HostPort]:
    """Receiver -> transmitter, from the devices' settings, if every fibre is where the inventory
    says.
    """
    return {
        trace.receiver: trace.transmitter
        for trace in LightMap(held, lab).traces()
        if trace.receiver is not None
    }


@dataclass(frozen=True, slots=True)
class Swap:
    """Two fibres in each other's sockets at their devices: both strands of the cables, or only the
    entering or leaving one.
    """

    ends: Literal["both", "enters", "leaves"]
    one: HostPort
    other: HostPort

    def other_than(self, port: HostPort, half: Literal["enters", "leaves"]) -> HostPort:
        """The port whose socket the fibre of `port` is in, on that strand."""
        if self.ends not in ("both", half):
            return port
        return self.other if port == self.one else self.one if port == self.other else port

    def text(self, lab: Lab) -> str:
        """`gpu03:p1 and gpu03:p2 are swapped at ocs1`."""
        devices = dict.fromkeys(lab.fibres[port].device for port in (self.one, self.other))
        half = {
            "both": "",
            "enters": " where their light enters",
            "leaves": " where their light leaves",
        }[self.ends]
        return f"{self.one} and {self.other} are swapped at {' and '.join(devices)}{half}"

    def likelihood(self, lab: Lab) -> tuple[object, ...]:
        """Sort key for swaps that explain the same symptoms: ports of one host first, then of one
        device, then whole cables.
        """
        same_device = lab.fibres[self.one].device == lab.fibres[self.other].device
        return (
            self.one.host != self.other.host,
            not same_device,
            self.ends != "both",
            self.one,
            self.other,
        )


def predicted(
    planned: Mapping[HostPort, HostPort], swaps: Iterable[Swap], receivers: Iterable[HostPort]
) -> dict[HostPort, HostPort | None]:
    """The transmitter each receiver sees if these fibres are swapped and the devices switch light
    as in `planned`.
    """
    done = tuple(swaps)
    found: dict[HostPort, HostPort | None] = {}
    for receiver in receivers:
        socket = receiver
        for swap in done:
            socket = swap.other_than(socket, "leaves")
        sender = planned.get(socket)
        for swap in reversed(done):
            sender = sender and swap.other_than(sender, "enters")
        found[receiver] = sender
    return found


def candidates(
    planned: Mapping[HostPort, HostPort], received: Received, lab: Lab
) -> Iterator[Swap]:
    """Swaps that would explain why some receiver gets light from another transmitter than
    planned.
    """
    planned_at = {sender: receiver for receiver, sender in planned.items()}
    pairs: set[tuple[HostPort, HostPort]] = set()
    for receiver, seen in received.items():
        wanted = planned.get(receiver)
        if seen == wanted or seen is None:
            continue
        if wanted is not None:
            pairs.add((min(wanted, seen), max(wanted, seen)))
        should = planned_at.get(seen)
        if should is not None:
            pairs.add((min(receiver, should), max(receiver, should)))
    for one, other in sorted(pairs):
        if one in lab.fibres and other in lab.fibres and one != other:
            yield Swap("both", one, other)
            if lab.fibres[one].device == lab.fibres[other].device:
                yield Swap("enters", one, other)
                yield Swap("leaves", one, other)


def swaps(
    planned: Mapping[HostPort, HostPort], received: Received, lab: Lab
) -> tuple[tuple[Swap, tuple[Swap, ...]], ...]:
    """The fewest swaps of fibres that explain the observations, each with the swaps that would look
    the same; empty if none does.

    planned: the transmitter of every receiver if each fibre were where the inventory says.
    """
    receivers = tuple(received)

    def wrong(done: tuple[Swap, ...]) -> int:
        guess = predicted(planned, done, receivers)
        return sum(guess[r] != received[r] for r in receivers)

    found: list[tuple[Swap, tuple[Swap, ...]]] = []
    left = wrong(())
    while left and len(found) < MOST_SWAPS:
        done = tuple(swap for swap, _ in found)
        now = predicted(planned, done, receivers)
        tried = {
            swap: wrong((*done, swap))
            for swap in candidates({r: s for r, s in now.items() if s}, received, lab)
            if swap not in done
        }
        best = min(tried.values(), default=left)
        if best >= left:
            break
        equal = sorted(
            (swap for swap, count in tried.items() if count == best),
            key=lambda swap: swap.likelihood(lab),
        )
        found.append((equal[0], tuple(equal[1:])))
        left = best
    return tuple(found)


def explained(
    planned: Mapping[HostPort, HostPort],
    led_to: Mapping[HostPort, HostPort],
    received: Received,
    lab: Lab,
    lit: Collection[HostPort] = (),
) -> tuple[str, ...]:
    """One line for each swap that explains what the receivers see, then one for each planned
    receiver still unexplained.

    led_to: as `led`, from the devices' own maps, to tell a wrong cross-connect from a wrong fibre.
    lit: receivers with carrier.
    """
    wrong = {receiver for receiver, sender in planned.items() if received.get(receiver) != sender}
    # Foreign and idle receivers count too if a transmitter was identified: half of a swap may show
    # only there.
    seen = {
        receiver: sender
        for receiver, sender in received.items()
        if receiver in planned or sender is not None
    }
    found = swaps(led_to, seen, lab)
    guess = predicted(led_to, [swap for swap, _ in found], seen)
    lines = []
    for swap, same in found:
        names = ", ".join(lab.fibres[port].name for port in (swap.one, swap.other))
        others = (
            "; the light would look the same if "
            + ", or if ".join(s.text(lab) for s in islice(same, 2))
            if same
            else ""
        )
        lines.append(f"{swap.text(lab)} (fibres {names}{others})")
    for receiver in sorted(wrong):
        seen_present, wanted = received.get(receiver), planned[receiver]
        if found and guess.get(receiver) == seen_present and led_to.get(receiver) == wanted:
            continue  # by a swap reported above
        if seen_present is None:
            text = (
                "has light, but no port of this lab sends there"
                if receiver in lit
                else "receives nothing"
            )
            lines.append(f"{receiver}: {text}; {wanted} is planned")
        elif led_to.get(receiver) == seen_present:
            lines.append(
                f"{receiver}: receives {seen_present}; {wanted} is planned: another cross-connect leads there"
            )
        else:
            lines.append(
                f"{receiver}: receives {seen_present}; {wanted} is planned: fibres swapped, or another cross-connect"
            )
    return tuple(lines)
