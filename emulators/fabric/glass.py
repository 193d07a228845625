"""What light means for host ports: pure bookkeeping between the devices' glass and the kernel.

Light is simplex. A host port has carrier if and only if light arrives at its receiver. Where A's light reaches B but none
reaches A, B has carrier and A has not: A's kernel then sends nothing, like a network card without receive light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class HostPort(NamedTuple):
    """A port of a host, by number."""

    host: str
    port: int


class Strand(NamedTuple):
    """One cable's two ends: the host port, and where it is plugged in on the device."""

    name: str
    at: HostPort
    device: str
    enters: str
    leaves: str


@dataclass(frozen=True, slots=True)
class Relight:
    """What a change of the glass asks of the kernel, in the order given: dark first, light last."""

    darkened: tuple[HostPort, ...]
    unsent: tuple[HostPort, ...]  # transmitters whose light goes nowhere now
    sent: tuple[tuple[HostPort, HostPort], ...]  # transmitter -> receiver
    lit: tuple[HostPort, ...]


class Glass:
    """Which transmitter each host port's receiver sees."""

    def __init__(self, strands: Iterable[Strand]) -> None:
        self.strands = {s.name: s for s in strands}
        self._from = {(s.device, s.enters): s for s in self.strands.values()}
        self._to = {(s.device, s.leaves): s for s in self.strands.values()}
        self._pairs: dict[str, frozenset[tuple[str, str]]] = {}
        self._seen: dict[str, dict[HostPort, HostPort]] = {}  # device -> receiver -> transmitter
        self.cut: frozenset[str] = frozenset()

    @property
    def sources(self) -> Mapping[HostPort, HostPort]:
        """Receiver -> the transmitter whose light it sees."""
        return {receiver: sender for seen in self._seen.values() for receiver, sender in seen.items()}

    def show(self, device: str, pairs: frozenset[tuple[str, str]]) -> Relight:
        """Note that `device` now carries light between exactly these (ingress, egress) pairs."""
        self._pairs[device] = pairs
        before, after = self._seen.get(device, {}), {}
        for ingress, egress in pairs:
            sender, receiver = self._from.get((device, ingress)), self._to.get((device, egress))
            if sender and receiver and not {sender.name, receiver.name} & self.cut:
                after[receiver.at] = sender.at
        self._seen[device] = after
        changed = sorted(r for r in {*before, *after} if before.get(r) != after.get(r))
        sending = set(after.values())
        return Relight(
            darkened=tuple(r for r in changed if r in before),
            unsent=tuple(sorted(set(before.values()) - sending)),
            sent=tuple((after[r], r) for r in changed if r in after),
            lit=tuple(r for r in changed if r in after),
        )

    def sever(self, name: str, cut: bool) -> Relight:
        """Cut a cable through, or splice it. Raises: KeyError - no such cable."""
        strand = self.strands[name]
        self.cut = self.cut | {name} if cut else self.cut - {name}
        return self.show(strand.device, self._pairs.get(strand.device, frozenset()))
