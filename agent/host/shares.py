"""What a host provides for its partitions: an agent for each, shares of the ports, processors."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from agent.basics import PROGRAM, RUN, VAR, Failure, execute, keep, read, read_json, refused, write
from agent.host.partitions import lane_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json

# for the start of a partition's agent, which waits for its daemon (watchdog.STARTS_S), or its stop
WITHIN_S = 150.0
HANDLE = "7e57:"
"""The queueing discipline that shares a port: another one at its place is somebody else's."""
NOT_OF_PARTITIONS = ("partitions", "sysctls", "host_device", "node_prefix", "mtu", "workloads")
"""Facts of a host that its own agent alone acts on."""


def facts_of(host: Json, name: str) -> Json:
    """The facts of one partition's agent, given those of its host."""
    found = {key: value for key, value in host.items() if key not in NOT_OF_PARTITIONS}
    mine = host["partitions"][name]
    found.update(
        host="{}/{}".format(host["host"], name),
        lanes=mine["lanes"],
        echo=mine["lanes"],
        partition=dict(mine, name=name),
    )
    return found


def prepare(host: Json, changed: list[str], notes: list[str], check: bool = False) -> None:
    """Write the facts of every partition, share the ports, make the cgroups. check: only say what
    would be changed.

    Raises: Failure - one that goes is in use.
    """
    partitions = host.get("partitions", {})
    if not partitions and not os.path.isdir(VAR + "/partitions"):
        return
    for name in os.listdir(VAR + "/partitions") if os.path.isdir(VAR + "/partitions") else ():
        before = (read_json(f"{VAR}/partitions/{name}/provision.json") or {}).get("partition", {})
        # its rules are others
        if any(before.get(key) != partitions.get(name, {}).get(key) for key in ("index", "lanes")):
            if not check:
                _remove(name)
            changed.append(f"partition {name} removed")
    if check:
        changed += [
            f"partition {name}"
            for name in partitions
            if read(_file_of(name)) != _text_of(host, name)
        ]
        for port in host["ports"]:
            share(port["interface"], port.get("mbps"), partitions, changed, check)
        return
    for path, mode in [
        (VAR + "/partitions", 0o711),
        (RUN + "/partitions", 0o700),
        *((f"{VAR}/partitions/{name}", 0o711) for name in partitions),
    ]:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
    for name in partitions:
        if read(_file_of(name)) != _text_of(host, name):
            keep(_file_of(name), _text_of(host, name))
            changed.append(f"partition {name}")
    for port in host["ports"]:
        share(port["interface"], port.get("mbps"), partitions, changed)
    for name, values in partitions.items():
        if values.get("cpus") and not cpuset(name, values["cpus"]):
            text = f"partition {name}: no cgroup with cpuset on this host; its processors {values['cpus']} are set by affinity"
            notes.append(text + ", which a job can widen")


def _file_of(name: str) -> str:
    return f"{VAR}/partitions/{name}/provision.json"


def _text_of(host: Json, name: str) -> str:
    return json.dumps(facts_of(host, name), sort_keys=True, separators=(",", ":"))


def _remove(name: str) -> None:
    """Take away a partition that is used no more. Raises: Failure - it has routes."""
    import shutil

    state = read_json(f"{RUN}/partitions/{name}/state.json") or {}
    if state.get("active") is not None:
        raise refused(
            f"partition {name} of this host has a plan up; take it down before the inventory changes it"
        )
    run("stop", name)
    for folder in (VAR, RUN):
        shutil.rmtree(f"{folder}/partitions/{name}", ignore_errors=True)


def names() -> list[str]:
    """The partitions of this host, as it was provisioned; none for the agent of a partition."""
    return sorted((read_json(VAR + "/provision.json") or {}).get("partitions", ()))


def run(command: str, name: str) -> Json:
    """`start` or `stop` of the agent of one partition. Raises: Failure."""
    own = {"TESTBED_VAR": f"{VAR}/partitions/{name}", "TESTBED_RUN": f"{RUN}/partitions/{name}"}
    argv = [sys.executable, "-S", "-E", PROGRAM, command]
    done = subprocess.run(
        argv,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=WITHIN_S,
    )
    try:
        reply = dict(json.loads(done.stdout))
    except ValueError:
        reply = {
            "ok": False,
            "error": f"its agent's {command} ended with {done.returncode} and printed {done.stdout[:200]!r}",
        }
    if not reply.get("ok", True):
        raise Failure("failed", "partition {}: {}".format(name, reply.get("error")))
    return reply


# -- shares of a port


