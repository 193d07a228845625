"""What `doctor` checks of the chosen lab: its files and keys, devices and hosts, locks, and what a
dead lab left behind.
"""

from __future__ import annotations

import errno
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from optics import BadFile, Missing
from optics.errors import TestbedError
from optics.plain import counted
from orchestrator.settings import Settings
from orchestrator.verify.doctor_reach import reach
from orchestrator.verify.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.inventory.lab import Lab
    from orchestrator.store.store import Store


def lab_checks(settings: Settings) -> list[Probe]:
    """Everything that needs the inventory."""
    from orchestrator import emulated as labproc
    from orchestrator.session import load_lab

    folder = settings.inventory
    try:
        lab = load_lab(folder)
    except (OSError, UnicodeDecodeError, TestbedError) as error:
        fix = "correct the lines named, or choose another with --inventory"
        return [*leftover_labs(), Probe("inventory", "fail", str(error), fix, "`run`", "inventory")]
    parts = (
        (sum(host.partition is None for host in lab.hosts.values()), "host"),
        (len(lab.devices), "device"),
        (len(lab.fibres), "fibre"),
    )
    size = f"{lab.name}: " + ", ".join(counted(*part) for part in parts)
    checks = [*leftover_labs(), Probe("inventory", "ok", size, area="inventory"), rights(folder)]
    checks += [*secrets(lab, folder), *keys(lab)]
    checks += holders(lab, settings)
    if labproc.is_emulated(folder):
        checks.append(emulated(folder))
        if checks[-1].detail.startswith(("not running", "did not start")):
            return [*checks, ports_taken(lab)]
    return [
        *checks,
        *reach(lab, busy(lab, settings), upcoming(lab, settings), latest_job_env(lab, settings)),
    ]


# --- files
# ---------------------------------------------------------------------------------------------------------------------


def rights(folder: Path) -> Probe:
    """Whether every user may write the inventory; one owned by another user was refused before
    (`orchestrator.files.trust`).
    """
    from orchestrator.files.trust import loose

    if found := loose(folder):
        names = ", ".join(map(str, found))
        text = f"{names} can be written by every user, who could redirect passwords and choose what runs on hosts"
        return Probe(
            "rights of the inventory",
            "fail",
            text,
            f"chmod -R o-w {folder}",
            "nothing safely",
            "inventory",
        )
    return Probe(
        "rights of the inventory",
        "ok",
        "its files are yours, or those of users you trust",
        area="inventory",
    )


def secrets(lab: Lab, folder: Path) -> list[Probe]:
    """Whether each device's password is available, and whether one is readable by others."""
    from orchestrator.credentials import with_secret
    from orchestrator.emulated import is_emulated

    checks, works = [], "the other devices"
    for name in lab.secrets:
        try:
            with_secret(lab, lab.devices[name])
        except BadFile as error:
            checks.append(
                Probe(
                    f"password of {name}",
                    "fail",
                    str(error),
                    error.hint or "correct devices.yml",
                    works,
                    "inventory",
                )
            )
        except Missing as error:
            checks.append(
                Probe(f"password of {name}", "fail", str(error), error.hint, works, "machine")
            )
    bmcs = [
        f"BMC of {host.name}"
        for host in lab.hosts.values()
        if host.bmc and host.bmc.password and host.bmc.secret is None and host.partition is None
    ]
    clear = [
        name for name, config in lab.devices.items() if config.password and name not in lab.secrets
    ]
    for file, names in ((folder / "devices.yml", clear), (folder / "hosts.yml", bmcs)):
        if not names or is_emulated(folder) or not file.stat().st_mode & 0o044:
            continue
        fix = f"chmod 600 {file}, or password_env, password_file, a vault (docs/how-to/keep-it-safe.md)"
        checks.append(
            Probe(
                "passwords",
                "warn",
                f"readable by others: {', '.join(names)}",
                fix,
                "all",
                "inventory",
            )
        )
    if not checks:
        checks.append(
            Probe(
                "passwords",
                "ok",
                f"{counted(len(lab.secrets), 'device')} with one kept elsewhere",
                area="inventory",
            )
        )
    return checks


