"""Serves an emulated device: the only place where plants meet a clock and a network."""

from __future__ import annotations

import asyncio
import bisect
import random
import socket
from collections import deque
from collections.abc import Callable

from emulators.devices.dialects.base import AnyDialect, Outgoing, Session
from emulators.devices.transports.base import (
    Access,
    Chunking,
    Conversation,
    Listener,
    RunsOnce,
    Wire,
)
from emulators.devices.transports.listeners import listener
from emulators.devices.transports.pty import Line
from emulators.optics.light import Lit, Optic
from emulators.optics.rotor_schedule import RotorSchedule
from emulators.optics.rotorplant import RotorPlant

OnLightChange = Callable[[str, frozenset[Lit], float], None]
"""Called with the device's name, the circuits that pass light and the time (s, the loop's clock) at
every change.
"""
OnSchedule = Callable[[str, RotorSchedule | None], None]
"""Called with the device's name and the schedule it follows, too fast for `OnLightChange`; None:
it follows that again.
"""

__all__ = ["Access", "Chunking", "DeviceServer", "Line", "OnLightChange"]


class DeviceServer:
    """One device at one address, on a socket or serial line that is there already, or on host:port
    (0: any free one).

    chunking: "whole" replies, "split" at random places, or one "byte" at a time. scheme: see
    transports.doors; access: logins of SSH. Raises ValueError: no such scheme, or a serial line and
    a socket mistaken for each other.
    """

    def __init__(
        self,
        name: str,
        dialect: AnyDialect,
        plant: Optic | None = None,
        *,
        scheme: str = "tcp",
        sock: socket.socket | Line | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        access: Access | None = None,
        on_light_change: OnLightChange | None = None,
        on_schedule: OnSchedule | None = None,
        chunking: Chunking = "whole",
        seed: int = 0,
    ) -> None:
        self.name, self.dialect, self.plant = name, dialect, plant or dialect.plant
        self.on_light_change, self.on_schedule, self.chunking, self.scheme = (
            on_light_change,
            on_schedule,
            chunking,
            scheme,
        )
        # called whenever any light may have changed
        self.on_light: Callable[[str, float], None] | None = None
        self.loop: asyncio.AbstractEventLoop
        dialect.transport = scheme
        self.listener: Listener = listener(scheme, sock, access or Access(), host, port)
        self._pieces = random.Random(f"pieces/{seed}/{name}")
        self._conversations: dict[Session, Conversation] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")
        self._ended: asyncio.Future[None] | None = None
        self._version = -1
        self._light: frozenset[Lit] = frozenset()
        self._schedule: RotorSchedule | None = None
        # up to when changes were looked for, when all were shown
        self._shown: deque[tuple[float, float]] = deque(maxlen=100_000)

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        self.loop = asyncio.get_running_loop()
        await self.listener.open(self)
        self._settle(self.loop.time())

    async def stop(self) -> None:
        """Close every connection and the socket; nothing of this server runs afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._armed_for = None, float("inf")
        await self.listener.shut()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._armed_for = None, float("inf")

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def address(self) -> str:
        """The address by which a client reaches the device."""
        return self.listener.address

    def add_fault(self, kind: str, **values: object) -> int:
        """Arm a fault (see faults.py); return its number. Raises ValueError."""
        number = self.dialect.inject(self.loop.time(), kind, **values)
        self.changed()
        return number

    def remove_fault(self, number: int) -> None:
        """Disarm a fault. Raises KeyError."""
        self.dialect.lift(self.loop.time(), number)
        self.changed()

    def list_faults(self) -> list[dict[str, object]]:
        return self.dialect.faults.list()

    def set_input(self, port: str, dbm: float | None) -> None:
        """Set the power that the fibre brings to ingress `port` (dBm, None: dark)."""
        self.plant.set_input(port, dbm)
        self.changed()

    def weaken_input(self, port: str, db: float) -> None:
        """Let the fibre bring `db` less to ingress `port`."""
        self.plant.set_beams(port, tuple(beam.weaker(db) for beam in self.plant.arriving(port)))
        self.changed()

    def changed(self) -> None:
        """Re-evaluate: call it after changing the plant from outside."""
        self._settle(self.loop.time())

    def shown_s(self, at_s: float) -> float:
        """When the fabric had followed a change of light of `at_s` (s): the kernel does one change
        of any network at a time.
        """
        first = bisect.bisect_left(self._shown, at_s, key=lambda look: look[0])
        return max(at_s, self._shown[first][1]) if first < len(self._shown) else at_s

    # ---- for the transports

    def open(self, wire: Wire, command: str | None = None) -> Conversation | None:
        """Begin a conversation, with one command in place of a shell if given; None: the device
        takes no connection now.
        """
        now = self.loop.time()
        session = self.dialect.open(now)
        if session is None:
            return None
        conversation = self._conversations[session] = Conversation(
            self, wire, session, self._pieces
        )
        if command is not None and isinstance(self.dialect, RunsOnce):
            self.dialect.run_once(session, command, now)
        self._settle(now)
        return conversation

    def received(self, conversation: Conversation, data: bytes) -> None:
        """Hand bytes of the client to the device."""
        now = self.loop.time()
        if data:
            self.dialect.receive(conversation.session, data, now)
        self._settle(now)

    def lost(self, conversation: Conversation) -> None:
        """Note that the client is gone."""
        self.dialect.close(conversation.session)
        self._conversations.pop(conversation.session, None)

    # ---- inside

    def _settle(self, now: float) -> None:
        """Update the light, send what is due, and set the one timer. The light comes first: it must
        not be late.
        """
        self.plant.advance(now)
        if self._version != self.plant.version:
            self._version = self.plant.version
            self._look(now)
            self._shown.append((now, self.loop.time()))
            if self.on_light is not None:
                self.on_light(self.name, now)
        self.dialect.on_light(now)
        for out in self._together(self.dialect.drain(), now):
            self._emit(out, now)
        for conversation in [c for c in self._conversations.values() if c.ending and not c.waiting]:
            conversation.emit(now, None, now)
        self._rearm(now)

    def _look(self, now: float) -> None:
        """Report light that changed. A schedule is in force before what it replaces ends, and ends
        after what follows it began.
        """
        schedule = self.plant.gate(now) if isinstance(self.plant, RotorPlant) else None
        advanced, self._schedule = schedule != self._schedule, schedule
        if advanced and schedule is not None and self.on_schedule is not None:
            self.on_schedule(self.name, schedule)
        lit = self.plant.lit(now)
        if lit != self._light:
            self._light = lit
            if self.on_light_change is not None:
                self.on_light_change(self.name, lit, now)
        if advanced and schedule is None and self.on_schedule is not None:
            self.on_schedule(self.name, None)

    def _together(self, outs: list[Outgoing], now: float) -> list[Outgoing]:
        """Join answers to one session that follow each other and are due: commands that came in one
        packet are answered in one.
        """
        if len(outs) < 2 or self.chunking != "whole":
            return outs
        joined: list[tuple[Session, float, list[bytes] | None]] = []
        for session, at, data in outs:
            last = joined[-1] if joined else None
            if (
                data is not None
                and last
                and last[0] is session
                and last[2] is not None
                and max(at, last[1]) <= now
            ):
                last[2].append(data)
            else:
                joined.append((session, at, None if data is None else [data]))
        return [
            (session, at, None if parts is None else b"".join(parts))
            for session, at, parts in joined
        ]

    def _emit(self, out: Outgoing, now: float) -> None:
        session, at, data = out
        if conversation := self._conversations.get(session):
            conversation.emit(at, data, now)

    def _rearm(self, now: float) -> None:
        """Move the timer only if something is due sooner; one that fires early finds nothing due
        and is set again.
        """
        when = self.dialect.next_event(now)
        if when is None or when >= self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = when
        self._timer = self.loop.call_at(when, self._tick, when)

    def _tick(self, when: float) -> None:
        self._timer, self._armed_for = None, float("inf")
        now = max(when, self.loop.time())  # the loop may fire a clock step early
        self.dialect.tick(now)
        self._settle(now)
