"""Ranks of jobs: processes of hosts that iterate in virtual time. Their part in moves, and in an
agreed stop, is the program's own.

What they compute and send is a model: an iteration takes a while, and ends once every rank has sent
its part over the light, routes and neighbours that there are. A rank waits for a peer, or for a way
to it, as long as `TESTBED_TIMEOUT_S` is by default.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.sim.agents import Agent, SimHost
from tests.sim.kernel import Inode
from tests.sim.loop import Actor
from tests.sim.meeting import Holds, Rendezvous
from tests.sim.seams import (
    CHECK_S,
    RANK_SENDS,
    Accord,
    Allowance,
    Layout,
    Pace,
    Rank,
    RingChanges,
    Sets,
    read_layout,
)
from tests.sim.shown import Checkpoints, Gate, beating, option

TIMEOUT_S, RETRY_S = 60.0, 1.0
"""A rank waits so long for a peer; and for so long until it tries to reach an agent again."""
START_S, STEP_S, CONNECT_S = (0.2, 1.5), (0.15, 0.5), (0.02, 0.4)
"""How long a rank takes to start, an iteration of a job, and the connections of other rings, from
and to.
"""
BYTES = 50_000
"""What a rank sends in an iteration."""
SAVE_S = 0.005, 0.1
"""How long a checkpoint takes, from and to."""
STALLED_S = 0.2
"""How often a rank tries to send where there is no way."""
SILENT_S = (5.0, 15.0)
"""After so long ranks notice that the host of a peer has lost power."""
OK, LOST_PEER, TERMINATED, KILLED = 0, 75, 143, 137
"""Exit statuses."""


class SimRingChanges(RingChanges):
    """A rank's part in moves, whose main thread does not wait: it raises `Holds`, and is asked
    again.
    """

    began_ns = 0

    def after(self, iteration: int) -> bool:
        move = self._move
        if move is not None and move.held_at is not None and move.changed_after is None:
            self._hold(move, iteration)  # it still waits there
        return super().after(iteration)

    def _hold(self, move: Any, iteration: int) -> int | str:
        if move.held_at is None:
            self.began_ns, move.held_at = time.monotonic_ns(), iteration
            self._answer(move, "held")
        decision = self._held(move, iteration)
        move.held_ms = round((time.monotonic_ns() - self.began_ns) / 1e6, 3)
        return decision

    @property
    def state(self) -> str:
        """In a move that has neither taken effect nor ended: its state; else empty."""
        return (
            ""
            if self._move is None or self._move.changed_after is not None
            else str(self._move.state)
        )


class Connections:
    """The connections of one layout."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def close(self) -> None: ...

    def lost(self) -> str:
        return self.program.lost


class Wire(Rank):
    """The agent's end of a rank's connection."""

    def __init__(self, job: Any, agent: Agent, link: Link) -> None:
        self.job, self.server, self.link = job, agent, link
        self.number, self.world, self.last_ns, self.reported = None, 0, 0, {}
        self.allowance = Allowance(*RANK_SENDS)
        self.closed = False

    def send(self, message: Any) -> None:
        if not self.closed:
            self.link.deliver(json.loads(json.dumps(message)))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.link.over()
            self.job.left(self)


class Link:
    """A rank's connection to its agent: lines in order, each after its latency."""

    def __init__(self, program: Program, agent: Agent, job: Any) -> None:
        self.program, self.agent, self.loop = program, agent, program.loop
        self.ended = self.loop.create_future()
        self.sent = self.came = 0.0
        self.wire = Wire(job, agent, self)
        agent.actor.on_death.append(self.over)
        program.actor.on_death.append(self.hang_up)
        self._deliver(job.connections.add, self.wire)

    def _deliver(self, act: Callable[..., object], *argv: Any) -> None:
        self.sent = max(self.sent, self.loop.now + self.program.host.net.latency()) + 1e-9
        self.loop.call_at(self.sent, act, *argv, context=self.agent.context)

    def send(self, message: Mapping[str, Any]) -> None:
        self._deliver(self._heard, json.dumps(message).encode())

    def _heard(self, line: bytes) -> None:
        if not self.wire.closed:
            self.wire.take(line)

    def deliver(self, message: Any) -> None:
        self.came = max(self.came, self.loop.now + self.program.host.net.latency()) + 1e-9
        self.loop.call_at(self.came, self._notified, message, context=self.program.context)

    def _notified(self, message: Any) -> None:
        if (
            not self.ended.done()
            and self.program.ring_changes is not None
            and not self.program.pace.receive(message)
        ):
            self.program.ring_changes.receive(message)

    def hang_up(self) -> None:
        """The rank is gone."""
        self._deliver(self.wire.close)

    def over(self) -> None:
        """The agent is gone, or has ended the connection."""
        if not self.ended.done():
            self.ended.set_result(None)


