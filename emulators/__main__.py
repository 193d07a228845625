"""`python -m emulators INVENTORY`: start the emulated lab of an inventory directory."""

from __future__ import annotations

import argparse
import fcntl
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from emulators.devices.dialects.base import AnyDialect
from emulators.devices.transports.pty import Line
from emulators.fabric.build import Fabric
from emulators.fabric.containment import contain, remove
from emulators.fabric.hosts import CannotBuild
from emulators.fabric.linux import die_with_parent, leave, own_namespace
from emulators.fabric.needs import missing
from emulators.fabric.sockets import listen
from emulators.fabric.sshd import ensure_device_keys, ensure_keys
from emulators.inventory.config import DeviceConfig, LabConfig, read_config
from emulators.inventory.files import BadInventory
from emulators.lab.running import Listeners, build_devices, logins
from emulators.lab.serve import serve, take_priority

EXIT_MISSING, EXIT_BAD_FILE, EXIT_BUSY, EXIT_PORT = 2, 3, 4, 5
PACKAGES = ("asyncssh", "h11")
"""What devices need beyond the program's own packages: pyproject.toml, extra `lab`."""
TRACES = ("control.sock", "lab.pid")
FAILED = "lab.failed"
"""Next to the log, after a start that failed: why. `testbed doctor` reads it."""


