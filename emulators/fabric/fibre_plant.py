"""The effect of light on host ports: pure bookkeeping between the devices' circuits and the kernel.

Light is simplex. A host port has carrier if and only if light arrives at its receiver. Where A's
light reaches B but none reaches A, B has carrier and A has not: A's kernel then sends nothing, like
a network card without receive light.

A transmitter's light is followed from its fibre through device after device, over trunks, to a
receiver. A receiver that two transmitters reach at once understands neither: it is dark, and the
collision is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from emulators.optics.light import Lit, Pair, holds

Plug = tuple[str, str]
"""(device, port label)."""


class HostPort(NamedTuple):
    """A port of a host, by number."""

    host: str
    port: int


class Strand(NamedTuple):
    """One cable's two ends: the host port, and where it is plugged in on the device. `slot`: edges
    of its light (MHz).
    """

    name: str
    at: HostPort
    device: str
    enters: str
    leaves: str
    slot: tuple[int, int] | None = None


class Tie(NamedTuple):
    """A trunk: one fibre from an egress to an ingress, of another device or the same."""

    name: str
    source: Plug
    target: Plug


@dataclass(frozen=True, slots=True)
class Relight:
    """The kernel's part in a change of light, in the order given: dark first, light last."""

    darkened: tuple[HostPort, ...]
    unsent: tuple[HostPort, ...]  # transmitters whose light now reaches no receiver
    sent: tuple[tuple[HostPort, HostPort], ...]  # transmitter -> receiver
    lit: tuple[HostPort, ...]
    # receiver, the transmitters it receives at once, when new
    collided: tuple[tuple[HostPort, tuple[HostPort, ...]], ...] = ()


