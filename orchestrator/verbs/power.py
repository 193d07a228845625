"""`testbed host power`: what a host's BMC says, and the power cycle of a host that is dead.

Only when somebody asks: no service and no other verb calls this. A host that answers is refused,
since its own shutdown is the gentler way and loses less; so is one in a place that is tagged out or
in another owner's plan.
"""

from __future__ import annotations

import asyncio
import errno
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from optics import HostName, HostPort, Missing, Refused, TestbedError, TimedOut, Unreachable, Usage
from optics.errors import Interlock
from orchestrator.change.interlock import Moves, tagged
from orchestrator.change.locking import holding, plan_hosts
from orchestrator.credentials import bmc_password
from orchestrator.deadline import Limit, deadline
from orchestrator.hosts import Hello
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.openssh import find_host
from orchestrator.hosts.redfish import CYCLE, ON, PowerState, Redfish
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from orchestrator.results import JsonReport
from orchestrator.session import Command, load_lab
from orchestrator.store.audit import add_audit
from orchestrator.store.keys import key_of, owner_of, tenancy_key, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.runs import job_tenancies
from orchestrator.store.scope import Scope, reachable_scope
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.recorder import Phase, Recorder

VERB = "host power"
ANSWER_S, POLL_S = 10.0, 1.0
"""How long (s) a host may take to send its first byte before it counts as dead, and between two
looks while it boots.
"""
SSHD, KERNEL = "answers", "does not answer, but its kernel does"
SILENCE = {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT}
ENDED = {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE}
"""Errors of a connection: of a host that says nothing, and those that only a living kernel sends. All
others are this machine's: no name, no route, no free descriptor.
"""
SILENT_S, AGENT_S = 60.0, 10.0
"""How long (s) a host that answered may go on to after its reset; how long its agent may take to
start once sshd answers.
"""
BOOT_S = 900.0
"""Most (s) from a reset to sshd; servers with eight GPUs and their memory test take ten minutes
(assumed).
"""


@dataclass(frozen=True, slots=True)
class HostPower(JsonReport):
    """What the BMC of a host says. answers: its sshd does, or its kernel, which refuses or ends the
    connection.

    reset, said: what was requested of the BMC, and its answer; run: whose journal has it. boot_s:
    from the reset until sshd answered. agent: whether it answers now; None: not asked. plan: the
    owner's plan that the host is part of.
    """

    lab: str
    host: HostName
    bmc: str
    power: str
    health: str
    model: str
    answers: bool
    reset: str = ""
    said: str = ""
    run: str = ""
    boot_s: float | None = None
    agent: bool | None = None
    plan: str = ""


async def host_power(command: Command, name: HostName) -> HostPower:
    """Ask the BMC of a host, and whether the host answers; nothing is changed.

    Raises: Missing - no such host, or it has no BMC. Unreachable, TimedOut, Garbled, Refused - of
    the BMC. Unreachable - this machine cannot ask the host itself.
    """
    lab = load_lab(command.inventory)
    host = _managed(lab, name)
    async with deadline(command.timeout_s, VERB), _opened(host) as bmc:
        sign, state = await _sign(host, ANSWER_S), await bmc.read()
        return _report(lab, host, state, answers=bool(sign))


