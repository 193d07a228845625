"""The common part of all dialects: sessions, commands one after another, idle drops, reboots, and
carrying out faults.

Bytes in, bytes out: no socket and no clock here. The server calls `receive` and `tick`, then takes
what `drain` returns.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from emulators.devices.faults import ON_PORTS, Fault, Faults, fault
from emulators.optics.plant import Plant, Side

T = TypeVar("T")
State = TypeVar("State")
MAX_COMMAND = 65_536  # a longer line without an end does not come from a client
NEVER_S = float("inf")


@dataclass(eq=False, slots=True)
class Session:
    """One client's connection as the device sees it."""

    number: int
    last_s: float
    buffer: bytes = b""
    queue: deque[tuple[str, dict[str, Fault] | None]] = field(default_factory=deque)
    busy_until_s: float = 0.0
    delay_s: float = 0.0  # how long the reply being made takes; set by a dump, taken back after it
    held: bytes = b""  # a reply kept back to be merged with the next
    held_until_s: float = NEVER_S
    user: str | None = None
    login_s: float = 0.0
    inhibited: bool = False
    closed: bool = False
    cut: bool = False  # the device ended the connection; otherwise only this session is over
    exit_status: int = 0  # of a command run by `ssh HOST COMMAND`


Outgoing = tuple[Session, float, bytes | None]
"""Where to, when (s), what; None closes the connection."""


