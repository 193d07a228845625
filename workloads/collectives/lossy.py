"""Sums by datagrams as ranks' programs have them: over the set in use, with what a record says of
what was lost.
"""

from __future__ import annotations

from typing import Any

from ..transport.neighbours import Tally
from .spray import DatagramSet


class Datagrams:
    """An Exchange (rings.py) by datagrams, over the set in use."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.current: DatagramSet | None = None
        self._noted = (0, 0, 0)

    @property
    def sent(self) -> int:
        return self.tally.sent

    def use(self, some: DatagramSet) -> None:
        """Carry the next sums over these rings; none may be under way."""
        self.current = some

    def start(self, flat: Any) -> list[Any]:
        assert self.current is not None, "no rings to sum over"
        return [self.current.sum(flat)]

    def gather(self, table: Any) -> list[Any]:
        raise ValueError("datagrams carry sums alone")

    def notes(self) -> dict[str, Any]:
        """What a record says of the sums since the last: bytes sent again, and the share of
        contributions that is missing.
        """
        tally, (resent, missing, every) = self.tally, self._noted
        self._noted = tally.resent, tally.missing, tally.contributions
        share = (tally.missing - missing) / max(1, tally.contributions - every)
        return {"resent_bytes": tally.resent - resent, "lost_share": round(share, 8)}

    def close(self) -> None:
        if self.current is not None:
            self.current.close()
