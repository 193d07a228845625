"""`testbed host power`: what a host's BMC says, and the power cycle of a host that is dead.

Only when somebody asks: no service and no other verb calls this. A host that answers is refused,
since its own shutdown is the gentler way and loses less; so is one in a place that is tagged out or
in another owner's plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from optics import HostName, HostPort, Missing, Refused, TestbedError, TimedOut
from optics.errors import Interlock
from orchestrator.change.interlock import Moves, tagged
from orchestrator.change.locking import holding
from orchestrator.credentials import bmc_password
from orchestrator.deadline import Limit, deadline
from orchestrator.hosts import Hello
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.openssh import find_host
from orchestrator.hosts.redfish import CYCLE, ON, PowerState, Redfish
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab
from orchestrator.results import JsonReport
from orchestrator.session import Command, load_lab
from orchestrator.store.audit import add_audit
from orchestrator.store.keys import key_of, owner_of, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.records import CurrentPlan
from orchestrator.store.scope import reachable_scope
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.recorder import Phase, Recorder

VERB = "host power"
ANSWER_S, POLL_S = 10.0, 1.0
"""How long (s) a host may take to show the banner of its sshd before it counts as dead, and between
two looks while it boots.
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
    """What the BMC of a host says. answers: its sshd does.

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
    the BMC.
    """
    lab = load_lab(command.inventory)
    host = _managed(lab, name)
    async with deadline(command.timeout_s, VERB), _opened(host) as bmc:
        state, answers = await _asked(host, bmc)
        return _report(lab, host, state, answers=answers)


async def host_reset(
    command: Command, name: HostName, *, cycle: bool, force: bool = False, reason: str = ""
) -> HostPower:
    """Have the BMC of a host power-cycle it (one that is off: switch it on), or only switch it on;
    wait until it answers.

    force: also if it answers. Raises: as `host_power`. Locked - another run or owner has the host
    or its ports. Interlock - a tag-out, another owner's plan, or a BMC of another host. Refused -
    it answers, or is on already. TimedOut - it does not answer after its reset.
    """
    lab, settings, store = load_lab(command.inventory), command.settings, command.store
    host, what = _managed(lab, name), "power cycle" if cycle else "power on"
    firm = settings.origins.get("timeout", "default") != "default"
    async with holding(lab, command, reachable_scope(lab, [host.name]), VERB, host.name) as lock:
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
                    state, answers = await _asked(host, bmc)
                    phase.detail = f"{host.name} is {state.power.lower()}" + (
                        " and answers" if answers else " and does not answer"
                    )
                wanted = _wanted(host.name, state, answers, cycle=cycle, force=force)
                found = f"{phase.detail}{', forced' if force else ''}{reason and f': {reason}'}"
                with store.transaction() as db:
                    text = f"{found}; run {run.id}"
                    add_audit(db, key_of(lab), who(settings), time.time(), what, host.name, text)
                with (
                    recorder.phase("power", what) as phase,
                    run.step("host", host.name, what, {"found": found}) as step,
                ):
                    run.unchanged = False
                    kind, said = await bmc.reset(state, wanted)
                    step.result({"reset": kind, "said": said})
                    phase.detail = f"{kind}: {said}"
                if not firm:
                    limit.grant(BOOT_S + SILENT_S + AGENT_S)
                with recorder.phase("boot") as phase:
                    boot_s = await _back(host, command, phase, limit, answered=answers)
                    phase.detail = f"{host.name} answers"
                    agent = await _agent(lab, host.name)
                state = replace(state, power="On")
                with suppress(TestbedError):  # the host is back, whatever its BMC does now
                    state = await bmc.read()
            done = _report(lab, host, state, answers=True)
            phases = {phase.name: phase.seconds for phase in recorder.phases}
            run.finish("ok", message=f"{host.name}: {found}", summary={"phases": phases})
            plan = store.current(tenancy_of(lab, settings))
            name_of = plan.plan_name if plan is not None and _uses(plan, lab, host) else ""
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


async def _answering(host: Host, within_s: float = ANSWER_S) -> bool:
    """Whether the host's sshd shows its banner; no login, which an unknown host key would fail."""
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host.ssh.address, host.ssh.port)
            try:
                return await reader.readexactly(4) == b"SSH-"
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError):
        return False


async def _asked(host: Host, bmc: Redfish) -> tuple[PowerState, bool]:
    state, answers = await asyncio.gather(bmc.read(), _answering(host))
    return state, answers


def _report(lab: Lab, host: Host, state: PowerState, *, answers: bool) -> HostPower:
    assert host.bmc is not None
    address = host.bmc.address
    return HostPower(lab.name, host.name, address, state.power, state.health, state.model, answers)


def _refuse_others(command: Command, lab: Lab, host: Host) -> None:
    """Raises: Interlock - the host is in a place that is tagged out, or in another owner's plan."""
    settings, store, key = command.settings, command.store, key_of(lab)
    at = frozenset(
        HostPort(name, port)
        for name, each in lab.hosts.items()
        if each.machine == host.name
        for port in each.ports
    )
    fibres = (fibre for port, fibre in lab.fibres.items() if port in at)
    ports = frozenset(port for fibre in fibres for port in (fibre.enters, fibre.leaves))
    tags = Tagouts(store, key, who(settings)).listed()
    if lines := tagged(Moves(ports, at, (), ()), tags, lab):
        raise Interlock("\n".join(lines), hint="ask who tagged it out: testbed tagout list")
    me = owner_of(tenancy_of(lab, settings))
    for owner, plan in store.currents(key).items():
        if owner != me and _uses(plan, lab, host):
            raise Interlock(
                f"{host.name} is part of {plan.plan_name}, the plan of {owner}",
                hint=f"ask {owner}, or add: --as {owner}",
            )


def _uses(plan: CurrentPlan, lab: Lab, host: Host) -> bool:
    ends = {port.host for link in plan.up.links for port in (link.a, link.b)}
    return any(name in lab.hosts and lab.hosts[name].machine == host.name for name in ends)


def _wanted(
    name: HostName, state: PowerState, answers: bool, *, cycle: bool, force: bool
) -> tuple[str, ...]:
    """The resets that do what is asked. Raises: Interlock, Refused."""
    if answers and state.power == "Off":
        raise Interlock(
            f"{name} answers, although its BMC says that it is off: it is the BMC of another host",
            hint="correct testbed_bmc in hosts.yml",
        )
    if state.power == "On" and not cycle:
        raise Refused(
            f"{name} is on already, says its BMC; nothing was changed",
            hint=f"testbed host power {name} --cycle",
        )
    if answers and not force:
        raise Refused(
            f"{name} answers, so nothing was changed: what runs there would be lost",
            hint=f'testbed host exec {name} -- reboot, or add: --force --reason "..."',
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
        now = await _answering(host, min(ANSWER_S, left_s))
        if now and silent:
            return took_s
        silent = silent or not now
        if now and took_s > SILENT_S:
            raise TimedOut(
                f"{host.name} went on to answer for {took_s:.0f} s after its BMC had accepted the reset",
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
