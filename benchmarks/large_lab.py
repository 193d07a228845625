"""`testbed plan` and `testbed status` on a lab of 1024 hosts: real emulated switches, and hosts
that one process answers for.

    python benchmarks/large_lab.py [--hosts 256,1024] [--record FILE] Switches have 256 ports each,
four of them for the same port number of 1024 hosts: ports 1 and 2 join hosts of one block of 256,
ports 3 and 4 every fourth host. The plan joins ports 1 to 3 at random; the switches of port 4 hold
circuits of others. The program reaches hosts as it reaches any: by an SSH connection to each, in
which an agent answers. Here a stub answers for all of them, in a process of its own; no packets are
forwarded. It uses the machine's cores, too, so its processor time is distinguished.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import TESTBED
from benchmarks.growth import TICK_S, row
from benchmarks.harness import verdict
from conformance.lab import Running, free_ports, running

SIZES = (256, 512, 1024)
GROUP, PORTS = 256, 4
"""Ports of a switch, and of a host."""
LIMIT_S = 10.0
"""What `plan` and `status` may take of the largest lab."""


def switch(host: int, port: int, hosts: int) -> tuple[str, int]:
    """The switch that a port of a host is at, and its number there, from 1."""
    groups = hosts // GROUP
    group, at = (host // GROUP, host % GROUP) if port <= 2 else (host % groups, host // groups)
    return f"ocs{port}-{group + 1}", at + 1


def matched(hosts: int, port: int) -> list[tuple[int, int]]:
    """The pairs of hosts that the switches of this port join, at random."""
    groups: dict[str, list[int]] = {}
    for host in range(hosts):
        groups.setdefault(switch(host, port, hosts)[0], []).append(host)
    pairs: list[tuple[int, int]] = []
    for members in groups.values():
        random.Random(port).shuffle(members)
        pairs += zip(members[::2], members[1::2], strict=True)
    return pairs


def name(host: int) -> str:
    return f"gpu{host:04d}"


def write(folder: Path, hosts: int) -> None:
    """Write the inventory, the plan, and the key that the hosts accept."""
    state = folder / "state"
    state.mkdir(mode=0o700)
    for key in ("id_ed25519", "host_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", state / key], check=True
        )
    switches = sorted(
        {switch(host, port, hosts)[0] for host in range(hosts) for port in range(1, PORTS + 1)}
    )
    ssh, *ports = free_ports(1 + len(switches))
    (state / "known_hosts").write_text(f"[127.0.0.1]:{ssh} {(state / 'host_key.pub').read_text()}")
    common = {
        "ansible_host": "127.0.0.1",
        "ansible_port": ssh,
        "ansible_ssh_private_key_file": str(state / "id_ed25519"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={state}/known_hosts -o StrictHostKeyChecking=yes",
        "testbed_ports": {port: {"interface": f"opt{port}"} for port in range(1, PORTS + 1)},
    }
    foreign: dict[str, list[list[int]]] = {each: [] for each in switches}
    for a, b in matched(hosts, PORTS):
        at, one, other = *switch(a, PORTS, hosts), switch(b, PORTS, hosts)[1]
        foreign[at] += [[one, GROUP + other], [other, GROUP + one]]
    alone = common | {
        "ansible_user": "root",
        "testbed_host_id": 1,
        "testbed_mgmt_address": "10.254.0.1",
    }
    devices = {
        "lab": "large",
        "devices": {
            each: {"driver": "polatis-scpi", "address": f"tcp://127.0.0.1:{port}"}
            for each, port in zip(switches, ports, strict=True)
        },
    }
    files = {
        # one stub answers for all hosts: whom a connection is for is recognised by its user
        "hosts": {
            "all": {
                "vars": common,
                "hosts": {
                    name(n): {
                        "ansible_user": name(n),
                        "testbed_host_id": n,
                        "testbed_mgmt_address": f"10.254.{n >> 8}.{n & 255}",
                    }
                    for n in range(hosts)
                },
            }
        },
        "devices": devices,
        "fibres": {
            "fibres": [
                {"name": f"f-{name(host)}-p{port}", "host": name(host), "port": port, "device": at}
                | {"enters": str(number), "leaves": str(GROUP + number), "length_m": 8.0}
                for host in range(hosts)
                for port in range(1, PORTS + 1)
                for at, number in [switch(host, port, hosts)]
            ]
        },
        # the switches know of no fibres and hosts, as real ones do
        "switches/hosts": {"all": {"hosts": {"unused": alone}}},
        "switches/devices": devices,
        "switches/fibres": {"fibres": []},
        "switches/emulator": {
            "hosts": False,
            "devices": {
                each: {"size": f"{GROUP}x{GROUP}", "preset": held} for each, held in foreign.items()
            },
        },
    }
    (folder / "switches").mkdir()
    for stem, content in files.items():
        (folder / f"{stem}.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    links = [
        {"a": f"{name(a)}:p{port}", "b": f"{name(b)}:p{port}"}
        for port in range(1, PORTS)
        for a, b in matched(hosts, port)
    ]
    (folder / "plan.json").write_text(
        json.dumps({"schema": "testbed.plan/1", "name": "large", "links": links})
    )


# --- the hosts


def stub(folder: Path) -> None:
    """Answer for all hosts until the input ends: SSH, and in it the operations of the agent that
    observing uses.
    """
    import asyncssh

    from agent.basics import VERSION
    from orchestrator.hosts.facts import facts
    from orchestrator.session import load_lab

    lab = load_lab(folder)
    state = folder / "state"
    about = {
        host.name: {
            "version": VERSION,
            "host": host.name,
            "provision": facts(host)["sha"],
            "boot_id": host.name,
            "ports": {
                str(port.number): {
                    "interface": port.interface,
                    "mac": f"02:00:{port.number:02x}:00:{host.host_id >> 8:02x}:{host.host_id & 255:02x}",
                    "carrier": port.number == PORTS,
                    "ups": 1,
                    "mtu": 9000,
                    "eth_mac": None,
                }
                for port in host.ports.values()
            },
            "congctl": ["cubic"],
            "token": 0,
            **{"active": None, "previous": None, "staged": [], "armed": None, "pending": None},
        }
        for host in lab.hosts.values()
    }

    def answered(host: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["op"] == "hello":
            return {"id": request["id"], "ok": True, "t_ns": time.monotonic_ns(), **about[host]}
        if request["op"] == "watch":
            return {"id": request["id"], "ok": True, "links": {}}
        return {
            "id": request["id"],
            "ok": False,
            "code": "bad-request",
            "error": f"{request['op']}: not answered for",
        }

    class Agent(asyncssh.SSHServerSession[bytes]):
        def __init__(self, host: str) -> None:
            self.host, self.rest = host, b""

        def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
            self.channel = chan

        def exec_requested(self, command: str) -> bool:
            return command.endswith(" attach")

        def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                self.channel.write(
                    json.dumps(answered(self.host, json.loads(line))).encode() + b"\n"
                )

    class Login(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            self.host = username
            return True

        def session_requested(self) -> Agent:
            return Agent(self.host)

    async def serve() -> None:
        await asyncssh.listen(
            "127.0.0.1",
            next(iter(lab.hosts.values())).ssh.port,
            backlog=4096,
            server_factory=Login,
            server_host_keys=[str(state / "host_key")],
            authorized_client_keys=str(state / "id_ed25519.pub"),
            kex_algs=["curve25519-sha256"],
            encoding=None,
            line_editor=False,
            compression_algs=None,
            gss_host=None,
            config=(),
        )
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    asyncio.run(serve())


@contextmanager
def hosts_of(folder: Path) -> Iterator[int]:
    """Run the stub; yield its pid."""
    command = [sys.executable, __file__, "stub", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running_stub:
        assert running_stub.stdin is not None and running_stub.stdout is not None
        try:
            if running_stub.stdout.readline() != "ready\n":
                raise RuntimeError("the stub of the hosts did not start")
            yield running_stub.pid
        finally:
            running_stub.stdin.close()


# --- the measurement


def used_s(pid: int) -> float:
    """Processor time of a process so far (s)."""
    return (
        sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        * TICK_S
    )


def timed(
    folder: Path, stub_pid: int, switches: Running, *argv: str
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run `testbed WORDS --json`; return seconds, processor seconds by whom, MB at the peak, and
    what it reports.
    """
    env = os.environ | {"TESTBED_INVENTORY": str(folder)}
    env |= {
        f"TESTBED_{which}_DIR": str(folder / which.lower()) for which in ("DATA", "STATE", "LOCK")
    }
    others = {"stub": stub_pid, "switches": switches.pid}
    before, began = {whose: used_s(pid) for whose, pid in others.items()}, time.perf_counter()
    with (folder / "answer.json").open("w") as out:
        child = subprocess.Popen([TESTBED, *argv, "--json"], env=env, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    found = {"seconds": time.perf_counter() - began, "program s": usage.ru_utime + usage.ru_stime}
    found |= {f"{whose} s": used_s(pid) - before[whose] for whose, pid in others.items()}
    reply = json.loads((folder / "answer.json").read_text() or "{}")
    if not isinstance(reply.get("data"), dict):
        raise RuntimeError(f"testbed {argv[0]}: exit {child.returncode}: {reply.get('message')}")
    return found | {"program MB": usage.ru_maxrss / 1000}, reply["data"]


def one(hosts: int) -> dict[str, dict[str, float]]:
    """Both commands on a lab of so many hosts. Raises: RuntimeError - the program saw something
    else than there is.
    """
    with tempfile.TemporaryDirectory(prefix="large-lab-") as where:
        folder = Path(where)
        write(folder, hosts)
        with (
            running(folder / "switches", "--devices-only") as switches,
            hosts_of(folder) as stub_pid,
        ):
            planned, plan = timed(
                folder, stub_pid, switches, "plan", "--topology", str(folder / "plan.json")
            )
            seen, status = timed(folder, stub_pid, switches, "status")
    silent = [each["error"] for each in status["hosts"] + status["devices"] if not each["ok"]]
    answered, foreign = (
        sum(each["committer"] for each in status["hosts"]),
        sum(len(each["foreign"]) for each in status["devices"]),
    )
    found = plan["made"], answered, foreign
    if silent or found != (3 * hosts, hosts, hosts):
        raise RuntimeError(f"made, hosts, foreign: {found}; {len(silent)} silent: {silent[:1]}")
    print(
        f"{hosts} hosts: plan {planned['seconds']:.1f} s, status {seen['seconds']:.1f} s",
        flush=True,
    )
    return {"plan": planned, "status": seen}


def main() -> int:
    """Measure and print; return the exit code."""
    if sys.argv[1:2] == ["stub"]:
        stub(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description="Plan and status of a large lab.")
    parser.add_argument(
        "--hosts",
        default=",".join(map(str, SIZES)),
        help=f"multiples of {GROUP}, at most 1024 (default %(default)s)",
    )
    parser.add_argument("--record", type=Path, help="where figures are kept (JSON)")
    options = parser.parse_args()
    sizes = {hosts: one(hosts) for hosts in sorted(map(int, options.hosts.split(",")))}
    if options.record:
        options.record.write_text(
            json.dumps(
                {"schema": "testbed.large-lab/1", "cores": os.cpu_count(), "sizes": sizes}, indent=1
            )
            + "\n"
        )
    largest = sizes[max(sizes)]
    for command in largest:
        print(command)
        for figure in largest[command]:
            row(f"  {figure}", {hosts: sizes[hosts][command][figure] for hosts in sizes})
    return verdict(
        "large_lab",
        largest["status"]["seconds"],
        "s",
        LIMIT_S,
        "at most",
        also=largest["plan"]["seconds"] <= LIMIT_S,
        hosts=max(sizes),
        plan_s=round(largest["plan"]["seconds"], 2),
        memory_mb=round(max(each["program MB"] for each in largest.values())),
    )


if __name__ == "__main__":
    sys.exit(main())
