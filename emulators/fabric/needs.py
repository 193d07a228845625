"""Find what this machine lacks to build the fabric, by trying it on a temporary namespace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from emulators.fabric import linux
from emulators.fabric.netlink import End, Message, Netlink, bridge, clsact, redirect, shaper, veth
from emulators.fabric.sshd import SERVER

PARTS = (
    ("bridge devices", "bridge", [bridge(10, "try")]),
    ("veth devices", "veth", [veth(End(11, "a"), End(12, "b"))]),
    ("the HTB shaper", "sch_htb", shaper(11, 1_000_000)),
    ("the clsact qdisc", "sch_ingress", [clsact(11)]),
    ("the u32 classifier with mirred", "cls_u32 and act_mirred", [redirect(11, 11)]),
)


def missing() -> list[str]:
    """Name everything missing, each with how to get it; empty when the lab can run."""
    if not sys.platform.startswith("linux"):
        return ["emulated hosts need Linux"]
    absent = []
    if not Path(SERVER).exists():
        absent.append(f"no {SERVER}: install openssh-server")
    elif not any(line.startswith("sshd:") for line in Path("/etc/passwd").read_text().splitlines()):
        absent.append("no user sshd in /etc/passwd: install openssh-server")
    if os.geteuid() != 0:
        return [*absent, "emulated hosts need root: run with sudo"]
    here, existing = os.pipe()
    pid = os.fork()
    if pid == 0:
        linux.leave(lambda: os.write(existing, "\n".join(_missing_in_kernel()).encode()))
    os.close(existing)
    with os.fdopen(here) as answers:
        absent += answers.read().split("\n")
    os.waitpid(pid, 0)
    return [lack for lack in absent if lack]


def _missing_in_kernel() -> list[str]:
    try:
        linux.unshare(linux.NEW_NS | linux.NEW_NET | linux.NEW_PID | linux.NEW_UTS | linux.NEW_IPC)
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("run", "/run", "tmpfs")
    except OSError as problem:
        return [
            f"no right to make namespaces ({problem}): CAP_SYS_ADMIN is needed, a container must be privileged"
        ]
    netlink = Netlink()
    absent = []
    for what, module, messages in PARTS:
        lack = _refusal(netlink, messages)
        if lack:
            absent.append(
                f"{what}: {lack}; try `modprobe {module.split(' and ')[0]}`, or a kernel with {module}"
            )
    return absent


def _refusal(netlink: Netlink, messages: list[Message]) -> str:
    try:
        # absence is not fine here
        netlink.send([Message(m.kind, m.flags, m.body, m.what) for m in messages])
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""
