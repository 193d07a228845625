"""Start an emulated lab for a test, talk to its control socket, its devices and its hosts' network
namespaces.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emulators.fabric import linux
from emulators.fabric.netlink import Netlink, address
from emulators.generate.command import free_ports
from emulators.generate.defaultlab import generate
from emulators.generate.familylab import Wanted


def write_inventory(folder: Path, hosts: int = 3, ports: int = 2, settle_s: float = 0.02) -> Path:
    """Write a small lab with free ports and a state folder of its own."""
    numbers = free_ports(hosts + ports)
    generate(
        folder / "inventory",
        Wanted(numbers[:hosts], numbers[hosts:], str(folder / "state"), settle_s),
    )
    return folder / "inventory"


class EmulatedLab:
    """A lab started in the foreground by `python -m emulators`; `keeper` is the process that stays
    on the machine.
    """

    def __init__(self, inventory: Path, *options: str) -> None:
        self.inventory, self.state = inventory, inventory.parent / "state"
        here, other = os.pipe()
        self.log = inventory.parent / "log"
        with self.log.open("w") as log:
            self.keeper = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "emulators",
                    inventory,
                    "--foreground",
                    "--ready-fd",
                    str(other),
                    *options,
                ],
                pass_fds=(other,),
                stderr=log,
            )
        os.close(other)
        ready = select.select([here], [], [], 30)[0] and os.read(here, 16)
        os.close(here)
        assert ready == b"ready\n", self.log.read_text()

    def ask(self, op: str, **values: object) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10)
            control.connect(str(self.state / "control.sock"))
            control.sendall(json.dumps({"op": op, **values}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(control.makefile().readline())
        return answer

    def stop(self) -> int:
        self.keeper.terminate()
        return self.keeper.wait(10)

    def host_pid(self, host: str) -> int:
        return int(self.ask("status")["hosts"][host]["pid"])

    def port(self, device: str) -> int:
        return int(self.ask("status")["devices"][device]["address"].rpartition(":")[2])

    def scpi(self, device: str, *commands: str) -> str:
        """Send SCPI lines to a Polatis device, then ask its error queue; return the answer."""
        with socket.create_connection(("127.0.0.1", self.port(device)), 5) as link:
            link.sendall("".join(f"{c}\n" for c in (*commands, ":syst:err?")).encode())
            return link.makefile().readline().strip()

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Open sockets in the network namespace of `host`."""
        net = os.open(f"/proc/{self.host_pid(host)}/ns/net", os.O_RDONLY)
        try:
            with linux.inside(net):
                yield
        finally:
            os.close(net)

    def give_address(self, host: str, port: int, ip: str) -> None:
        with self.inside(host):
            netlink = Netlink()
        index = next(i for i, (name, _, _) in netlink.links().items() if name == f"opt{port}")
        netlink.send([address(index, ip, 24)])
        netlink.close()

    def carrier(self, host: str, port: int) -> bool:
        """Ask the host itself."""
        with self.inside(host):
            netlink = Netlink()
        up = next(carrier for name, _, carrier in netlink.links().values() if name == f"opt{port}")
        netlink.close()
        return up

    def raw(self, host: str, port: int) -> socket.socket:
        """Open an Ethernet socket on a host's port."""
        with self.inside(host):
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
        sock.bind((f"opt{port}", 0x88B5))  # the experimental ethertype
        sock.settimeout(0.5)
        return sock


def eventually(condition: Any, within_s: float = 2.0) -> bool:
    """Wait for `condition()`; return whether it came true."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
