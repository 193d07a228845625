"""Carries out the faults of hosts and links when they are due, and undoes them; keeps the log of
what was done to the lab.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from typing import cast

from emulators.fabric.fibre_plant import HostPort
from emulators.lab.hostfaults import (
    AT_SWITCHES,
    Effects,
    Event,
    HostFaults,
    effects,
    host_fault,
    switch_ports,
)
from emulators.lab.running import Lab, log

LOG_ENTRIES = 10_000
NOTHING = Effects({}, {}, frozenset(), {}, {}, {}, {})


class Injector:
    """The faults of the hosts and links of `lab`, and the log."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._faults = HostFaults(lab.config)
        self._done = NOTHING
        self._downed: set[HostPort] = set()  # links that were up before faults took them down
        # fault hang-rank -> host, numbers of the stopped programs there
        self._held: dict[int, tuple[str, list[int]]] = {}
        self._begun: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.log: deque[dict[str, object]] = deque(maxlen=LOG_ENTRIES)

    def add(self, host: str, kind: str, values: Mapping[str, object]) -> int:
        """Arm a fault; return its number. Raises: ValueError - it cannot be. OSError - it was due,
        and the machine failed us.
        """
        made = host_fault(kind, host, self._lab.config, **values)
        if not self._lab.hosts:
            raise ValueError(f"no running host {host}")
        number = self._faults.add(host, made, self._now())
        try:
            self._advance(ordered=number)
        except (ValueError, OSError):
            self.remove(number)
            raise
        return number

    def remove(self, number: int, host: str | None = None) -> None:
        """Disarm a fault and undo it. Raises: ValueError - there is no such fault of `host`.
        OSError - it is not undone.
        """
        if not self._lab.hosts:
            raise ValueError(f"no running host {host}")
        known = self._faults.listed()
        if not any(
            fault["number"] == number
            for at, found in known.items()
            if host in (None, at)
            for fault in found
        ):
            place = ", ".join(str(fault["number"]) for fault in known.get(host or "", ()))
            raise ValueError(
                f"no fault {number} of {host}; there {'are ' + place if place else 'is none'}"
            )
        for event in self._faults.remove(number):
            self._carry_out(event)
        self._settle()
        self._rearm()

    def listed(self) -> dict[str, list[dict[str, object]]]:
        """Return every fault by host."""
        return self._faults.listed()

    def note(self, event: str, values: Mapping[str, object]) -> None:
        """Add an entry to the log."""
        self.log.append({**values, "t_wall_ns": time.time_ns(), "event": event})

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _advance(self, ordered: int = 0) -> None:
        """Carry out what is due. Only what was `ordered` just now raises what goes wrong; else it
        is noted.
        """
        failed: Exception | None = None
        for event in self._faults.advance(self._now()):
            try:
                self._carry_out(event)
            except (ValueError, OSError) as problem:
                if event.number == ordered:
                    failed = problem
                else:
                    self._missed(event.number, event.host, problem)
        try:
            self._settle()
        finally:
            self._rearm()
        if failed is not None:
            raise failed

    def _due(self) -> None:
        try:
            self._advance()
        except OSError as problem:
            self._missed(0, "", problem)

    def _missed(self, number: int, host: str, problem: Exception) -> None:
        self.note("missed", {"host": host, "number": number, "why": str(problem)})
        log(f"fault {number} of {host}: {problem}")

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        next_s = self._faults.next_s
        self._timer = (
            asyncio.get_running_loop().call_at(next_s, self._due) if next_s < float("inf") else None
        )

    def _carry_out(self, event: Event) -> None:
        """Do what happens once as a fault begins or ends; what lasts is settled afterwards."""
        fault, host = event.fault, self._lab.hosts.get(event.host)
        texts = fault.reported()
        if (
            event.begins
            and fault.kind not in AT_SWITCHES | {"storm"}
            and (host is None or not host.pid)
        ):
            raise ValueError(f"no running host {event.host}")
        if fault.kind == "tor":
            texts["switch"] = switch_ports(self._lab.config, event.host, fault.port)[0]
        match fault.kind:
            case "hang-rank" if event.begins:
                self._held[event.number] = (
                    event.host,
                    self._strike(event.host, "SIGSTOP", fault.rank),
                )
                self._burden(event.host)
            case "kill-rank":
                self._strike(event.host, "SIGKILL", fault.rank)
            case "function-restart" if event.begins:
                self._lab.functions[event.host].order(do="restart")
            case "host-down" if host is not None:
                os.kill(host.pid, signal.SIGKILL)
            case "host-hang" if host is not None:
                self._lab.machines[event.host].hang()
            case "hang-rank":
                self._release(event.number)
        if event.begins or event.number in self._begun:
            self.note(
                "begin" if event.begins else "end",
                {"host": event.host, "number": event.number, **texts},
            )
        (self._begun.add if event.begins else self._begun.discard)(event.number)

    def _strike(self, host: str, name: str, rank: int) -> list[int]:
        """Send a signal to a rank; return the numbers of its programs."""
        struck = cast(
            "list[int]", self._lab.hosts[host].order(do="signal", name=name, rank=rank)["pids"]
        )
        if not struck:
            raise ValueError(
                f"no rank {rank} of a job runs on {host}: start one (testbed job status shows its ranks)"
            )
        return struck

    def _release(self, number: int) -> None:
        """Continue the programs that fault `number` stopped, but for those that another one
        holds.
        """
        if number not in self._held:
            return
        host, pids = self._held.pop(number)
        held = self._sparing(host)
        if self._lab.hosts[host].running:
            self._lab.hosts[host].order(
                do="signal", name="SIGCONT", pids=[pid for pid in pids if pid not in held]
            )
            self._burden(host)

    def _sparing(self, host: str) -> list[int]:
        return sorted({pid for at, pids in self._held.values() if at == host for pid in pids})

    def _burden(self, host: str) -> None:
        """Start the host's hog again: it leaves alone what is held, which it would set free when it
        continues the others.
        """
        if threads := self._done.threads.get(host, 0):
            self._lab.hosts[host].order(do="hog", threads=threads, sparing=self._sparing(host))

    def _settle(self) -> None:
        """Make the lab agree with the faults in force. Raises: OSError - the kernel refuses; what
        can be done is done.
        """
        before, self._done = self._done, effects(self._faults.active(), self._lab.config)
        for port in sorted(before.down - self._done.down):
            if port in self._downed:
                self._downed.discard(port)
                self._lab.kill(port, False)
        for port in sorted(self._done.down - before.down):
            if not self._lab.down(port):
                self._downed.add(port)
                self._lab.kill(port, True)
        for name in sorted(
            {*before.threads, *self._done.threads, *before.clocks, *self._done.clocks}
        ):
            if not self._lab.hosts[name].running:
                continue
            if before.threads.get(name) != (threads := self._done.threads.get(name)):
                self._lab.hosts[name].order(
                    do="hog", threads=threads or 0, sparing=self._sparing(name)
                )
            if before.clocks.get(name) != (clock := self._done.clocks.get(name)):
                ahead_s, rate = clock or (0.0, 0.0)
                self._lab.hosts[name].order(do="clock", ahead_s=ahead_s, rate=rate)
        for port in sorted({*before.rdma, *self._done.rdma}):
            kinds, host = self._done.rdma.get(port, frozenset()), self._lab.hosts[port.host]
            if kinds != before.rdma.get(port, frozenset()) and host.running:
                host.order(do="rdma", port=port.port, kinds=sorted(kinds))
        for name in sorted({*before.functions, *self._done.functions}):
            if (
                before.functions.get(name) != (share := self._done.functions.get(name))
                and self._lab.functions[name].pid
            ):
                self._lab.functions[name].order(do="loss", share=share or 0.0)
        if self._lab.fabric is not None:
            self._lab.fabric.impair(self._done.rates, self._done.losses)
