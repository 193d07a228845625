"""What this machine can do and what the chosen lab answers: each check is made by trying, each failure says how to mend it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from optics.errors import TestbedError
from orchestrator.settings import Settings
from orchestrator.telemetry.progress import counted

REACH_S = 3.0
_PACKAGES = ("ansible-core", "ansible-runner", "paramiko", "pydantic", "pyroute2", "pyserial", "pyvisa", "pyvisa-py", "rich")
_PROGRAMS = {
    "ip": ("iproute2", "nothing works without it but `plan` against devices"),
    "tc": ("iproute2", "hardware labs; the emulated hosts need it"),
    "ssh": ("openssh-client", "devices without hosts: `plan`, `status`"),
    "sshd": ("openssh-server", "hardware labs; the emulated devices: python -m emulators DIR --devices-only"),
    "unshare": ("util-linux", "hardware labs"),
    "nsenter": ("util-linux", "hardware labs"),
}
_FREE_MB = 500

# Tried in a network namespace of its own, which vanishes with the process. Each line: what it is for, kernel option, command.
_KERNEL = (
    ("veth pairs (fibres)", "CONFIG_VETH", "ip link add tb0 type veth peer name tb1"),
    ("bridges (host addresses, management)", "CONFIG_BRIDGE", "ip link add tb2 type bridge"),
    ("HTB (port rate)", "CONFIG_NET_SCH_HTB", "tc qdisc add dev tb0 root handle 1: htb default 1"),
    ("clsact (where light enters)", "CONFIG_NET_SCH_INGRESS", "tc qdisc add dev tb0 clsact"),
    (
        "u32 and mirred (cross-connects)",
        "CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED",
        "tc filter add dev tb0 ingress protocol all u32 match u32 0 0 action mirred egress redirect dev tb1",
    ),
    (
        "policy routing tables (route generations)",
        "CONFIG_IP_MULTIPLE_TABLES",
        "ip rule add pref 7000 lookup 7001 && ip link set lo up && ip route add 10.255.255.1/32 dev lo table 7001",
    ),
)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `state`: ok, warn (works without) or fail. `works`: what can still be done in spite of it."""

    name: str
    state: str
    detail: str
    fix: str = ""
    works: str = ""
    area: str = "machine"


def examine(settings: Settings) -> list[Check]:
    """Make all checks, machine first, then the chosen inventory."""
    checks = [_python(), *_packages(), *_programs(), _rights(), *_kernel(), _disk(settings), _store(settings)]
    return [*checks, *_inventory(settings)]


def _python() -> Check:
    # An older one than 3.11 cannot import this module.
    return Check("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")


def _packages() -> list[Check]:
    missing = []
    for name in _PACKAGES:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    checks = [Check("packages", "ok", f"all {len(_PACKAGES)} installed")]
    if missing:
        fix = f"{sys.executable} -m pip install {' '.join(missing)}"
        checks = [Check("packages", "fail", f"missing: {', '.join(missing)}", fix, "`history`, `show`, `schema`")]
    try:
        checks.append(Check("torch", "ok", version("torch")))
    except PackageNotFoundError:
        checks.append(
            Check("torch", "warn", "not installed", f"{sys.executable} -m pip install torch", "everything but training jobs")
        )
    return checks