class Program:
    """One rank, and the shell around it that writes down how it ends. name: of the job, as the host
    knows it.
    """

    def __init__(
        self,
        table: Programs,
        pid: int,
        where: str,
        noted: str,
        env: Mapping[str, str],
        argv: Sequence[str],
    ) -> None:
        self.table, self.host, self.loop, self.pid = table, table.host, table.host.loop, pid
        self.where, self.noted, self.env, self.name = where, noted, env, where.rpartition("/")[2]
        self.rank, self.world, self.message = int(env["RANK"]), int(env["WORLD_SIZE"]), argv
        self.iterations, self.every = (
            option(argv, "--iterations", 50),
            option(argv, "--checkpoint-every", 100),
        )
        self.actor: Actor = self.loop.actor(f"rank-{self.rank}-{self.name}", self.host.machine)
        self.context = self.loop.context(self.actor)
        self.born = int(100 * self.loop.now) + 1
        self.rng = random.Random(f"{table.world.seed}/{self.name}/{self.rank}")
        self.checkpoints = Checkpoints(
            self.host.disk, env.get("TESTBED_CHECKPOINT_DIR", where), self.rank
        )
        self.every *= "TESTBED_CHECKPOINT_DIR" in env
        self.gate: Gate | None = None
        if "workloads.programs.moe" in argv:
            self.gate = Gate(self.rank, self.world, self.name, option(argv, "--drift", 0))
        self.heartbeat = self.context.run(beating, pid, self.rank)
        self.ring_changes: SimRingChanges | None = None
        self.accord: Any = None
        self.store: Rendezvous | None = None
        self.pace = Pace()
        self.sent = 0
        """Bytes."""
        self.lost = ""
        self.code: int | None = None
        self.ended_s = math.inf
        self.iteration = 0
        self.beaten_s = 0.0
        """When it ended an iteration last."""
        self.loop.start(self.actor, self._live())

    def __repr__(self) -> str:
        return f"{self.name} on {self.host.name}"

    @property
    def alive(self) -> bool:
        return not self.actor.dead

    @property
    def shown(self) -> dict[str, bytes]:
        """What it has written to the memory that it shares with its host, by the names of the
        files.
        """
        memory = {"heartbeat": self.heartbeat._memory} | (
            {"demand": self.gate.file._memory} if self.gate else {}
        )
        return {name: bytes(each) for name, each in memory.items()}

    @property
    def known(self) -> bool:
        """Whether its host has a record of it."""
        record = self.host.disk.names.get(self.noted.removesuffix(".exit") + ".json")
        return record is not None and record.data.endswith(b"}")

    @property
    def finished(self) -> bool:
        """Whether it has done all its iterations."""
        return self.code == OK and self.iteration >= self.iterations > 0

    @property
    def kept(self) -> bool:
        """Whether its host still knows that it ran, and how it ended."""
        files = (
            self.host.disk.names.get(self.noted.removesuffix(".exit") + end)
            for end in (".json", ".exit")
        )
        return all(file is not None and file.data for file in files)

    # ---- signals and ends

    def terminate(self) -> None:
        """SIGTERM: an agreed stop, or the end while it still meets the others."""
        if self.accord is None:
            self.ends(TERMINATED)
        else:
            self.accord.asked = True

    def ends(self, code: int | None, after_s: float = 0.0) -> None:
        """The process is gone. code: that the shell notes; None: the shell is gone, too. after_s:
        how long peers do not notice.
        """
        if not self.alive:
            return
        self.loop.note(f"{self} ends: {code}")
        self.code, self.ended_s = code, self.loop.now
        if code is not None:
            self.host.disk.names[self.noted] = Inode(f"{code}\n".encode())
        if self.store is not None and code != OK:
            self.loop.later(after_s or self.rng.uniform(0.001, 0.5), self.store.lost, self.rank)
        self.loop.kill(self.actor)
        self.table.ended(self)

    # ---- what it does

    async def _live(self) -> None:
        try:
            await asyncio.sleep(self.rng.uniform(*START_S))
            await self._meet()
            await self._train()
        except (RuntimeError, TimeoutError) as error:
            self.loop.note(f"{self}: {error or type(error).__name__}")
            self.ends(LOST_PEER)
        else:
            self.ends(OK)

    async def _meet(self) -> None:
        """Raises: RuntimeError, TimeoutError - a peer does not come."""
        at = f"{self.env['MASTER_ADDR']}:{self.env['MASTER_PORT']}/{self.name}"
        self.store = store = self.table.stores[at]
        store.ranks[self.rank] = self
        if "--resume" not in self.message:
            self.checkpoints.forget()
        elif kept := self.checkpoints.kept():
            store.kept.append(kept)
        async with asyncio.timeout(TIMEOUT_S):
            store.add("met", 1)
            await self._count("met")
        self.iteration = max(set.intersection(*store.kept), default=0) if store.kept else 0
        rings = tuple(tuple(ring) for ring in json.loads(self.env["TESTBED_RINGS"]))
        sets = Sets(Layout(rings), lambda *_: Connections(self), lambda _: None)
        sets.begin(store, TIMEOUT_S)
        self.accord = Accord(store, self.rank, self.world)
        self.ring_changes = SimRingChanges(
            self.rank,
            self.world,
            store,
            lambda: store,
            sets,
            lambda message, current: read_layout(message, current, self.world, None),
            timeout_s=TIMEOUT_S,
            asked_to_stop=lambda: bool(self.accord.asked),
            on_ring_change=lambda record: self._writes("ring_changes.jsonl", record),
        )
        self.sets = sets

    async def _count(self, key: str) -> None:
        """Wait until all ranks have added to this. Raises: RuntimeError - a peer is lost."""
        assert self.store is not None
        while int(self.store.values.get(key, "0")) < self.world:
            await self.store.changes(key)
            if self.lost:
                raise RuntimeError(self.lost)

    async def _train(self) -> None:
        """Raises: RuntimeError, TimeoutError - a peer or the store is lost."""
        assert self.store is not None and self.ring_changes is not None
        step_s = random.Random(self.name).uniform(*self.table.world.step_s)
        first = self.iteration + 1
        for send in self.table.world.shown["resumes"]:
            send(self)
        while not self.iterations or self.iteration < self.iterations:
            self.iteration += 1
            self.accord.before(self.iteration)
            self.ring_changes.before(self.iteration)
            await self._paced()
            self.heartbeat.begin(self.iteration)
            if self.gate:
                self.gate.file.attention(self.iteration)
            if self.iteration == first:
                self.loop.create_task(self._listen())
            began = self.loop.now
            await asyncio.sleep(step_s * self.rng.uniform(0.9, 1.1))
            self.heartbeat.exchange()
            if self.gate:
                self.gate.decides(self.iteration)
            async with asyncio.timeout(TIMEOUT_S):
                await self._sends()
                await self._count(f"in/{self.iteration}")
            self.beaten_s = self.loop.now
            self.heartbeat.end()
            if self.gate:
                self.gate.file.end()
            record = {
                "iter": self.iteration,
                "iter_ms": round((self.loop.now - began) * 1e3, 3),
                "t_wall_ns": time.time_ns(),
            }
            self._writes("iterations.jsonl", record)
            last = await self._last()
            if last or (self.every and self.iteration % self.every == 0):
                await self._save()
            if last:
                break
        self.ring_changes.close()
        self.store.add("left", 1)
        await self._count("left")

    async def _paced(self) -> None:
        """As `Pace.wait`: until the iteration is to begin."""
        began, notified, paused = time.monotonic_ns(), self.pace._now, self.loop.paused
        if notified is None or not (left_ns := self.pace.left_ns(began)):
            self.pace.begins(began)
            return
        due_ns = began + left_ns
        self.heartbeat.hold(True)
        while (now := time.monotonic_ns()) < due_ns and not self.accord.asked:
            await asyncio.sleep(min((due_ns - now) / 1e9, CHECK_S))
            now = time.monotonic_ns()
            due_ns = min(due_ns, now + self.pace.left_ns(now))
        self.heartbeat.hold(False)
        self.pace.begins(time.monotonic_ns())
        for send in self.table.world.shown["waited"]:
            send(self, notified, (time.monotonic_ns() - began) / 1e9, self.loop.paused - paused)

    async def _sends(self) -> None:
        """Send this rank's part to its neighbours, as soon as there is a way. Raises: RuntimeError
        - a peer is lost.
        """
        assert self.store is not None
        while not self.connected:
            await asyncio.sleep(STALLED_S)
            if self.lost:
                raise RuntimeError(self.lost)
        self.store.add(f"in/{self.iteration}", 1)
        self.sent += BYTES

    @property
    def connected(self) -> bool:
        """Whether packets arrive at the next rank of each ring; of a mixture of experts, at all
        ranks.
        """
        assert self.store is not None
        if self.gate:
            return all(
                self.table.reaches(self.host.name, rank.host.name)
                for rank in self.store.ranks.values()
            )
        nexts = (
            self.store.ranks[ring[(ring.index(self.rank) + 1) % len(ring)]] for ring in self.rings
        )
        return all(self.table.reaches(self.host.name, rank.host.name) for rank in nexts)

    @property
    def rings(self) -> tuple[tuple[int, ...], ...]:
        return self.sets.layout.rings

    async def _last(self) -> bool:
        """As `program.Job.last`, and whether all iterations are done."""
        assert self.store is not None and self.ring_changes is not None
        if self.accord.last(self.iteration) or self.iteration == self.iterations:
            return True
        while True:
            try:
                return self.ring_changes.after(self.iteration)
            except Holds as holds:
                self.heartbeat.hold(True)
                await asyncio.wait([self.store.changes(holds.key)], timeout=holds.within_s)
                self.heartbeat.hold(False)
                if self.lost:
                    raise RuntimeError(self.lost) from None

    async def _save(self) -> None:
        """Write a checkpoint."""
        with self.heartbeat.save():
            await asyncio.sleep(self.rng.uniform(*SAVE_S))
            self.checkpoints.write(self.iteration)

    def _writes(self, file: str, record: Mapping[str, Any]) -> None:
        """Add a line to a file of rank 0's."""
        if self.rank == 0:
            self.host.disk.names.setdefault(f"{self.where}/{file}", Inode()).data += (
                json.dumps(record).encode() + b"\n"
            )

    async def _listen(self) -> None:
        """As `workloads.host.handoff`: connect to the agent, again and again."""
        while True:
            agent = self.host.agent
            sockets = getattr(agent.handoff, "jobs", {}) if agent is not None else {}
            if (
                isinstance(sockets, dict)
                and (job := sockets.get(self.name)) is not None
                and self.ring_changes is not None
            ):
                assert agent is not None
                link = Link(self, agent, job)
                link.send(self.ring_changes.greeting())
                self.ring_changes.send = link.send
                await link.ended
                self.ring_changes.send = lambda _: None
            await asyncio.sleep(RETRY_S)


