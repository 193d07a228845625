"""What `doctor` asks devices and hosts: who they are, and whether they take the next run. Nothing
is written to any of them.
"""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from optics import BadFile, DeviceName, HostName, Missing
from optics.errors import TestbedError
from optics.plain import counted
from orchestrator.verify.probe import RDMA_OF, Probe

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from orchestrator.inventory.hosts import Host
    from orchestrator.inventory.lab import Lab

REACH_S = 5.0
"""How long (s) a device or a host may take for its first answer."""
CLOCK_S = 1.0
"""A host's clock may differ this much (s) from the local one before their logs cannot be read
together.
"""
FREE_MB = 200
FENCE = "hosts ahead"
_ASK = (  # {} is the user that jobs run as
    "date +%s.%N; df -Pk /var/lib | tail -n 1; id -u {} >/dev/null 2>&1 || echo no-user; cd /var/lib/testbed 2>/dev/null && {{"
    """ grep -oE '"sha": ?"[0-9a-f]+"' provision.json; cat fence.json; echo;"""
    " python3 -S -E agent/__main__.py status | cut -c 1-80; }} 2>/dev/null"
)


def reach(
    lab: Lab, run: str = "", token: int | None = None, env: Mapping[str, str] | None = None
) -> list[Probe]:
    """Ask every device for its identity and every host for its state, all at once; nothing is
    written to any of them.

    token: of the next run of this store. env: what the latest job sets in its environment.
    """
    with ThreadPoolExecutor(min(32, len(lab.hosts) + 1), "doctor") as threads:
        bmcs = threads.submit(lambda: asyncio.run(_bmcs(lab)))
        cabled: dict[HostName, set[int]] = {name: set() for name in lab.hosts}
        for port in (*lab.fibres, *lab.segment_at):
            cabled[port.host].add(port.number)
        hosts = [
            threads.submit(ask_host, host, token, env, cabled[host.name])
            for host in lab.hosts.values()
            if host.partition is None
        ]
        if run:
            detail = f"not asked, a change is under way: {run}"
            devices = [Probe(name, "ok", detail, area="reach") for name in lab.devices]
        else:
            devices = asyncio.run(_devices(lab))
        found = in_one([check for future in hosts for check in future.result()])
        return [*devices, *found, *bmcs.result()]


def in_one(checks: list[Probe]) -> list[Probe]:
    """The hosts that refuse this store's runs as one check: they have one cause and one remedy; and
    those whose RDMA ports are as they should be.
    """
    fine = [check for check in checks if check.name.startswith(RDMA_OF) and check.state == "ok"]
    if fine:
        said = replace(fine[0], name=f"RDMA of {counted(len(fine), 'host')}", area="machine")
        checks = [*(c for c in checks if c not in fine), said]
    shut = [check for check in checks if check.name == FENCE]
    if not shut:
        return checks
    more = [f"and {len(shut) - 4} more"] if shut[4:] else []
    return [
        *(c for c in checks if c.name != FENCE),
        replace(shut[0], detail="\n".join([c.detail for c in shut[:4]] + more)),
    ]


async def _devices(lab: Lab) -> list[Probe]:
    return list(await asyncio.gather(*(ask_device(lab, name) for name in lab.devices)))


async def _bmcs(lab: Lab) -> list[Probe]:
    hosts = [host for host in lab.hosts.values() if host.bmc and host.partition is None]
    return list(await asyncio.gather(*map(ask_bmc, hosts)))


async def ask_bmc(host: Host) -> Probe:
    """Ask the BMC of a host for its power state; nothing is changed."""
    from orchestrator.credentials import bmc_password
    from orchestrator.hosts.redfish import Redfish

    assert host.bmc is not None
    name, works = f"BMC of {host.name}", "everything but testbed host power"
    try:
        bmc = Redfish(host.name, host.bmc, bmc_password(host))
    except (BadFile, Missing) as error:
        return Probe(name, "warn", str(error), error.hint or "correct hosts.yml", works, "reach")
    try:
        async with asyncio.timeout(REACH_S + host.bmc.timeout_s):
            state = await bmc.read()
    except (TestbedError, TimeoutError) as error:
        text = str(error) or f"gives no power state in {REACH_S + host.bmc.timeout_s:.0f} s"
        fix = getattr(error, "hint", "") or f"check its cable and testbed_bmc ({host.bmc.address})"
        return Probe(name, "warn", text, fix, works, "reach")
    finally:
        await bmc.close()
    health = f", health {state.health}" if state.health else ""
    text = f"the host is {state.power.lower()}{health} ({host.bmc.address})"
    if state.power == "Off":
        return Probe(
            name, "warn", text, f"testbed host power {host.name} --on", "the other hosts", "reach"
        )
    if state.health not in ("OK", ""):
        return Probe(name, "warn", text, f"its log, at {host.bmc.address}", "everything", "reach")
    return Probe(name, "ok", text, area="reach")


