"""Which state each circuit is in: by the store, its devices, the carrier of its receiver, and a
guard. Pure; times are wall ms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from optics import DeviceName
from orchestrator.views.live.fabric import DARK, LIT, LOST, MAKING, LiveCircuit
from orchestrator.views.live.slots import TimeslotState

CARRIER_MS = 10_000.0
"""Time (ms) for which a port's sampled carrier state is valid."""


class Light:
    """The circuits of a lab, by id, and their states."""

    def __init__(self, slots: TimeslotState) -> None:
        self.circuits: dict[str, LiveCircuit] = {}
        self.states: dict[str, str] = {}
        self._slots = slots
        self._moving: frozenset[DeviceName] = frozenset()
        self._carrier: dict[str, tuple[float, bool]] = {}
        self._since: dict[str, float] = {}
        self._made: set[str] = set()
        self._early: set[str] = set()
        self._noted: dict[tuple[str, str], tuple[float, str]] = {}
        self._around: frozenset[str] = frozenset()

    def update(
        self,
        found: dict[str, LiveCircuit],
        moving: Iterable[DeviceName],
        at: float,
        *,
        running: bool,
    ) -> bool:
        """Take the circuits of the store; whether there are others, or on other paths. moving:
        devices that change now.
        """
        self._moving = frozenset(moving)
        for id_, circuit in found.items():
            old = self.circuits.get(id_)
            if old is None or old.state != circuit.state or old.path != circuit.path:
                self._since[id_] = at
            if circuit.state == MAKING:
                self._made.add(id_)
        changed = found.keys() != self.circuits.keys() or any(
            found[i].path != w.path for i, w in self.circuits.items()
        )
        ended = self.circuits.keys() - found.keys()
        self.circuits = found
        for id_ in ended:
            self.states.pop(id_, None)
            self._since.pop(id_, None)
            self._made.discard(id_)
        if not running:
            self._made.clear()
        return changed

    def around(self, links: Iterable[str]) -> bool:
        """Take the links that a guard found dead, `gpu01:p1--gpu02:p1`; whether they are others."""
        dead: set[str] = set()
        for link in links:
            a, duplex, b = link.partition("--")
            dead |= {f"{a}->{b}", f"{b}->{a}"} if duplex else {link}
        was, self._around = self._around, frozenset(dead)
        return was != self._around

    def note(self, device: DeviceName, id_: str, at: float, state: str) -> list[LiveCircuit]:
        """Take what a device did to a setting; return the circuits that it is part of."""
        self._noted[device, id_] = at, state
        return [w for w in self.circuits.values() if (device, id_) in w.ports]

    def carrier(self, port: str, at: float, lit: bool, *, running: bool) -> list[LiveCircuit]:
        """Take the carrier of a port at a time; return the circuits that it may concern. running: a
        run may move light.
        """
        had = self._carrier.get(port)
        if had is not None and at < had[0]:
            return []
        self._carrier[port] = at, lit
        if not lit and running:
            # hosts see a move before the store is read: the store is checked first
            self._early.add(port)
            return []
        if lit:
            self._made -= {
                w.id for w in self.circuits.values() if str(w.receiver) == port and w.state == LIT
            }
        # a repeated dark state may belong to a circuit made in the meantime
        if had is None or not lit or not had[1]:
            return [w for w in self.circuits.values() if str(w.receiver) == port]
        return []

    def early(self) -> list[LiveCircuit]:
        """Those that lost their carrier during a run since the last call, and those that change
        slots."""
        early, self._early = self._early, set()
        return [
            w for w in self.circuits.values() if str(w.receiver) in early or self._slots.moves(w.id)
        ]

    def forget(self, now: float) -> bool:
        """Forget carriers that were not updated for too long; whether there were any."""
        old = [port for port, (at, _) in self._carrier.items() if now - at > CARRIER_MS]
        for port in old:
            del self._carrier[port]
        return bool(old)

    def settle(
        self, which: Collection[LiveCircuit], at: float
    ) -> tuple[bool, dict[tuple[DeviceName, str], list[str]]]:
        """Find the states of these circuits again; whether any is another, and those that are news,
        by first device and state.
        """
        changed, news = False, dict[tuple[DeviceName, str], list[str]]()
        for circuit in which:
            state, was = self._state(circuit, at), self.states.get(circuit.id)
            if was != state:
                self.states[circuit.id], changed = state, True
                if LOST not in (was, state) and self._slots.moves(circuit.id):
                    continue  # its slot change: no news
                news.setdefault((circuit.ports[0][0], state), []).append(circuit.id)
        return changed, news

    def _state(self, circuit: LiveCircuit, now: float) -> str:
        if circuit.state != LIT:
            return circuit.state
        if self._slots.moves(circuit.id):
            return (
                self._slots.state_of(
                    circuit.id, now, self._carrier.get(str(circuit.receiver), (0.0, True))
                )
                or LIT
            )
        since = self._since.get(circuit.id, 0.0)
        if any(
            at > since and state == "dark"
            for port in circuit.ports
            for at, state in [self._noted.get(port, (0.0, ""))]
        ):
            return DARK
        at, lit = self._carrier.get(str(circuit.receiver), (0.0, True))
        if circuit.id in self._made and not lit:
            return MAKING  # its device has done its part, and it has not carried light yet
        if (at > since and not lit) or circuit.id in self._around:
            return DARK if any(device in self._moving for device, _ in circuit.ports) else LOST
        return LIT
