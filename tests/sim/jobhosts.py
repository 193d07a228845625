"""What a host's agent needs to run jobs for its operators: processes, their files, their sockets;
and the plays that start them.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import random
import signal
import stat
import subprocess
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.processes import try_lock
from tests.sim.agents import Absent, Agent
from tests.sim.kernel import DiskOs
from tests.sim.lab import World, disk
from tests.sim.loop import ACTOR
from tests.sim.meeting import Holds, Rendezvous
from tests.sim.packets import Packets
from tests.sim.ranks import CONNECT_S, STEP_S, Program, Programs
from tests.sim.reach import SimAnsible
from tests.sim.seams import JOB_MARK, Handoff, Jobs, Play, Unreachable, of_jobs, unpack

FIRST_PID = 6_000_000
"""Above any real process's, and any operator's here."""
ROOT = SimpleNamespace(pw_uid=0, pw_gid=0, pw_name="root")


def programs() -> Programs:
    """Those of the host whose agent runs now."""
    return cast(Programs, cast(Any, ACTOR.get()).programs)


class JobOs(DiskOs):
    """`os` as the agent's part for jobs uses it: all files are root's, and signals reach the
    programs of its host.
    """

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if path not in self._disk().names and not flags & self.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return super().open(path, flags, mode)

    def fstat(self, fd: int) -> Any:
        return SimpleNamespace(st_mode=stat.S_IFREG, st_size=len(self._open[fd][1].data))

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._open[fd][1].data[offset : offset + size]

    def lstat(self, path: str) -> Any:
        return SimpleNamespace(st_uid=0, st_mtime_ns=0)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None: ...

    def utime(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]:
        head = path.rstrip("/") + "/"
        return sorted(
            {
                name[len(head) :].partition("/")[0]
                for name in self._disk().names
                if name.startswith(head)
            }
        )

    def killpg(self, pid: int, number: int) -> None:
        if (program := programs().alive.get(pid)) is None:
            raise ProcessLookupError(pid)
        if number == signal.SIGTERM:
            program.loop.call_soon(program.terminate, context=program.context)

    def pidfd_open(self, pid: int) -> int:
        self._last += 1
        cast(Any, programs().host.agent).pidfds[self._last] = pid
        return self._last

    def close(self, fd: int) -> None:
        agent: Any = programs().host.agent
        if agent.pidfds.pop(fd, None) is None:
            super().close(fd)


class Thread:
    """A thread of a rank: its work is done at one moment, a little later."""

    def __init__(self, target: Any, args: Any, **_: Any) -> None:
        self.work = partial(target, *args)

    def start(self) -> None:
        ACTOR.get().loop.call_later(random.uniform(*CONNECT_S), self.work)


class Listener:
    """The socket of a job, which nobody reads: ranks are let in by the world."""

    def fileno(self) -> int:
        return -1

    def close(self) -> None: ...


class Machine:
    """What agents and ranks find in place of modules and functions: `seams.of_jobs` says where."""

    threading = SimpleNamespace(Thread=Thread, Lock=threading.Lock)
    pwd = SimpleNamespace(getpwnam=lambda name: ROOT)

    def __init__(self, disk: Any) -> None:
        self.disk, self.os = disk, JobOs(disk)
        self.shutil = SimpleNamespace(rmtree=self.rmtree)
        self.subprocess = SimpleNamespace(
            Popen=self.started,
            DEVNULL=subprocess.DEVNULL,
            PIPE=subprocess.PIPE,
            STDOUT=subprocess.STDOUT,
        )

    def open(self, path: str, *_: Any, **__: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def rmtree(self, where: str, ignore_errors: bool = False) -> None:
        names = self.disk().names
        for name in [name for name in names if name.startswith(where + "/")]:
            del names[name]

    def started(self, argv: list[str], env: Mapping[str, str], **_: Any) -> Any:
        """As `subprocess.Popen`, of the shell around a rank."""
        text = argv[4:]
        program = programs().start(env[JOB_MARK], argv[3], env, text)
        return SimpleNamespace(pid=program.pid, wait=lambda: 0)

    def start_time(self, pid: int) -> int | None:
        program = programs().alive.get(pid)
        return None if program is None else program.born

    def kill_session(self, leader: int) -> Iterator[None]:
        yield
        if (program := programs().alive.get(leader)) is not None:
            program.ends(None)

    def kill_left(self, where: str) -> Iterator[None]:
        for program in list(programs().alive.values()):
            yield
            if program.where == where and program.alive:
                program.ends(None)

    def job_socket(self, where: str, name: str, what: str) -> tuple[Listener, int]:
        return Listener(), 0

    def clean(self, where: str, used: Collection[str]) -> None: ...

    def appears(self, store: Rendezvous, key: str, within_s: float) -> bool:
        """As `accord.appears`. Raises: Holds - not yet."""
        if store.check([key]):
            return True
        raise Holds(key, within_s)

    def print(self, text: str, **_: Any) -> None:
        """What a rank says of itself: its log."""
        ACTOR.get().loop.note(text)

    def jobs_file(self, path: str, size: int) -> bytes:
        """As `basics.jobs_file`: what a rank has written to the memory that it shares with its
        host. Raises: OSError - nothing.
        """
        where, _, name = path.rpartition("/")
        rank = next((one for one in reversed(programs().started) if one.where == where), None)
        if rank is None or (memory := rank.shown.get(name)) is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return memory[:size]

    def try_lock(self, file: Any) -> bool:
        """As `processes.try_lock`; the kernel undoes it when a process dies."""
        ACTOR.get().on_death.append(
            lambda: None if file.closed else fcntl.flock(file, fcntl.LOCK_UN)
        )
        return try_lock(file)


class Caller:
    """The host's end of one `call`: requests one after the other, and their answers."""

    watching = links = False

    def __init__(
        self, agent: Agent, requests: list[Any], answered: asyncio.Future[list[str]]
    ) -> None:
        self.agent, self.waiting, self.answered = agent, list(requests), answered
        self.answers: list[str] = []
        agent.peers.append(self)
        self.next()

    def next(self) -> None:
        if self.waiting:
            self.agent.handle(
                cast(Any, self),
                json.dumps(dict(self.waiting.pop(0), id=len(self.answers))).encode(),
            )
        else:
            self.hang_up("")

    def send(self, message: Any) -> None:
        self.answers.append(json.dumps(message))
        self.agent.sim.loop.call_soon(self.next, context=self.agent.context)

    def hang_up(self, text: str) -> None:
        """All is answered, or the agent is gone."""
        if self in self.agent.peers:
            self.agent.peers.remove(self)
        if not self.answered.done():
            self.answered.set_result(self.answers)


