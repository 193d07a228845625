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
from typing import ClassVar

from drivers.api import Evidence, Ready, at_once
from drivers.link import open_link
from drivers.link.ssh import OPTIONS as SSH_OPTIONS
from drivers.link.ssh import Login
from drivers.rounds import Marks, in_rounds
from drivers.session.jobcli import JobCliSession
from drivers.wire import joblog
from drivers.wire.joblog import Pair, Queue
from optics import Change, CrossConnect, DeviceConfig, Garbled, Identity, Outcome, Port, Progress, Setting, Traits

BUDGET_S = 120.0  # longest single move, CODE: cloudshell-L1-w2w-rome MAPPING.TIMEOUT
CHECK_S = 3.0  # CODE: CHECK_DELAY of the same driver
_REFUSALS = re.compile(r"Ports are not of the same matrix|\berror\b[^\r\n]*", re.IGNORECASE)


def _deaf(_: Progress) -> None:
    """Nobody listens."""


class RomeCli:
    """A patch panel. East ports E<n> take in light, west ports W<n> let it out; the logical port A<n> of a host is both."""

    # One move 60 s (unconfirmed, the driver above allows 120), 0.5 dB mean loss (proposed), latching: fibres stay plugged.
    TRAITS: ClassVar[Traits] = Traits(settle_s=60.0, at_once=1, keeps_others_lit=True, latching=True, insertion_loss_db=0.5)
    OPTIONS: ClassVar[Mapping[str, str]] = {
        **SSH_OPTIONS,
        "move_budget_s": "longest time of one move (s, the device's clock); default 120",
        "check_s": "time between two looks at the queue (s, the device's clock); default 3",
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Wave2Wave ROME, FiberZone AFM, CLI",
        ("ssh", "telnet"),
        {"identify": "REAL", "read": "REAL", "change": "REAL", "refusals": "REAL", "jobs": "REAL", "settling": "assumed"},
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name = config.name
        self.traits = traits
        self.told: Callable[[Progress], None] = _deaf
        self._budget_s = float(config.options.get("move_budget_s", BUDGET_S)) / config.time_scale
        self._check_s = float(config.options.get("check_s", CHECK_S)) / config.time_scale
        link = open_link(config.address, config.timeout_s, config.name, Login.of(config))
        self._session = JobCliSession(link, config.username, config.password)
        self._turn = asyncio.Lock()

    async def identify(self) -> Identity:
        async with self._turn:
            board = await self._session.ask("show board")
            rows = await self._rows()
        kind = _field(board, r"ROME TYPE|\w+ TYPE")
        version = _field(board, r"ACTIVE SW VER\w*")
        if not kind or not version:
            raise Garbled(f'{self.name}: answer to "show board": {board[:120]!r}')
        serial = _field(board, r"SERIAL(?: NUMBER)?") or "unknown"
        ports = [row.port for row in rows]
        east, west = ([p for p in ports if p.startswith(side)] for side in "EW")
        if not east or not west:
            raise Garbled(f'{self.name}: answer to "port show": {len(east)} east and {len(west)} west ports')
        vendor = "Wave2Wave" if "ROME" in kind.upper() else "FiberZone"
        return Identity(vendor, kind, serial, version, tuple(east), tuple(west))

    async def read(self) -> frozenset[Setting]:
        async with self._turn:
            return self._settings(await self._map())

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        async with self._turn:
            marks = Marks[Pair](ready)
            return await in_rounds(marks, lambda: self._round(change, marks))

    async def close(self) -> None:
        async with self._turn:
            await self._session.close()

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """Read map and queue, request what is neither there nor queued, wait for the queue to run empty."""
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}
        seen, queue = await self._map(), await self._queue()
        at_ns = time.monotonic_ns()
        self._hear(marks)
        marks.words.clear()  # what was said before is about older requests
        queued = set(queue.moves)
        gone = [pair for pair in remove if pair in seen and pair not in queued]
        new = [pair for pair in add if pair not in seen and pair not in queued]
        for pair in [*new]:
            if held := [other for other in sorted(seen - set(gone) - queued) if set(other) & set(pair)]:
                port = next(p for p in pair if p in held[0])
                marks.words[pair] = f"port {port} is held by {held[0][0]}->{held[0][1]}"
                new.remove(pair)
        if queue.stuck and (gone or new):
            marks.words |= dict.fromkeys([*gone, *new], queue.stuck)
            gone, new = [], []
        if gone or new:
            await marks.begin()
            for verb, joint, pair in _in_turn(gone, new):
                await self._request(f"connection {verb} {pair[0]} {joint} {pair[1]}", pair, marks)
        marks.acknowledged()
        if gone or new or queued & (remove.keys() | add.keys()):
            seen, at_ns, queue = await self._wait(remove.keys(), add.keys(), marks)
        failed: dict[Setting, str] = {s: self._no_pair(s) for s in (change.remove | change.add) if not self._pair(s)}
        for pair, setting in (*remove.items(), *add.items()):
            if (pair in seen) is (pair in remove):
                failed[setting] = marks.words.get(pair) or queue.stuck or _silence(pair, seen, queue)
        return marks.outcome(self.name, self._settings(seen), at_ns, failed)

    async def _wait(self, remove: Iterable[Pair], add: Iterable[Pair], marks: Marks[Pair]) -> tuple[frozenset[Pair], int, Queue]:
        """Watch the robot work until nothing of ours is queued; tell how far it is."""
        goal_out, goal_in = set(remove), set(add)
        began = time.monotonic()
        total, most_s = 0, self._budget_s
        while True:
            seen, queue = await self._map(), await self._queue()
            now = time.monotonic()
            self._hear(marks)
            left = {pair for pair in (goal_out & seen) | (goal_in - seen) if pair not in marks.words}
            waiting = len(queue.moves) + (1 if queue.busy and not queue.moves else 0)
            total = max(total, len(left), waiting)
            most_s = max(most_s, (now - began) + self._budget_s if waiting < total and waiting else 0.0, self._budget_s * total)
            done = total - max(len(left), waiting)
            eta_s = (now - began) / done * (total - done) if done else self.traits.settle_s * (total - done)
            self.told(Progress(self.name, done, total, eta_s, queue.stuck or f"move {min(done + 1, total)} of {total}"))
            if not left or queue.stuck or not queue.busy or now - began > most_s:
                if left and not queue.stuck and not queue.busy:  # the last move may have ended between the two questions
                    seen = await self._map()
                    self._hear(marks)
                marks.broken_ns = marks.broken_ns or time.monotonic_ns()
                return seen, time.monotonic_ns(), queue
            await asyncio.sleep(self._check_s)

    async def _request(self, command: str, pair: Pair, marks: Marks[Pair]) -> None:
        marks.write()
        answer = await self._session.ask(command, again=False)
        if "added to pending queue" in answer:
            return
        words = _REFUSALS.search(answer)
        marks.words[pair] = f'refused "{command}": {(words[0] if words else answer.strip())[:120]}'

    def _hear(self, marks: Marks[Pair]) -> None:
        """Keep what the log lines say against a move."""
        for line in self._session.take_logs():
            end = joblog.ended(line)
            if end and end.how in ("failed", "invalid"):
                marks.words[end.pair] = end.text

    async def _map(self) -> frozenset[Pair]:
        return joblog.connected(await self._rows())

    async def _rows(self) -> list[joblog.PortRow]:
        answer = await self._session.ask("port show")
        try:
            rows = list(joblog.port_rows(answer))
        except Garbled as error:
            raise Garbled(f'{self.name}: answer to "port show": {error}') from error
        if not rows:
            raise Garbled(f'{self.name}: answer to "port show": no rows in {answer[:120]!r}')
        return rows

    async def _queue(self) -> Queue:
        answer = await self._session.ask("connection show pending")
        try:
            return joblog.pending(answer)
        except Garbled as error:
            raise Garbled(f'{self.name}: answer to "connection show pending": {error}') from error

    def _settings(self, pairs: Iterable[Pair]) -> frozenset[Setting]:
        return frozenset(CrossConnect(Port(self.name, a), Port(self.name, b)) for a, b in pairs)

    def _pair(self, setting: Setting) -> Pair | None:
        """The two ports, None when a label is not one (and must not reach a command line)."""
        if not isinstance(setting, CrossConnect) or {setting.ingress.device, setting.egress.device} != {self.name}:
            return None
        fits = re.fullmatch(r"E[1-9]\d{0,3}", setting.ingress.label) and re.fullmatch(r"W[1-9]\d{0,3}", setting.egress.label)
        return (setting.ingress.label, setting.egress.label) if fits else None

    def _no_pair(self, setting: Setting) -> str:
        if isinstance(setting, CrossConnect):
            return f"not an east and a west port of {self.name}"
        return "a spectral route; this is a cross-connect switch"


