"""What packet switches give a job: allocated before its ranks start, leased while it runs, given
back when it has ended.

A lease is renewed by a process of its own (leases.py) that needs nothing but what it is given. If
it dies, who looks at the job next starts another (`tend`). If nobody does, as where this machine
died, the lease ends by itself, the ranks miss their sums, and end as if a peer were lost.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import optical_testbed_home
from drivers.functions import SIZES, FunctionSwitch
from extensions.switch_functions.counted import ENDED, Asked, counted
from extensions.switch_functions.leases import LEASE_S, RENEW_S
from extensions.switch_functions.plan import Function, PlannedFunctions
from optics import HostName, Infeasible, Interlock, Missing, Refused, StoreFailed, TestbedError
from optics.leases import FunctionUse, Lease
from optics.plain import printable
from optics.plan import Job
from optics.ranks import host_of_rank
from orchestrator.files.fields import of_fields
from orchestrator.hosts import job_name
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.segments import Segment
from orchestrator.jobs.attachments import Attachment, Figures, Given, Inspection, Launch
from orchestrator.processes import Daemon, process_alive

FIRST_LEASE_S = 10.0
"""An allocation whose answer was lost is back after this long (s)."""
IN_PROGRESS_BYTES = 128 * 1024
"""What a rank may have on its way: all of it may come back at once, while it computes, and the
kernel's buffer for a socket without privileges (net.core.rmem_max, 212 992) must hold it. A cable's
queue in the emulated lab is four times as large."""
HEADERS = 74
"""Bytes of headers of a packet (docs/reference/functions-dialect.md)."""

END_S = 1.0
"""So long (s) whoever renews a lease is waited for."""
UNRENEWED_S = LEASE_S - 2 * RENEW_S
"""Of a lease with less than this left (s), two renewals have not come."""


def wanted(function: Function, lab: Lab) -> int:
    """How many slots or entries a job asks for: of slots its part, as many as do not fill a buffer;
    half of the entries.
    """
    offer = lab.segments[function.segment].functions[function.name]
    if function.name == "cache":
        return max(1, offer["entries"] // 2)
    return max(
        1,
        min(offer["slots"] // offer["jobs"], IN_PROGRESS_BYTES // (offer["slot_bytes"] + HEADERS)),
    )


async def check(
    functions: Sequence[Function], job: Job, lab: Lab, leases: Sequence[Lease] = ()
) -> None:
    """See that the switches have room for the job, once these leases are given back; nothing is
    changed.

    Raises: Missing - as `take`. Interlock - another's switch answers. Infeasible - not so much is
    free. Unreachable, TimedOut, Garbled.
    """
    held = {(lease.segment, lease.function): lease.size for lease in leases}
    for function in functions:
        at = _switch(function, job, lab)
        switch = FunctionSwitch(at.name, at.address)
        try:
            about, allocations = await switch.capabilities(), await switch.counters()
        except TestbedError as error:
            error.hint = (
                error.hint
                or f"is the packet switch of {at.name} there? or a plan that does without: exchange wires"
            )
            raise
        finally:
            await switch.close()
        if about.segment != at.name:
            raise Interlock(
                f"segment {at.name}: what answers at {at.address} is the packet switch of segment {about.segment}",
                hint="correct the address in fibres.yml",
            )
        size, key = wanted(function, lab), SIZES[function.name][0]
        offer = about.functions.get(function.name, {})
        own = held.get((at.name, function.name), 0)
        free = offer.get(f"free_{key}", 0) + own
        full = function.name == "aggregate" and not offer.get("free_jobs") and not own
        if free < size or full:
            others = (
                f"{each.get('job')} ({each.get(key)})"
                for each in allocations
                if each.get("function") == function.name
            )
            raise Infeasible(
                f"segment {at.name}: {function.name} for {job.name} needs {size} {key}; {free} are free"
                + (", and no job more may have some" if full else ""),
                hint=f"they are with {printable(', '.join(others), keep='')[:300]}, until these jobs end",
            )


async def take(functions: Sequence[Function], job: Job, lab: Lab, run: str) -> tuple[Lease, ...]:
    """Allocate what the job's plan names, for FIRST_LEASE_S: record it, then `keep` it.

    Raises: Missing - the inventory, which may be another than at the job's last start, lacks some
    of it. Refused, Unreachable, TimedOut, Garbled. Nothing is kept then.
    """
    taken: list[Lease] = []
    name = job_name(job.name, run)[-64:].lstrip("._-")
    workers = [lab.hosts[host].lane_address(0) for host in map(host_of_rank, job.ranks)]
    try:
        for function in functions:
            at = _switch(function, job, lab)
            switch = FunctionSwitch(at.name, at.address)
            try:
                made = await switch.allocate(
                    function.name, name, workers, wanted(function, lab), FIRST_LEASE_S
                )
            finally:
                await switch.close()
            notices = (made.number, made.token, made.address, made.port, made.size, made.each_bytes)
            taken.append(Lease(function.name, at.name, at.address, *notices))
    except BaseException:
        await give_back(taken)
        raise
    return tuple(taken)


def _switch(function: Function, job: Job, lab: Lab) -> Segment:
    """The segment whose switch has the function, at which all hosts of the job are. Raises:
    Missing.
    """
    at = lab.segments.get(function.segment)
    if at is None or function.name not in at.functions:
        text = (
            "no such segment is" if at is None else f"its switch cannot {function.name}, by what is"
        )
    elif away := [host for host in job.hosts if host not in at.ports]:
        text = f"{away[0]} of job {job.name} is not at it, by what is"
    else:
        return at
    raise Missing(
        f"segment {function.segment}: {text} in fibres.yml",
        hint="testbed up, with a plan that fits the inventory",
    )


def keep(leases: Sequence[Lease]) -> Daemon:
    """Start the process that renews these leases until they are given back. Raises: Refused - it
    cannot be started.
    """
    command = [sys.executable, "-P", "-m", "extensions.switch_functions.leases"]
    environment = optical_testbed_home.environment()
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
        assert process.stdin is not None
        # not on the command line, which every user of this machine may read
        with process.stdin as notified:
            notified.write(json.dumps([asdict(lease) for lease in leases]).encode())
    except OSError as error:
        raise Refused(
            f"the process that renews leases of packet switches cannot be started: {error}"
        ) from error
    return Daemon.detach(process)


async def give_back(leases: Sequence[Lease], keeper: Daemon | None = None) -> None:
    """Release allocations, and end who renews them; those of a switch that does not answer then end
    by themselves.

    Somebody else's process is left alone: it ends once the switch does not know the leases, or has
    had no packet for its IDLE_S.
    """
    for lease in leases:
        switch = FunctionSwitch(lease.segment, lease.control)
        with suppress(TestbedError):
            await switch.release(lease.allocation, lease.token)
        await switch.close()
    if keeper is not None:
        with suppress(PermissionError):
            keeper.end(END_S)


class FunctionsOfJob(Attachment[tuple[Function, ...]]):
    """The leases are taken before the job is recorded, for a moment; then a process of their own
    renews them.
    """

    key = PlannedFunctions.key

    async def check(
        self, value: tuple[Function, ...], job: Job, lab: Lab, held: Given | None
    ) -> None:
        await check(value, job, lab, leases_of(held or {}))

    async def reserve(self, value: tuple[Function, ...], job: Job, lab: Lab, run: str) -> Given:
        return _given(await take(value, job, lab, run))

    async def begin(self, value: tuple[Function, ...], given: Given, launch: Launch) -> Given:
        """Only now that they are recorded: of a process that was killed before, they end soon."""
        return _given(leases_of(given), keep(leases_of(given)))

    def extra(
        self, value: object, given: Given, lab: Lab, host: HostName
    ) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """What ranks are given (workloads/host/grants.py reads it): also by which interface their
        host reaches the switches.
        """
        found = {}
        for lease in leases_of(given):
            segment = lab.segments[lease.segment]
            port = {**segment.ports, **segment.partitions}[host]
            keys = ("allocation", "token", "address", "port", "size", "each_bytes")
            found[lease.function] = {key: getattr(lease, key) for key in keys}
            found[lease.function]["device"] = lab.hosts[host].ports[port.number].interface
        return (
            {"TESTBED_FUNCTIONS": json.dumps(found, separators=(",", ":"))} if found else {}
        ), {}

    def neglected(self, given: Given) -> bool:
        """The process on this machine that renews the leases is gone; one on another machine looks
        gone too.
        """
        keeper = keeper_of(given)
        return keeper is not None and not process_alive(keeper.pid, keeper.mark)

    async def tend(self, given: Given, look: Inspection) -> Sequence[str]:
        """If nobody renews the leases any more, this starts who does. Returns the uses that have
        ended, in words.
        """
        found = []
        for lease in leases_of(given):
            reported = await _asked(look.asked).uses(lease.segment, lease.control)
            own = [each for each in reported if each.error or each.allocation == lease.allocation]
            ended = FunctionUse(lease.segment, lease.function, error=ENDED)
            found.append(replace(own[0], function=lease.function) if own else ended)
        if self.neglected(given) and any(
            not use.error and use.lease_left_s < UNRENEWED_S for use in found
        ):
            now = look.store.job(look.record.id)
            if now is not None and now.ended is None:
                kept = _given(leases_of(given), keep(leases_of(given)))
                look.store.set_job_spec(
                    now.id, replace(now.spec, given={**now.spec.given, self.key: kept})
                )
        return [str(use) for use in found if use.error]

    async def status(self, value: object, given: Given, look: Inspection) -> Sequence[Figures]:
        """None once the job has ended."""
        if look.record.ended is not None or not look.alive:
            return ()
        lab, asked = look.session.lab, _asked(look.asked)
        return [
            await counted(lease, look.record, lab, look.run_dir, asked)
            for lease in leases_of(given)
        ]

    async def release(self, given: Given) -> None:
        await give_back(leases_of(given), keeper_of(given))

    def trouble(self, job: str, found: Figures) -> str:
        return f"job {job} waits for {found['missing']}; it ends within a minute or so, then: testbed up"

    async def elsewhere(
        self, lab: Lab, own: Sequence[Figures], asked: dict[object, Any]
    ) -> Sequence[str]:
        """What others have of the functions of the lab's packet switches, and which switches do not
        answer.
        """
        ours = {(each["segment"], each["allocation"]) for each in own}
        able = [segment for segment in lab.segments.values() if segment.functions]
        uses = await asyncio.gather(*(_asked(asked).uses(each.name, each.address) for each in able))
        return [
            f"function {use}"
            for reported in uses
            for use in reported
            if (use.segment, use.allocation) not in ours
        ]


def _given(leases: Sequence[Lease], keeper: Daemon | None = None) -> Given:
    return {
        "leases": [asdict(lease) for lease in leases],
        "keeper": asdict(keeper) if keeper is not None else None,
    }


def leases_of(given: Given) -> tuple[Lease, ...]:
    """What packet switches gave the job. Raises: StoreFailed - it is not what this version
    writes.
    """
    try:
        return tuple(of_fields(Lease, lease) for lease in given.get("leases", ()))
    except (AttributeError, TypeError) as error:
        raise StoreFailed(
            f"the store has leases that this version cannot read: {error}", hint="testbed doctor"
        ) from error


def keeper_of(given: Given) -> Daemon | None:
    """The process that renews the leases, on the machine that started it."""
    return of_fields(Daemon, given["keeper"]) if given.get("keeper") else None


def _asked(asked: dict[object, Any]) -> Asked:
    found: Asked = asked.setdefault(Asked, Asked())
    return found


ATTACHMENT = FunctionsOfJob()