class JobAnsible(SimAnsible):
    """Also the plays that start and stop ranks."""

    async def _play(
        self, playbook: str, names: Collection[str], variables: Mapping[str, Any]
    ) -> Play:
        if "testbed_requests" not in variables:
            return await super()._play(playbook, names, variables)
        done, task = Play(), playbook.partition(".")[0].partition("_")[0]
        await asyncio.sleep(self.rng.uniform(0.3, 1.5))
        for name, reported in zip(
            names,
            await asyncio.gather(*(self._calls(name, variables) for name in names)),
            strict=True,
        ):
            if reported:
                done.reported[name] = {task: reported}
            else:
                done.failed[name] = Unreachable(
                    f"{name}: {task}: no answer, or its agent does not run"
                )
        return done

    async def _calls(self, name: str, variables: Mapping[str, Any]) -> str:
        host = self.hosts[name]
        await asyncio.sleep(0.01 + host.net.latency())
        if (agent := host.agent) is None:
            return ""
        found = unpack(variables["testbed_requests"][name])
        requests = found if isinstance(found, list) else [found]
        answered: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        host.loop.call_soon(Caller, agent, requests, answered, context=agent.context)
        agent.actor.on_death.append(lambda: None if answered.done() else answered.set_result([]))
        answers = await answered
        await asyncio.sleep(host.net.latency())
        return "\n".join(answers) + "\n" if len(answers) == len(requests) else ""


class JobWorld(World):
    """Hosts run jobs."""

    step_s = STEP_S
    """How long an iteration of a job computes (s), from and to."""

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.machine = Machine(disk)
        self.stores: dict[str, Rendezvous] = defaultdict(lambda: Rendezvous(self.loop))
        self.programs: dict[str, Programs] = {}
        self.numbers = count(FIRST_PID)
        self._packets: Packets | None = None

    @property
    def packets(self) -> Packets:
        if self._packets is None:
            self._packets = Packets(self)
        return self._packets

    def more(self) -> Any:
        return of_jobs(self.machine)

    def ansible(self, *_: object) -> JobAnsible:
        return JobAnsible(self.hosts, self.desk)

    def loaded(self, agent: Agent) -> None:
        """As `Server.__init__`, with the parts for jobs."""
        name, more = agent.sim.name, cast(Any, agent)
        if name not in self.programs:
            self.programs[name] = Programs(agent.sim, self)
        cast(Any, agent.actor).programs = self.programs[name]
        more.pidfds, more.handlers, more.epoll, more.flows = {}, {}, Absent(), Absent()
        more.slots.notices = Absent()
        agent.handoff = Handoff(agent)
        agent.generations.activated = lambda generation: agent.guard(
            agent.handoff.activated, generation
        )
        agent.generations.abandoned = lambda generation: agent.guard(
            agent.handoff.abandoned, generation
        )
        agent.jobs = Jobs(agent)

    def host_power(self, name: str) -> None:
        super().host_power(name)
        self.programs[name].lose_power()

    def ranks(self) -> list[Program]:
        """Those that run."""
        return [program for table in self.programs.values() for program in table.alive.values()]