async def ask_device(lab: Lab, name: DeviceName) -> Probe:
    """Ask one device for its identity, and compare its ports with those of the inventory."""
    from drivers.registry import open_device
    from orchestrator.credentials import with_secret
    from orchestrator.inventory.device_ports import unsupported

    config, works, area = lab.devices[name], "the other devices", "reach"
    try:
        device = open_device(with_secret(lab, config))
    except BadFile as error:
        return Probe(
            name, "fail", str(error), error.hint or "correct devices.yml", works, "inventory"
        )
    except Missing as error:  # a missing password is not the device's failure
        return Probe(name, "warn", f"not asked: {error}", error.hint, works, area)
    try:
        async with asyncio.timeout(REACH_S + config.timeout_s):
            who = await device.identify()
    except TimeoutError as error:
        text = (
            str(error)
            if isinstance(error, TestbedError)
            else f"gives no identity in {REACH_S + config.timeout_s:.0f} s"
        )
        return Probe(
            name,
            "fail",
            text,
            f"check its power and cable, and the address in devices.yml ({config.address})",
            works,
            area,
        )
    except TestbedError as error:
        fix = (
            error.hint
            or f"check its power and cable, and the address in devices.yml ({config.address})"
        )
        return Probe(name, "fail", str(error), fix, works, area)
    finally:
        await device.close()
    ends = [(f.enters, True) for f in lab.fibres.values()] + [
        (f.leaves, False) for f in lab.fibres.values()
    ]
    ends += [(trunk.end, True) for trunk in lab.trunks] + [
        (trunk.start, False) for trunk in lab.trunks
    ]
    found = (
        unsupported(who, port.label, enters=enters) for port, enters in ends if port.device == name
    )
    if wrong := sorted(set(filter(None, found))):
        fix = "correct the ports in fibres.yml, or the device's address in devices.yml"
        more = [f"and {len(wrong) - 6} more"] if wrong[6:] else []
        return Probe(name, "fail", "\n".join([*wrong[:6], *more]), fix, works, "inventory")
    return Probe(name, "ok", f"{who.vendor} {who.model} {who.serial} ({config.address})", area=area)


def ask_host(
    host: Host,
    token: int | None = None,
    env: Mapping[str, str] | None = None,
    cabled: Collection[int] | None = None,
) -> list[Probe]:
    """Log in as `up` does; check the clock, the free disk space, what is installed, whether it
    accepts the next run, and RDMA ports where jobs use them: those that are `cabled` (None: all).
    """
    from orchestrator.hosts import ssh
    from orchestrator.hosts.facts import facts
    from orchestrator.verify import rdma_reach

    works, where = "the other hosts", f"ssh -p {host.ssh.port} {host.ssh.address}"
    try:
        transport = ssh.connect(host.name, host.ssh, REACH_S)
    except TestbedError as error:
        return [
            Probe(
                host.name,
                "fail",
                str(error),
                error.hint or f"start sshd there: {where}",
                works,
                "reach",
            )
        ]
    try:
        channel = transport.open_session(timeout=REACH_S)
        channel.settimeout(REACH_S)
        before = time.time()
        channel.exec_command(_ASK.format(host.job_user))
        with channel.makefile("rb") as answer:
            clock = answer.readline(256)
            local = (before + time.time()) / 2
            rest = answer.read(4096)
        rdma = rdma_reach.probes(transport, host, env or {}, cabled) if b'"sha"' in rest else []
    except Exception as error:  # paramiko raises SSHException, EOFError and socket errors here
        return [
            Probe(
                host.name,
                "fail",
                f"ssh gives no command: {error or type(error).__name__}",
                where,
                works,
                "reach",
            )
        ]
    finally:
        transport.close()
        transport.join(1.0)
    return [
        *read_host(
            host.name,
            clock.decode("utf-8", "replace"),
            rest.decode("utf-8", "replace"),
            local,
            facts(host)["sha"],
            token,
        ),
        *rdma,
    ]


def read_host(
    name: str, clock: str, rest: str, local: float, wanted: str, token: int | None = None
) -> list[Probe]:
    """The findings in what a host printed: its clock (s since the epoch), `df -Pk`, the digest it
    was provisioned with, the highest token of a run that it knows, its agent's status. token: of
    the next run of this store.
    """
    try:
        ahead_s = float(clock) - local
    except ValueError:
        return [
            Probe(
                name,
                "fail",
                f"`date` prints {clock[:60]!r}",
                "log in and check",
                "the other hosts",
                "reach",
            )
        ]
    ready = "provisioned" if f'"{wanted}"' in rest else "`testbed up` provisions it"
    checks = [Probe(name, "ok", f"answers, {ready}", area="reach")]
    if '"error":"not running"' in rest:
        text = "answers, but its agent does not run: routes and ports are not known"
        checks = [
            Probe(
                name,
                "fail",
                text,
                "testbed up with the plan starts it again",
                "the other hosts",
                "reach",
            )
        ]
    if f'"{wanted}"' in rest and "\nno-user\n" in rest:
        text = "answers, provisioned, but the user that its jobs run as is gone (testbed_job_user in hosts.yml)"
        checks = [
            Probe(name, "fail", text, "testbed up adds it again", "everything but jobs", "reach")
        ]
    known = re.search(r'^{"token": ?(\d+)}$', rest, re.MULTILINE)
    if known is not None and token is not None and int(known[1]) > token:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(int(known[1])))
        text = f"{name} knows a run with token {known[1]} ({at}); the next of this store has {token}, and would be refused as older"
        fix = 'correct the clock, make sure no one else works there, then: testbed lock release --hosts --reason "..."'
        checks.append(Probe(FENCE, "fail", text, fix, "`status`, `plan`", "reach"))
    if abs(ahead_s) > CLOCK_S:
        text = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine"
        checks.append(
            Probe(
                f"clock of {name}",
                "warn",
                text,
                "timedatectl set-ntp true, there or here",
                "everything",
                "reach",
            )
        )
    columns = rest.partition("\n")[0].split()
    if len(columns) > 4 and columns[3].isdecimal() and int(columns[3]) < FREE_MB * 1024:
        text = f"{int(columns[3]) // 1024} MB free in /var/lib"
        checks.append(
            Probe(
                f"disk of {name}",
                "warn",
                text,
                "remove old jobs: rm -r /var/lib/testbed/jobs/* /var/lib/testbed/checkpoints/*",
                "short jobs",
                "reach",
            )
        )
    return checks