async def host_reset(
    command: Command, name: HostName, *, cycle: bool, force: bool = False, reason: str = ""
) -> HostPower:
    """Have the BMC of a host power-cycle it (one that is off: switch it on), or only switch it on;
    wait until it answers.

    force: also if it answers. Raises: as `host_power`. Locked - another run or owner has the host
    or its ports. Interlock - a tag-out, another owner's plan, or a BMC of another host. Refused -
    it answers, or is on already. TimedOut - it does not answer after its reset. Usage - it is a
    partition.
    """
    lab, settings, store = load_lab(command.inventory), command.settings, command.store
    host, what = _managed(lab, name), "power cycle" if cycle else "power on"
    if host.name != name:
        raise Usage(
            f"{name} is a partition of {host.name}, and its power is that of all of {host.name}",
            hint=f"testbed host power {host.name}",
        )
    firm = settings.origins.get("timeout", "default") != "default"
    async with holding(lab, command, _scope(lab, host), VERB, host.name) as lock:
        _refuse_others(command, lab, host)
        run = store.new_run(
            VERB,
            key_of(lab),
            inventory=command.inventory,
            user=settings.user,
            owner=settings.owner,
        )
        run.unchanged = True
        lock.bind(run)
        with run, Journal(settings.run_dir(run.id), run.id, lab.name) as journal:
            recorder = Recorder(command.progress, journal)
            async with deadline(command.timeout_s, VERB, firm=firm) as limit, _opened(host) as bmc:
                with recorder.phase("observe") as phase:
                    sign, state = await _sign(host, ANSWER_S), await bmc.read()
                    # a BMC may take its time: what forbids a reset is looked at after it
                    sign = sign or await _sign(host, ANSWER_S)
                    said = sign or "does not answer"
                    phase.detail = f"{host.name} is {state.power.lower()} and {said}"
                _refuse_others(command, lab, host)
                wanted = _wanted(host.name, state, sign, cycle=cycle, force=force)
                found = f"{phase.detail}{', forced' if force else ''}{reason and f': {reason}'}"

                def audited(what: str, why: str) -> None:
                    with store.transaction() as db:
                        add_audit(db, key_of(lab), who(settings), time.time(), what, host.name, why)

                audited(what, f"{found}; run {run.id}")
                with (
                    recorder.phase("power", what) as phase,
                    run.step("host", host.name, what, {"found": found}) as step,
                ):
                    run.unchanged = False
                    try:
                        kind, said = await bmc.reset(state, wanted)
                    except TestbedError as error:
                        audited(f"{what} refused", f"run {run.id}: {error}")
                        raise
                    audited(f"{what} sent", f"run {run.id}: {kind}: {said}")
                    step.result({"reset": kind, "said": said})
                    phase.detail = f"{kind}: {said}"
                if not firm:
                    limit.grant(BOOT_S + SILENT_S + AGENT_S)
                with recorder.phase("boot") as phase:
                    boot_s = await _back(host, command, phase, limit, answered=sign == SSHD)
                    phase.detail = f"{host.name} answers"
                    agent = await _agent(lab, host.name)
                state = replace(state, power="On")
                assert host.bmc is not None
                # the host is back, whatever its BMC does now
                with suppress(TestbedError, TimeoutError):
                    async with asyncio.timeout(host.bmc.timeout_s):
                        state = await bmc.read()
            done = _report(lab, host, state, answers=True)
            phases = {phase.name: phase.seconds for phase in recorder.phases}
            run.finish("ok", message=f"{host.name}: {found}", summary={"phases": phases})
            plan = store.current(tenancy_of(lab, settings))
            here = plan is not None and _uses(store, tenancy_of(lab, settings), lab, host)
            name_of = plan.plan_name if plan is not None and here else ""
            return replace(
                done,
                reset=kind,
                said=said,
                run=run.id,
                boot_s=boot_s,
                agent=agent,
                plan=name_of,
            )


def _managed(lab: Lab, name: HostName) -> Host:
    """The whole host of this name. Raises: Missing - there is none, or it has no BMC."""
    found = find_host(name, dict(lab.hosts))
    if found.bmc is None:
        raise Missing(
            f"{name} has no testbed_bmc in hosts.yml",
            hint="docs/how-to/when-something-fails.md has an example",
        )
    return found.whole or found


@asynccontextmanager
async def _opened(host: Host) -> AsyncIterator[Redfish]:
    """The BMC of a managed host. Raises: Missing, BadFile - its password cannot be had."""
    assert host.bmc is not None
    bmc = Redfish(host.name, host.bmc, bmc_password(host))
    try:
        yield bmc
    finally:
        await bmc.close()


async def _sign(host: Host, within_s: float) -> str:
    """What of the host answers at its SSH port: SSHD, KERNEL, or empty, nothing. No login, which an
    unknown host key would fail; any byte counts, since an sshd may send other lines before its
    banner (RFC 4253, 4.2).

    Raises: Unreachable - this machine cannot ask.
    """
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host.ssh.address, host.ssh.port)
            try:
                return SSHD if await reader.read(1) else KERNEL
            finally:
                writer.close()
    except TimeoutError:
        return ""
    except OSError as error:
        # a name of several addresses: one error with the text of each
        met = {error.errno, *map(int, re.findall(r"\[Errno (-?\d+)\]", str(error)))}
        if met & ENDED:
            return KERNEL
        if met & SILENCE:
            return ""
        at = f"{host.ssh.address} port {host.ssh.port}"
        raise Unreachable(
            f"this machine cannot ask whether {host.name} answers ({at}): {error}",
            hint="check the name, the route and the limits of this machine, then repeat",
        ) from error


def _report(lab: Lab, host: Host, state: PowerState, *, answers: bool) -> HostPower:
    assert host.bmc is not None
    address = host.bmc.address
    return HostPower(lab.name, host.name, address, state.power, state.health, state.model, answers)


def _scope(lab: Lab, host: Host) -> Scope:
    """The host, its partitions and its ports. A reset writes no optical device, so none is locked
    whole.
    """
    return replace(reachable_scope(lab, [host.name]), devices=frozenset())


def _names(lab: Lab, host: Host) -> frozenset[HostName]:
    """The host and its partitions."""
    return frozenset(name for name, each in lab.hosts.items() if each.machine == host.name)