class FibrePlant:
    """Which transmitter each host port's receiver sees."""

    def __init__(self, strands: Iterable[Strand], ties: Iterable[Tie] = ()) -> None:
        self.strands = {s.name: s for s in strands}
        self.ties = {t.name: t for t in ties}
        self._onward = {t.source: t for t in self.ties.values()}
        self._island = _islands({s.device for s in self.strands.values()}, self.ties.values())
        self._plug_in()
        # device -> ingress -> where its light goes
        self._paths: dict[str, dict[str, list[Lit]]] = {}
        self._lit: dict[str, frozenset[Lit]] = {}  # the same as one set
        self._seen: dict[str, dict[HostPort, HostPort]] = {}  # island -> receiver -> transmitter
        self._clashes: dict[str, dict[HostPort, tuple[HostPort, ...]]] = {}
        self.cut: frozenset[str] = frozenset()
        self.silent: frozenset[HostPort] = frozenset()
        # receivers whose link does not come up, whatever light arrives
        self.dead: frozenset[HostPort] = frozenset()

    @property
    def sources(self) -> Mapping[HostPort, HostPort]:
        """Receiver -> the transmitter whose light it sees."""
        return {
            receiver: sender for seen in self._seen.values() for receiver, sender in seen.items()
        }

    def show(self, device: str, lit: frozenset[Lit]) -> Relight:
        """Note that `device` now carries light on exactly these paths."""
        before, self._lit[device] = self._lit.get(device, frozenset()), lit
        paths = self._paths.setdefault(device, {})
        for path in before - lit:
            paths[path[0]].remove(path)
        for path in lit - before:
            paths.setdefault(path[0], []).append(path)
        return self._look(self._island.get(device, device))

    def sever(self, name: str, cut: bool) -> Relight:
        """Cut a cable or a trunk through, or splice it. Raises: KeyError - no such cable."""
        device = self.strands[name].device if name in self.strands else self.ties[name].source[0]
        self.cut = self.cut | {name} if cut else self.cut - {name}
        return self._look(self._island[device])

    def silence(self, port: HostPort, silent: bool) -> Relight:
        """Note that the transmitter of `port` sends no light, or sends again."""
        self.silent = self.silent | {port} if silent else self.silent - {port}
        strand = self._sender.get(port)
        return self._look(self._island[strand.device]) if strand else Relight((), (), (), ())

    def kill(self, port: HostPort, dead: bool) -> Relight:
        """Note that the link of `port` stays down, or works again."""
        self.dead = self.dead | {port} if dead else self.dead - {port}
        strand = self._sender.get(port)
        return self._look(self._island[strand.device]) if strand else Relight((), (), (), ())

    def swap(self, one: str, other: str, ends: str = "both") -> list[Relight]:
        """Exchange two cables' plugs at their devices: "both" of each cable, or only where their
        light "enters" or "leaves".

        Raises: KeyError - no such cable. ValueError - a half of a cable goes to the device the
        other half goes to.
        """
        first, second = self.strands[one], self.strands[other]
        if ends != "both" and first.device != second.device:
            raise ValueError(
                f"{one} and {other} are plugged into different devices: only both ends of each can be swapped"
            )
        islands = sorted({self._island[first.device], self._island[second.device]})
        before, self.cut = self.cut, self.cut | {one, other}  # unplugged, both, then plugged in
        changes = [self._look(island) for island in islands]
        enters, leaves = ends in ("both", "enters"), ends in ("both", "leaves")
        for here, existing in ((first, second), (second, first)):
            self.strands[here.name] = here._replace(
                device=existing.device,
                enters=existing.enters if enters else here.enters,
                leaves=existing.leaves if leaves else here.leaves,
            )
        self._plug_in()
        self.cut = before
        return changes + [self._look(island) for island in islands]

    def joined(self, device: str, pair: Pair) -> tuple[HostPort, HostPort] | None:
        """Return the transmitter and the receiver at the two ends of a circuit, None where one is
        missing, cut, silent or dead.

        Light that comes or goes over a trunk is not followed.
        """
        sender, receiver = (
            self._entering.get((device, pair[0])),
            self._receiver.get((device, pair[1])),
        )
        if sender is None or receiver is None or {sender.name, receiver.name} & self.cut:
            return None
        return (
            None
            if sender.at in self.silent or receiver.at in self.dead
            else (sender.at, receiver.at)
        )

    def _plug_in(self) -> None:
        """Note where the cables are plugged in."""
        self._sender = {s.at: s for s in self.strands.values()}
        self._entering: dict[Plug, Strand] = {
            (s.device, s.enters): s for s in self.strands.values()
        }
        self._receiver: dict[Plug, Strand] = {
            (s.device, s.leaves): s for s in self.strands.values()
        }
        self._senders: dict[str, list[Strand]] = {}  # island -> the strands of its devices
        for strand in self.strands.values():
            self._senders.setdefault(self._island[strand.device], []).append(strand)

    def _look(self, island: str) -> Relight:
        """Follow the light of every transmitter that enters the devices of `island`."""
        received: dict[HostPort, list[HostPort]] = {}
        for strand in self._senders.get(island, ()):
            if strand.name in self.cut or strand.at in self.silent:
                continue
            for receiver in dict.fromkeys(self._reached(strand)):
                received.setdefault(receiver, []).append(strand.at)
        before = self._seen.get(island, {})
        after = {
            receiver: senders[0]
            for receiver, senders in received.items()
            if len(senders) == 1 and receiver not in self.dead
        }
        clashes = {
            receiver: tuple(sorted(senders))
            for receiver, senders in received.items()
            if len(senders) > 1
        }
        known, self._clashes[island] = self._clashes.get(island, {}), clashes
        self._seen[island] = after
        changed = sorted(r for r in {*before, *after} if before.get(r) != after.get(r))
        sending = set(after.values())
        return Relight(
            darkened=tuple(r for r in changed if r in before),
            unsent=tuple(sorted(set(before.values()) - sending)),
            sent=tuple((after[r], r) for r in changed if r in after),
            lit=tuple(r for r in changed if r in after),
            collided=tuple(
                (r, senders) for r, senders in sorted(clashes.items()) if known.get(r) != senders
            ),
        )

    def _reached(self, strand: Strand) -> Iterator[HostPort]:
        """Yield the receivers that the light of `strand` reaches. Light that runs in a circle is
        not followed round again.
        """
        passed: set[Plug] = set()
        plugs: list[Plug] = [(strand.device, strand.enters)]
        while plugs:
            device, ingress = plug = plugs.pop()
            if plug in passed:
                continue
            passed.add(plug)
            for path in self._paths.get(device, {}).get(ingress, ()):
                if not holds(path, strand.slot):
                    continue
                end = (device, path[1])
                if (receiver := self._receiver.get(end)) and receiver.name not in self.cut:
                    yield receiver.at
                elif (trunk := self._onward.get(end)) and trunk.name not in self.cut:
                    plugs.append(trunk.target)


def _islands(devices: Iterable[str], ties: Iterable[Tie]) -> dict[str, str]:
    """Return for each device the name of the group that trunks join it to: light never leaves a
    group.
    """
    island = {device: device for device in devices}
    for tie in ties:
        ends = {island.setdefault(device, device) for device in (tie.source[0], tie.target[0])}
        name = min(ends)
        for device, old in island.items():
            if old in ends:
                island[device] = name
    return island