def share_commands(interface: str, mbps: float, partitions: Json) -> list[list[str]]:
    """The tc commands that give each partition its share of a port of `mbps` Mb/s: so much, and no
    more.
    """
    found = []
    for values in partitions.values():
        if values.get("share") is None:
            continue
        minor = f"{HANDLE}{values['index'] + 1:x}"
        rate = f"{int(values['share'] * mbps * 1e6)}bit"
        # A class never borrows, so the quantum is of no account; without it tc warns of its guess.
        made = [
            "parent",
            HANDLE,
            "classid",
            minor,
            "htb",
            "rate",
            rate,
            "ceil",
            rate,
            "quantum",
            "9014",
        ]
        found.append(["tc", "class", "add", "dev", interface, *made])
        where = [
            "tc",
            "filter",
            "add",
            "dev",
            interface,
            "parent",
            HANDLE,
            "protocol",
            "ip",
            "prio",
            "1",
            "u32",
        ]
        found += [
            [*where, "match", "ip", "src", lane_prefix(address), "flowid", minor]
            for address in values["lanes"]
        ]
    return (
        [["tc", "qdisc", "add", "dev", interface, "root", "handle", HANDLE, "htb"], *found]
        if found
        else []
    )


def share(
    interface: str, mbps: float | None, partitions: Json, changed: list[str], check: bool = False
) -> None:
    """Give each partition its share of one port; check: only say so. Raises: Failure - somebody
    else's queueing discipline is there.
    """
    wanted = share_commands(interface, mbps, partitions) if mbps else []
    show = ["tc", "qdisc", "show", "dev", interface, "root"]
    done = subprocess.run(show, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    existing = done.stdout.decode(errors="replace").split()
    ours, noted, text = (
        HANDLE in existing,
        RUN + "/partitions/share-" + interface,
        json.dumps(wanted),
    )
    if ours == bool(wanted) and (not wanted or read(noted) == text):
        return
    if wanted and not ours and len(existing) > 2 and existing[2] != "0:":
        theirs = " ".join(existing[1:3])
        raise refused(
            f"{interface} has a queueing discipline of somebody else's ({theirs}); shares of partitions need its place"
        )
    changed.append(f"shares of {interface}" if wanted else f"no shares of {interface}")
    if check:
        return
    if ours:
        execute(["tc", "qdisc", "del", "dev", interface, "root"])
    for command in wanted:
        execute(command)
    write(noted, text)


# -- processors


def processors(text: str) -> list[int]:
    """The processors of a list as the kernel writes them.

    >>> processors("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _cpusets() -> tuple[str, str]:
    """Where cpuset cgroups are made, and which of their files lists the processors; empty where
    this host has none.
    """
    for fields in (line.split() for line in read("/proc/self/mounts").splitlines()):
        # another mount may lie over it
        if len(fields) < 4 or not os.path.exists(fields[1] + "/cgroup.procs"):
            continue
        if fields[2] == "cgroup" and "cpuset" in fields[3].split(","):
            return fields[1], "cpuset.cpus" if os.path.exists(
                fields[1] + "/cpuset.cpus"
            ) else "cpus"
        if fields[2] == "cgroup2" and "cpuset" in read(fields[1] + "/cgroup.controllers").split():
            with contextlib.suppress(OSError):
                _put(fields[1] + "/cgroup.subtree_control", "+cpuset")
                return fields[1], "cpuset.cpus"
    return "", ""


def _put(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def cpuset(name: str, wanted: str) -> str:
    """The cgroup that keeps jobs of a partition on these processors, made or brought up to date;
    empty where there can be none.
    """
    root, file = _cpusets()
    if not root:
        return ""
    folder, memory = f"{root}/testbed-{name}", file.removesuffix("cpus") + "mems"
    try:
        os.makedirs(folder, exist_ok=True)
        _put(f"{folder}/{file}", wanted)
        # version 1 wants it said
        if not read(f"{folder}/{memory}").strip() and (nodes := read(f"{root}/{memory}").strip()):
            _put(f"{folder}/{memory}", nodes)
    except OSError:
        return ""
    return folder


def no_cpuset(name: str) -> None:
    """Remove the cgroup of a partition; one with processes in it stays."""
    with contextlib.suppress(OSError):
        os.rmdir(f"{_cpusets()[0]}/testbed-{name}")


def confine(mine: Json) -> None:
    """Keep this process, which becomes a job, and all that it starts on its partition's
    processors.
    """
    folder = cpuset(mine["name"], mine["cpus"])
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, processors(mine["cpus"]))
    if folder:
        with contextlib.suppress(OSError):
            _put(folder + "/cgroup.procs", "0")
