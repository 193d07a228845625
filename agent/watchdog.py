"""Starting, watching and stopping the daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import time

from agent.basics import (
    PROGRAM,
    RUN,
    SOCKET,
    VAR,
    Failure,
    directories,
    execute,
    keep,
    own_sha,
    read,
    write,
)
from agent.calls import alive, call
from agent.daemon import Server
from agent.host.partitions import top_of
from agent.jobs.processes import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json


LOG = RUN + "/committer.log"
ENDED = "agent: the daemon ended"
# a daemon that starts is waited for, on a busy machine for long; not one that ends again and again
STARTS_S, TRIES = 120.0, 3


def child(heartbeat: int) -> None:
    """Serve until SIGTERM."""
    import gc

    # a commit must not wait for a job's computing, nor for sshd; jobs do not inherit it. 2: an
    # emulated lab's ranks have 1
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(2))
    except OSError:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -15)
    server = Server(heartbeat)
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "running", False))
    server.listen()
    gc.freeze()
    server.run()


def serve() -> int:
    """Be the watchdog: run the daemon in a child and start another when it dies or gives no sign of
    life for 15 s.
    """
    directories()
    lock = os.open(RUN + "/committer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.stderr.write("agent: another one runs here\n")
        return 75
    write(RUN + "/committer.pid", f"{os.getpid()}\n")
    stopping: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # ignoring it is inherited, and would hide the exit status of every child
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pause = 0.02
    while not stopping:
        r, w = os.pipe()
        os.set_inheritable(lock, False)
        pid = os.fork()
        if pid == 0:
            os.close(r)
            os.close(lock)
            try:
                child(w)
                os._exit(0)
            except BaseException:
                import traceback

                sys.stderr.write(traceback.format_exc())
                sys.stderr.flush()
                os._exit(1)
        os.close(w)

        def stop(*_: object, pid: int = pid) -> None:
            stopping.append(1)
            os.kill(pid, signal.SIGTERM)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        began = time.monotonic()
        while True:
            ready, _, _ = select.select([r], [], [], 15.0)
            if not ready:
                os.kill(pid, signal.SIGKILL)
            elif os.read(r, 4096):
                continue
            break
        os.close(r)
        os.waitpid(pid, 0)
        if not stopping:
            pause = 0.02 if time.monotonic() - began > 10 else min(2 * pause, 2.0)
            sys.stderr.write(f"{ENDED}, starting it again in {pause:.2f} s\n")
            sys.stderr.flush()
            time.sleep(pause)
    for name in (SOCKET, RUN + "/committer.pid"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return 0


def watchdog_pid() -> int | None:
    pid = int(read(RUN + "/committer.pid").strip() or 0)
    return pid if pid and start_time(pid) is not None else None


UNIT = """[Unit]
Description=Agent of the optical testbed
After=network-online.target

[Service]
{own}ExecStart={python} -S -E {file} serve
KillMode=process
Restart=always

[Install]
WantedBy=multi-user.target
"""


UNITS = "/etc/systemd/system"


def of_systemd() -> bool:
    """Whether the daemon is a unit of systemd here: a host with files of the machine, as an
    emulated one, has its own.
    """
    return (
        read("/proc/1/comm").strip() == "systemd"
        and bool(shutil.which("systemctl"))
        and top_of(VAR) == "/var/lib/testbed"
    )


def start() -> Json:
    """Make sure that the daemon of this very file runs; an older one is replaced, and the new one
    takes up its state.
    """
    directories()
    gate = os.open(RUN + "/start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(gate, fcntl.LOCK_EX)
    existing = alive()
    if existing and existing["committer"] == own_sha():
        call([{"op": "reload"}])
        return {"pid": existing["pid"], "started": False}
    stop()
    reported = len(read(LOG))
    if of_systemd():
        name, own = (
            "testbed-committer.service",
            f"ExecStartPre=-{sys.executable} -S -E {PROGRAM} boot\n",
        )
        if top_of(VAR) != VAR:  # of a partition: its host's agent makes links and addresses ready
            name, own = (
                f"testbed-committer-{os.path.basename(VAR)}.service",
                f"Environment=TESTBED_VAR={VAR} TESTBED_RUN={RUN}\n",
            )
        keep(f"{UNITS}/{name}", UNIT.format(python=sys.executable, file=PROGRAM, own=own))
        execute(["systemctl", "daemon-reload"])
        execute(["systemctl", "enable", "--now", name])
    else:
        daemonise()
    give_up = time.monotonic() + STARTS_S
    seen: int | None = None
    while time.monotonic() < give_up:
        existing = alive()
        if existing:
            return {"pid": existing["pid"], "started": True}
        now = watchdog_pid()
        if ended(reported) >= TRIES or (seen is not None and now is None):
            break
        seen = now
        time.sleep(0.005)
    stop()
    text = (
        "ended as it started"
        if time.monotonic() < give_up
        else f"does not answer after {STARTS_S:.0f} s"
    )
    raise Failure("failed", f"the daemon {text} ({SOCKET}): {read(LOG)[-500:].strip()}")


def ended(since: int) -> int:
    """How often the watchdog has said that the daemon ended, in what its log has from there on."""
    return read(LOG)[since:].count(ENDED)


def daemonise() -> None:
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    log = LOG
    if os.path.exists(log) and os.path.getsize(log) > 1 << 20:
        os.rename(log, log + ".1")
    null, out = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    )
    for fd, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, target)
    os.closerange(3, 1024)
    os._exit(serve())


def stop() -> Json:
    """Stop the daemon; routes, rule and jobs stay as they are."""
    pid = watchdog_pid()
    if pid is None:
        return {"stopped": False}
    os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + 5
    while start_time(pid) is not None:
        if time.monotonic() > give_up:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return {"stopped": True}
