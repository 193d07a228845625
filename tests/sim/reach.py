"""How operators reach hosts: SSH, as a channel of lines with latencies, and Ansible, as plays that
are processes of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, cast

from tests.sim.agents import SILENCE_S, Agent, SimHost
from tests.sim.desk import Desk
from tests.sim.loop import ACTOR, point
from tests.sim.seams import FENCED, Play, Unreachable, unpack


class SimPeer:
    """A client of the agent: the host's end of an SSH channel."""

    def __init__(self, channel: SimChannel) -> None:
        self.channel = channel
        self.watching = self.links = False

    def send(self, message: Any) -> None:
        self.channel.answer(json.dumps(message).encode() + b"\n")

    def hang_up(self, text: str) -> None:
        self.channel.over(text)


class SimSsh:
    """A paramiko.Transport, as `hosts.channel` uses it. It is also its socket."""

    def __init__(self, host: SimHost) -> None:
        self.host, self.dead, self.open = host, False, True
        self.actor = ACTOR.get()
        self.context = host.loop.context(self.actor)
        self.channels: list[SimChannel] = []
        self.sock = self
        host.logins.append(self)
        self.actor.on_death.append(self.close)

    def is_active(self) -> bool:
        return self.open

    def open_session(self, timeout: float) -> SimChannel:
        if not self.open or self.dead:
            raise EOFError("the connection is gone")
        channel = SimChannel(self)
        self.channels.append(channel)
        return channel

    def reset(self) -> None:
        """The other side knows this connection no more."""
        self.open = False
        for channel in self.channels:
            channel.over("closed by the other side")

    def shutdown(self, how: int) -> None: ...

    def close(self) -> None:
        self.open = False
        for channel in self.channels:
            channel.close()
        if self in self.host.logins:
            self.host.logins.remove(self)

    def join(self, timeout: float) -> None: ...


class SimChannel:
    """A paramiko.Channel, as `hosts.channel` uses it: lines to the agent and back, in order, each
    after its latency.
    """

    def __init__(self, ssh: SimSsh) -> None:
        self.ssh, self.host, self.loop = ssh, ssh.host, ssh.host.loop
        self.closed = self.eof_received = False
        self.in_buffer = self
        self.peer: SimPeer | None = None
        self.sent = self.came = 0.0
        self.buffer, self.errors = b"", b""
        self.wake: Any = None

    def set_event(self, wake: Any) -> None:
        self.wake = wake
        if self.buffer or self.closed:
            wake.set()

    def exec_command(self, command: str) -> None:
        self._deliver(self._attach)

    def _deliver(self, act: Callable[..., object], *argv: Any) -> None:
        """Have the host do something, after what was sent before."""
        self.sent = max(self.sent, self.loop.now + self.host.net.latency()) + 1e-9
        self.loop.call_at(self.sent, act, *argv, context=self.loop.context(self.loop.sea))

    def _attach(self) -> None:
        if self.ssh.dead:
            return
        agent = self.host.agent
        if agent is None or agent.actor.dead:
            self.over("agent: not running (/run/testbed/committer.sock: Connection refused)")
        elif not self.closed:
            self.peer = SimPeer(self)
            agent.peers.append(self.peer)

    def sendall(self, data: bytes) -> None:
        if self.closed:
            raise OSError("Socket is closed")
        op = json.loads(data)["op"]
        if op in FENCED:
            point(f"before {self.host.name} {op}")
        self._deliver(self._request, data, op)
        if op in FENCED:
            point(f"after {self.host.name} {op}")

    def _request(self, line: bytes, op: str) -> None:
        agent = self.host.agent
        if self.ssh.dead or agent is None or self.peer not in agent.peers:
            return
        self.loop.call_soon(
            self._handle, agent, line, self.host.trouble.pop(op, ""), context=agent.context
        )

    def _handle(self, agent: Agent, line: bytes, trouble: str) -> None:
        if trouble:
            self.loop.note(f"{self.host.name}: {trouble}")
            self.ssh.dead = trouble == "cut before"
            self.loop.later(self.host.rng.choice((0.0, SILENCE_S)), self.ssh.reset)
            if self.ssh.dead:
                return
        agent.handle(cast(Any, self.peer), line)
        self.ssh.dead = self.ssh.dead or bool(trouble)

    def answer(self, data: bytes) -> None:
        """The agent says something."""
        if not self.ssh.dead:
            self._arrive(self._heard, data)

    def _arrive(self, act: Callable[..., object], *argv: Any) -> None:
        self.came = max(self.came, self.loop.now + self.host.net.latency()) + 1e-9
        self.loop.call_at(self.came, act, *argv, context=self.ssh.context)

    def _heard(self, data: bytes) -> None:
        if not self.closed:
            self.buffer += data
            if self.wake is not None:
                self.wake.set()

    def over(self, text: str) -> None:
        """The host's side ends the channel."""
        self._leave()
        self._arrive(self._ended, text)

    def _ended(self, text: str) -> None:
        if not self.closed:
            self.errors = text.encode() if text.startswith("agent") else b""
            self.closed = self.eof_received = True
            if self.wake is not None:
                self.wake.set()

    def _leave(self) -> None:
        agent = self.host.agent
        if agent is not None and self.peer in agent.peers:
            agent.peers.remove(self.peer)

    def recv_ready(self) -> bool:
        return bool(self.buffer)

    def recv(self, size: int) -> bytes:
        data, self.buffer = self.buffer, b""
        return data

    def recv_stderr_ready(self) -> bool:
        return bool(self.errors)

    def recv_stderr(self, size: int) -> bytes:
        return self.errors

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._deliver(self._leave)


