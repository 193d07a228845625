"""Wave2Wave ROME and FiberZone AFM robotic patch panels over their command line: SSH 22, telnet 23.

Commands and answers as captured in Quali cloudshell-L1-w2w-rome's tests. A robot moves one fibre at a time and takes a minute or so
for it: requests are queued, the prompt comes back at once, the end of each move is told later by a log line. Believed is what
`port show` says; log lines only lend their words.
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
from drivers.session.crossconnects import twice
from drivers.session.jobcli import JobCliSession
from drivers.session.robot import Robot, in_turn
from drivers.wire import joblog
from drivers.wire.joblog import Pair, PortRow, Queue
from optics import Change, CrossConnect, DeviceConfig, Garbled, Identity, Outcome, Progress, Refused, Setting, Traits

T = TypeVar("T")
_ACCEPTED = "added to pending queue"
_REFUSALS = re.compile(r"OPERATION VALIDATION FAILED[^\r\n]*|Ports are not of the same matrix|\berror\b[^\r\n]*", re.IGNORECASE)
STALLED = 'the robot does not move: it needs "homing run", then "connection set command-execution enable"'
DISABLED = 'the robot executes nothing: "connection set command-execution enable" lets it'


@dataclass(frozen=True, slots=True)
class Seen:
    """Port table and queue at one time; `moving` are the single moves of the queue, logical ports taken apart."""

    rows: Mapping[str, PortRow]
    plugged: frozenset[Pair]
    queue: Queue
    moving: tuple[Pair, ...]


class RomeCli(Robot[tuple[str, str]]):
    """A patch panel. East ports E<n> take in light, west ports W<n> let it out; a host's logical port A<n> is both."""

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

    async def identify(self) -> Identity:
        async with self._turn:
            board = await self._ask("show board", joblog.board)
            ports = [row.port for row in (await self._rows()).values()]
        east, west = (tuple(port for port in ports if port.startswith(side)) for side in "EW")
        if not east or not west:
            raise Garbled(f'{self.name}: answer to "port show": {len(east)} east and {len(west)} west ports')
        return Identity(board.vendor, board.model, board.serial, board.firmware, east, west)

    async def read(self) -> frozenset[Setting]:
        async with self._turn:
            return self._settings(joblog.connected((await self._rows()).values()))

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """Read map and queue, let what is queued for our ports end, request what is missing, watch the robot work."""
        remove, add, failed = self._sides(change)
        ports = {port for pair in (*remove, *add) for port in pair}
        at_ns = time.monotonic_ns()
        self._stalled = False
        seen = await self._look()
        if any(ports & {*pair} for pair in seen.moving):  # a request of ours whose answer was lost, or another client's
            at_ns, seen = await self._watch({}, ports, seen, marks)
        marks.words.clear()  # what was said before is about older requests; that the robot is stuck still holds
        for pair in [pair for pair in add if not {*pair} <= seen.rows.keys()]:
            failed[add.pop(pair)] = f"not a port of {self.name}: {', '.join(p for p in pair if p not in seen.rows)}"
        gone, new = self._wanting(remove, add, seen, marks)
        if gone or new:
            if await marks.begin():
                seen = await self._look()
                marks.words.clear()
                gone, new = self._wanting(remove, add, seen, marks)
            if self._halted(seen):
                seen = await self._wake(seen, marks)
            if stuck := self._halted(seen):
                marks.words |= dict.fromkeys([*gone, *new], stuck)
            else:
                for plug, pair in in_turn(gone, new, filter(None, map(self._pair, change.order))):
                    verb, joint = ("create", "to") if plug else ("disconnect", "from")
                    await self._request(f"connection {verb} {pair[0]} {joint} {pair[1]}", pair, marks)
                marks.broke()
                marks.acknowledged()
                goal = {**dict.fromkeys(gone, False), **dict.fromkeys(new, True)}
                at_ns, seen = await self._watch(goal, set(), await self._look(), marks)
        else:
            marks.acknowledged()
            at_ns = marks.acked_ns
        for pair, setting in (*remove.items(), *add.items()):
            if (pair in seen.plugged) is (pair in remove):
                failed[setting] = marks.words.get(pair) or self._halted(seen) or _silence(pair, seen)
        return marks.outcome(self.name, self._settings(seen.plugged), max(at_ns, marks.acked_ns), failed)

    def _wanting(
        self, remove: Iterable[Pair], add: Iterable[Pair], seen: Seen, marks: Marks[Pair]
    ) -> tuple[list[Pair], list[Pair]]:
        """What is still to be taken out and put in; a port that stays taken, or is locked, is not asked for."""
        gone = [pair for pair in remove if pair in seen.plugged]
        new = []
        for pair in (pair for pair in add if pair not in seen.plugged):
            held = next((other for other in sorted(seen.plugged - {*gone}) if {*other} & {*pair}), None)
            shut = next((row for row in map(seen.rows.get, pair) if row and (row.locked or not row.enabled)), None)
            if held:
                port = next(port for port in pair if port in held)
                marks.words[pair] = f"port {port} is held by {held[0]}->{held[1]}"
            elif shut:
                marks.words[pair] = f"port {shut.port} is {'locked' if shut.locked else 'disabled'}"
            else:
                new.append(pair)
        return gone, new

    async def _watch(self, goal: Mapping[Pair, bool], ports: set[str], seen: Seen, marks: Marks[Pair]) -> tuple[int, Seen]:
        """Look until `goal` is reached or given up, and nothing that is queued needs `ports`; tell how far the robot is.

        The robot is given its budget for each move, again whenever it finished one: only a robot that does nothing for so long is
        stuck. `Perform "homing run"` is printed while all is well, too, so those words alone say nothing.
        """
        loop = asyncio.get_running_loop()
        began = moved = loop.time()
        total, last = 0, (-1, frozenset[Pair]())
        while True:
            self._hear(marks)
            left = {pair for pair, there in goal.items() if (pair in seen.plugged) is not there and pair not in marks.words}
            waiting = [pair for pair in seen.moving if pair in goal or ports & {*pair}]
            now = loop.time()
            at_ns = time.monotonic_ns()
            if (len(seen.moving), seen.plugged) != last:
                last, moved = (len(seen.moving), seen.plugged), now
            total = max(total, len(left), len(waiting))
            done = total - max(len(left), len(waiting))
            eta_s = (now - began) / done * (total - done) if done else self.traits.settle_s * (total - done)
            words = self._halted(seen) or (f"move {done + 1} of {total}" if done < total else "done")
            self.on_progress(Progress(self.name, done, total, eta_s, words))
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
        said = await self._session.ask("connection set command-execution enable", again=False)
        if "enabled" not in said:
            raise Refused(f'{self.name} refused "connection set command-execution enable": {said.strip()[:120]}')
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
            words = _REFUSALS.search(answer)
            marks.words.setdefault(pair, f'refused "{command}": {(words[0] if words else answer.strip())[:120]}')

    def _hear(self, marks: Marks[Pair]) -> None:
        """Keep what the log lines say against a move."""
        for line in self._session.take_logs():
            end = joblog.ended(line)
            if end and end.how in ("failed", "invalid"):
                marks.words[end.pair] = end.text
            self._stalled = self._stalled or joblog.SEVERE.lower() in line.lower()

    async def _look(self) -> Seen:
        """The queue first: a move that ends between the two questions is then seen as made, never as lost."""
        queue = await self._ask("connection show pending", joblog.pending)
        rows = await self._rows()
        return Seen(rows, joblog.connected(rows.values()), queue, tuple(_single(queue, rows)))

    async def _rows(self) -> dict[str, PortRow]:
        return await self._ask("port show", _table)

    async def _ask(self, question: str, parse: Callable[[str], T]) -> T:
        async def ask() -> T:
            answer = await self._session.ask(question)
            try:
                return parse(answer)
            except Garbled:
                await self._session.close()  # what comes late belongs to no other question
                raise

        return await twice(self.name, question, ask)

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        fits = re.fullmatch(r"E[1-9][0-9]{0,3}", ingress) and re.fullmatch(r"W[1-9][0-9]{0,3}", egress)
        return (ingress, egress) if fits else None

    def _no_pair(self, setting: Setting) -> str:
        if isinstance(setting, CrossConnect):
            return f"not a port of {self.name}: light enters at an east port (E3) and leaves by a west port (W4)"
        return super()._no_pair(setting)


def _table(text: str) -> dict[str, PortRow]:
    rows = {row.port: row for row in joblog.port_rows(text)}
    if not rows:
        raise Garbled(f"no rows in {text[:120]!r}")
    return rows


def _single(queue: Queue, rows: Mapping[str, PortRow]) -> Iterable[Pair]:
    """The moves of a queue; a logical pair (A1-A2) is the two or more moves between the ports that carry these names."""
    for a, b in queue.moves:
        if a in rows and b in rows:
            yield joblog.ordered(a, b)
            continue
        for one, other in ((a, b), (b, a)):
            east = [row.port for row in rows.values() if row.logical == one and row.port.startswith("E")]
            west = [row.port for row in rows.values() if row.logical == other and row.port.startswith("W")]
            yield from zip(east, west, strict=False)


def _silence(pair: Pair, seen: Seen) -> str:
    """Words for a move the robot neither made nor refused."""
    others = ", ".join(f"{a}->{b}" for a, b in sorted(seen.plugged) if a == pair[0] or b == pair[1]) or f"{pair[0]}->-"
    state = "the queue still works" if seen.queue.busy else "the queue is empty"
    return f"wanted {pair[0]}->{pair[1]}{' gone' if pair in seen.plugged else ''}, reports {others}; {state}"
