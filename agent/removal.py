"""Undo what provisioning did to this host, by what was noted before it, and remove the agent. The
user of jobs stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from agent import watchdog
from agent.basics import RUN, VAR, Failure, execute, read, read_json, refused
from agent.calls import alive, call
from agent.host import shares
from agent.host.netlink import (
    DELADDR,
    DELLINK,
    DELRULE,
    NEWLINK,
    Rtnl,
    address_message,
    fence_message,
    link_message,
    links,
)
from agent.host.provision import (
    BEFORE,
    held_addresses,
    interfaces,
    set_sysctl,
    sysctl_path,
    wanted_addresses,
)
from agent.jobs.processes import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json


def in_use() -> list[str]:
    """What still runs on this host: plans and jobs, in words."""
    found = []
    for part in ("", *(f"/partitions/{name}" for name in shares.names())):
        of = f" of slice {os.path.basename(part)}" if part else ""
        if (read_json(f"{RUN}{part}/state.json") or {}).get("active") is not None:
            found.append(f"the routes of a plan{of}")
        folder = f"{VAR}{part}/started"
        for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
            spec = read_json(f"{folder}/{name}") if name.endswith(".json") else None
            if spec and spec.get("born") is not None and start_time(spec["pid"]) == spec["born"]:
                found.append(f"job {name.removesuffix('.json')}{of}")
    return found


def remove() -> Json:
    """Put sysctls, links and addresses back, end the daemon, remove its unit and all files, those
    of jobs too.

    Raises: Failure - a plan or a job needs them.
    """
    if used := in_use():
        raise refused("in use: {}; take it down first: testbed down".format(", ".join(used)))
    facts = read_json(VAR + "/provision.json")
    changed: list[str] = []
    if alive():
        call([{"op": "clear"}])  # what was staged and never used
    units = (
        sorted(n for n in os.listdir(watchdog.UNITS) if n.startswith("testbed-committer"))
        if watchdog.of_systemd()
        else []
    )
    for unit in units:  # before the daemon is stopped: systemd would start it again
        execute(["systemctl", "disable", "--now", unit])
        os.unlink(f"{watchdog.UNITS}/{unit}")
        changed.append(f"no unit {unit}")
    if units:
        execute(["systemctl", "daemon-reload"])
    for name in shares.names():
        shares.run("stop", name)
        shares.no_cpuset(name)
    if watchdog.stop()["stopped"]:
        changed.append("agent stopped")
    if facts:
        _links(facts, changed)
        _sysctls(facts, changed)
    for folder in (VAR, RUN):
        _emptied(folder)
        changed.append(f"no {folder}")
    return {"changed": changed}


def _emptied(folder: str) -> None:
    """Remove a folder; what is mounted there stays, empty."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = f"{folder}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _links(facts: Json, changed: list[str]) -> None:
    nl = Rtnl()
    have, before = links(nl), (read_json(BEFORE) or {}).get("links", {})
    held = held_addresses(nl)
    todo = []
    for name, address in wanted_addresses(facts):
        if name in have and (have[name]["ifindex"], address) in held:
            todo.append(
                (
                    f"no {address} on {name}",
                    (DELADDR, 0, address_message(have[name]["ifindex"], address)),
                )
            )
    for name in (each for each in interfaces(facts) if each in have):
        shares.share(name, None, {}, changed)
        was, now = before.get(name, {}), have[name]
        if was.get("mtu") and now["mtu"] == facts.get("mtu") != was["mtu"]:
            todo.append(
                (
                    f"mtu {was['mtu']} on {name}",
                    (NEWLINK, 0, link_message(now["ifindex"], mtu=was["mtu"])),
                )
            )
        if was.get("up") is False and now["up"]:
            todo.append((f"{name} down", (NEWLINK, 0, link_message(now["ifindex"], down=True))))
    if facts.get("node_prefix"):
        todo.append(("no fence", (DELRULE, 0, fence_message(facts["node_prefix"]))))
    if facts.get("host_device") in have:
        todo.append(
            (
                "no " + facts["host_device"],
                (DELLINK, 0, link_message(have[facts["host_device"]]["ifindex"])),
            )
        )
    failed = nl.send([message for _, message in todo])
    changed += [what for i, (what, _) in enumerate(todo) if i not in failed]


def _sysctls(facts: Json, changed: list[str]) -> None:
    """Put back what still is as provisioning left it: what someone set since is his."""
    before, wrong = (read_json(BEFORE) or {}).get("sysctls", {}), []
    ours = [
        key
        for key, value, _ in facts.get("sysctls", ())
        if read(sysctl_path(key)).split() == str(value).split()
    ]
    for key in ours:  # found first: ip_forward moves others when it is set (ip-sysctl.rst)
        if before.get(key) is None:
            continue
        moved, after, error = set_sysctl(key, before[key])
        if moved:
            changed.append(f"{key} = {after}")
        if error:
            wrong.append(f"{key} = {before[key]}: {error}")
    if wrong:
        raise Failure("failed", "sysctl " + "; ".join(wrong))
