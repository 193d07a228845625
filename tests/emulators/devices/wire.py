"""A dialect that is told the time, and answers in bytes."""

from __future__ import annotations

from typing import Any

from emulators.devices.families import device_from_config


class Wire:
    """One device and one session on it. `send` returns every byte that a line brings, however late
    it comes.
    """

    def __init__(
        self,
        driver: str,
        *,
        seconds_per_command: float = 1.0,
        time_scale: float = 1.0,
        **overrides: Any,
    ) -> None:
        self.plant, self.dialect = device_from_config(
            "box1", driver, overrides, time_scale=time_scale
        )
        self.now, self._step_s = 0.0, seconds_per_command
        self.connect()

    def connect(self) -> None:
        """Speak on a new connection from now on."""
        session = self.dialect.open(self.now)
        assert session is not None
        self.session = session

    def send(self, text: str | bytes) -> bytes:
        """Send a line, and let the time of one command pass."""
        output = b"".join(data for _, data in self._answer(text))
        self.now += self._step_s
        self.dialect.tick(self.now)
        return output

    def delay(self, text: str) -> float:
        """Return how long the answer to a line takes (s)."""
        ((at, _),) = self._answer(text)
        return at - self.now

    def _answer(self, text: str | bytes) -> list[tuple[float, bytes]]:
        line = text if isinstance(text, bytes) else text.encode("latin-1") + b"\n"
        self.dialect.receive(self.session, line, self.now)
        return [(at, data) for _, at, data in self.dialect.drain() if data]
