"""Programs run for the operator: started, watched, stopped, read.

They run as the user that provisioning names, `job_user`, or one of its `job_users`, and own their
directory and nothing else. The shell around them and the records of them belong to root, so that a
job cannot name another process to be stopped, nor another exit status.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from functools import partial

from agent.basics import VAR, Failure, bad, integer, number, read, read_json, refused, write
from agent.host.shares import confine
from agent.jobs.remains import MARK, kill_left, kill_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.shapes import Answer, Attempt, Daemon, Json, Mechanism

TAIL_LIMIT = 256 << 10
JOB_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
LEFT_S = 2.0  # what a job that ends by itself leaves behind may take so long to end (s)
# the daemon looks through /proc for so long at once, and does what else is due between
SLICE_NS = 500_000
SECRETS_KEPT, SECRET_LIMIT = 32, 4096  # jobs; bytes of the variables of one
CHECKPOINTS_KEPT = 8  # jobs whose checkpoints a host keeps, the latest
# The shell stays between us and the job so that its exit status is written down even when no daemon
# runs at that moment.
JOB_SHELL = 'trap : TERM INT HUP; "$@"; echo $? >"$0.new" && mv "$0.new" "$0"'


def job_name(request: Json, key: str = "name") -> str:
    """The field of a request that names a job. Raises: Failure - it is no such name, and might be a
    path.
    """
    name = request.get(key)
    if not isinstance(name, str) or not JOB_NAME.match(name):
        raise bad(f"{key}: letters, digits, dot, dash and underscore are allowed, got {name!r}")
    return name


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, unique per process of this boot; None for a dead process or a
    zombie.
    """
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in ("Z", "X") else int(fields[19])


