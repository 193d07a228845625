"""Connections to the store of one story: which tables each has written to, and those that the next
command goes on with.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from traceback import clear_frames
from typing import Any

from tests.sim.loop import Killed

_WRITES = re.compile(
    r"\s*(?:INSERT(?: OR \w+)? INTO|REPLACE INTO|UPDATE|DELETE FROM)\s+(\w+)", re.IGNORECASE
)
_TABLES: dict[str, str] = {}


class Opened(sqlite3.Connection):
    """A connection to a store that knows which tables it has written to since `touched` was
    cleared.
    """

    def __init__(self, *argv: Any, **more: Any) -> None:
        super().__init__(*argv, **more)
        self.touched: set[str] = set()

    def _touch(self, statement: str) -> None:
        if (table := _TABLES.get(statement)) is None:
            found = _WRITES.match(statement)
            table = _TABLES[statement] = found[1] if found else ""
        if table:
            self.touched.add(table)

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        self._touch(statement)
        return super().execute(statement, *values)

    def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
        self._touch(statement)
        return super().executemany(statement, *values)


class Stores:
    """Connections of commands that have ended by themselves, for the next: a new one reads the
    whole schema first.
    """

    def __init__(self, private: Callable[[Path], None]) -> None:
        self.idle: dict[str, list[Opened]] = defaultdict(list)
        self.closed = sqlite3.connect(":memory:")
        self.closed.close()
        self.connect, self.check, self.checked = sqlite3.connect, private, set[Path]()

    def open(self, path: Any, **more: Any) -> sqlite3.Connection:
        """As `sqlite3.connect`."""
        if more.get("check_same_thread", True) or more.get("uri"):
            return self.connect(path, **more)
        found = self.idle[str(path)]
        return found.pop() if found else self.connect(path, factory=Opened, **more)

    def exit(
        self,
        store: Any,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: object,
    ) -> None:
        """As `Database.__exit__`."""
        db = store._db
        if kind is not Killed and isinstance(db, Opened) and not db.in_transaction:
            if error is not None:
                clear_frames(error.__traceback__)  # a cursor in one of them would go on reading
            store._db = self.closed
            self.idle[str(store.path)].append(db)
        store.close()

    def private(self, path: Path) -> None:
        """As `private_file`: a file keeps its owner and mode for a whole story."""
        if path not in self.checked:
            self.check(path)
            self.checked.add(path)

    def close(self) -> None:
        for found in self.idle.values():
            for db in found:
                db.close()