def keys(lab: Lab) -> list[Probe]:
    """Private keys are readable by their owner alone, and no other user decides which host keys are
    trusted.
    """
    private = {h.ssh.key_file for h in lab.hosts.values()} | {
        d.options.get("key_file", "") for d in lab.devices.values()
    }
    believed = {h.ssh.known_hosts for h in lab.hosts.values()} | {
        d.options.get("known_hosts", "") for d in lab.devices.values()
    }
    checks: list[Probe] = []
    for text, loose, who in (
        *((t, 0o077, "read") for t in private),
        *((t, 0o022, "write") for t in believed),
    ):
        path = Path(text).expanduser()
        if not text or not path.exists():
            continue  # the host or device that needs it reports it
        found = path.stat()
        if found.st_mode & loose:
            fix = f"chmod {'600' if who == 'read' else 'go-w'} {path}"
            mode = stat.filemode(found.st_mode)
            checks.append(
                Probe(
                    "keys",
                    "fail",
                    f"{path}: others may {who} it ({mode})",
                    fix,
                    "nothing over SSH",
                    "inventory",
                )
            )
    return checks or [
        Probe(
            "keys", "ok", "private keys and known hosts are their owner's alone", area="inventory"
        )
    ]


# --- the store
# -----------------------------------------------------------------------------------------------------------------


def holders(lab: Lab, settings: Settings) -> list[Probe]:
    """Locks held or waited for, and tag-outs: other users' work and plans that a change here would
    meet.
    """
    from orchestrator.store.keys import key_of
    from orchestrator.store.locks import locks_of, who
    from orchestrator.store.tagouts import Tagouts

    try:
        with _store(settings) as store:
            if store is None:
                return [Probe("locks", "ok", "none", area="store")]
            live = locks_of(lab, settings, store).listed()
            tags = Tagouts(store, key_of(lab), who(settings)).listed()
    except (TestbedError, OSError):
        return []  # the check of the store itself has reported the reason
    checks = []
    for lock in live:
        own = lock.owner == settings.owner and lock.kind == "reservation"
        what = {"waiting": "wait for", "booked": "have booked"}.get(lock.state, "hold")
        fix = (
            f"testbed lock release {lock.id} when it is not needed any more"
            if own
            else f"ask {lock.user}, or testbed up --wait 10m"
        )
        checks.append(
            Probe(
                "lock",
                "ok" if own or lock.state == "booked" else "warn",
                f"{what} {lock.scope}: {lock} [lock {lock.id}]",
                fix,
                "the rest",
                "store",
            )
        )
    for tag in tags:
        checks.append(
            Probe(
                "tag-out",
                "warn",
                str(tag),
                f"testbed tagout remove {tag.id}",
                "everything else",
                "store",
            )
        )
    return checks or [Probe("locks", "ok", "nothing is locked or tagged out", area="store")]


def upcoming(lab: Lab, settings: Settings) -> int | None:
    """The token of the lab's next run, None if the store cannot be read."""
    from orchestrator.store.keys import key_of
    from orchestrator.store.locks import next_token

    try:
        with _store(settings) as store:
            return int(time.time()) if store is None else next_token(store, key_of(lab))
    except (TestbedError, OSError):
        return None


def busy(lab: Lab, settings: Settings) -> str:
    """The run that changes the lab now, empty for none: many devices allow few sessions, and it
    needs them.
    """
    from orchestrator.store.locks import locks_of

    try:
        with _store(settings) as store:
            live = locks_of(lab, settings, store).listed() if store is not None else []
    except (TestbedError, OSError):
        return ""
    return next((str(lock) for lock in live if lock.kind == "run" and lock.state == "active"), "")


def latest_job_env(lab: Lab, settings: Settings) -> Mapping[str, str]:
    """What the latest job of this owner sets in its environment: launched again, it would have it
    again.
    """
    from orchestrator.store.keys import tenancy_of

    try:
        with _store(settings) as store:
            record = store.latest_job(tenancy_of(lab, settings)) if store is not None else None
    except (TestbedError, OSError):
        return {}
    return record.spec.wanted.env if record is not None else {}