class CannotStart(Exception):
    """The lab cannot start; `status` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: list[str] | None = None) -> int:
    """Start a lab; return the exit status: 0, 2 something is missing, 3 bad inventory, 4 it runs
    already, 5 a port is taken.
    """
    parser = argparse.ArgumentParser(
        prog="python -m emulators",
        description="Run the emulated optical lab of an inventory directory.",
    )
    parser.add_argument(
        "inventory",
        type=Path,
        help="directory with hosts.yml, devices.yml, fibres.yml and emulator.yml",
    )
    parser.add_argument(
        "--devices-only",
        action="store_true",
        help="serve the devices, build no hosts; needs no root",
    )
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="stay, and log to this terminal; otherwise return when ready",
    )
    parser.add_argument(
        "--with-parent",
        action="store_true",
        help="with --foreground: stop as soon as the process that started it ends",
    )
    parser.add_argument(
        "--ready-fd",
        type=int,
        metavar="N",
        help='write "ready\\n" to this descriptor when the lab is usable',
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether this machine can run the lab"
    )
    options = parser.parse_args(arguments)
    if options.with_parent:
        die_with_parent(signal.SIGTERM)
    if packages := [name for name in PACKAGES if find_spec(name) is None]:
        what = f"Python packages of the emulated lab are not installed: {', '.join(packages)}"
        print(
            f"error: {what}; {sys.executable} -m pip install 'optical-testbed[lab]'",
            file=sys.stderr,
        )
        return EXIT_MISSING
    try:
        config = read_config(options.inventory)
        dialects = build_devices(config)
        with_hosts = config.with_hosts and not options.devices_only
        absent = missing() if with_hosts else []
        if options.check:
            print("\n".join(absent) if absent else "this machine can run the emulated lab")
            return EXIT_MISSING if absent else 0
        if absent:
            raise CannotStart(
                "; ".join(absent) + " (devices alone need none of this: --devices-only)",
                EXIT_MISSING,
            )
        return _start(
            config, dialects, with_hosts, options.foreground, options.ready_fd, options.with_parent
        )
    except BadInventory as problem:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_BAD_FILE
    except CannotStart as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.status
    except OSError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_MISSING


def _start(
    config: LabConfig,
    dialects: dict[str, AnyDialect],
    with_hosts: bool,
    foreground: bool,
    ready_fd: int | None,
    with_parent: bool = False,
) -> int:
    began = time.monotonic()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(hard, max(soft, 256 + 6 * len(config.hosts))), hard)
    )
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = config.state.stat()
    if found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid()):
        what = "others may write there, and so replace the lab's keys and its socket"
        mend = (
            "chmod 700 it"
            if found.st_mode & 0o022
            else f"it belongs to user {found.st_uid}: take it away"
        )
        raise CannotStart(
            f"{config.state}: {what}; {mend}, or give the lab a folder of its own", EXIT_MISSING
        )
    lock = _lock(config.state)
    (config.state / FAILED).unlink(missing_ok=True)
    folder = os.open(config.state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        devices = {name: _open(device) for name, device in config.devices.items()}
        hosts = (
            {name: _bind(name, host.ssh_port) for name, host in config.hosts.items()}
            if with_hosts
            else {}
        )
        bmcs = {
            name: _bind(f"BMC of {name}", host.bmc.port)
            for name, host in config.hosts.items()
            if host.bmc is not None and with_hosts
        }
        served = [s for s in config.segments if s.functions and with_hosts]
        functions = {
            s.name: _bind(f"functions of segment {s.name}", s.control_port) for s in served
        }
        control = _bind_control(config.state)
    except CannotStart:
        remove((folder, TRACES))
        raise

    def live(ready: Callable[[], None]) -> int:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return _live(config, dialects, devices, hosts, bmcs, functions, control, folder, ready)

    def report_ready(fd: int) -> None:
        try:
            os.write(fd, b"ready\n")
        except OSError:
            if with_parent:  # it ended before the kernel was asked to tell
                os.kill(os.getpid(), signal.SIGTERM)

    if foreground:
        return live(lambda: report_ready(ready_fd) if ready_fd is not None else None)
    here, existing = os.pipe()
    if os.fork() == 0:

        def stay() -> int:
            os.close(here)
            os.setsid()
            _log_to(config.state / "lab.log")
            return live(lambda: report_ready(existing))

        leave(stay)
    os.close(existing)
    _wait(here, config)
    if ready_fd is not None:
        report_ready(ready_fd)
    listeners = (
        f"{len(hosts)} hosts, {len(devices)} devices"
        if with_hosts
        else f"{len(devices)} devices, no hosts"
    )
    print(f"lab ready in {time.monotonic() - began:.2f} s: {listeners}; state in {config.state}")
    return 0


def _live(
    config: LabConfig,
    dialects: dict[str, AnyDialect],
    devices: dict[str, socket.socket | Line],
    hosts: dict[str, socket.socket],
    bmcs: dict[str, socket.socket],
    functions: dict[str, socket.socket],
    control: socket.socket,
    folder: int,
    ready: Callable[[], None],
) -> int:
    traces = (*TRACES, *(at.path for at in devices.values() if isinstance(at, Line)))
    secrets = {
        d.name: d.port for d in config.devices.values() if d.address.scheme in ("ssh", "netconf")
    }
    access = logins(config, ensure_device_keys(config.state, secrets)) if secrets else {}
    if not hosts:
        try:
            serve(
                config,
                dialects,
                Listeners(devices, {}, control, None, os.getpid(), access),
                None,
                ready,
            )
        finally:
            remove((folder, traces))
        return 0
    keys = ensure_keys(config.state, {name: host.ssh_port for name, host in config.hosts.items()})
    listeners = Listeners(devices, hosts, control, own_namespace("net"), os.getpid(), access, bmcs)
    machine_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def root(forked: Callable[[], None]) -> int:
        try:
            fabric = Fabric(config, keys, hosts, machine_proc, functions)
        except CannotBuild as problem:
            print(f"error: {problem}", file=sys.stderr, flush=True)
            return EXIT_MISSING
        forked()
        take_priority()
        serve(config, dialects, listeners, fabric, ready)
        return 0

    def surrender() -> None:
        for sock in (
            *devices.values(),
            *hosts.values(),
            *bmcs.values(),
            *functions.values(),
            control,
        ):
            sock.close()

    return contain(root, surrender=surrender, traces=(folder, traces))


def _lock(state: Path) -> int:
    """Hold lab.pid for as long as any process of the lab lives."""
    fd = os.open(state / "lab.pid", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode().strip() or "unknown"
        raise CannotStart(
            f"a lab with state in {state} already runs (pid {owner})", EXIT_BUSY
        ) from None
    return fd


def _open(device: DeviceConfig) -> socket.socket | Line:
    if device.address.scheme != "serial":
        return _bind(device.name, device.port)
    try:
        return Line(device.address.path, device.address.baud)
    except OSError as problem:
        raise CannotStart(f"{device.name}: no serial line: {problem}", EXIT_BUSY) from None


def _bind(name: str, port: int) -> socket.socket:
    try:
        return listen(port)
    except OSError as problem:
        hint = f"; {_owner(port)}" if shutil.which("ss") else ""
        raise CannotStart(
            f"{name}: cannot listen on 127.0.0.1:{port}: {problem.strerror}{hint}", EXIT_PORT
        ) from None


def _owner(port: int) -> str:
    import subprocess

    shown = subprocess.run(
        ["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, check=False
    ).stdout.split()
    return f"taken by {shown[-1]}" if shown else "see `ss -ltnp`"


def _bind_control(state: Path) -> socket.socket:
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = state / "control.sock"
    path.unlink(missing_ok=True)
    folder = os.open(state, os.O_PATH | os.O_CLOEXEC)
    mask = os.umask(0o177)
    try:
        # a name that fits: sun_path holds 108 bytes (unix(7))
        control.bind(f"/proc/self/fd/{folder}/{path.name}")
    except OSError as problem:
        raise CannotStart(f"{path}: {problem}", EXIT_BUSY) from None
    finally:
        os.umask(mask)
        os.close(folder)
    control.listen(16)
    return control


def _log_to(path: Path) -> None:
    log = os.open(
        path,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
    )
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nowhere, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)


def _wait(pipe: int, config: LabConfig) -> None:
    """Until the lab is ready, or its process has ended, which closes the pipe. Raises: CannotStart
    - with its last words.
    """
    if os.read(pipe, 16) == b"ready\n":
        os.close(pipe)
        return
    log = config.state / "lab.log"
    last = [line for line in log.read_text(errors="replace").splitlines() if line][-3:]
    text = f"{log} ends with:\n  " + "\n  ".join(last)
    (config.state / FAILED).write_text(text + "\n")
    raise CannotStart(f"the lab did not start; {text}", EXIT_MISSING)


if __name__ == "__main__":
    os.umask(0o077)  # keys, sockets and logs of the lab are private, whatever the shell's umask is
    sys.exit(main())
