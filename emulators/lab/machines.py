"""The hosts as machines with power, which their management controllers switch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from emulators.fabric.hosts import CannotBuild, Host

BOOT_S = 3.0
"""From power to sshd; a server takes minutes."""


class Machine:
    """One host; `boot` lets it begin again.

    halt, boot: what the lab does. Its kernel forgets what it had: programs, addresses, routes,
    files below /run; what is on its disk stays.
    """

    def __init__(
        self, host: Host, halt: Callable[[Host], None], boot: Callable[[Host], None]
    ) -> None:
        self._host, self._halt, self._boot = host, halt, boot
        self._powered = True
        self._booting: asyncio.TimerHandle | None = None

    @property
    def power(self) -> str:
        """On or Off; empty: its first process is gone, and it is out of order."""
        return "" if not self._host.pid else "On" if self._powered else "Off"

    def off(self) -> None:
        """Lose power. Raises: OSError - it is out of order."""
        self.hang()
        self._powered = False

    def on(self) -> None:
        """Get power; its sshd answers BOOT_S later. Raises: OSError - it is out of order."""
        self._working()
        self._powered = True
        self._booting = asyncio.get_running_loop().call_later(BOOT_S, self._booted)

    def hang(self) -> None:
        """Do nothing any more, though it has power: only its controller ends that. Raises:
        OSError.
        """
        self._working()
        if self._booting is not None:
            self._booting.cancel()
            self._booting = None
        with _as_os_error():
            self._halt(self._host)

    def _booted(self) -> None:
        self._booting = None
        if self._host.pid:
            with _as_os_error():
                self._boot(self._host)

    def _working(self) -> None:
        if not self._host.pid:
            raise OSError(f"host {self._host.name} is out of order until the lab starts again")


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except CannotBuild as problem:
        raise OSError(str(problem)) from problem