def login(host: SimHost, timeout_s: float) -> Any:
    """As `ssh.connect`, in a thread of a process: a connection, after a while."""
    loop = host.loop
    future = loop.create_future()

    def done() -> None:
        if future.done():
            return
        if host.power:
            future.set_result(SimSsh(host))
        else:
            future.set_exception(Unreachable(f"{host.name}: ssh: no answer"))

    loop.call_later(host.net.latency() + 0.01 if host.power else min(timeout_s, 3.0), done)
    return future


class SimAnsible:
    """Ansible: a play is a process of its own, which may outlive the command that began it."""

    def __init__(self, hosts: Mapping[str, SimHost], desk: Desk) -> None:
        self.hosts, self.desk, self.rng = hosts, desk, desk.rng

    def expect(self, playbook: str) -> None: ...

    def close(self) -> None: ...

    def play(
        self,
        playbook: str,
        names: Collection[str],
        variables: Mapping[str, Any],
        timeout_s: float = 300.0,
    ) -> Any:
        """As `Ansible.play`, but a future."""
        point(f"before {playbook}")
        caller = ACTOR.get()
        loop = caller.loop
        actor = loop.actor(f"{playbook}-of-{caller.name}", self.desk)
        if self.rng.random() < 0.5:
            caller.on_death.append(lambda: loop.kill(actor))
        self.desk.children.append(actor)
        future = loop.create_future()
        task = loop.start(actor, self._play(playbook, names, variables))

        def ended(done: asyncio.Task[Any]) -> None:
            actor.ended = True
            if not future.done() and not caller.dead and not done.cancelled():
                future.set_result(done.result())

        task.add_done_callback(ended, context=loop.context(caller))
        return future

    async def _play(
        self, playbook: str, names: Collection[str], variables: Mapping[str, Any]
    ) -> Play:
        done = Play()
        await asyncio.sleep(self.rng.uniform(0.3, 1.5))
        for name in names:
            host = self.hosts[name]
            await asyncio.sleep(0.01 + host.net.latency())
            if not host.power:
                done.failed[name] = Unreachable(f"{name}: ssh: no answer")
            elif playbook == "install.yml":
                host.begin()
                done.reported[name] = {"provision": '{"changed":[],"notes":[]}\n{"started":true}\n'}
            elif host.agent is None:
                done.failed[name] = Unreachable(f"{name}: stage: its agent does not run")
            else:
                agent = host.agent
                requests = unpack(variables["testbed_rules"][name])
                answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                agent.sim.loop.call_soon(
                    self._call, agent, requests, answered, context=agent.context
                )
                agent.actor.on_death.append(partial(self._broken_off, answered))
                reported = await answered
                await asyncio.sleep(host.net.latency())
                if reported:
                    done.reported[name] = {"stage": reported}
                else:
                    done.failed[name] = Unreachable(f"{name}: stage: the connection ended")
        return done

    @staticmethod
    def _broken_off(answered: asyncio.Future[str]) -> None:
        if not answered.done():
            answered.set_result("")

    @staticmethod
    def _call(agent: Agent, requests: list[Any], answered: asyncio.Future[str]) -> None:
        lines = [json.dumps(agent.answers(request)) for request in requests]
        if not answered.done():
            answered.set_result("\n".join(lines) + "\n")
