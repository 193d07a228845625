"""A dialect without server and without clock: the test says what time it is."""

from __future__ import annotations

from typing import Any

from emulators.devices.dialects.base import Session
from emulators.devices.families import device_from_config


class Bench:
    """One device. `send` returns what the first session receives at once, `wait` what it receives
    in that many seconds.
    """

    def __init__(
        self,
        driver: str,
        *,
        time_scale: float = 1.0,
        transport: str = "ssh",
        seed: int = 1,
        **overrides: Any,
    ) -> None:
        self.plant, self.dialect = device_from_config(
            "box1", driver, overrides, seed, time_scale=time_scale
        )
        self.dialect.transport = transport
        self.now = 1000.0
        self.heard: dict[Session, bytes] = {}
        self.ended: dict[Session, float] = {}
        self.later: list[tuple[float, Session, bytes | None]] = []
        self.session = self.open()
        self.greeting = self.text()

    def open(self) -> Session:
        session = self.dialect.open(self.now)
        assert session is not None
        self._collect()
        return session

    def once(self, command: str) -> tuple[str, int]:
        """Run one command in place of a shell."""
        session = self.dialect.open(self.now)
        assert session is not None
        self.dialect.run_once(session, command, self.now)
        self._collect()
        assert session in self.ended
        return self.take(session).decode(), session.exit_status

    def send(self, text: str, session: Session | None = None, end: str = "\r") -> str:
        self.dialect.receive(session or self.session, (text + end).encode("latin-1"), self.now)
        self._collect()
        return self.text(session)

    def wait(self, seconds: float, session: Session | None = None) -> str:
        until = self.now + seconds
        for _ in range(10_000):
            due = self.dialect.next_event(self.now)
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.dialect.tick(self.now)
            self._collect()
        else:
            raise AssertionError(f"never quiet before {until}")
        self.now = until
        self.dialect.tick(self.now)
        self._collect()
        return self.text(session)

    def text(self, session: Session | None = None) -> str:
        """Return what was received since the last call, without carriage returns."""
        return self.take(session or self.session).decode("latin-1").replace("\r", "")

    def take(self, session: Session) -> bytes:
        return self.heard.pop(session, b"")

    def light(self) -> set[tuple[str, str]]:
        return set(self.plant.lit(self.now))

    def _collect(self) -> None:
        self.later += [(at, session, data) for session, at, data in self.dialect.drain()]
        for entry in sorted((e for e in self.later if e[0] <= self.now), key=lambda e: e[0]):
            self.later.remove(entry)
            at, session, data = entry
            if data is None:
                self.ended[session] = at
            else:
                self.heard[session] = self.heard.get(session, b"") + data