class Dialect(ABC, Generic[State]):
    """One device family's protocol over one plant; `State` is what its reads show.

    idle_s: a session silent for so long is dropped (None: never). boot_s: how long a reboot takes
    connections away.
    """

    logs_in = False  # a family with logins counts sessions there, the others at the connection
    # searched in a command: one that changes what the device holds
    writes: re.Pattern[str] = re.compile(r"(?!)")
    robot = False  # moves fibres after the command, one at a time: see faults.MOVES
    # the scheme of the address it answers on ("tcp", "telnet", ...), set by the server; it may mean
    # a prompt
    transport = ""
    # what an SSH client may ask for; exec needs a `run_once(session, command, now)`
    channels = frozenset({"shell", "exec"})
    longest = MAX_COMMAND  # bytes that may wait for the end of a command

    def __init__(
        self, plant: Plant, *, seed: int = 0, idle_s: float | None = None, boot_s: float = 1.0
    ) -> None:
        self.plant, self.idle_s, self.boot_s = plant, idle_s, boot_s
        self.faults = Faults(seed, robot=self.robot)
        self.sessions: list[Session] = []
        self.struck: Mapping[str, Fault] = {}  # what strikes the command being executed, by name
        self._random = random.Random(f"dialect/{seed}/{plant.name}")
        self._out: list[Outgoing] = []
        self._opened = 0
        self._down_until_s = 0.0
        self._past: deque[tuple[float, State]] = deque(maxlen=256)
        self._stale: State | None = None

    # ---- defined by a family

    @abstractmethod
    def split(self, session: Session) -> list[str]:
        """Take the complete commands out of `session.buffer`."""

    @abstractmethod
    def execute(self, session: Session, command: str, now: float) -> bytes:
        """Do `command` and return the reply (b"": none)."""

    @abstractmethod
    def refuse(self, session: Session, command: str, now: float) -> bytes:
        """Return the device's refusal of `command`, without carrying it out."""

    @abstractmethod
    def unsolicited(self, now: float) -> bytes:
        """Return an unsolicited message."""

    @abstractmethod
    def snapshot(self, now: float) -> State:
        """Return the state that reads show, frozen."""

    def not_logged_in(self, session: Session, command: str, now: float) -> bytes:
        """Return the family's PLNA; the others refuse."""
        return self.refuse(session, command, now)

    def inside(self, reply: bytes) -> int:
        """Return where in `reply` a message may be interleaved: after its first line."""
        return reply.find(b"\n") + 1

    def rebooted(self, keep: bool, now: float) -> None:
        """Bring the device's tables back (or not) after the plant lost power; the plant is dark
        when this is called.
        """

    def on_light(self, now: float) -> None:
        """Notice that the light path changed."""

    def step_clock(self, seconds: float) -> None:
        """Let the device's own clock jump; families that show one override it."""
        raise ValueError(f"fault clock-step: {self.plant.name} shows no clock")

    def log_out(self, session: Session, now: float) -> None:
        """End `session` from the device's side, as an administrator would: logged out if the family
        has logins (U), else gone.
        """
        if self.logs_in:
            session.user = None
        else:
            self._hang_up(session, now)

    # ---- called by the server

    def open(self, now: float) -> Session | None:
        """Return a new session, or None when the device takes no connection now."""
        limit = self.faults.persistent("login-limit")
        if self.down(now) or (limit and not self.logs_in and len(self.sessions) >= limit.limit):
            return None
        self._opened += 1
        session = Session(self._opened, now)
        self.sessions.append(session)
        if not self.logs_in:
            self._steal(session, now)
        return session

    def down(self, now: float) -> bool:
        """Return whether the device boots: it takes no connection now."""
        return now < self._down_until_s

    def close(self, session: Session) -> None:
        """Forget `session`: its connection is gone."""
        session.closed = True
        session.queue.clear()
        if session in self.sessions:
            self.sessions.remove(session)

    def receive(self, session: Session, data: bytes, now: float) -> None:
        """Take what arrived, in any pieces; run the commands it completes."""
        if session.closed:
            return
        self._toggle_faults(now)
        session.last_s = now
        session.buffer += data
        if len(session.buffer) > self.longest:
            self._hang_up(session, now)
            return
        session.queue.extend((command, None) for command in self.split(session))
        self._run(session, now)

    def tick(self, now: float) -> None:
        """Carry out all that is due: settled light, commands that waited, held replies, idle
        sessions.
        """
        self._toggle_faults(now)
        self.plant.advance(now)
        self.on_light(now)
        idle = self._idle_s()
        for session in tuple(self.sessions):
            if session.held and session.held_until_s <= now:
                self._answer(session, b"", now)
            if session.queue:
                self._run(session, now)
            if (
                idle is not None
                and session.last_s + idle <= now
                and not session.queue
                and not session.closed
            ):
                self._hang_up(session, now)

    def next_event(self, now: float) -> float | None:
        """Return when `tick` is wanted next (s), None when only a client can change anything."""
        times = [self.faults.next_s]
        if (due := self.plant.next_event(now)) is not None:
            times.append(due)
        idle = self._idle_s()
        for session in self.sessions:
            if session.queue:
                times.append(session.busy_until_s)
            elif idle is not None:
                times.append(session.last_s + idle)
            if session.held:
                times.append(session.held_until_s)
        soonest = min(times)
        return None if soonest == NEVER_S else soonest

    def drain(self) -> list[Outgoing]:
        """Return what is to be sent, and forget it."""
        out, self._out = self._out, []
        return out

    def inject(self, now: float, kind: str, **values: object) -> int:
        """Arm a fault and return its number; one that happens now, once (`faults.IMMEDIATE`), has
        number 0. Raises ValueError.
        """
        new = fault(kind, **values)
        if new.kind == "robot-stalled" and not self.robot:
            raise ValueError(f"fault robot-stalled: {self.plant.name} has no robot")
        if new.kind == "clock-step" and type(self).step_clock is Dialect.step_clock:
            self.step_clock(0.0)
        if new.kind in ON_PORTS:
            try:
                self.plant.sides(new.port or "")
            except KeyError as error:
                raise ValueError(str(error.args[0])) from error
        if not new.at_s:
            self._begin(new, now)
            if new.immediate:
                return 0
        return self.faults.add(new, now)

    def lift(self, now: float, number: int) -> None:
        """Disarm fault `number`. Raises KeyError: there is none."""
        ended, active = self.faults.remove(number)
        if active:
            self._end(ended, now)

    def reboot(self, keep: bool, now: float) -> None:
        """Lose power for `boot_s`: dark at once, every session ends, the circuits return if
        `keep`.
        """
        for session in tuple(self.sessions):
            self._hang_up(session, now)
        self._down_until_s = now + self.boot_s
        self.plant.power_cycle(now)
        self.rebooted(keep, now)

    # ---- for the families

    @property
    def partial(self) -> bool:
        """Whether the command being executed does only some of its items."""
        return "partial-bulk" in self.struck

    @property
    def silent(self) -> bool:
        """Whether the command being executed is accepted and not done: the plant then takes every
        order and moves nothing.
        """
        return "silent-failure" in self.struck

    @property
    def half(self) -> bool:
        """Whether of a duplex pair the command being executed does one direction only."""
        return "half-duplex" in self.struck

    def enter(self, session: Session, user: str, now: float) -> None:
        """Log `user` in on `session`; while the fault session-stolen is active, the user's other
        sessions end.
        """
        session.user, session.login_s = user, now
        self._steal(session, now)

    def wrote(self, now: float) -> None:
        """Count a command that changes the device; call it before changing."""
        self.plant.writes += 1
        if self.faults.persistent("stale-read"):
            self._past.append((now, self.snapshot(now)))

    def view(self, now: float) -> State:
        """Return what reads show: the snapshot of now, or an old one under a stale read."""
        return self.snapshot(now) if self._stale is None else self._stale

    def some(self, items: Sequence[T]) -> list[T]:
        """Return `items`, or under a partial bulk only some of them, of a duplex pair that fails by
        half its first.
        """
        if self.half and len(items) == 2:
            return list(items[:1])
        if not self.partial or len(items) < 2:
            return list(items)
        kept = set(self._random.sample(range(len(items)), self._random.randint(1, len(items) - 1)))
        return [item for index, item in enumerate(items) if index in kept]

    def send(self, session: Session, at: float, data: bytes | None) -> None:
        self._out.append((session, at, data))

    # ---- inside

    def _hang_up(self, session: Session, now: float) -> None:
        session.cut = True
        self.send(session, now, None)
        self.close(session)

    def _idle_s(self) -> float | None:
        asked = self.faults.persistent("idle-drop")
        return asked.seconds_or_default if asked else self.idle_s

    def _run(self, session: Session, now: float) -> None:
        while session.queue and session.busy_until_s <= now and not session.closed:
            command, struck = session.queue.popleft()
            if struck is None:
                struck = (
                    self.faults.fire(command, bool(self.writes.search(command)))
                    if self.faults.armed
                    else {}
                )
            if struck:
                self._struck(session, command, struck, now)
                continue
            reply = self.execute(session, command, now)
            if session.delay_s:
                at = session.busy_until_s = now + session.delay_s
                session.delay_s = 0.0
            else:
                at = now
            self._answer(session, reply, at)

    def _struck(self, session: Session, command: str, struck: dict[str, Fault], now: float) -> None:
        if slow := struck.pop("slow", None):
            session.queue.appendleft((command, struck))
            session.busy_until_s = now + slow.seconds_or_default
            return
        if hang := struck.get("hang"):
            session.busy_until_s = NEVER_S if hang.seconds is None else now + hang.seconds
            # so that the end of the silence is an event
            session.queue.appendleft(("", {"swallow": hang}))
            return
        if "swallow" in struck:
            return
        if "reboot-keep" in struck or "reboot-lose" in struck:
            self.reboot("reboot-keep" in struck, now)
            return
        if "drop-before" in struck:
            self._hang_up(session, now)
            return
        if "session-ended" in struck:
            self.log_out(session, now)
            if session.closed:
                return
        if step := struck.get("clock-step"):
            self.step_clock(step.seconds_or_default)
        if "plna" in struck:
            reply = self.not_logged_in(session, command, now)
        elif "refuse" in struck:
            reply = self.refuse(session, command, now)
        else:
            reply = self._execute_oddly(session, command, struck, now)
        if "drop-after" in struck:
            self._hang_up(session, now)
            return
        at, session.delay_s = now + session.delay_s, 0.0
        if late := struck.get("late"):
            at += late.seconds_or_default
        self._spoil(session, reply, struck, at, now)

    def _execute_oddly(
        self, session: Session, command: str, struck: dict[str, Fault], now: float
    ) -> bytes:
        self.struck, self.plant.deaf = struck, "silent-failure" in struck
        if stale := struck.get("stale-read"):
            asked = now - stale.seconds_or_default
            self._stale = next((state for at, state in self._past if at > asked), None)
        try:
            return self.execute(session, command, now)
        finally:
            self.struck, self.plant.deaf, self._stale = {}, False, None

    def _spoil(
        self, session: Session, reply: bytes, struck: dict[str, Fault], at: float, now: float
    ) -> None:
        if reply and (garble := struck.get("garble")):
            reply = self._garbled(reply, garble.at_byte)
        if reply and "twice" in struck:
            reply += reply
        if "unsolicited-inside" in struck:
            cut = self.inside(reply)
            reply = reply[:cut] + self.unsolicited(now) + reply[cut:]
        if "unsolicited-before" in struck:
            reply = self.unsolicited(now) + reply
        if "unsolicited-after" in struck:
            reply += self.unsolicited(now)
        if reply and (merge := struck.get("merge")) and not session.held:
            session.held, session.held_until_s = reply, at + merge.seconds_or_default
            return
        if len(reply) > 1 and (split := struck.get("split")):
            cut = min(
                len(reply) - 1, max(1, len(reply) // 2 if split.at_byte is None else split.at_byte)
            )
            self._answer(session, reply[:cut], at)
            self.send(session, at + split.seconds_or_default, reply[cut:])
        else:
            self._answer(session, reply, at)

    def _garbled(self, reply: bytes, at_byte: int | None) -> bytes:
        spoiled = bytearray(reply)
        places = (
            [at_byte % len(reply)]
            if at_byte is not None
            else [self._random.randrange(len(reply)) for _ in range(3)]
        )
        for place in places:
            spoiled[place] ^= self._random.randrange(1, 256)
        return bytes(spoiled)

    def _answer(self, session: Session, reply: bytes, at: float) -> None:
        """Send `reply` after what was held back for it."""
        reply, session.held, session.held_until_s = session.held + reply, b"", NEVER_S
        if reply:
            self.send(session, at, reply)

    def _steal(self, session: Session, now: float) -> None:
        if not self.faults.persistent("session-stolen"):
            return
        for other in tuple(self.sessions):
            if other is not session and other.user == session.user:
                self._hang_up(other, now)

    def _toggle_faults(self, now: float) -> None:
        for what, begins in self.faults.toggle(now):
            if begins:
                self._begin(what, now)
            else:
                self._end(what, now)

    def _begin(self, what: Fault, now: float) -> None:
        if what.immediate:
            match what.kind:
                case "reboot-keep" | "reboot-lose":
                    self.reboot(what.kind == "reboot-keep", now)
                case "session-ended":
                    for session in tuple(self.sessions):
                        self.log_out(session, now)
                case "clock-step":
                    self.step_clock(what.seconds_or_default)
        elif what.kind in ON_PORTS:
            self._impair(what, True, now)
        elif what.kind == "stale-read":
            self._past.clear()

    def _end(self, ended: Fault, now: float) -> None:
        if ended.kind in ON_PORTS:
            self._impair(ended, False, now)
            for other in self.faults.active():  # another fault may still give a port the same state
                if other.kind == ended.kind:
                    self._impair(other, True, now)
        if ended.kind == "hang":
            for session in self.sessions:
                session.busy_until_s = min(session.busy_until_s, now)

    def _impair(self, what: Fault, wrong: bool, now: float) -> None:
        sides, faulty = self.plant.sides(what.port or ""), self.plant.wrong
        if what.kind == "drift":
            self.plant.drift(sides, what.db_per_hour if wrong else None, now)
            return
        values: dict[str, tuple[dict[Side, Any], Any]] = {
            "extra-loss": (faulty.extra_loss_db, what.db),
            "port-locked": (faulty.locked, what.user),
        }
        marks = {"stuck-port": faulty.stuck, "failed-port": faulty.failed, "dark-port": faulty.cut}

        def change(_: object) -> None:
            for side in sides:
                if what.kind in marks:
                    (marks[what.kind].add if wrong else marks[what.kind].discard)(side)
                elif wrong:
                    values[what.kind][0][side] = values[what.kind][1]
                else:
                    values[what.kind][0].pop(side, None)

        self.plant.impair(change)


AnyDialect: TypeAlias = Dialect[Any]
