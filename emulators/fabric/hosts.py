"""The hosts of the fabric as the lab has them: started, each with its namespaces, and asked through
their first processes.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from emulators.fabric import linux
from emulators.fabric.host import FIRST_PORT_INDEX, HOME, ORDER_BYTES, HostPlan, live
from emulators.fabric.netlink import AdminWatch
from emulators.fabric.sshd import Keys, server_config
from emulators.inventory.config import LabConfig

FIRST_LIT_INDEX = 1000  # of interfaces: those of hosts come before
# of the first user of jobs; no distribution hands out numbers from here to 65533 by itself (Debian
# policy 9.2.2)
JOB_UID = 65100

RECEIVE_BYTES, MOST_RECEIVE_BYTES = 1 << 20, 32 << 20


class CannotBuild(RuntimeError):
    """The kernel or the rights of this process do not allow the fabric; the message names what is
    missing.
    """


class PortWatch(AdminWatch):
    """Watches for a host's ports, by number, being switched on or off."""

    def read(self) -> Iterable[tuple[int, bool]]:
        for index, up in super().read():
            if FIRST_PORT_INDEX < index < FIRST_LIT_INDEX:
                yield index - FIRST_PORT_INDEX, up


class Host:
    """A running host, seen from the lab."""

    def __init__(self, name: str, pid: int, control: socket.socket) -> None:
        self.name = name
        self.pid = pid  # as this process sees it
        self.machine_pid = 0  # as the machine sees it: for nsenter
        self.control = control
        self.port_open = True
        self.halted = False
        self.slow_s = 0.0
        self.ports: PortWatch

    @property
    def running(self) -> bool:
        """Whether it takes orders."""
        return bool(self.pid) and not self.halted

    def receive(self, within_s: float | None = None) -> dict[str, object]:
        """Wait for the host's next message, for `within_s` (s) at most; None: as long as its first
        process lives.

        Raises: CannotBuild - it reports an error, died, or is silent.
        """
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        if not poll.poll(None if within_s is None else within_s * 1000):
            raise CannotBuild(
                f"host {self.name}: no answer from its first process within {within_s:g} s"
            )
        text = self.control.recv(ORDER_BYTES)
        reply: dict[str, object] = (
            json.loads(text) if text else {"error": f"host {self.name}: its first process died"}
        )
        if "error" in reply:
            raise CannotBuild(str(reply["error"]))
        return reply

    def close_port(self) -> None:
        """Refuse new SSH connections; open sessions continue."""
        self.control.send(b"shut")
        self.receive(5.0)
        self.port_open = False

    def slow_port(self, seconds: float) -> None:
        """Delay the sshd of every new SSH connection by `seconds` (s); open sessions continue."""
        self.control.send(f"slow {seconds}".encode())
        self.receive(5.0)
        self.slow_s = seconds

    def order(self, **texts: object) -> dict[str, object]:
        """Have the host's first process carry out a request about its programs (programs.py).
        Raises: OSError - it cannot, or is stopped.
        """
        if self.halted:
            raise OSError(f"host {self.name} is stopped: wait until it has booted")
        try:
            self.control.send(json.dumps(texts).encode())
            reply = self.receive(5.0)
        except CannotBuild as problem:
            raise OSError(str(problem)) from problem
        if "refused" in reply:
            raise OSError(str(reply["refused"]))
        return reply

    def halt(self) -> None:
        """Stop all programs, answer no connection, switch all interfaces off. Raises: CannotBuild."""
        self.halted = True
        self.control.send(b"halt")
        self.receive(10.0)
        self.port_open = False

    def boot(self) -> None:
        """Begin again after `halt`, with nothing of what the kernel knew; `open_port` follows.
        Raises: CannotBuild.
        """
        self.control.send(b"boot")
        self.receive(30.0)
        self.halted = False

    def open_port(self, listener: socket.socket) -> None:
        """Take SSH connections at `listener`, which the host takes over."""
        self.control.sendmsg(
            [b"open"],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", listener.fileno()))],
        )
        self.receive(5.0)
        listener.close()
        self.port_open = True


def start(
    config: LabConfig, keys: Keys, listeners: Mapping[str, socket.socket], machine_proc: int
) -> dict[str, Host]:
    """Start the hosts, which wait for their ports. Takes over the listening sockets, by host.
    Raises: CannotBuild.
    """
    common = _common_files(config, keys)
    cpus = host_cpus(config)
    own_pids = linux.own_namespace("pid")
    hosts: dict[str, Host] = {}
    for name, facts in config.hosts.items():
        private, public = keys.hosts[name]
        files = {**common, "hostname": f"{name}\n", "host_key": private, "host_key.pub": public}
        plan = HostPlan(
            name,
            facts.mgmt_address,
            tuple(facts.interfaces),
            files,
            cpus,
            sysctls(config),
            config.rdma,
        )
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        linux.unshare(linux.NEW_PID)
        pid = os.fork()
        if pid == 0:
            linux.leave(partial(live, plan, child_end, listeners[name], machine_proc))
        linux.setns(own_pids, linux.NEW_PID)
        child_end.close()
        hosts[name] = Host(name, pid, parent_end)
    os.close(own_pids)
    for listener in listeners.values():
        listener.close()
    for host in hosts.values():
        host.machine_pid = int(str(host.receive()["made"]))
    return hosts


def sysctls(config: LabConfig) -> dict[str, str]:
    """What hosts have otherwise than the machine: where lines have delay, room in every socket for
    what is on its way.

    A window opens only when its reader takes more within a round trip than before, which at the
    machine's 128 kB is chance.
    """
    on_its_way = max(
        (round(line.rate_bps / 8 * 2 * line.delay_s) for line in config.lines), default=0
    )
    room = max(RECEIVE_BYTES, 2 * on_its_way)  # the kernel takes up to half of it for itself
    return {"tcp_rmem": f"4096 {room} {max(room, MOST_RECEIVE_BYTES)}"} if on_its_way else {}


def host_cpus(config: LabConfig) -> frozenset[int]:
    """The cores hosts may use: all but the lab's own where there are four or more, or if
    emulator.yml says so.
    """
    cpus = sorted(os.sched_getaffinity(0))
    reserve = config.reserve_core if config.reserve_core is not None else len(cpus) >= 4
    return frozenset(cpus[1:] if reserve and len(cpus) > 1 else cpus)


def _common_files(config: LabConfig, keys: Keys) -> dict[str, str]:
    people = [
        line
        for line in Path("/etc/passwd").read_text().splitlines()
        if not line.startswith("root:")
    ]
    # the users of jobs come with the lab, with the same number on each of its hosts
    jobs = sorted(
        {h.job_user for h in config.hosts.values()}
        - {"root", *(line.partition(":")[0] for line in people)}
    )
    people += [
        f"{name}:x:{JOB_UID + n}:{JOB_UID + n}::/nonexistent:/usr/sbin/nologin"
        for n, name in enumerate(jobs)
    ]
    known = [f"{h.mgmt_address} {h.name}" for h in config.hosts.values()]
    return {
        "passwd": "\n".join([f"root:x:0:0:root:{HOME}:/bin/sh", *people, ""]),
        # no password, but not locked: sshd refuses locked accounts
        "shadow": "root:*:19000:0:99999:7:::\n",
        "hosts": "\n".join(["127.0.0.1 localhost", *known, ""]),
        "authorized_keys": keys.client_public,
        "sshd_config": server_config(config.dilation),
    }