class Programs:
    """The ranks that run on a host. started: all that ever did."""

    def __init__(self, host: SimHost, world: Any) -> None:
        self.host, self.world, self.stores = host, world, world.stores
        self.alive: dict[int, Program] = {}
        self.started: list[Program] = []

    def start(self, where: str, noted: str, env: Mapping[str, str], argv: Sequence[str]) -> Program:
        """A new process, with a number that no real one has."""
        pid = next(self.world.numbers)
        self.alive[pid] = program = Program(self, pid, where, noted, env, argv)
        self.started.append(program)
        for send in self.world.shown["launched"]:
            send(program)
        return program

    def reaches(self, source: str, target: str) -> bool:
        """Whether packets from one host arrive at each address of another."""
        packets = self.world.packets
        return source == target or all(
            packets.path(source, address) for address in packets.addresses(target)
        )

    def ended(self, program: Program) -> None:
        """A process is gone: the agent's pidfd says so."""
        del self.alive[program.pid]
        agent: Any = self.host.agent
        if agent is not None:
            for fd, pid in list(agent.pidfds.items()):
                if pid == program.pid and fd in agent.handlers:
                    self.host.loop.call_soon(agent.handlers[fd], 0, context=agent.context)

    def lose_power(self) -> None:
        """All die at once, and nobody says goodbye."""
        for program in list(self.alive.values()):
            program.ends(None, program.rng.uniform(*SILENT_S))