def _refuse_others(command: Command, lab: Lab, host: Host) -> None:
    """Raises: Interlock - the host or a place of it is tagged out, or another owner uses it."""
    settings, store, key = command.settings, command.store, key_of(lab)
    names = _names(lab, host)
    at = frozenset(HostPort(name, port) for name in names for port in lab.hosts[name].ports)
    fibres = (fibre for port, fibre in lab.fibres.items() if port in at)
    ports = frozenset(port for fibre in fibres for port in (fibre.enters, fibre.leaves))
    tags = Tagouts(store, key, who(settings)).listed()
    # a host without a cabled port is no place of light
    itself = [str(tag) for tag in tags if tag.subject.partition(":")[0] in names]
    if lines := dict.fromkeys((*itself, *tagged(Moves(ports, at, (), ()), tags, lab))):
        raise Interlock("\n".join(lines), hint="ask who tagged it out: testbed tagout list")
    mine, plans = tenancy_of(lab, settings), store.currents(key)
    for each in sorted({tenancy_key(key, owner) for owner in plans} | job_tenancies(store, key)):
        owner = owner_of(each)
        if each != mine and (use := _uses(store, each, lab, host)):
            raise Interlock(
                f"{host.name} is part of {use} of {owner}",
                hint=f"ask {owner}, or add: --as {owner}",
            )


def _uses(store: Store, tenancy: str, lab: Lab, host: Host) -> str:
    """The plan, or else the running job, of this tenancy that uses the host; empty: none does."""
    names, plan, job = _names(lab, host), store.current(tenancy), store.latest_job(tenancy)
    if plan is not None:
        hosts = {port.host for link in plan.up.links for port in (link.a, link.b)}
        with suppress(TestbedError):  # the inventory changed since: what is up counts
            hosts |= plan_hosts(read_plan(plan.plan_text, plan.plan_name, lab))
        if hosts & names:
            return f"{plan.plan_name}, the plan"
    if job is not None and job.ended is None and names & {*job.spec.wanted.needed}:
        return f"{job.name}, the running job"
    return ""


def _wanted(
    name: HostName, state: PowerState, sign: str, *, cycle: bool, force: bool
) -> tuple[str, ...]:
    """The resets that do what is asked. Raises: Interlock, Refused."""
    if sign == SSHD and state.power == "Off":
        raise Interlock(
            f"{name} answers, although its BMC says that it is off: it is the BMC of another host",
            hint="correct testbed_bmc in hosts.yml",
        )
    if state.power == "On" and not cycle:
        raise Refused(
            f"{name} is on already, says its BMC; nothing was changed",
            hint=f"testbed host power {name} --cycle",
        )
    if sign and not force:
        gentler = f"testbed host exec {name} -- reboot" if sign == SSHD else "look at its console"
        raise Refused(
            f"{name} {sign}, so nothing was changed: what runs there would be lost",
            hint=f'{gentler}, or add: --force --reason "..."',
        )
    return CYCLE if cycle and state.power != "Off" else ON


async def _back(
    host: Host, command: Command, phase: Phase, limit: Limit, *, answered: bool
) -> float:
    """Wait until the host answers; return how long that took (s). answered: it did before its
    reset, and must fall silent first.

    Raises: TimedOut.
    """
    began = time.monotonic()
    end = began + max(0.0, min(BOOT_S, limit.left_s - POLL_S))
    silent = not answered
    while True:
        took_s = time.monotonic() - began
        left_s = max(POLL_S, end - time.monotonic())
        now = False
        with suppress(Unreachable):  # a passing fault of this machine: asked again
            now = await _sign(host, min(ANSWER_S, left_s)) == SSHD
        if now and silent:
            return took_s
        silent = silent or not now
        if now and took_s > SILENT_S:
            raise TimedOut(
                f"{host.name} went on to answer for {took_s:.0f} s after the reset was sent to its BMC",
                hint=f"is it the BMC of {host.name}? testbed host power {host.name}",
            )
        if time.monotonic() >= end:
            raise TimedOut(
                f"{host.name} does not answer {took_s:.0f} s after its reset",
                hint=f"it may still boot: testbed host power {host.name}; else look at its console",
            )
        phase.detail = f"{host.name} boots"
        command.progress.update("boot", 0, 0, phase.detail)
        await asyncio.sleep(POLL_S)


async def _agent(lab: Lab, name: HostName) -> bool:
    """Whether the host's agent runs, AGENT_S after its sshd answered at the latest."""
    channels = Channels(lab)
    try:
        end = time.monotonic() + AGENT_S
        while True:
            found = (await channels.connect([name]))[name]
            if isinstance(found, Hello) and found.installed:
                return True
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(POLL_S)
    finally:
        await channels.close()
