"""Who uses this host's processors, the ranks of a job or something else, and what TCP carried: two
looks, some time apart.
"""

from __future__ import annotations

import os
import time

from agent.basics import VAR, bad, number, read
from agent.jobs import heartbeats
from agent.jobs.processes import JOB_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Answer, Daemon, Json

LEAST_S, MOST_S = 0.1, 10.0
MOST_PROCESSES = 8192  # a look at so many takes 0.2 s, in which the daemon does nothing else
MOST_RANKS = 64
OTHERS = 5  # that use most
LEAST_CORES = 0.02  # what uses less is not worth a line
TICKS = os.sysconf("SC_CLK_TCK")


class Look:
    """One look at all processes: what each has used so far (s of a processor), by process, command
    and session.
    """

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.busy_s = 0.0
        self.used: dict[tuple[int, int], tuple[float, str, int, str]] = {}
        head = read("/proc/stat").partition("\n")[0].split()[1:9]
        if len(head) == 8:  # all but idle and waiting for disks (proc(5))
            self.busy_s = (
                sum(int(ticks) for at, ticks in enumerate(head) if at not in (3, 4)) / TICKS
            )
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
        self.whole = len(pids) <= MOST_PROCESSES
        for name in pids[:MOST_PROCESSES]:
            before, _, after = read(f"/proc/{name}/stat").rpartition(")")
            fields = after.split()
            if len(fields) > 19:
                used_s = (int(fields[11]) + int(fields[12])) / TICKS
                self.used[int(name), int(fields[19])] = (
                    used_s,
                    before.partition("(")[2],
                    int(fields[3]),
                    fields[0],
                )
        self.sent, self.again = segments()


def segments() -> tuple[int, int]:
    """TCP segments sent, and those of them sent again, since boot."""
    rows = [line.split() for line in read("/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
    if len(rows) != 2:
        return 0, 0
    values = dict(zip(*rows))
    return int(values.get("OutSegs", 0)), int(values.get("RetransSegs", 0))


def load(server: Daemon, request: Json, answer: Answer) -> None:
    """Answer after `for_s` (s) with what was used meanwhile; `names`: the jobs, one a rank, that
    are distinguished from the rest.
    """
    names, for_s = request.get("names", []), number(request, "for_s", 1.0)
    if (
        not isinstance(names, list)
        or len(names) > MOST_RANKS
        or not all(isinstance(n, str) and JOB_NAME.match(n) for n in names)
    ):
        raise bad(f"names: a list of at most {MOST_RANKS} names of jobs is needed")
    if not LEAST_S <= for_s <= MOST_S:
        raise bad(f"for_s: {LEAST_S:g} to {MOST_S:g} seconds are possible, got {for_s!r}")
    server.flows.asked()
    first, begin = Look(), server.flows.look()
    server.timer(
        time.monotonic_ns() + int(for_s * 1e9),
        lambda: answer(dict(compared(server, names, first, Look()), **server.flows.since(begin))),
    )


def compared(server: Daemon, names: list[str], first: Look, last: Look) -> Json:
    """What was used between two looks, in cores."""
    seconds = max(last.at - first.at, 1e-3)
    cores = {
        process: (used[0] - first.used[process][0] if process in first.used else used[0]) / seconds
        for process, used in last.used.items()
    }
    sessions = {}
    for name in names:
        state = server.jobs.state(VAR + "/jobs/" + name)
        if state["state"] == "running":
            sessions[state["pid"]] = name
    ranks: dict[str, Json] = {}
    for session, name in sessions.items():
        mine = [p for p, used in last.used.items() if used[2] == session]
        # the shell around a program only waits for it; stopped is a rank all of whose other
        # processes are, both times
        worker = [p for p in mine if p[0] != session] or mine
        most = max(worker, key=lambda p: last.used[p][0], default=None)
        stopped = bool(worker) and all(
            last.used[p][3] == "T" and first.used.get(p, (0, "", 0, ""))[3] == "T" for p in worker
        )
        used = sum(cores[p] for p in mine)
        letter = (
            "T"
            if stopped and used < LEAST_CORES
            else "S"
            if most is None or last.used[most][3] == "T"
            else last.used[most][3]
        )
        ranks[name] = {"state": letter, "cores": round(used, 3), "heartbeat": trouble(name)}
    me = os.getpid()
    rest = [
        (n, p)
        for p, n in cores.items()
        if n >= LEAST_CORES and last.used[p][2] not in sessions and p[0] != me
    ]
    return {
        "seconds": round(seconds, 3),
        "cpus": os.cpu_count() or 1,
        "busy": round((last.busy_s - first.busy_s) / seconds, 3),
        "ranks": ranks,
        "others": [
            {"pid": p[0], "command": last.used[p][1], "cores": round(n, 3)}
            for n, p in sorted(rest, reverse=True)[:OTHERS]
        ],
        "whole": last.whole,
        "sent": last.sent - first.sent,
        "again": last.again - first.again,
    }


def trouble(name: str) -> str:
    """Why the heartbeat of a rank cannot be read; empty if it can."""
    try:
        heartbeats.read(VAR + "/jobs/" + name + "/" + heartbeats.FILE, heartbeats.HIGHEST)
    except (OSError, ValueError) as e:
        return getattr(e, "strerror", None) or str(e)
    return ""