class _store:
    """The store if there is one; opening one here does not create it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: Store | None = None

    def __enter__(self) -> Store | None:
        from orchestrator.store.store import Store

        if self._settings.store_path.exists():
            self._open = Store(self._settings.store_path, shared=self._settings.store is not None)
        return self._open

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.close()


# --- the emulated lab
# ----------------------------------------------------------------------------------------------------------


def emulated(folder: Path) -> Probe:
    """Whether the emulated lab runs, serves this inventory, and answers."""
    from orchestrator import emulated as labproc

    other, area = "other inventories", "inventory"
    try:
        if not labproc.is_running(folder):
            left = leftovers(labproc.state_dir(folder))
            if left:
                fix = f"kill {' '.join(map(str, left))}"
                return Probe(
                    "emulated lab", "fail", f"processes left over: {left}", fix, other, "reach"
                )
            if why := labproc.why_not_started(folder):
                return Probe(
                    "emulated lab",
                    "fail",
                    f"did not start: {why}",
                    "fix that, then testbed lab start",
                    other,
                    "reach",
                )
            return Probe("emulated lab", "ok", "not running (`testbed up` starts it)", area=area)
        about = labproc.ask(folder, "status")
    except TestbedError as error:
        return Probe(
            "emulated lab",
            "fail",
            str(error),
            "testbed lab stop, then testbed lab start",
            other,
            "reach",
        )
    served = Path(str(about.get("inventory", folder))).resolve()
    if served != folder.resolve():
        fix = f"testbed lab stop --inventory {served}"
        return Probe(
            "emulated lab",
            "fail",
            f"serves {served} from the same state directory",
            fix,
            "that inventory",
            area,
        )
    return Probe("emulated lab", "ok", f"running, pid {about['pid']}", area=area)


def leftovers(state: Path) -> list[int]:
    """Lab processes that are alive although the lab does not answer: holders of its pid file."""
    try:
        wanted = (state / "lab.pid").stat()
    except OSError:
        return []
    mark = f":{wanted.st_ino} "
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    holders = [int(line.split()[4]) for line in lines if "FLOCK" in line and mark in f"{line} "]
    return sorted({pid for pid in holders if pid > 0})


def leftover_labs() -> list[Probe]:
    """Emulated labs of inventories that no longer exist, which cannot be stopped by name. Their
    namespaces end with them.
    """
    from orchestrator.emulated import inventory_of, processes

    found: dict[str, list[int]] = {}
    for pid, _, text in processes():
        folder = inventory_of(text)
        if folder is None or (folder / "emulator.yml").exists():
            continue
        # in a container it is where the lab sees it
        if not Path(f"/proc/{pid}/root/{folder}/emulator.yml").exists():
            found.setdefault(str(folder), []).append(pid)
    return [
        Probe(
            "left-over lab",
            "warn",
            f"of {folder}, which is gone: processes {pids}",
            f"kill {min(pids)}",
            "everything",
            "machine",
        )
        for folder, pids in sorted(found.items())
    ]


def ports_taken(lab: Lab) -> Probe:
    """Whether other programs listen on the emulated lab's ports."""
    wanted = {(host.ssh.address, host.ssh.port): name for name, host in lab.hosts.items()}
    for device, config in lab.devices.items():
        where = endpoint(config.address)
        if isinstance(where, tuple):
            wanted[where] = device
    for name, segment in lab.segments.items():
        if segment.functions:
            at, _, number = segment.address.rpartition(":")
            wanted[at, int(number)] = name
    taken = []
    for (address, port), name in wanted.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    taken.append((name, port))
    if not taken:
        return Probe("ports", "ok", f"{len(wanted)} free for the emulated lab", area="inventory")
    whose = "\n".join(
        f"{name} wants 127.0.0.1:{port}: taken{_listener(port)}" for name, port in taken[:4]
    )
    more = f"\nand {len(taken) - 4} more" if len(taken) > 4 else ""
    fix = "stop what is named, or start a copy of the lab on other ports: testbed lab start --free-ports"
    return Probe("ports", "fail", whose + more, fix, "other inventories", "reach")


def _listener(port: int) -> str:
    """The listening process, as far as this user may see."""
    try:
        command = ["ss", "-Hltnp", f"sport = :{port}"]
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=False
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f" by {shown[-1]}" if shown and shown[-1].startswith("users:") else ""


def endpoint(address: str) -> tuple[str, int] | None:
    """The TCP endpoint of an address, None if it is a serial line or only the driver knows."""
    url = urlsplit(address)
    if url.scheme == "visa":
        parts = address.removeprefix("visa://").split("::")
        socket_like = (
            len(parts) == 4
            and parts[0].startswith("TCPIP")
            and parts[3] == "SOCKET"
            and parts[2].isdigit()
        )
        return (parts[1], int(parts[2])) if socket_like else None
    return (url.hostname, url.port) if url.hostname and url.port else None
