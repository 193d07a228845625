"""The congestion control of a job's connections: set on their sockets once they are connected, and
on those that come later.

A route that names a congestion control overrides what a program asks for before it connects, and a
program of other people asks for nothing: so this program looks for the job's sockets, reaches them
as agent/tcp/flush.py does, and sets it on each. One of the controls is our own
(bpf/progress.bpf.c), whose window grows the faster the more of an iteration's bytes were sent; its
parameters are the job's, and a lease: without word for LEASE_S, or after the death of this process,
open connections that have it do as RFC 5681 says.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time

from agent.basics import RUN, VAR, Failure, bad, read_json, refused, write
from agent.jobs.processes import job_name
from agent.jobs.remains import MARK, of_job
from agent.mechanism import Mechanism
from agent.tcp import flush
from agent.tcp.controls import available
from extensions.congestion.host import structops

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from agent.shapes import Daemon, Json, Operations

OWN = "mltcp"
"""What plans call the control of bpf/progress.bpf.c."""
CONTROLS = ("cubic", "reno", "bbr", OWN)
SLOPE, INTERCEPT = 1.75, 0.25  # of the paper that the idea is from
ONE = 1024  # what the program counts a factor of 1 as
MOST = 64.0  # of slope and intercept
MOST_BYTES, MOST_GAP_MS = 1 << 53, 3_600_000.0
LEASE_S = 5.0
LOOK_S = 0.5
SEARCH_NS = 100_000_000
"""How long one search through /proc for new sockets may take; the daemon does nothing else
meanwhile.
"""
SOCKETS = 256
"""Sockets of one host that are set at one look at most."""
STATE = RUN + "/congestion.json"
KNOWN = struct.Struct("=QQQ8I")  # struct known of bpf/progress.bpf.c


def checked(request: Json) -> Json:
    """The control and, of our own, its parameters, as they are kept. Raises: Failure - they are
    none.
    """
    control, given = request.get("control"), request.get("parameters") or {}
    if control not in CONTROLS:
        raise bad(
            "control: one of {} is needed, got {!r:.100}".format(", ".join(CONTROLS), control)
        )
    if not isinstance(given, dict) or (given and control != OWN):
        raise bad(f"parameters: a mapping, of control {OWN} only, is needed, got {given!r:.200}")
    if control != OWN:
        return {"control": control}
    if strange := set(given) - {"slope", "intercept", "bytes", "gap_ms"}:
        raise bad(
            "parameters: {} {} unknown".format(
                ", ".join(sorted(strange))[:100], "is" if len(strange) == 1 else "are"
            )
        )
    slope, intercept = (
        _figure(given, name, usual, MOST)
        for name, usual in (("slope", SLOPE), ("intercept", INTERCEPT))
    )
    if not intercept * ONE >= 1:
        raise bad(
            f"intercept: at least {1 / ONE} is needed, or a window would never grow; got {intercept!r}"
        )
    size = (
        0 if given.get("bytes") in (None, "auto") else int(_figure(given, "bytes", 0, MOST_BYTES))
    )
    gap_ms = (
        0.0 if given.get("gap_ms") in (None, "auto") else _figure(given, "gap_ms", 0, MOST_GAP_MS)
    )
    return {"control": OWN, "slope": slope, "intercept": intercept, "bytes": size, "gap_ms": gap_ms}


def _figure(given: Json, name: str, usual: float, most: float) -> float:
    value = given.get(name, usual)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= most:
        raise bad(f"{name}: a number from 0 to {most:g} is needed, got {value!r:.100}")
    return value


def unsupported(control: str) -> str:
    """Why this host cannot have it; empty where nothing is known to be missing."""
    if control == OWN:
        return structops.unsupported()
    if control not in available():
        return f"the kernel of this host has {', '.join(available())}: modprobe tcp_{control}"
    return ""


class Registered(structops.Program):
    """The control with progress, registered in the kernel for as long as this object is not
    closed.
    """

    def __init__(self, name: str) -> None:
        """Raises: Failure, with what the kernel or the machine lacks."""
        super().__init__(
            "progress", name, ("lease", "parameters", "progress"), f"congestion control {OWN}"
        )

    def renew(self, for_s: float) -> None:
        """Parameters count for so long from now. Raises: OSError."""
        self.put("lease", 0, struct.pack("=Q", structops.lease(for_s)))

    def give(self, fd: int, wanted: Json) -> None:
        """Give the connection its parameters. Raises: OSError."""
        slope, intercept = (int(wanted[name] * ONE) for name in ("slope", "intercept"))
        gap_us = min(int(wanted["gap_ms"] * 1000), (1 << 32) - 1)
        self.put(
            "parameters", fd, struct.pack("=IIIIQ", slope, intercept, gap_us, 0, wanted["bytes"])
        )

    def seen(self, fd: int) -> Json:
        """What it knows of the connection: begun iterations, bytes of one, usual gap, the factor
        now. Raises: OSError.
        """
        _, total, _, usual_us, iterations, factor, *_ = KNOWN.unpack(
            self.get("progress", fd, KNOWN.size)
        )
        return {
            "iterations": iterations,
            "bytes": total,
            "gap_ms": usual_us / 1000,
            "factor": round(factor / ONE, 3),
        }


class Congestions(Mechanism):
    """The congestion control of each running job that was given one."""

    OPERATIONS: ClassVar[Operations] = {
        "congestion": lambda self, request, _: self.set(request),
        "congestion.ready": lambda self, request, _: self.ready(request),
        "congestions": lambda self, request, _: self.status(request),
    }
    FENCED = frozenset(("congestion",))
    TRIES = (
        (
            "congestion control per job (struct_ops)",
            f"everything but jobs whose congestion is {OWN}",
            lambda: structops.tried("iter", Registered),
        ),
    )

    def __init__(self, server: Daemon) -> None:
        super().__init__(server)
        self.wanted: dict[str, Json] = {}
        # of a job, by inode: process, descriptor, far address
        self.known: dict[str, dict[int, tuple[int, int, str]]] = {}
        self.strange: set[int] = set()  # inodes of no job's sockets
        self.searched_ns = self.rest_ns = 0
        self.registered: Registered | None = None
        self.problem = ""
        self.looking = False
        self.getfd: Any = None
        kept = read_json(STATE)
        for name, wanted in kept.items() if isinstance(kept, dict) else ():
            with contextlib.suppress(Failure):
                self.wanted[name] = checked(
                    {"control": wanted["control"], "parameters": _parameters(wanted)}
                )
        self.start()

    def set(self, request: Json) -> Json:
        """Give a running job's connections a congestion control, now and when they are made;
        `back`: if it was given one before.
        """
        name, wanted = job_name(request, "job"), checked(request)
        if self.server.jobs.state(VAR + "/jobs/" + name)["state"] != "running":
            raise refused(f"no job {name} runs on this host")
        if request.get("back") and name not in self.wanted:
            return self.status({"job": name})
        self.able(wanted["control"])
        return self.begin(name, wanted)

    def able(self, control: str) -> None:
        """Raises: Failure - this host cannot have it."""
        if missing := unsupported(control):
            raise refused(f"congestion control {control}: {missing}")
        if control == OWN and self.registered is None:
            self.registered = Registered(self.name("iter"))

    def name(self, prefix: str) -> str:
        return structops.name_here(prefix, (self.server.facts.get("partition") or {}).get("index"))

    def ready(self, request: Json) -> Json:
        """Whether this host can have a control: ours is registered for a moment. Raises: Failure -
        it cannot.
        """
        control = checked({"control": request.get("control")})["control"]
        if missing := unsupported(control):
            raise refused(f"congestion control {control}: {missing}")
        if control == OWN and self.registered is None:
            Registered(self.name("try")).close()
        return {"control": control}

    def wish(self, request: Json) -> Json | None:
        """What a job that is to start is given, if anything. Raises: Failure - this host cannot
        have it.
        """
        if request.get("congestion") is None:
            return None
        if not isinstance(request["congestion"], dict):
            raise bad("congestion: control and parameters are needed")
        wanted = checked(request["congestion"])
        self.able(wanted["control"])
        return wanted

    def begin(self, name: str, wanted: Json) -> Json:
        """As `set`, of a job that was started a moment ago."""
        self.wanted[name] = wanted
        self.known.pop(name, None)
        self.strange, self.searched_ns = set(), 0
        self.save()
        self.look()
        self.settle()
        self.start()
        return self.status({"job": name})

    def end(self, name: str) -> None:
        """The job has ended."""
        if self.wanted.pop(name, None) is not None:
            self.known.pop(name, None)
            self.save()
            self.settle()

    def clear(self) -> None:
        """No job has one any more; open connections keep what they have."""
        self.wanted, self.known = {}, {}
        self.save()
        self.settle()

    def save(self) -> None:
        if self.wanted:
            write(STATE, json.dumps(self.wanted))
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(STATE)

    def start(self) -> None:
        if self.wanted and not self.looking:
            self.looking = True
            self.server.timer(time.monotonic_ns() + int(LOOK_S * 1e9), self.again)

    def again(self) -> None:
        self.looking = False
        self.look()
        self.start()

    def settle(self) -> None:
        """Take our own control away once no job has it."""
        if self.registered is not None and not any(
            wanted["control"] == OWN for wanted in self.wanted.values()
        ):
            self.registered.close()
            self.registered = None

    def look(self) -> None:
        """Set it on every socket that has come since the last look. Nothing here raises: jobs go on
        without.
        """
        began, lanes = time.monotonic_ns(), self.server.facts.get("lanes", [])
        for name in [
            name
            for name in self.wanted
            if self.server.jobs.state(VAR + "/jobs/" + name)["state"] != "running"
        ]:
            self.end(name)
        try:
            if self.registered is None and any(
                wanted["control"] == OWN for wanted in self.wanted.values()
            ):
                self.able(OWN)  # this program was killed, and begins again
            if self.registered is not None:
                self.registered.renew(LEASE_S)
            if not self.wanted or began < self.rest_ns:
                return
            self.getfd = self.getfd or flush.system_call()
            found = {
                s["inode"]: s["target"]
                for s in flush.sockets(lanes)
                if s["inode"] and s["target"] not in lanes
            }
            self.rest_ns = flush.rested(began, time.monotonic_ns())
            self.problem = ""
            self.sort(found, began)
        except (Failure, OSError, ImportError, AttributeError, ValueError, struct.error) as e:
            if str(e) != self.problem:
                sys.stderr.write(f"agent: congestion control of jobs: {e}\n")
            self.problem = str(e)

    def sort(self, found: dict[int, str], began: int) -> None:
        """Find out whose the sockets `found` (inode, far address) are, and set the control of those
        of a job.
        """
        for sockets in self.known.values():
            for inode in sockets.keys() - found.keys():
                del sockets[inode]
        done = {inode for sockets in self.known.values() for inode in sockets}
        if began - self.searched_ns > flush.AGAIN_NS:
            self.strange = set()
        fresh = [inode for inode in found if inode not in done and inode not in self.strange][
            :SOCKETS
        ]
        if not fresh:
            return
        self.searched_ns = began
        missed, jobs = set(fresh), dict[int, "str | None"]()
        for pid, fd, inode in flush.descriptors(fresh, began + SEARCH_NS):
            jobs[pid] = name = jobs[pid] if pid in jobs else self.job_of(pid)
            if name is not None and self.apply(name, pid, fd, inode):
                self.known.setdefault(name, {})[inode] = pid, fd, found[inode]
                missed.discard(inode)
        self.strange |= missed

    def job_of(self, pid: int) -> str | None:
        """The job that a process belongs to: one of its user, with its mark in the environment."""
        for name in self.wanted:
            where = VAR + "/jobs/" + name
            with contextlib.suppress(OSError):
                if of_job(str(pid), f"{MARK}={where}".encode(), os.lstat(where).st_uid):
                    return name
        return None

    def apply(self, name: str, pid: int, fd: int, inode: int) -> bool:
        """Set the control of a job on one socket; False where it is gone."""
        wanted = self.wanted[name]
        s = self.reach(pid, fd, inode)
        if s is None:
            return False
        own = self.registered if wanted["control"] == OWN else None
        try:
            with s:
                if own is not None:
                    own.give(s.fileno(), wanted)
                name_on_host = own.name if own is not None else wanted["control"]
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name_on_host.encode())
        except OSError as e:
            self.problem = "{}: {}".format(wanted["control"], e.strerror)
            return False
        return True

    def reach(self, pid: int, fd: int, inode: int) -> socket.socket | None:
        """The socket of another process as one of ours; None where that descriptor is another file
        by now.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        try:
            own = self.getfd(pidfd, fd)
        except OSError:
            return None
        finally:
            os.close(pidfd)
        if os.fstat(own).st_ino != inode:
            os.close(own)
            return None
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=own)

    def status(self, request: Json) -> Json:
        """What each job was given, and each of its sockets that has it; of our own control what it
        knows of each.
        """
        names = list(self.wanted) if request.get("job") is None else [job_name(request, "job")]
        return {
            "jobs": {name: self.row(name) for name in names if name in self.wanted},
            "problem": self.problem,
        }

    def row(self, name: str) -> Json:
        sockets = []
        for inode, (pid, fd, target) in list(self.known.get(name, {}).items()):
            s = self.reach(pid, fd, inode)
            if s is None:
                continue
            with s, contextlib.suppress(OSError):
                raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                known = {"target": target, "control": raw.split(b"\0")[0].decode(errors="replace")}
                if self.registered is not None and self.wanted[name]["control"] == OWN:
                    known.update(self.registered.seen(s.fileno()))
                sockets.append(known)
        return {"wanted": self.wanted[name], "sockets": sockets}


def _parameters(wanted: Json) -> Json:
    return {key: value for key, value in wanted.items() if key != "control"}