def _in_turn(gone: Iterable[Pair], new: Iterable[Pair]) -> list[tuple[str, str, Pair]]:
    """The requests in the order that keeps each port dark for the shortest time: what a new fibre needs is freed just before it.

    Every port is free when it is reused; the robot works through its queue in this order.
    """
    left = sorted(gone)
    needed: list[tuple[str, str, Pair]] = []
    for pair in sorted(new):
        for held in [other for other in left if set(other) & set(pair)]:
            left.remove(held)
            needed.append(("disconnect", "from", held))
        needed.append(("create", "to", pair))
    return [("disconnect", "from", pair) for pair in left] + needed


def _field(text: str, name: str) -> str:
    """The value behind a name in the key/value text of `show board`."""
    match = re.search(rf"^\s*(?:{name})\s*[: ]\s*(\S[^\r\n]*)", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _silence(pair: Pair, seen: frozenset[Pair], queue: Queue) -> str:
    """Words for a move the robot neither made nor refused."""
    others = ", ".join(f"{a}->{b}" for a, b in sorted(seen) if a == pair[0] or b == pair[1]) or f"{pair[0]}->-"
    state = "the queue still works" if queue.busy else "the queue is empty"
    return f"wanted {pair[0]}->{pair[1]}{' gone' if pair in seen else ''}, reports {others}; {state}"