def _find(program: str) -> str | None:
    # Daemons live in directories that an ordinary user's PATH leaves out.
    beside = str(Path(sys.executable).parent)
    return shutil.which(
        program, path=os.pathsep.join([beside, os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    )


def _programs() -> list[Check]:
    checks = []
    for program, (package, works) in _PROGRAMS.items():
        found = _find(program)
        if found:
            checks.append(Check(program, "ok", found))
        else:
            checks.append(Check(program, "fail", "not found", f"apt-get install {package}", works))
    ansible = _find("ansible-playbook")
    if ansible:
        checks.append(Check("ansible-playbook", "ok", ansible))
    else:
        fix = f"{sys.executable} -m pip install ansible-core"
        checks.append(Check("ansible-playbook", "fail", "not found", fix, "`plan`, `status`; not `up`"))
    return checks


def _namespace() -> list[str] | None:
    """The command that runs another in a network namespace of its own, None if this user may not."""
    unshare = _find("unshare")
    if unshare is None:
        return None
    for flags in (["-n"], ["-Urn"]):
        if _run([unshare, *flags, "true"]) == "":
            return [unshare, *flags]
    return None


def _rights() -> Check:
    if os.geteuid() == 0:
        if _namespace() is not None:
            return Check("rights", "ok", "root, may make namespaces")
        fix = "run outside this container, or give it CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
        return Check("rights", "fail", "root, but may not make namespaces", fix, "emulated devices without hosts; hardware labs")
    works = "hardware labs; emulated devices: python -m emulators DIR --devices-only"
    return Check("rights", "warn", "not root: no emulated hosts", "run testbed with sudo", works)


def _kernel() -> list[Check]:
    prefix = _namespace()
    if prefix is None:
        return [
            Check("kernel", "warn", "not tried: this user may not make namespaces", "run testbed doctor with sudo", "hardware labs")
        ]
    # One namespace for all, because later commands use what the earlier ones made; a line per command comes back.
    script = "PATH=$PATH:/usr/sbin:/sbin\n" + "\n".join(
        f'if said=$( ({command}) 2>&1 ); then echo ok; else echo "no $said" | tr "\\n" " "; echo; fi' for _, _, command in _KERNEL
    )
    answer = subprocess.run(
        [*prefix, "sh", "-c", script], capture_output=True, text=True, timeout=30, check=False
    ).stdout.splitlines()
    checks = []
    for (name, option, _), line in zip(_KERNEL, [*answer, *["no (not tried)"] * len(_KERNEL)], strict=False):
        if line == "ok":
            checks.append(Check(name, "ok", "tried"))
        else:
            fix = f"use a kernel with {option} (modprobe may be enough)"
            checks.append(
                Check(name, "fail", line.removeprefix("no").strip(), fix, "hardware labs; emulated devices without hosts")
            )
    return checks


def _disk(settings: Settings) -> Check:
    there = settings.state_dir
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free // 2**20
    if not os.access(there, os.W_OK):
        return Check(
            "disk",
            "fail",
            f"{there} cannot be written",
            "set TESTBED_STATE_DIR and TESTBED_DATA_DIR to directories that can be",
            "nothing",
        )
    if free < _FREE_MB:
        return Check(
            "disk", "warn", f"{free} MB free in {there}", "remove old runs, or set TESTBED_STATE_DIR", "runs of a few minutes"
        )
    return Check("disk", "ok", f"{free / 1024:.1f} GB free in {there}")


def _store(settings: Settings) -> Check:
    from orchestrator.store import Store

    if not settings.store_path.exists():
        return Check("store", "ok", "no runs yet")
    try:
        with Store(settings.store_path, shared=settings.store is not None) as store:
            died = [r.id for r in store.history(limit=50) if r.status == "died"]
    except (TestbedError, OSError) as error:
        return Check("store", "fail", str(error), getattr(error, "hint", ""), "`status`, `lab`")
    if died:
        fix = "testbed status says what is; `testbed up` or `testbed down` continues from there"
        return Check("store", "warn", f"runs that died: {', '.join(died[:3])}", fix, "everything")
    return Check("store", "ok", str(settings.store_path))


def _inventory(settings: Settings) -> list[Check]:
    from orchestrator import labproc
    from orchestrator.lab import read_lab

    folder = settings.inventory
    files = [folder / name for name in ("hosts.yml", "devices.yml", "fibres.yml")]
    try:
        texts = [file.read_text(encoding="utf-8") for file in files]
        lab = read_lab(texts[0], texts[1], texts[2], names=(str(files[0]), str(files[1]), str(files[2])))
    except (OSError, UnicodeDecodeError, TestbedError) as error:
        fix = "correct the lines named, or choose another with --inventory"
        return [Check("inventory", "fail", str(error), fix, "`history`, `show`", "inventory")]
    parts = ((len(lab.hosts), "host"), (len(lab.devices), "device"), (len(lab.fibres), "fibre"))
    size = f"{lab.name}: " + ", ".join(counted(*part) for part in parts)
    checks = [Check("inventory", "ok", size, area="inventory")]
    if labproc.is_emulated(folder):
        checks.append(_emulated(folder))
        if checks[-1].detail.startswith("not running"):
            return checks
    devices = {name: config.address for name, config in lab.devices.items()}
    hosts = {name: (host.ssh.address, host.ssh.port) for name, host in lab.hosts.items()}
    return [*checks, *asyncio.run(_reach(devices, hosts))]


def _emulated(folder: Path) -> Check:
    from orchestrator import labproc

    try:
        if not labproc.is_running(folder):
            leftover = _leftovers(labproc.state_dir(folder))
            if leftover:
                fix = f"kill {' '.join(map(str, leftover))}"
                return Check("emulated lab", "fail", f"processes left over: {leftover}", fix, "other inventories", "inventory")
            return Check("emulated lab", "ok", "not running (`testbed up` starts it)", area="inventory")
        about = labproc.ask(folder, "status")
    except TestbedError as error:
        return Check(
            "emulated lab", "fail", str(error), "testbed lab stop, then testbed lab start", "other inventories", "inventory"
        )
    served = Path(str(about.get("inventory", folder))).resolve()
    if served != folder.resolve():
        fix = f"testbed lab stop --inventory {served}"
        return Check("emulated lab", "fail", f"serves {served} from the same state directory", fix, "that inventory", "inventory")
    return Check("emulated lab", "ok", f"running, pid {about['pid']}", area="inventory")


def _leftovers(state: Path) -> list[int]:
    """Lab processes that are alive though the lab does not answer: holders of its pid file."""
    try:
        wanted = (state / "lab.pid").stat()
    except OSError:
        return []
    mark = f":{wanted.st_ino} "
    holders = [
        line for line in Path("/proc/locks").read_text(encoding="ascii").splitlines() if "FLOCK" in line and mark in f"{line} "
    ]
    return sorted({int(line.split()[4]) for line in holders if int(line.split()[4]) > 0})


async def _reach(devices: dict[str, str], hosts: dict[str, tuple[str, int]]) -> list[Check]:
    """Open, all at once, a connection to every device and every host's sshd; nothing is written to a device."""

    async def device(name: str, address: str) -> Check:
        where = _endpoint(address)
        if isinstance(where, Path):
            if where.exists():
                return Check(name, "ok", f"{where} is there", area="reach")
            return Check(name, "fail", f"{where} is not there", "plug it in, or correct its address", "the other devices", "reach")
        if where is None:
            return Check(name, "warn", f"{address}: cannot be tried without its driver", "testbed status", "everything", "reach")
        said = await _connect(*where, greet=False)
        if not said.startswith("!"):
            return Check(name, "ok", address, area="reach")
        fix = f"check its power and cable, and the address in devices.yml ({address})"
        return Check(name, "fail", f"{address}: {said[1:]}", fix, "the other devices", "reach")

    async def host(name: str, address: str, port: int) -> Check:
        said = await _connect(address, port, greet=True)
        if said.startswith("SSH-"):
            return Check(name, "ok", f"{address}:{port} {said}", area="reach")
        what = said[1:] if said.startswith("!") else f"answers {said!r} instead of an SSH banner"
        return Check(
            name, "fail", f"{address}:{port}: {what}", f"start sshd there: ssh -p {port} {address}", "the other hosts", "reach"
        )

    tasks = [device(n, a) for n, a in devices.items()] + [host(n, *a) for n, a in hosts.items()]
    return list(await asyncio.gather(*tasks))


def _endpoint(address: str) -> tuple[str, int] | Path | None:
    """Where a device's address leads: a TCP endpoint, a device file, or None if only the driver knows."""
    url = urlsplit(address)
    if url.scheme == "serial":
        return Path(url.path)
    if url.scheme == "visa":
        parts = address.removeprefix("visa://").split("::")
        if len(parts) == 4 and parts[0].startswith("TCPIP") and parts[3] == "SOCKET" and parts[2].isdigit():
            return parts[1], int(parts[2])
        return None
    return (url.hostname, url.port) if url.hostname and url.port else None


async def _connect(address: str, port: int, *, greet: bool) -> str:
    """Connect; return the first line if `greet`, else nothing; `!why` if it failed."""
    try:
        async with asyncio.timeout(REACH_S):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                return (await reader.readline()).decode("ascii", "replace").strip() if greet else ""
            finally:
                writer.close()
    except TimeoutError:
        return f"!no answer within {REACH_S:.0f} s"
    except (OSError, socket.gaierror) as error:
        return f"!{error.strerror or error}"


def _run(command: list[str]) -> str:
    """Run a command; empty if it succeeded, else its words."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if ended.returncode == 0 else ended.stderr.strip() or f"exit {ended.returncode}"