def prepare(mine: Json) -> None:
    """In the child: leave the daemon's priority, keep to the processors of its partition `mine`, if
    it is of one, and lift what root is not held to and a user would be.

    That is memory pinned for RDMA, and threads, which are counted over all jobs of a user.
    """
    if mine.get("cpus"):
        confine(mine)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def own(path: str, user: pwd.struct_passwd | None) -> None:
    """Make a directory in one of root's that belongs to `user` (None: root) with all plain files in
    it.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    uid, gid = (user.pw_uid, user.pw_gid) if user else (0, 0)
    if os.lstat(path).st_uid == uid:
        return
    for name in os.listdir(path):
        file = os.path.join(path, name)
        found = os.lstat(file)
        # a hard link may name a file of another user
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.chown(file, uid, gid, follow_symlinks=False)
    os.chown(path, uid, gid)


class Jobs:
    """Programs started for the operator, each in a session of its own; they outlive the daemon and
    the next one finds them.
    """

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.watched: dict[str, int] = {}
        self.sweeps: list[tuple[Iterator[None], Callable[[], object]]] = []
        self.secrets: dict[str, dict[str, str]] = {}  # by the name of a job that is yet to start
        for name in sorted(os.listdir(VAR + "/jobs")):
            self.watch(name)
            where = VAR + "/jobs/" + name
            # the daemon died while it started this, which may run unseen
            if self.state(where)["state"] == "absent":
                self.swept(lambda: None, self.left(where))
        server.handoff.clean()
        server.slots.notices.clean()

    def directory(self, request: Json) -> str:
        return VAR + "/jobs/" + job_name(request)

    def swept(self, then: Callable[[], object], *steps: Iterator[None]) -> None:
        """Take these steps, a few at a time, for slots change and leases end meanwhile; then call
        `then`. One sweep after another.
        """
        self.sweeps.append((itertools.chain(*steps), then))
        if len(self.sweeps) == 1:
            self.server.timer(0, self.sweep)

    def sweep(self) -> None:
        steps, then = self.sweeps[0]
        until = time.monotonic_ns() + SLICE_NS
        try:
            ended = all(time.monotonic_ns() < until for _ in steps)
        except Exception as e:  # whatever it is, jobs that wait for this search must start and stop
            sys.stderr.write(f"agent: what a job left behind is not looked for: {e!r}\n")
            sys.stderr.flush()
            ended = True
        if ended:
            self.server.guard(then)
            del self.sweeps[0]
        if self.sweeps:
            self.server.timer(time.monotonic_ns() + SLICE_NS, self.sweep)

    def left(self, where: str) -> Iterator[None]:
        """End what a job left behind, unless one runs there again."""
        if self.state(where)["state"] != "running":
            yield from kill_left(where)

    def start(self, request: Json, attempt: Attempt) -> None:
        """Start a job once nothing is left of the one before it. attempt: makes the answer of what
        it is given.
        """
        where = self.directory(request)
        argv, env = request.get("argv"), request.get("env", {})
        if not isinstance(argv, list) or not argv or not all(isinstance(a, str) for a in argv):
            raise bad("argv: a list of words is needed")
        if not isinstance(env, dict) or not all(isinstance(v, str) for v in env.values()):
            raise bad("env: a mapping of words to words is needed")
        self.refuse_running(request, where)
        user = self.user(request.get("user"))
        self.wishes(request)
        self.swept(lambda: attempt(lambda: self.launch(request, where, user)), self.left(where))

    def launch(self, request: Json, where: str, user: pwd.struct_passwd | None) -> Json:
        """Start a job whose request is right. Raises: Failure - a newer run came or one was started
        meanwhile; no such program.
        """
        self.server.fence.check("job.start", request)
        self.refuse_running(request, where)
        wishes = self.wishes(request)
        argv, env = request["argv"], request.get("env", {})
        if request["name"] in self.watched:  # it ended a moment ago
            self.ended(request["name"])
        shutil.rmtree(where, ignore_errors=True)
        noted = self.noted(where)
        for old in (noted + ".exit", noted + ".json"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old)
        os.makedirs(where, mode=0o700)
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("SSH_", "XDG_", "SUDO_"))
        }
        environment.update(env, TESTBED_HANDOFF=self.server.handoff.path(request["name"]))
        environment["TESTBED_SLOTS"] = self.server.slots.notices.path(request["name"])
        environment.update(self.secrets.pop(request["name"], {}))
        environment[MARK] = where
        mine = self.server.facts.get("partition") or {}
        if mine.get("mig"):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine["mig"])
        if request.get("checkpoints") is not None:
            environment["TESTBED_CHECKPOINT_DIR"] = self.checkpoints(
                job_name(request, "checkpoints"), user
            )
        prefix: list[str] = []
        if user:
            environment.update(HOME=where, USER=user.pw_name, LOGNAME=user.pw_name)
            ids = ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid)]
            prefix = ["setpriv", *ids, "--init-groups", "--no-new-privs", "--"]
        log = os.open(where + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if user:
                os.fchown(log, user.pw_uid, user.pw_gid)
            own(where, user)
            child = subprocess.Popen(
                ["/bin/sh", "-c", JOB_SHELL, noted + ".exit", *prefix, *argv],
                cwd=where,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: prepare(mine),
            )
        except OSError as e:
            raise refused(
                "job {}: {}: {}".format(request["name"], e.filename or argv[0], e.strerror)
            ) from None
        finally:
            os.close(log)
        if request.get("cpus"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(child.pid, request["cpus"])
        # Where the scheduler shares the processor between sessions (autogroup), a job is one
        # session and so is each login: without this, Ansible and sshd get a sliver of a busy host.
        with contextlib.suppress(OSError), open(f"/proc/{child.pid}/autogroup", "w") as autogroup:
            autogroup.write("10")
        self.children[request["name"]] = child
        spec = {
            "pid": child.pid,
            "born": start_time(child.pid),
            "started_ns": time.monotonic_ns(),
            "argv": argv,
        }
        write(noted + ".json", json.dumps(spec))
        self.watch(request["name"])
        for mechanism, wanted in wishes:
            mechanism.begin(request["name"], wanted)
        return {"name": request["name"], "pid": child.pid, "directory": where}

    def wishes(self, request: Json) -> list[tuple[Mechanism, Json]]:
        """What a job that is to start wishes of each mechanism. Raises: Failure - this host cannot
        have it.
        """
        wishes = ((mechanism, mechanism.wish(request)) for mechanism in self.server.mechanisms)
        return [(mechanism, wanted) for mechanism, wanted in wishes if wanted is not None]

    def refuse_running(self, request: Json, where: str) -> None:
        if (found := self.state(where))["state"] == "running":
            raise refused(
                "job {} is already running (pid {})".format(request["name"], found["pid"])
            )

    def secret(self, request: Json) -> Json:
        """Keep variables for the next start of a job, with those that it was given before, in
        memory: what starts it may travel on a command line, which others read.
        """
        name, env = job_name(request), request.get("env")
        known = self.secrets.get(name, {})
        if (
            not isinstance(env, dict)
            or not all(isinstance(v, str) for v in env.values())
            or len(json.dumps({**known, **env})) > SECRET_LIMIT
        ):
            raise bad(
                f"env: a mapping of words to words is needed, of {SECRET_LIMIT} bytes at most"
            )
        self.secrets.pop(name, None)
        while len(self.secrets) >= SECRETS_KEPT:
            del self.secrets[next(iter(self.secrets))]
        self.secrets[name] = {**known, **env}
        return {"name": name}

    def user(self, wanted: object = None) -> pwd.struct_passwd | None:
        """The user that jobs run as, or the one wanted instead; None is root.

        Raises: Failure - there is no such user, or provisioning does not allow the one wanted.
        """
        name = self.server.facts.get("job_user") or "root"
        if wanted is not None and wanted != name:
            if not isinstance(wanted, str) or wanted not in self.server.facts.get("job_users", ()):
                raise refused(
                    f"user {wanted!r} is not among those that provisioning lets programs run as"
                )
            name = wanted
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            adds = (
                "; testbed up adds it"
                if wanted is None
                else ", which a program of the inventory names; add it there"
            )
            raise refused(f"no user {name} on this host to run jobs as{adds}") from None
        return found if found.pw_uid else None

    def has_user(self) -> bool:
        """Whether there is the user that jobs run as; it may have been taken away since the host
        was provisioned.
        """
        try:
            self.user()
        except Failure:
            return False
        return True

    def checkpoints(self, name: str, user: pwd.struct_passwd | None) -> str:
        """The directory of a job's checkpoints, which outlives the job; those of the jobs longest
        gone are dropped.
        """
        folder = VAR + "/checkpoints/"
        own(folder + name, user)
        os.utime(folder + name)
        known = sorted(os.listdir(folder), key=lambda each: os.lstat(folder + each).st_mtime_ns)
        for old in known[:-CHECKPOINTS_KEPT]:
            shutil.rmtree(folder + old, ignore_errors=True)
        return folder + name

    def noted(self, where: str) -> str:
        """The path, without suffix, of the records of the job's process and exit status."""
        return VAR + "/started/" + os.path.basename(where)

    def state(self, where: str) -> Json:
        spec = read_json(self.noted(where) + ".json")
        if spec is None:
            return {"state": "absent"}
        code = read(self.noted(where) + ".exit").strip()
        found = {"pid": spec["pid"], "directory": where}
        if spec["born"] is not None and start_time(spec["pid"]) == spec["born"]:
            return dict(found, state="running")
        return (
            dict(found, state="exited", code=int(code))
            if code.isdigit()
            else dict(found, state="killed")
        )

    def status(self, request: Json) -> Json:
        if request.get("name") is None:
            return {
                "jobs": {
                    n: self.state(VAR + "/jobs/" + n) for n in sorted(os.listdir(VAR + "/jobs"))
                }
            }
        return dict(self.state(self.directory(request)), name=request["name"])

    def watch(self, name: str) -> None:
        """Get notified of the end of a job through a pidfd, which works for processes that are not
        our children too.
        """
        state = self.state(VAR + "/jobs/" + name)
        if state["state"] != "running" or name in self.watched:
            return
        try:
            fd = os.pidfd_open(state["pid"])
        except (OSError, AttributeError):
            return
        self.watched[name] = fd
        self.server.handoff.open(name, state["pid"])
        self.server.slots.notices.open(name, state["pid"])
        self.server.register(fd, lambda _: self.ended(name))

    def ended(self, name: str) -> None:
        fd = self.watched.pop(name)
        self.server.unregister(fd)
        os.close(fd)
        self.server.guard(lambda: self.server.handoff.close(name))
        self.server.guard(lambda: self.server.slots.notices.close(name))
        for mechanism in self.server.mechanisms:
            self.server.guard(partial(mechanism.end, name))
        child = self.children.pop(name, None)
        if child is not None:
            child.wait()
        where = VAR + "/jobs/" + name
        self.server.timer(
            time.monotonic_ns() + int(LEFT_S * 1e9),
            lambda: self.swept(lambda: None, self.left(where)),
        )
        self.server.broadcast(
            dict(self.state(where), event="job", name=name, t_ns=time.monotonic_ns())
        )

    def stop(self, request: Json, answer: Answer) -> None:
        """SIGTERM to the job's session, SIGKILL after `grace_s`; answers when it is gone. What it
        left behind is killed.
        """
        where = self.directory(request)
        state = self.state(where)
        give_up = time.monotonic_ns() + int(number(request, "grace_s", 5.0) * 1e9)
        if state["state"] != "running":
            self.swept(lambda: self.stopped(request, answer), self.left(where))
            return
        pid, born = state["pid"], start_time(state["pid"])

        def signal_group(number: int) -> None:
            with contextlib.suppress(OSError):
                os.killpg(pid, number)

        def look(killed: bool = False) -> None:
            if start_time(pid) != born:
                reply = dict(self.state(where), name=request["name"], killed=killed)
                # what the job left behind
                self.swept(lambda: answer(reply), kill_session(pid), self.left(where))
                return
            now = time.monotonic_ns()
            if now >= give_up and not killed:
                self.swept(lambda: look(killed=True), kill_session(pid))
                return
            self.server.timer(now + 5_000_000, lambda: look(killed))

        signal_group(signal.SIGTERM)
        look()

    def stopped(self, request: Json, answer: Answer) -> None:
        """Answer a stop of a job that did not run, unless it was about to start."""
        state = self.state(self.directory(request))
        if state["state"] == "running":
            self.stop(request, answer)
        else:
            answer(dict(state, name=request["name"]))

    def tail(self, request: Json) -> Json:
        """Return at most `limit` bytes of one of the job's files from byte `offset` on; a negative
        offset counts from the end.
        """
        where = self.directory(request)
        state = self.state(where)
        name = request.get("file") or "log"
        path = os.path.realpath(os.path.join(where, name))
        if not path.startswith(os.path.realpath(where) + "/"):
            raise refused(f"file {name} is not in the job's directory")
        limit = min(integer(request, "limit", 1) if "limit" in request else TAIL_LIMIT, TAIL_LIMIT)
        offset = request.get("offset", 0)
        try:
            # the job may have put anything there
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return {"data": "", "offset": 0, "size": 0, "state": state["state"]}
        except OSError as e:
            raise refused(f"file {name} cannot be read: {e.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise refused(f"file {name} is no plain file")
            size = os.fstat(fd).st_size
            offset = max(0, size + offset) if offset < 0 else min(offset, size)
            data = os.pread(fd, limit, offset)
        finally:
            os.close(fd)
        # whole lines, so that no character is cut in two
        whole = data[: data.rfind(b"\n") + 1] or data
        return {
            "data": whole.decode("utf-8", "replace"),
            "offset": offset + len(whole),
            "size": size,
            "state": state["state"],
        }
