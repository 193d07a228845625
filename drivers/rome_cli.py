"""Wave2Wave ROME and FiberZone AFM robotic patch panels over their command line: SSH 22, telnet 23.

Commands and answers as captured in Quali cloudshell-L1-w2w-rome's tests. A robot moves one fibre at
a time and takes a minute or so for it: requests are queued, the prompt returns at once, the end of
each move is reported later by a log line. Only `port show` counts; log lines only supply the
reasons.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from drivers.api import Evidence
from drivers.link import open_link
from drivers.link.ssh import Login
from drivers.rounds import Marks
from drivers.session.crossconnects import believed, twice
from drivers.session.jobcli import JobCliSession
from drivers.session.robot import Robot, one_by_one
from drivers.wire import joblog, unknown
from drivers.wire.joblog import Pair, PortRow, Queue, Table
from drivers.wire.unknown import Unknown
from optics import (
    Change,
    CrossConnect,
    DeviceConfig,
    Garbled,
    Identity,
    Outcome,
    Port,
    Progress,
    Refused,
    Setting,
    Traits,
)

T = TypeVar("T")
_ACCEPTED = "added to pending queue"
_REFUSALS = re.compile(
    r"OPERATION VALIDATION FAILED[^\r\n]*|Ports are not of the same matrix|\berror\b[^\r\n]*",
    re.IGNORECASE,
)
STALLED = (
    'the robot does not move: it needs "homing run", then "connection set command-execution enable"'
)
DISABLED = 'the robot executes nothing: "connection set command-execution enable" lets it'


@dataclass(frozen=True, slots=True)
class Seen:
    """Port table and queue at one time; `moving` are the single moves of the queue, logical ports
    taken apart.
    """

    rows: Mapping[str, PortRow]
    strange: frozenset[Unknown]
    plugged: frozenset[Pair]
    queue: Queue
    moving: tuple[Pair, ...]


class RomeCli(Robot[tuple[str, str]]):
    """A patch panel. East ports E<n> take in light, west ports W<n> let it out; a host's logical
    port A<n> is both.
    """

    OPTIONS: ClassVar[Mapping[str, str]] = {
        **Robot.OPTIONS,
        "homing": "`auto` to send `homing run` and enable execution when the robot is stuck; default `never`, it is only reported",
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Wave2Wave ROME, FiberZone AFM, CLI",
        ("ssh", "telnet"),
        {
            "identify": "REAL",
            "read": "REAL",
            "change": "REAL",
            "refusals": "REAL",
            "jobs": "REAL",
            "unsolicited": "REAL",
            "settling": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._homes = config.options.get("homing", "never")
        if self._homes not in ("never", "auto"):
            raise ValueError(f"homing: never or auto, not {self._homes!r}")
        link = open_link(config.address, config.timeout_s, config.name, Login.of(config))
        self._session: JobCliSession = JobCliSession(link, config.username, config.password)
        self._stalled = False
        self._strange: frozenset[Unknown] = frozenset()  # of the last port table

    async def identify(self) -> Identity:
        async with self._lock:
            board = await self._ask("show board", joblog.board)
            table = await self._rows()
        lost = sorted(
            (port for port in table.unread if port[0] in "EW"), key=lambda port: int(port[1:])
        )
        ports = [*table.rows, *lost]
        east, west = (tuple(port for port in ports if port.startswith(side)) for side in "EW")
        if not east or not west:
            raise Garbled(
                f'{self.name}: answer to "port show": {len(east)} east and {len(west)} west ports'
            )
        return Identity(board.vendor, board.model, board.serial, board.firmware, east, west)

    async def read(self) -> frozenset[Setting]:
        async with self._lock:
            return self._settings(joblog.connected((await self._rows()).rows.values()))

    def holders(self) -> Mapping[Setting | Port, str]:
        """Ports of rows that cannot be read, and ports that are connected to nothing that any row
        names.
        """
        return unknown.holders(self.name, self._strange)

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """Read map and queue, let what is queued for these ports end, request what is missing,
        watch the robot work.
        """
        remove, add, failed = self._sides(change)
        ports = {port for pair in (*remove, *add) for port in pair}
        at_ns = time.monotonic_ns()
        self._stalled = False
        seen = await self._look()
        # an earlier request whose answer was lost, or another client's
        if any(ports & {*pair} for pair in seen.moving):
            at_ns, seen = await self._watch({}, ports, seen, marks)
        # earlier messages concern older requests; that the robot is stuck still holds
        marks.reasons.clear()
        for pair in [pair for pair in add if not {*pair} <= seen.rows.keys()]:
            strange = (
                f"not a port of {self.name}: {', '.join(p for p in pair if p not in seen.rows)}"
            )
            failed[add.pop(pair)] = unknown.at(pair, seen.strange) or strange
        removed, new = self._wanting(remove, add, seen, marks)
        if removed or new:
            if await marks.begin():
                seen = await self._look()
                marks.reasons.clear()
                removed, new = self._wanting(remove, add, seen, marks)
            if self._halted(seen):
                seen = await self._wake(seen, marks)
            if stuck := self._halted(seen):
                marks.reasons |= dict.fromkeys([*removed, *new], stuck)
            else:
                marks.trying([*removed, *new])
                for plug, pair in one_by_one(
                    removed, new, filter(None, map(self._pair, change.order))
                ):
                    verb, joint = ("create", "to") if plug else ("disconnect", "from")
                    await self._request(
                        f"connection {verb} {pair[0]} {joint} {pair[1]}", pair, marks
                    )
                marks.broke()
                marks.acknowledged()
                goal = {**dict.fromkeys(removed, False), **dict.fromkeys(new, True)}
                at_ns, seen = await self._watch(goal, set(), await self._look(), marks)
        else:
            marks.acknowledged()
            at_ns = marks.acked_ns
        for pair, setting in (*remove.items(), *add.items()):
            if (pair in seen.plugged) is (pair in remove):
                failed[setting] = (
                    marks.reasons.get(pair) or self._halted(seen) or _silence(pair, seen)
                )
            elif (
                pair in remove
                and pair not in marks.tried
                and (text := unknown.at(pair, seen.strange))
            ):
                failed[setting] = f"not known whether it is there: {text}"
        return marks.outcome(
            self.name, self._settings(seen.plugged), max(at_ns, marks.acked_ns), failed
        )

    def _wanting(
        self, remove: Iterable[Pair], add: Iterable[Pair], seen: Seen, marks: Marks[Pair]
    ) -> tuple[list[Pair], list[Pair]]:
        """What is still to be unplugged and plugged; a port that stays taken, or is locked, is not
        requested.
        """
        removed = [pair for pair in remove if pair in seen.plugged]
        new = []
        for pair in (pair for pair in add if pair not in seen.plugged):
            held = next(
                (other for other in sorted(seen.plugged - {*removed}) if {*other} & {*pair}), None
            )
            shut = next(
                (
                    row
                    for row in map(seen.rows.get, pair)
                    if row and (row.locked or not row.enabled)
                ),
                None,
            )
            if held:
                port = next(port for port in pair if port in held)
                marks.reasons[pair] = f"port {port} is held by {held[0]}->{held[1]}"
            elif shut:
                marks.reasons[pair] = (
                    f"port {shut.port} is {'locked' if shut.locked else 'disabled'}"
                )
            elif text := unknown.at(pair, seen.strange):
                marks.reasons[pair] = text
            else:
                new.append(pair)
        return removed, new

    async def _watch(
        self, goal: Mapping[Pair, bool], ports: set[str], seen: Seen, marks: Marks[Pair]
    ) -> tuple[int, Seen]:
        """Poll until `goal` is reached or given up and no queued move needs `ports`; report the
        robot's progress.

        The robot is given its budget for each move, again whenever it finished one: only a robot
        that does nothing for that long is stuck. `Perform "homing run"` is also printed while all
        is well, so it alone proves nothing.
        """
        loop = asyncio.get_running_loop()
        began = moved = loop.time()
        total, last = 0, (-1, frozenset[Pair]())
        while True:
            self._hear(marks)
            left = {
                pair
                for pair, existing in goal.items()
                if (pair in seen.plugged) is not existing and pair not in marks.reasons
            }
            waiting = [pair for pair in seen.moving if pair in goal or ports & {*pair}]
            now = loop.time()
            at_ns = time.monotonic_ns()
            if (len(seen.moving), seen.plugged) != last:
                last, moved = (len(seen.moving), seen.plugged), now
            total = max(total, len(left), len(waiting))
            done = total - max(len(left), len(waiting))
            eta_s = (
                (now - began) / done * (total - done)
                if done
                else self.traits.settle_s * (total - done)
            )
            text = self._halted(seen) or (f"move {done + 1} of {total}" if done < total else "done")
            self.on_progress(Progress(self.name, done, total, eta_s, text))
            if (not left and not waiting) or self._halted(seen):
                return at_ns, seen
            if now - moved > self._budget_s:
                self._stalled = bool(seen.queue.busy)
                return at_ns, seen
            await asyncio.sleep(self._check_s)
            seen = await self._look()

    async def _wake(self, seen: Seen, marks: Marks[Pair]) -> Seen:
        """Home a stuck robot and let it execute again, where the inventory allows that."""
        if self._homes != "auto":
            return seen
        marks.write(2)
        homed = await self._session.ask("homing run", again=False)
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._budget_s
        while "RECOVERY FINISHED SUCCESSFULLY" not in homed and loop.time() < ends:
            await asyncio.sleep(self._check_s)
            await self._look()
            homed = "\n".join(self._session.take_logs())
        reply = await self._session.ask("connection set command-execution enable", again=False)
        if "enabled" not in reply:
            raise Refused(
                f'{self.name} refused "connection set command-execution enable": {reply.strip()[:120]}'
            )
        self._stalled = False
        return await self._look()

    def _halted(self, seen: Seen) -> str:
        """Why nothing will move, empty while the robot works."""
        idle = seen.queue.homing and not seen.queue.busy
        return STALLED if self._stalled or idle else DISABLED if seen.queue.disabled else ""

    async def _request(self, command: str, pair: Pair, marks: Marks[Pair]) -> None:
        marks.write()
        answer = await self._session.ask(command, again=False)
        if _ACCEPTED not in answer:
            self._hear(marks)
            tokens = _REFUSALS.search(answer)
            marks.reasons.setdefault(
                pair, f'refused "{command}": {(tokens[0] if tokens else answer.strip())[:120]}'
            )

    def _hear(self, marks: Marks[Pair]) -> None:
        """Keep the failures of moves that the log lines report."""
        for line in self._session.take_logs():
            end = joblog.ended(line)
            if end and end.how in ("failed", "invalid"):
                marks.reasons[end.pair] = end.text
            self._stalled = self._stalled or joblog.SEVERE.lower() in line.lower()

    async def _look(self) -> Seen:
        """The queue first: a move that ends between the two questions is then seen as made, never
        as lost.
        """
        queue = await self._ask("connection show pending", joblog.pending)
        table = await self._rows()
        return Seen(
            table.rows,
            table.strange,
            joblog.connected(table.rows.values()),
            queue,
            tuple(_single(queue, table.rows)),
        )

    async def _rows(self) -> Table:
        async def ask() -> tuple[Table, frozenset[Unknown]]:
            table = await self._ask("port show", joblog.port_table)
            return table, table.strange

        table, self._strange = await believed(
            f'{self.name}: answer to "port show"', ask, self._strange
        )
        return table

    async def _ask(self, question: str, parse: Callable[[str], T]) -> T:
        async def ask() -> T:
            answer = await self._session.ask(question)
            try:
                return parse(answer)
            except Garbled:
                await self._session.close()  # late output belongs to no other question
                raise

        return await twice(self.name, question, ask)

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        fits = re.fullmatch(r"E[1-9][0-9]{0,3}", ingress) and re.fullmatch(
            r"W[1-9][0-9]{0,3}", egress
        )
        return (ingress, egress) if fits else None

    def _no_pair(self, setting: Setting) -> str:
        if isinstance(setting, CrossConnect):
            return f"not a port of {self.name}: light enters at an east port (E3) and leaves by a west port (W4)"
        return super()._no_pair(setting)


def _single(queue: Queue, rows: Mapping[str, PortRow]) -> Iterable[Pair]:
    """The moves of a queue; a logical pair (A1-A2) is the two or more moves between the ports that
    carry these names.
    """
    for a, b in queue.moves:
        if a in rows and b in rows:
            yield joblog.ordered(a, b)
            continue
        for one, other in ((a, b), (b, a)):
            east = [
                row.port for row in rows.values() if row.logical == one and row.port.startswith("E")
            ]
            west = [
                row.port
                for row in rows.values()
                if row.logical == other and row.port.startswith("W")
            ]
            yield from zip(east, west, strict=False)


def _silence(pair: Pair, seen: Seen) -> str:
    """The reason for a move that the robot neither made nor refused."""
    others = (
        ", ".join(f"{a}->{b}" for a, b in sorted(seen.plugged) if a == pair[0] or b == pair[1])
        or f"{pair[0]}->-"
    )
    state = "the queue still works" if seen.queue.busy else "the queue is empty"
    return f"wanted {pair[0]}->{pair[1]}{' gone' if pair in seen.plugged else ''}, reports {others}; {state}"
