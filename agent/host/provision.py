"""Make the host ready for the fabric: links, addresses, sysctls; idempotent, and everything is read
back.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct

from agent.basics import RUN, VAR, Failure, directories, execute, keep, read, refused
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json, Message


def sysctl_path(key: str) -> str:
    return "/proc/sys/" + "/".join(
        part.replace("//", ".") for part in key.replace("\\.", "//").split(".")
    )


def set_sysctl(key: str, value: object) -> tuple[bool, str | None, str]:
    """Set one sysctl when it differs; return (changed, value read back, error)."""
    path = sysctl_path(key)
    if not os.path.exists(path):
        return False, None, f"this kernel has no {key}"
    now = read(path)
    if now.split() == str(value).split():
        return False, now.strip(), ""
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


def provision(facts: Json) -> Json:
    """Make this host as `facts` say; return what changed, the sysctls read back, and notes on what
    this kernel cannot do.
    """
    directories()
    gate = os.open(RUN + "/provision.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(gate, fcntl.LOCK_EX)  # of two at once the second finds everything done
    try:
        return _provision(facts)
    finally:
        os.close(gate)


def _job_user(name: str) -> list[str]:
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


def _provision(facts: Json) -> Json:
    nl = Rtnl()
    changed = _job_user(facts["job_user"]) if facts.get("job_user") else []
    notes: list[str] = []
    _readable_programs(facts.get("workloads"))
    have = links(nl)
    device = facts.get("host_device")
    if device and device not in have:
        must(
            nl.send([(NEWLINK, CREATE | EXCL, link_message(name=device, kind="bridge", up=True))]),
            lambda i: f"add bridge {device}",
        )
        changed.append(f"bridge {device} added")
        have = links(nl)
    missing = [p["interface"] for p in facts["ports"] if p["interface"] not in have]
    missing += [p["eth"] for p in facts["ports"] if p.get("eth") and p["eth"] not in have]
    if missing:
        raise refused(
            "no interface {} on this host (it has {})".format(
                ", ".join(missing), ", ".join(sorted(have))
            )
        )
    todo: list[tuple[str, Message]] = []
    wider: list[tuple[str, Message]] = []
    for port in facts["ports"]:
        for name in filter(None, (port["interface"], port.get("eth"))):
            if facts.get("mtu") and have[name]["mtu"] != facts["mtu"]:
                wider.append(
                    (name, (NEWLINK, 0, link_message(have[name]["ifindex"], mtu=facts["mtu"])))
                )
            if not have[name]["up"]:
                todo.append(
                    (f"{name} up", (NEWLINK, 0, link_message(have[name]["ifindex"], up=True)))
                )
    if device and not have[device]["up"]:
        todo.append((f"{device} up", (NEWLINK, 0, link_message(have[device]["ifindex"], up=True))))
    wanted = [(device, a) for a in facts.get("lanes", ()) if device]
    wanted += [(p["interface"], p["address"]) for p in facts["ports"] if p.get("address")]
    held = set()
    for data in nl.dump(GETADDR, struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0)):
        a = attrs(data, 8)
        if 2 in a:
            held.add((struct.unpack_from("=I", data, 4)[0], socket.inet_ntoa(a[2])))
    for name, address in wanted:
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
    must(nl.send([t[1] for t in todo]), lambda i: todo[i][0])
    changed += [t[0] for t in todo]
    failed = nl.send([w[1] for w in wider])  # an interface that cannot be so wide still works
    notes += [
        "mtu {} on {}: {}".format(facts["mtu"], wider[i][0], os.strerror(code))
        for i, (code, _) in sorted(failed.items())
    ]
    changed += [
        "mtu {} on {}".format(facts["mtu"], w[0]) for i, w in enumerate(wider) if i not in failed
    ]
    values: dict[str, str | None] = {}
    wrong: list[str] = []
    for key, value, needed in facts.get("sysctls", ()):
        moved, after, error = set_sysctl(key, value)
        values[key] = after
        if moved:
            changed.append(f"{key} = {after}")
        if error:
            (wrong if needed else notes).append(f"{key} = {value}: {error}")
    if wrong:
        raise Failure("failed", "sysctl " + "; ".join(wrong))
    shares.prepare(facts, changed, notes)
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    if read(VAR + "/provision.json") != text:
        keep(VAR + "/provision.json", text)
    return {"changed": changed, "sysctls": values, "notes": notes}
