"""A private host for one committer: net, mount and pid namespaces of its own, and a peer that talks
to it as the operator does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

AGENT = Path(__file__).parents[2] / "agent" / "__main__.py"
SETUP = "mount -t tmpfs run /run && mount -t sysfs sys /sys && ip link set lo up && echo ready && exec sleep infinity"
ENV = {
    **os.environ,
    "TESTBED_VAR": "/run/var",
    "TESTBED_RUN": "/run/testbed",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Space:
    """Namespaces that live until `end`; nothing in them outlives their first process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._peers: list[Peer] = []
        command = [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            SETUP,
        ]
        self._outer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._outer.stdout is not None
        assert self._outer.stdout.readline() == "ready\n"
        children = (
            Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        )
        self.pid = int(children[0])

    def argv(self, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-p", *command]

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*command), input=stdin, capture_output=True, text=True, env=ENV, timeout=20
        )

    def ip(self, *argv: str) -> str:
        done = self.run("ip", *argv)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def agent(self, command: str, given: Any = None) -> list[dict[str, Any]]:
        """Run one subcommand; return the JSON lines it printed."""
        done = self.run(
            sys.executable,
            "-S",
            "-E",
            str(AGENT),
            command,
            stdin="" if given is None else json.dumps(given),
        )
        assert not done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def ask(self, *ops: str) -> bool:
        """Whether a committer answers these requests, of this very process, whatever it answers."""
        with socket.socket(socket.AF_UNIX) as link, link.makefile() as lines:
            try:
                link.settimeout(20)
                link.connect(f"/proc/{self.pid}/root/run/testbed/committer.sock")
                for op in ops:
                    link.sendall(json.dumps({"id": op, "op": op}).encode() + b"\n")
                    if not lines.readline():
                        return False
            except OSError:
                return False
        return True

    def fibre(self, port: int, other: Space, other_port: int) -> None:
        """Join opt{port} here and opt{other_port} there; the ends have different indexes, else
        carrier would be seen late.
        """
        near, far = f"x{port}a{self.pid % 9999}", f"x{other_port}b{other.pid % 9999}"
        subprocess.run(
            [
                "ip",
                "link",
                "add",
                near,
                "index",
                str(20000 + self.pid % 9999 + 10 * port),
                "type",
                "veth",
                "peer",
                "name",
                far,
            ],
            check=True,
        )
        for link, space, name in ((near, self, f"opt{port}"), (far, other, f"opt{other_port}")):
            subprocess.run(["ip", "link", "set", link, "netns", str(space.pid)], check=True)
            space.ip("link", "set", link, "name", name, "up")

    def mac(self, interface: str) -> str:
        return str(json.loads(self.ip("-j", "link", "show", interface))[0]["address"])

    def attach(self) -> Peer:
        """A channel to the committer of this host; closed with the host at the latest."""
        self._peers.append(Peer(self.argv(sys.executable, "-S", "-E", str(AGENT), "attach")))
        return self._peers[-1]

    def daemon_pids(self) -> list[int]:
        """The machine's pids of the committer's processes in this space: the watchdog, then its
        child.
        """
        done = self.run("pgrep", "-f", "agent/__main__.py (start|install)")
        return [int(pid) for pid in done.stdout.split()]

    def end(self) -> None:
        for peer in self._peers:
            peer.close()
        self._outer.kill()
        self._outer.wait()
        assert self._outer.stdout is not None
        self._outer.stdout.close()


class Peer:
    """The operator's end of a channel, over pipes instead of SSH."""

    def __init__(self, argv: list[str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV
        )
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        self._last = 0

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def line(self, timeout_s: float = 30.0) -> dict[str, Any] | None:
        """The next line; None when the other side closed or said nothing in time."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[
                0
            ]:
                return None
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            if not data:
                return None
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return dict(json.loads(line))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one request and return its answer; events that come meanwhile are kept."""
        self._last += 1
        self.write(json.dumps({"id": self._last, "op": op, **fields}).encode() + b"\n")
        while (message := self.line()) is not None:
            if "event" not in message:
                assert message["id"] == self._last
                return message
            self.events.append(message)
        raise AssertionError(f"no answer to {op}")

    def event(self, kind: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """The first event of this kind, heard already or awaited now."""
        end = time.monotonic() + timeout_s
        while True:
            for event in self.events:
                if event["event"] == kind:
                    self.events.remove(event)
                    return event
            message = self.line(end - time.monotonic())
            assert message is not None, f"no event {kind}; heard {self.events}"
            self.events.append(message)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._process.stdin.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


def facts(name: str, host: int, ports: int) -> dict[str, Any]:
    """Provisioning facts of host number `host` with ports opt1.. and two lanes."""
    return {
        "host": name,
        "sha": f"sha-{name}",
        "host_device": "host0",
        "node_prefix": "10.255.0.0/16",
        "lanes": [f"10.255.{lane}.{host}" for lane in (0, 1)],
        "echo": [f"10.255.{lane}.{host}" for lane in (0, 1)],
        "ports": [
            {"number": p, "interface": f"opt{p}", "eth": None, "address": f"10.{p}.0.{host}"}
            for p in range(1, ports + 1)
        ],
        "sysctls": [["net.ipv4.ip_forward", "1", True], ["net.ipv4.conf.all.rp_filter", "0", True]],
    }
