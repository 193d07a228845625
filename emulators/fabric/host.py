"""One emulated host: the first process of its own net, mount, pid, uts and ipc namespaces.

It builds the host's private view of the machine, then takes connections at the host's listening
sockets and starts `sshd -i` for each: the connection is handed over as it is, nothing is between
the client and sshd. When this process dies, so does the host.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from emulators.fabric import interpreter, linux
from emulators.fabric.netlink import (
    Message,
    Netlink,
    address,
    link_state,
    moved,
    subnet_route,
)
from emulators.fabric.programs import Programs
from emulators.fabric.rdma import RdmaTables
from emulators.fabric.sockets import listen
from emulators.fabric.sshd import SERVER

LOOPBACK, MGMT_INDEX, FIRST_PORT_INDEX = 1, 90, 100
ORDER_BYTES = 65_536  # of a message of the lab
MACHINE_ETC = "/run/etc"  # where a host sees the machine's /etc
ETC = ("passwd", "shadow", "hosts", "hostname")
"""Files of a `HostPlan` that belong into /etc."""
ACCOUNTS = ("group", "gshadow", "subuid", "subgid")
"""What useradd(8) writes beside those."""
# not /root: the user's clone or Python may live there, and his .bashrc costs every command
HOME = "/run/root"
STAYS = frozenset({"etc", "lab", "lock", "root", "sshd"})
"""What is in /run from the beginning, and there again after a reboot."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The specification of a host. `files` are written into its own /etc (`ETC`) or /run/lab.

    sysctls: of net.ipv4, set before there is a socket. rdma: each port has an RDMA device.
    """

    name: str
    mgmt_address: str
    ports: tuple[int, ...]
    files: Mapping[str, str]
    cpus: frozenset[int]
    sysctls: Mapping[str, str]
    rdma: bool


def live(plan: HostPlan, control: socket.socket, listener: socket.socket, machine_proc: int) -> int:
    """Be the host until the lab ends. Speaks JSON over `control`: made, up, how to shut or open the
    listening socket, how to halt and to boot.
    """
    os.setsid()
    linux.close_all_but({control.fileno(), listener.fileno(), machine_proc})
    # first process of its pid namespace: the kernel buries the dead
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    try:
        os.sched_setaffinity(0, plan.cpus)
        _furnish(plan)
        _send(control, made=int(os.readlink("self", dir_fd=machine_proc)))
        os.close(machine_proc)
        control.recv(64)
        inner_listener, tables = _connect(plan)
        _send(control, up=True)
    except OSError as problem:
        _send(control, error=f"host {plan.name}: {problem}")
        return 1
    _keep_sockets(plan, control, listener, inner_listener, tables)
    return 0


def _send(control: socket.socket, **texts: object) -> None:
    control.send(json.dumps(texts).encode())


def _furnish(plan: HostPlan) -> None:
    linux.unshare(linux.NEW_NS | linux.NEW_NET | linux.NEW_UTS | linux.NEW_IPC)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    quiet = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", "/proc", "proc", quiet)
    _network_files(plan)
    linux.mount("run", "/run", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
    linux.mount(
        "testbed", "/var/lib/testbed", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755"
    )
    interpreter.open_to_all(interpreter.places())
    socket.sethostname(plan.name)
    for folder, mode in (
        (HOME, 0o700),
        ("/run/sshd", 0o755),
        ("/run/lock", 0o1777),
        ("/run/lab", 0o700),
    ):
        Path(folder).mkdir()
        Path(folder).chmod(mode)  # mkdir's own mode is subject to the umask
    _own_etc()
    for name, text in plan.files.items():
        file = Path("/etc" if name in ETC else "/run/lab", name)
        file.unlink(missing_ok=True)
        file.write_text(text)
        file.chmod(0o600 if name in ("host_key", "shadow") else 0o644)
    os.chdir("/")


def _network_files(plan: HostPlan) -> None:
    """Set the sysctls of this network namespace, and have /sys show its interfaces."""
    for name, value in plan.sysctls.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)
    quiet = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("sysfs", "/sys", "sysfs", quiet)


def _own_etc() -> None:
    """Give the host an /etc of its own: files that name users and hosts are copies, everything else
    is a link to the machine's.

    Files are not mounted one by one: a mount ends where its file is replaced by rename, in every
    namespace, and that is how useradd and package managers write /etc/passwd. The host's own
    useradd works here for the same reason.
    """
    machine = Path(MACHINE_ETC)
    machine.mkdir()
    linux.bind("/etc", machine, recursive=True)
    linux.mount("etc", "/etc", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
    for entry in machine.iterdir():
        here = Path("/etc", entry.name)
        if entry.name in ACCOUNTS:
            here.touch(mode=0o600)
            here.write_bytes(entry.read_bytes())
            here.chmod(entry.stat().st_mode & 0o777)
        else:  # a link is copied as it is, since it may be relative to /etc
            here.symlink_to(entry.readlink() if entry.is_symlink() else entry)


def _connect(plan: HostPlan) -> tuple[socket.socket, RdmaTables | None]:
    """Switch the interfaces on; return the inner listening socket, and the tables if there are
    any.
    """
    network, source = plan.mgmt_address.rpartition(".")[0] + ".0", plan.mgmt_address
    messages: list[Message] = [
        link_state(LOOPBACK, True),
        link_state(MGMT_INDEX, True),
        address(MGMT_INDEX, source, 24),
    ]
    messages += [subnet_route(MGMT_INDEX, network, 24, source)]
    messages += [link_state(FIRST_PORT_INDEX + number, True) for number in plan.ports]
    netlink = Netlink()
    netlink.send(messages)
    netlink.close()
    inner_listener = listen(22, source)
    ports = {number: FIRST_PORT_INDEX + number for number in plan.ports}
    return inner_listener, RdmaTables(ports) if plan.rdma else None


def _halt(plan: HostPlan) -> None:
    """Stop as a machine that lost power: no program runs, no interface sends."""
    if os.getpid() != 1:  # else the signal would reach the machine's programs
        raise OSError("only the first process of a host may halt it")
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # kill(2): all of this pid namespace but the first
    netlink = Netlink()
    netlink.send(link_state(index, False) for index in _interfaces(plan))
    netlink.close()


def _boot(plan: HostPlan) -> tuple[socket.socket, RdmaTables | None]:
    """Begin again in a network namespace of its own: what the kernel of a machine forgets at a
    reboot stays behind in the old one. Return as `_connect`.
    """
    run = Path("/run")
    for path in run.iterdir():
        if path.name not in STAYS:
            _forget(path, run.stat().st_dev)
    old = Netlink()
    linux.unshare(linux.NEW_NET)
    net = linux.own_namespace("net")
    old.send(moved(index, net) for index in _interfaces(plan))
    os.close(net)
    old.close()
    linux.unmount("/sys")
    _network_files(plan)
    return _connect(plan)


def _interfaces(plan: HostPlan) -> list[int]:
    return [MGMT_INDEX, *(FIRST_PORT_INDEX + number for number in plan.ports)]


def _forget(path: Path, device: int) -> None:
    """Remove a file or folder of this file system; what is mounted there stays."""
    with suppress(OSError):
        if path.lstat().st_dev != device:
            return
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        for inner in path.iterdir():
            _forget(inner, device)
        path.rmdir()


def _keep_sockets(
    plan: HostPlan,
    control: socket.socket,
    listener: socket.socket,
    inner_listener: socket.socket,
    tables: RdmaTables | None,
) -> None:
    poll = select.poll()
    listeners = {listener.fileno(): listener, inner_listener.fileno(): inner_listener}
    front = listener.fileno()
    # of a host that stopped: nobody accepts, and nothing is refused, until it boots
    silent: list[socket.socket] = []
    for fd in (control.fileno(), *listeners, *([tables.fileno()] if tables else [])):
        poll.register(fd, select.POLLIN)
    slow_s = 0.0
    programs = Programs()
    # since when each connection waits for a slow sshd
    waiting: list[tuple[float, socket.socket]] = []
    while True:
        due = [since + slow_s for since, _ in waiting] + [
            at for at in (programs.priority.due_s,) if at is not None
        ]
        ready = poll.poll(max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None)
        with suppress(OSError):
            programs.priority.look()
        for fd, _ in ready:
            if tables is not None and fd == tables.fileno():
                tables.follow()
                continue
            if fd != control.fileno():
                if fd in listeners and (connection := _accepted(listeners[fd])):
                    waiting.append((time.monotonic(), connection))
                continue
            text, ancillary, _, _ = control.recvmsg(ORDER_BYTES, socket.CMSG_SPACE(4))
            if not text:
                return
            if text.startswith(b"{"):
                try:
                    _send(control, **_obeyed(json.loads(text), programs, tables))
                except OSError as problem:
                    _send(control, refused=f"host {plan.name}: {problem}")
                continue
            if text == b"halt":
                waiting = []
                for at in [*listeners]:
                    poll.unregister(at)
                    silent.append(listeners.pop(at))
                front = -1  # its number may be given to the next socket
                with _answered(control, plan):
                    _halt(plan)
                    programs.priority.take_back()  # from this process, too
                programs = Programs()
                continue
            if text == b"boot":
                with _answered(control, plan):
                    while silent:
                        silent.pop().close()
                    if tables is not None:
                        old, tables = tables, None
                        poll.unregister(old.fileno())
                        old.close()
                    inner, tables = _boot(plan)
                    listeners[inner.fileno()] = inner
                    for at in (inner.fileno(), *([tables.fileno()] if tables else [])):
                        poll.register(at, select.POLLIN)
                continue
            if text.startswith(b"slow "):
                slow_s = float(text[5:])
                _send(control, ok=True)
                continue
            if front in listeners:  # shut: a new connection is refused, open sessions continue
                poll.unregister(front)
                listeners.pop(front).close()
            for _, _, data in ancillary:
                (front,) = struct.unpack("=i", data)
                listeners[front] = socket.socket(fileno=front)
                poll.register(front, select.POLLIN)
            _send(control, ok=True)
        served = [each for each in waiting if each[0] + slow_s <= time.monotonic()]
        waiting = [each for each in waiting if each not in served]
        for _, connection in served:
            with suppress(OSError):
                programs.set_clock()
            _serve(connection)


@contextmanager
def _answered(control: socket.socket, plan: HostPlan) -> Iterator[None]:
    """Tell the lab that the body is done, or why it is not."""
    try:
        yield
        _send(control, ok=True)
    except OSError as problem:
        _send(control, error=f"host {plan.name}: {problem}")


def _obeyed(
    request: Mapping[str, object], programs: Programs, tables: RdmaTables | None
) -> dict[str, object]:
    match request:
        case {"do": "rdma", "port": int(port), "kinds": list(kinds)} if tables is not None:
            tables.obey(port, kinds)
            return {"ok": True}
    return programs.obey(request)


def _accepted(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except OSError:
        return None


def _serve(connection: socket.socket) -> None:
    with connection:
        fd = connection.fileno()
        try:
            os.posix_spawn(
                SERVER,
                (SERVER, "-i", "-E", "/run/sshd.log", "-f", "/run/lab/sshd_config"),
                {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                file_actions=(
                    (os.POSIX_SPAWN_DUP2, fd, 0),
                    (os.POSIX_SPAWN_DUP2, fd, 1),
                    (os.POSIX_SPAWN_OPEN, 2, "/dev/null", 1, 0),
                ),
                setsigdef=(signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT),
            )
        except OSError:
            return
