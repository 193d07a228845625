"""The circuits of a cross-connect switch: which port each uses, and when the mirrors that still
turn will rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from emulators.optics.light import Pair, Side


@dataclass(slots=True, eq=False)
class Circuit:
    """Mirrors turned to each other; light passes from `lit_at_s` on."""

    ingress: str
    egress: str
    since_s: float
    lit_at_s: float
    loss_db: float

    @property
    def pair(self) -> Pair:
        return (self.ingress, self.egress)

    def settled(self, now: float) -> bool:
        return self.lit_at_s <= now


class Circuits:
    """The circuits that are made, at most one at a side. at: each under both its sides; of: by
    pair, in the order of their making.

    due_s: nothing settles before (s).
    """

    def __init__(self) -> None:
        self.at: dict[Side, Circuit] = {}
        self.of: dict[Pair, Circuit] = {}
        self.due_s = math.inf
        self._settling: dict[Pair, Circuit] = {}

    @property
    def settling(self) -> bool:
        """Whether any mirror turns."""
        return bool(self._settling)

    def hold(self, circuit: Circuit) -> None:
        self.at["in", circuit.ingress] = self.at["out", circuit.egress] = circuit
        self.of[circuit.pair] = circuit

    def drop(self, pair: Pair) -> None:
        del self.at["in", pair[0]], self.at["out", pair[1]], self.of[pair]
        if self._settling.pop(pair, None):
            self._look()

    def settle(self, circuit: Circuit, at_s: float) -> None:
        """Let light pass from `at_s` (s) on."""
        circuit.lit_at_s = at_s
        self.due_s = min(self.due_s, at_s)
        self._settling[circuit.pair] = circuit

    def settle_all(self, now: float) -> None:
        """Follow every circuit that has yet to settle, each at its time."""
        self._settling = {
            pair: circuit for pair, circuit in self.of.items() if not circuit.settled(now)
        }
        self._look()

    def due(self, now: float) -> list[Circuit]:
        """Return the circuits that have settled since this was last asked, the earliest first."""
        if now < self.due_s:
            return []
        found = [circuit for circuit in self._settling.values() if circuit.settled(now)]
        for circuit in found:
            del self._settling[circuit.pair]
        self._look()
        return sorted(found, key=lambda circuit: circuit.lit_at_s)

    def _look(self) -> None:
        self.due_s = min(
            (circuit.lit_at_s for circuit in self._settling.values()), default=math.inf
        )
