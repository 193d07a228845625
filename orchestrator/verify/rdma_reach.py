"""Reads the RDMA tables of hosts, over SSH; nothing is written there.

A command of its own asks for them, not the daemon: where a driver hangs, only this answer is late.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from optics import HostName, HostPort, TestbedError, Unreachable
from orchestrator.inventory.hosts import Host
from orchestrator.verify.probe import RDMA_OF, Probe
from orchestrator.verify.rdma import (
    RdmaTables,
    port_faults,
    rdma_environment,
    read_tables,
    tables_probe,
)

if TYPE_CHECKING:
    import paramiko

ASK = "cd /var/lib/testbed 2>/dev/null && python3 -S -E agent/__main__.py rdma 2>/dev/null"
ANSWER_S = 5.0  # for the whole answer
MOST_BYTES = 1 << 20


def asked(transport: paramiko.Transport, host: HostName) -> RdmaTables:
    """What a host has. Raises: Unreachable - it does not say; Garbled - it says something else."""
    try:
        text = _answer(transport.open_session(timeout=ANSWER_S)).decode("utf-8", "replace")
    except Exception as error:  # paramiko raises SSHException, EOFError and socket errors here
        raise Unreachable(
            f"{host}: no answer about RDMA devices in {ANSWER_S:g} s: {str(error) or type(error).__name__}",
            hint=f"a driver may hang: testbed host exec {host} -- dmesg",
        ) from None
    if not text:
        raise Unreachable(
            f"{host}: its agent does not know how to read RDMA devices",
            hint=f"testbed host provision --limit {host}, and it will",
        )
    return read_tables(text)


def _answer(channel: paramiko.Channel) -> bytes:
    """What ASK prints, MOST_BYTES of it. Raises: TimeoutError - it is not all there in ANSWER_S."""
    answer, until = bytearray(), time.monotonic() + ANSWER_S
    # exec_command has no time limit, and that of recv begins again with each byte
    alarm = threading.Timer(ANSWER_S, channel.close)
    alarm.start()
    try:
        channel.exec_command(ASK)
        while len(answer) < MOST_BYTES and (more := channel.recv(MOST_BYTES - len(answer))):
            answer += more
    finally:
        alarm.cancel()
        channel.close()
    if time.monotonic() >= until:
        raise TimeoutError
    return bytes(answer)


def probes(
    transport: paramiko.Transport,
    host: Host,
    env: Mapping[str, str],
    numbers: Collection[int] | None = None,
) -> list[Probe]:
    """What `doctor` says of a host's RDMA ports with these numbers (None: all); nothing where a job
    with this environment would use none.
    """
    if not rdma_environment(host, env) or (numbers is not None and not numbers):
        return []
    try:
        return [tables_probe(host, asked(transport, host.name), env, numbers)]
    except TestbedError as error:
        fix = error.hint or f"testbed host provision --limit {host.name}"
        return [Probe(f"{RDMA_OF}{host.name}", "warn", str(error), fix, "the rest", "reach")]


async def rdma_faults(
    hosts: Sequence[Host], env: Mapping[str, str], used: Collection[HostPort]
) -> tuple[dict[HostName, tuple[str, ...]], tuple[str, ...]]:
    """What NCCL will not find at the used ports of each host, as far as a job with this environment
    uses RDMA there; and what could not be read.
    """
    wanted = [host for host in hosts if rdma_environment(host, env)]
    answers = await asyncio.gather(
        *(asyncio.to_thread(_tables, host) for host in wanted), return_exceptions=True
    )
    found: dict[HostName, tuple[str, ...]] = {}
    unread = []
    for host, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, RdmaTables):
            numbers = {port.number for port in used if port.host == host.name}
            found[host.name] = tuple(
                fault.text for fault in port_faults(host, answer, env, numbers)
            )
        elif isinstance(answer, TestbedError):
            unread.append(f"RDMA tables: {answer.line}")
        else:
            raise answer
    return found, tuple(unread)


def _tables(host: Host) -> RdmaTables:
    from orchestrator.hosts import ssh

    transport = ssh.connect(host.name, host.ssh, ANSWER_S)
    try:
        return asked(transport, host.machine)
    finally:
        transport.close()
        transport.join(1.0)
