"""Make the host ready for the fabric: links, addresses, sysctls; idempotent, and everything is read
back.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct

from agent.basics import (
    RUN,
    VAR,
    Failure,
    directories,
    execute,
    keep,
    read,
    read_json,
    refused,
    write,
)
from agent.host import shares
from agent.host.netlink import (
    CREATE,
    EXCL,
    FENCE_PREF,
    GETADDR,
    GETRULE,
    NEWADDR,
    NEWLINK,
    NEWRULE,
    REPLACE,
    U32,
    Rtnl,
    address_message,
    attrs,
    fence_message,
    link_message,
    links,
    must,
    u32,
)
from agent.host.rdma import MACS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json, Link, Message

BEFORE = VAR + "/before.json"
"""Sysctls and links as they were before provisioning first changed them: `remove` puts them
back.
"""
REFUSED = RUN + "/refused.json"
"""What this kernel did not take, until the next boot: `check` does not promise it."""


def sysctl_path(key: str) -> str:
    return "/proc/sys/" + "/".join(
        part.replace("//", ".") for part in key.replace("\\.", "//").split(".")
    )


def set_sysctl(key: str, value: object, check: bool = False) -> tuple[bool, str | None, str]:
    """Set one sysctl when it differs; return (changed, value read back, error). check: only say
    so.
    """
    path = sysctl_path(key)
    if not os.path.exists(path):
        return False, None, f"this kernel has no {key}"
    now = read(path)
    if now.split() == str(value).split():
        return False, now.strip(), ""
    if check:
        return True, str(value), ""
    error = ""
    try:
        # not open().write(): its error comes at close and is easily lost
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
    except OSError as e:
        error = e.strerror or str(e)
    after = read(path).strip()
    if not error and after.split() != str(value).split():
        error = f"reads back {after}"
    return after != now.strip(), after, error


def provision(facts: Json, check: bool = False, boot: bool = False) -> Json:
    """Make this host as `facts` say; return what changed, the sysctls read back, and notes on what
    this kernel cannot do.

    check: change nothing; return what would be changed. boot: nobody asked for it, so the MAC
    addresses noted before stay: what a restart swapped shows by them.
    """
    if check:
        return _provision(facts, check)
    directories()
    gate = os.open(RUN + "/provision.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(gate, fcntl.LOCK_EX)  # of two at once the second finds everything done
    try:
        return _provision(facts, check, boot)
    finally:
        os.close(gate)


def _job_user(name: str, check: bool) -> list[str]:
    """Make sure that there is the user to run jobs as; return what changed. Jobs give him no
    password, no shell and no home.
    """
    import pwd
    import shutil

    try:
        pwd.getpwnam(name)
        return []
    except KeyError:
        nologin = shutil.which("nologin", path="/usr/sbin:/sbin") or "/bin/false"
        if not check:
            execute(
                [
                    "useradd",
                    "--system",
                    "--no-create-home",
                    "--home-dir",
                    "/nonexistent",
                    "--shell",
                    nologin,
                    name,
                ]
            )
        return [f"user {name} added"]


def _readable_programs(digest: str | None) -> None:
    """Let the user of jobs read the workloads, and compile them once: he cannot."""
    folder = f"{VAR}/workloads/{digest}"
    if not os.path.isdir(folder) or os.path.isdir(folder + "/workloads/__pycache__"):
        return
    import compileall

    compileall.compile_dir(folder, quiet=2)
    for here, _, names in os.walk(folder):
        os.chmod(here, 0o755)
        for name in names:
            os.chmod(os.path.join(here, name), 0o644)


def _note_before(facts: Json, have: dict[str, Link]) -> None:
    """Keep what sysctls and links are now, of those of which nothing is kept yet."""
    kept = read_json(BEFORE) or {"sysctls": {}, "links": {}}
    text = json.dumps(kept, sort_keys=True)
    for key, *_ in facts.get("sysctls", ()):
        if os.path.exists(sysctl_path(key)):
            kept["sysctls"].setdefault(key, read(sysctl_path(key)).strip())
    for name in interfaces(facts):
        kept["links"].setdefault(name, {key: have[name][key] for key in ("mtu", "up")})
    if json.dumps(kept, sort_keys=True) != text:
        keep(BEFORE, json.dumps(kept, sort_keys=True))


def _note_macs(macs: dict[str, str], notes: list[str]) -> None:
    """Keep which interface has which MAC address, unless one has what is noted of another."""
    kept = read_json(MACS) or {}
    swapped = [
        name for name, mac in macs.items() if mac != kept.get(name, mac) and mac in kept.values()
    ]
    if swapped:
        notes.append(
            "{}: the MAC address of another interface, as {} says; remove that file if it is to be so".format(
                ", ".join(swapped), MACS
            )
        )
    elif kept != macs:
        keep(MACS, json.dumps(macs, sort_keys=True))


def interfaces(facts: Json) -> list[str]:
    """The interfaces of all ports, second functions too."""
    return [
        name for port in facts["ports"] for name in (port["interface"], port.get("eth")) if name
    ]


def held_addresses(nl: Rtnl) -> set[tuple[int, str]]:
    """The IPv4 addresses of this host, each with the number of its interface."""
    dumped = (
        (struct.unpack_from("=I", data, 4)[0], attrs(data, 8))
        for data in nl.dump(GETADDR, struct.pack("=BBBBI", 2, 0, 0, 0, 0))
    )
    return {(ifindex, socket.inet_ntoa(a[2])) for ifindex, a in dumped if 2 in a}


def wanted_addresses(facts: Json) -> list[tuple[str, str]]:
    """The addresses that `facts` say, each with its interface."""
    device = facts.get("host_device")
    wanted = [(device, a) for a in facts.get("lanes", ()) if device]
    return wanted + [(p["interface"], p["address"]) for p in facts["ports"] if p.get("address")]


def _provision(facts: Json, check: bool, boot: bool = False) -> Json:
    nl = Rtnl()
    changed = _job_user(facts["job_user"], check) if facts.get("job_user") else []
    notes: list[str] = []
    if not check:
        _readable_programs(facts.get("workloads"))
    have = links(nl)
    device = facts.get("host_device")
    if device and device not in have:
        if check:
            have[device] = {"ifindex": 0, "up": True}
        else:
            must(
                nl.send(
                    [(NEWLINK, CREATE | EXCL, link_message(name=device, kind="bridge", up=True))]
                ),
                lambda i: f"add bridge {device}",
            )
            have = links(nl)
        changed.append(f"bridge {device} added")
    missing = [name for name in interfaces(facts) if name not in have]
    if missing:
        raise refused(
            "no interface {} on this host (it has {})".format(
                ", ".join(missing), ", ".join(sorted(have))
            )
        )
    if not check:
        _note_before(facts, have)
    todo: list[tuple[str, Message]] = []
    wider: list[tuple[str, Message]] = []
    for name in interfaces(facts):
        if facts.get("mtu") and have[name]["mtu"] != facts["mtu"]:
            wider.append(
                (name, (NEWLINK, 0, link_message(have[name]["ifindex"], mtu=facts["mtu"])))
            )
        if not have[name]["up"]:
            todo.append((f"{name} up", (NEWLINK, 0, link_message(have[name]["ifindex"], up=True))))
    if device and not have[device]["up"]:
        todo.append((f"{device} up", (NEWLINK, 0, link_message(have[device]["ifindex"], up=True))))
    held = held_addresses(nl)
    for name, address in wanted_addresses(facts):
        if (have[name]["ifindex"], address) not in held:
            todo.append(
                (
                    f"{address} on {name}",
                    (NEWADDR, CREATE | REPLACE, address_message(have[name]["ifindex"], address)),
                )
            )
    prefix = facts.get("node_prefix")
    if prefix and not any(
        U32.unpack(attrs(d, 12).get(6, u32(0)))[0] == FENCE_PREF
        for d in nl.dump(GETRULE, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 0, 0, 0, 0, 0))
    ):
        todo.append((f"fence {prefix}", (NEWRULE, CREATE | EXCL, fence_message(prefix))))
    not_taken = (read_json(REFUSED) or []) if check else []
    failed: dict[int, tuple[int, str]] = {}
    if not check:
        must(nl.send([t[1] for t in todo]), lambda i: todo[i][0])
        failed = nl.send([w[1] for w in wider])  # an interface that cannot be so wide still works
    changed += [t[0] for t in todo]
    widths = ["mtu {} on {}".format(facts["mtu"], name) for name, _ in wider]
    notes += [f"{widths[i]}: {os.strerror(code)}" for i, (code, _) in sorted(failed.items())]
    changed += [
        width for i, width in enumerate(widths) if i not in failed and width not in not_taken
    ]
    refusals = [widths[i] for i in failed]
    values: dict[str, str | None] = {}
    wrong: list[str] = []
    for key, value, needed in facts.get("sysctls", ()):
        moved, after, error = set_sysctl(key, value, check)
        values[key] = after
        if moved and f"{key} = {value}" not in not_taken:
            changed.append(f"{key} = {after}")
        if error:
            (wrong if needed else notes).append(f"{key} = {value}: {error}")
            refusals.append(f"{key} = {value}")
    if wrong:
        raise Failure("failed", "sysctl " + "; ".join(wrong))
    shares.prepare(facts, changed, notes, check)
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    if check:
        changed += [] if read(VAR + "/provision.json") == text else ["facts"]
        return {"changed": changed, "sysctls": values, "notes": notes}
    write(REFUSED, json.dumps(refusals))
    if not boot:
        _note_macs({name: have[name]["mac"] for name in interfaces(facts)}, notes)
    if read(VAR + "/provision.json") != text:
        keep(VAR + "/provision.json", text)
    return {"changed": changed, "sysctls": values, "notes": notes}
