"""The persistent channel to one host's agent: JSON lines over SSH, replies matched to requests,
events passed on.

paramiko decodes in one thread per connection and wakes the event loop from there; nothing polls and
no further thread reads.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent.basics import VERSION
from optics import Garbled, HostName, Locked, Refused, TestbedError, TimedOut, Unreachable
from orchestrator.hosts import ssh
from orchestrator.hosts.api import Hello, PortState
from orchestrator.hosts.facts import own_agent
from orchestrator.inventory.hosts import Host
from orchestrator.processes import boot_id

if TYPE_CHECKING:
    import paramiko

ATTACH = "exec {}python3 -S -E /var/lib/testbed/agent/__main__.py attach"
OnEvent = Callable[[HostName, str, int, Mapping[str, Any]], None]


class _Wake:
    """Stand in for the threading.Event of paramiko's buffer: wakes the loop as soon as data
    arrives.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ready: Callable[[], None]) -> None:
        self._loop, self._ready, self._set = loop, ready, False

    def set(self) -> None:
        self._set = True
        try:
            self._loop.call_soon_threadsafe(self._ready)
        except RuntimeError:  # the loop is closed: nothing is waiting any more
            pass

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set


class Channel:
    """One host: connect, then `ask`. After any failure the channel is closed and `connect` makes a
    new one.
    """

    def __init__(self, host: Host, on_event: OnEvent, threads: Executor) -> None:
        self.host = host
        self._threads = threads
        self._on_event = on_event
        self._transport: paramiko.Transport | None = None
        self._channel: paramiko.Channel | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = 0
        self._rest = b""
        self.offset_ns = 0  # the host's clock minus this machine's

    @property
    def attached(self) -> bool:
        return self._channel is not None and not self._channel.closed

    async def connect(self, timeout_s: float) -> Hello:
        """Log in (unless still logged in), attach to the agent and read its state; `installed` is
        false if none runs.
        """
        if self._transport is None or not self._transport.is_active():
            await self.close()
            self._transport = await asyncio.get_running_loop().run_in_executor(
                self._threads, ssh.connect, self.host.name, self.host.ssh, timeout_s
            )
        try:
            return await self.attach(timeout_s)
        except TestbedError:
            # nobody else may take it for one that was greeted
            self._detach("a request at its begin was not answered")
            raise

    async def attach(self, timeout_s: float) -> Hello:
        """Attach to the agent over the existing connection."""
        self._detach("a new one was opened")
        loop = asyncio.get_running_loop()
        assert self._transport is not None
        self._channel = await loop.run_in_executor(
            self._threads, _open, self._transport, self.host, timeout_s
        )
        self._rest = b""
        channel = self._channel
        channel.in_buffer.set_event(_Wake(loop, lambda: self._read(channel)))  # type: ignore[arg-type]
        try:
            before = time.monotonic_ns()
            values = await self.ask("hello", timeout_s=timeout_s)
            after = time.monotonic_ns()
        except Unreachable:
            return Hello(self.host.name)
        if values.get("version") != VERSION:
            return Hello(self.host.name)  # of another release: provisioning replaces it
        same = values.get("boot_id") == boot_id()
        self.offset_ns = 0 if same else values["t_ns"] - (before + after) // 2
        await self.ask("watch", timeout_s=timeout_s)
        return hello_of(values, same)

    async def ask(self, op: str, *, timeout_s: float = 5.0, **fields: Any) -> dict[str, Any]:
        """Send one request and return the answer.

        Raises: Unreachable, TimedOut; Refused - the agent refused, in its own words.
        """
        answer = self.send(op, **fields)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise TimedOut(
                f"{self.host.name}: no answer to {op} after {timeout_s:g} s", hint="testbed doctor"
            ) from None

    def send(self, op: str, **fields: Any) -> asyncio.Future[dict[str, Any]]:
        """Send one request now; the future gets the answer."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        channel = self._channel
        if channel is None or channel.closed:
            future.set_exception(
                Unreachable(f"{self.host.name}: no channel to its agent", hint="testbed status")
            )
            future.exception()  # as in `_detach`: who asked may be cancelled before he looks
            return future
        self._last_id += 1
        self._waiting[self._last_id] = future
        try:
            channel.sendall(
                json.dumps(
                    {"id": self._last_id, "op": op, **fields}, separators=(",", ":")
                ).encode()
                + b"\n"
            )
        except OSError as error:
            self._lost(str(error) or "closed")
        return future

    def _read(self, channel: paramiko.Channel) -> None:
        if channel is not self._channel:
            return
        while channel.recv_ready():
            *lines, self._rest = (self._rest + channel.recv(1 << 18)).split(b"\n")
            for line in lines:
                self._line(line)
        if channel.closed or channel.eof_received:
            self._lost(self._last_lines(channel))

    def _line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if "event" in message:
                at = (
                    message.get("t_commit_ns")
                    or message.get("t_ns")
                    or time.monotonic_ns() + self.offset_ns
                )
                self._on_event(self.host.name, message.pop("event"), at - self.offset_ns, message)
                return
            future = self._waiting.pop(message["id"], None)
            if future is None or future.done():
                return
            if message["ok"]:
                future.set_result(message)
            else:
                future.set_exception(refusal(self.host.name, message))
        except (ValueError, KeyError, TypeError):
            self._lost("garbled", Garbled(f"{self.host.name}: its agent wrote {line[:200]!r}"))

    def _last_lines(self, channel: paramiko.Channel) -> str:
        text = (
            channel.recv_stderr(4096).decode(errors="replace").strip()
            if channel.recv_stderr_ready()
            else ""
        )
        return text.splitlines()[-1] if text else "closed by the other side"

    def _lost(self, why: str, error: TestbedError | None = None) -> None:
        if self._channel is None:
            return
        self._detach(why, error)
        self._on_event(self.host.name, "lost", time.monotonic_ns(), {"error": why})

    def _detach(self, why: str, error: TestbedError | None = None) -> None:
        channel, self._channel = self._channel, None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(
                    error
                    or Unreachable(f"{self.host.name}: the channel to its agent is gone: {why}")
                )
                # an awaiting task still gets it; without one asyncio must not warn
                future.exception()
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        """Close the channel and the connection; the agent, its routes and its jobs stay."""
        self._detach("closed here")
        transport, self._transport = self._transport, None
        if transport is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, _hang_up, transport)


def refusal(host: HostName, answer: Mapping[str, Any]) -> TestbedError:
    """The error for a reply that refuses, in the agent's own words: Locked where a newer run holds
    the host.
    """
    text = f"{host}: {answer.get('error')}"
    if answer.get("code") == "overtaken":
        hint = "testbed lock shows who holds the lab, testbed status what is done; if no run does, the newer one used "
        hint += "another store or had a clock ahead of this one: testbed doctor"
        return Locked(text, hint=hint)
    return Refused(text)


def _hang_up(transport: paramiko.Transport) -> None:
    # paramiko's thread looks for the end ten times a second, unless its socket tells it
    with suppress(OSError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()
    transport.join(2.0)


def _open(transport: paramiko.Transport, host: Host, timeout_s: float) -> paramiko.Channel:
    import paramiko

    try:
        channel = transport.open_session(timeout=timeout_s)
        channel.exec_command(ATTACH.format(own_agent(host)))
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Unreachable(f"{host.name}: ssh gives no session: {error}") from None
    return channel


def hello_of(values: Mapping[str, Any], same_clock: bool) -> Hello:
    """Read the reply to `hello`."""
    pending = values.get("pending") or {}
    ports = {
        int(n): PortState(
            p["interface"],
            p["mac"] or "",
            p["eth_mac"],
            bool(p["carrier"]),
            p["ups"] or 0,
            p["mtu"] or 0,
            p.get("speed"),
        )
        for n, p in values["ports"].items()
    }
    return Hello(
        host=values["host"],
        installed=True,
        provision=values["provision"],
        active=values["active"],
        previous=values["previous"],
        staged=tuple(values["staged"]),
        armed=values["armed"],
        pending_s=pending.get("in_s"),
        pending_to=pending.get("to"),
        ports=ports,
        same_clock=same_clock,
        token=values.get("token", 0),
        job_user=bool(values.get("job_user", True)),
    )
