"""A move as a rank sees it, and what the ranks have agreed on it in their store; ring_changes.py
says what moves are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .sets import Layout, Set

LONGEST_LEASE_S = 86400.0
VOID, STOP = "void", "stop"


@dataclass(slots=True)
class Move:
    """A move as this rank sees it. The thread that listens sets what was asked; only the main
    thread ends the move.
    """

    number: int
    layout: Layout
    until_s: float  # monotonic; the lease
    state: str = "preparing"
    formed: Set | None = None
    ready: bool = False  # this rank is counted in prepared/N
    hold_s: float = 0.0  # the lease of the hold that was asked for; 0: none was
    hold_written: bool = False
    go: bool = False
    decide: bool = False
    held_at: int | None = None
    held_ms: float = 0.0
    took_ms: float = 0.0
    changed_after: int | None = None
    error: str = ""  # why its set could not be connected
    over: bool = False

    @property
    def world(self) -> int:
        """How many ranks its layout has: each ring names every rank."""
        return len(self.layout.rings[0]) if self.layout.rings else 0


class Agreed:
    """What a job's ranks agree on in their store. Not for two threads at once, as the store is
    not.
    """

    def __init__(self, store: Any) -> None:
        self.store = store

    def decided(self, number: int) -> bool:
        return bool(self.store.check([f"move/{number}"]))

    def decision(self, number: int) -> int | str:
        """The iteration after which all change, VOID or STOP; to be asked once it is there."""
        return _read_decision(self.store.get(f"move/{number}"))

    def decide(self, number: int, wanted: str) -> int | str:
        """Decide a move, or find how it was decided."""
        return _read_decision(self.store.compare_set(f"move/{number}", "", wanted))

    def one_layout(self, number: int, digest: str) -> bool:
        """Whether the first rank that was asked was asked for this layout."""
        return _text(self.store.compare_set(f"layout/{number}", "", digest)) == digest

    def ready(self, number: int) -> None:
        """Count this rank as prepared."""
        self.store.add(f"prepared/{number}", 1)

    def all_ready(self, move: Move) -> bool:
        return bool(self.store.add(f"prepared/{move.number}", 0) == move.world)

    def asked(self, move: Move) -> bool:
        """Count this rank as asked to go; whether it is the last."""
        return bool(self.store.add(f"go/{move.number}", 1) == move.world)

    def hold(self, number: int, after: int, lease_s: float) -> None:
        """Have all ranks wait after this iteration, for this time (s) at most."""
        self.store.compare_set(f"hold/{number}", "", f"{after} {lease_s:.3f}")

    def held(self, number: int) -> tuple[int, float] | None:
        """After which iteration all ranks wait, and how long (s) at most; None: nobody has them
        wait.
        """
        key = f"hold/{number}"
        if not self.store.check([key]):
            return None
        after, lease_s = _text(self.store.get(key)).split()
        return int(after), float(lease_s)


class Refused(Exception):
    """A message that this rank does not obey; it says why."""

    def __init__(self, text: str, move: int) -> None:
        super().__init__(text)
        self.move = move


def lease_of(message: Mapping[str, Any], number: int) -> float:
    lease_s = message.get("lease_s")
    if (
        isinstance(lease_s, bool)
        or not isinstance(lease_s, int | float)
        or not 0 < lease_s <= LONGEST_LEASE_S
    ):
        raise Refused(
            f"lease_s: {lease_s!r}: not a number of seconds up to {LONGEST_LEASE_S:.0f}", number
        )
    return float(lease_s)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _read_decision(value: Any) -> int | str:
    text = _text(value)
    return text if text in (VOID, STOP) else int(text)
