"""What this machine can do and whether the chosen lab answers: each check is a real attempt, each
failure says how to fix it.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from urllib.parse import urlsplit

import optical_testbed_home
from orchestrator.hosts.facts import AGENT
from orchestrator.settings import Settings
from orchestrator.store.fault import has_room
from orchestrator.verify.doctor_lab import lab_checks
from orchestrator.verify.doctor_store import file_modes, store_checks, who_may_lock
from orchestrator.verify.probe import Probe

ANSIBLE = ((2, 17), (2, 20))  # as pyproject.toml has it
TRIED = (3, 13)
"""The newest Python on which a lab was started; pyproject.toml lists them all."""
SERVICE_S = 2.0
_TELEMETRY = {"influxd": ("influxd", "version"), "grafana": ("grafana", "server", "-v")}
_DISTRIBUTION = "optical-testbed"
_PROGRAMS = {
    "ip": ("iproute2", "nothing works without it but `plan` against devices"),
    "tc": ("iproute2", "hardware labs; the emulated hosts need it"),
    "ssh": ("openssh-client", "devices without hosts: `plan`, `status`"),
    "sshd": (
        "openssh-server",
        "hardware labs; the emulated devices: python -m emulators DIR --devices-only",
    ),
    "unshare": ("util-linux", "hardware labs"),
    "nsenter": ("util-linux", "hardware labs"),
}
_FREE_MB = 500
_WITHOUT = "everything; what is measured is kept in the run's journal"

# Tried in a network namespace of its own, which vanishes with the process. Each line: purpose,
# kernel option, command.
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


def examine(settings: Settings) -> list[Probe]:
    """Run all checks, the machine's and the lab's at the same time; the machine first, then the
    store, then the inventory.
    """
    machine = (
        _python,
        _packages,
        _versions,
        _path,
        _programs,
        _rights,
        _kernel,
        _gate,
        _mechanisms,
    )
    with ThreadPoolExecutor(2 + len(machine), "doctor") as threads:
        lab = threads.submit(lab_checks, settings)
        found = [threads.submit(_in_time, check) for check in machine]
        ours = [
            threads.submit(check, settings)
            for check in (_services, _disk, file_modes, who_may_lock, store_checks)
        ]
        return [c for future in (*found, *ours, lab) for c in future.result()]


def _in_time(check: Callable[[], list[Probe]]) -> list[Probe]:
    """What a check finds; a program of it that does not end is a finding of its own, beside which
    the others are seen.
    """
    try:
        return check()
    except subprocess.TimeoutExpired as late:
        text = f"not known: `{Path(late.cmd[0]).name}` had not ended after {late.timeout:g} s"
        fix = "testbed doctor again, when this machine is less busy"
        return [Probe(check.__name__.strip("_"), "warn", text, fix, "perhaps all")]


def _python() -> list[Probe]:
    # An older one than 3.11 cannot import this module.
    found = f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    python = Probe("python", "ok", found)
    if sys.version_info[:2] > TRIED:
        fix = f"python{_dotted(TRIED)} -m venv .venv, and install it there, if something fails"
        python = Probe(
            "python",
            "warn",
            f"{found}: not tried with this version, only up to {_dotted(TRIED)}",
            fix,
            "perhaps all",
        )
    return [
        Probe("testbed", "ok", _version(_DISTRIBUTION) or "runs from its source, not installed"),
        python,
        _names(),
        Probe("kernel release", "ok", f"{platform.system()} {platform.release()}"),
    ]


def _names() -> Probe:
    """Whether other packages hide this program's, whose names are ordinary words."""
    if hidden := optical_testbed_home.hidden_packages():
        text = ", ".join(f"{name} is {place}" for name, place in hidden.items())
        fix = "take its folder out of PYTHONPATH, start from another directory, or give testbed an environment of its own"
        return Probe(
            "package names",
            "fail",
            f"other packages have this program's names: {text}",
            fix,
            "nothing safely",
        )
    return Probe("package names", "ok", f"this program's are in {optical_testbed_home.HOME}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _versions() -> list[Probe]:
    """Programs whose version matters, and those installed for telemetry."""
    checks = []
    ansible = _version("ansible-core")
    if ansible:
        number = tuple(int(part) for part in ansible.split(".")[:2] if part.isdecimal())
        fine = ANSIBLE[0] <= number < ANSIBLE[1]
        fix = f"{sys.executable} -m pip install 'ansible-core>={_dotted(ANSIBLE[0])},<{_dotted(ANSIBLE[1])}'"
        checks.append(
            Probe(
                "ansible-core",
                "ok" if fine else "warn",
                ansible,
                "" if fine else fix,
                "" if fine else "perhaps all",
            )
        )
    if ssh := _find("ssh"):
        text = _reported([ssh, "-V"])
        # try the playbooks' own options: an older ssh does not know `^` (put first)
        refused = _run(
            [ssh, "-F", "none", "-o", "KexAlgorithms=^curve25519-sha256", "-G", "localhost"]
        )
        if refused:
            checks.append(
                Probe(
                    "OpenSSH",
                    "fail",
                    f"{text}: {refused}",
                    "install OpenSSH 8.1 or newer",
                    "`plan`, `status`",
                )
            )
        else:
            checks.append(Probe("OpenSSH", "ok", text))
    for name, commands in _TELEMETRY.items():
        if (found := _find(commands[0])) is not None:
            checks.append(
                Probe(name, "ok", _reported([found, *commands[1:]]).splitlines()[0][:100])
            )
    return checks


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))


def _path() -> list[Probe]:
    """Whether typing `testbed` starts this installation: hints and other programs rely on it."""
    neighbour, found = Path(sys.executable).with_name("testbed"), shutil.which("testbed")
    if found is None:
        return [
            Probe(
                "PATH",
                "warn",
                "`testbed` is not on it",
                f'export PATH="{neighbour.parent}:$PATH"',
                f"{neighbour}",
            )
        ]
    if neighbour.exists() and Path(found).resolve() != neighbour.resolve():
        text = f"`testbed` is {found}, not the one that runs here"
        return [Probe("PATH", "warn", text, f'export PATH="{neighbour.parent}:$PATH"', "both")]
    return [Probe("PATH", "ok", f"`testbed` is {found}")]


def _services(settings: Settings) -> list[Probe]:
    """InfluxDB and Grafana, if configured; nothing waits for them, so nothing fails without
    them.
    """
    checks = []
    influx, grafana = settings.influx.url, os.environ.get("TESTBED_GRAFANA_URL", "")
    if influx == "auto":
        if _find("influxd") is None:
            fix = "apt-get install -y --no-install-recommends influxdb"
            checks.append(
                Probe(
                    "InfluxDB",
                    "warn",
                    "telemetry.influx.url is auto, and influxd is not installed",
                    fix,
                    _WITHOUT,
                )
            )
        influx = ""
    asked = (
        ("InfluxDB", influx, "telemetry.influx.url", "/ping"),
        ("Grafana", grafana, "TESTBED_GRAFANA_URL", "/api/health"),
    )
    for name, url, variable, path in asked:
        if url in ("", "none"):
            continue
        try:
            if urlsplit(url).scheme not in ("http", "https"):
                raise ValueError("wanted http:// or https://")
            with urllib.request.urlopen(url.rstrip("/") + path, timeout=SERVICE_S) as answer:
                checks.append(Probe(name, "ok", f"{url}: HTTP {answer.status}"))
        except (OSError, ValueError, http.client.HTTPException) as error:
            fix = f"start it, or correct {variable}"
            checks.append(Probe(name, "warn", f"{url}: {error}", fix, _WITHOUT))
    return checks


def _packages() -> list[Probe]:
    declared = _declared()
    missing = [name for name in declared if not _version(name)]
    if missing:
        fix = f"{sys.executable} -m pip install {' '.join(missing)}"
        checks = [
            Probe("packages", "fail", f"missing: {', '.join(missing)}", fix, "`run`, `examples`")
        ]
    elif declared:
        checks = [Probe("packages", "ok", f"all {len(declared)} installed")]
    else:
        text = "not known: testbed is not installed, it runs from its source"
        checks = [
            Probe(
                "packages",
                "warn",
                text,
                f"{sys.executable} -m pip install -e .",
                "what finds its packages",
            )
        ]
    try:
        checks.append(Probe("torch", "ok", version("torch")))
    except PackageNotFoundError:
        checks.append(
            Probe(
                "torch",
                "warn",
                "not installed",
                f"{sys.executable} -m pip install torch",
                "everything but training jobs",
            )
        )
    return checks


def _declared() -> list[str]:
    """The packages that the installed distribution needs, without those of its extras; none if it
    is not installed.
    """
    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def _find(program: str) -> str | None:
    # Daemons live in directories that an ordinary user's PATH leaves out.
    neighbour = str(Path(sys.executable).parent)
    return shutil.which(
        program,
        path=os.pathsep.join(
            [neighbour, os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"]
        ),
    )


def _programs() -> list[Probe]:
    checks = []
    for program, (package, works) in _PROGRAMS.items():
        found = _find(program)
        if found:
            checks.append(Probe(program, "ok", found))
        else:
            checks.append(Probe(program, "fail", "not found", f"apt-get install {package}", works))
    ansible = _find("ansible-playbook")
    if ansible:
        checks.append(Probe("ansible-playbook", "ok", ansible))
    else:
        fix = f"{sys.executable} -m pip install ansible-core"
        checks.append(
            Probe("ansible-playbook", "fail", "not found", fix, "`plan`, `status`; not `up`")
        )
    return checks


def _namespace() -> list[str] | None:
    """The command that runs another in a network namespace of its own, None if this user may
    not.
    """
    unshare = _find("unshare")
    if unshare is None:
        return None
    for flags in (["-n"], ["-Urn"]):
        if _run([unshare, *flags, "true"]) == "":
            return [unshare, *flags]
    return None


def _rights() -> list[Probe]:
    if os.geteuid() == 0:
        if _namespace() is not None:
            return [Probe("rights", "ok", "root, may make namespaces")]
        fix = "run outside this container, or give it CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
        works = "emulated devices without hosts; hardware labs"
        return [Probe("rights", "fail", "root, but may not make namespaces", fix, works)]
    works = "hardware labs; emulated devices: python -m emulators DIR --devices-only"
    return [Probe("rights", "warn", "not root: no emulated hosts", "run testbed with sudo", works)]


def _kernel() -> list[Probe]:
    prefix = _namespace()
    if prefix is None:
        return [
            Probe(
                "kernel",
                "warn",
                "not tried: this user may not make namespaces",
                "run testbed doctor with sudo",
                "hardware labs",
            )
        ]
    # One namespace for all, because later commands use what the earlier ones made; each command
    # returns one line.
    script = "PATH=$PATH:/usr/sbin:/sbin\n" + "\n".join(
        f'if said=$( ({command}) 2>&1 ); then echo ok; else echo "no $said" | tr "\\n" " "; echo; fi'
        for _, _, command in _KERNEL
    )
    answer = subprocess.run(
        [*prefix, "sh", "-c", script], capture_output=True, text=True, timeout=30, check=False
    ).stdout.splitlines()
    checks = []
    for (name, option, _), line in zip(
        _KERNEL, [*answer, *["no (not tried)"] * len(_KERNEL)], strict=False
    ):
        if line == "ok":
            checks.append(Probe(name, "ok", "tried"))
        else:
            fix = f"use a kernel with {option} (modprobe may be enough)"
            checks.append(
                Probe(
                    name,
                    "fail",
                    line.removeprefix("no").strip(),
                    fix,
                    "hardware labs; emulated devices without hosts",
                )
            )
    return checks


def _mechanisms() -> list[Probe]:
    """What hosts may lack of what jobs and schedules can ask for: the agent tries it on this
    machine, each for a moment.
    """
    command = [sys.executable, "-P", "-S", "-E", str(AGENT / "__main__.py"), "try"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    checks = []
    try:
        for reply in map(json.loads, done.stdout.splitlines()):
            if "error" not in reply:
                checks.append(Probe(reply["what"], "ok", "tried"))
                continue
            what, _, fix = reply["error"].rpartition(": ")
            if reply["code"] != "refused":
                what, fix = reply["error"], f"see what this says: {' '.join(command)}"
            checks.append(Probe(reply["what"], "warn", what, fix, reply["without"]))
    except (KeyError, ValueError) as error:
        checks.append(
            Probe(
                "mechanisms",
                "warn",
                f"the attempt failed: {error!r}",
                f"run it: {' '.join(command)}",
                "perhaps all",
            )
        )
    return checks


def _gate() -> list[Probe]:
    """Whether emulated rotors can have short slots; a module of the emulators tries it, in a
    process of its own.
    """
    what = "BPF in the light path (rotors with short slots)"
    command = [sys.executable, "-P", "-m", "emulators.fabric.gate"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 0:
        return [Probe(what, "ok", "tried")]
    lines = (done.stdout or done.stderr).strip().splitlines()
    fix = "run testbed as root (CAP_BPF, CAP_NET_ADMIN) on a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF (modprobe cls_bpf)"
    return [
        Probe(
            what,
            "warn",
            lines[-1] if lines else "not tried",
            fix,
            "everything but emulated rotors with slots under 100 ms",
        )
    ]


def _disk(settings: Settings) -> list[Probe]:
    """Free space where runs and the store are kept; reported once if both are on one file
    system.
    """
    checks, seen = [], set()
    for what, folder in (
        ("disk", settings.state_dir),
        ("disk of the store", settings.store_path.parent),
    ):
        place = folder
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free // 2**20
        if not os.access(place, os.W_OK):
            fix = "set TESTBED_STATE_DIR and TESTBED_DATA_DIR to directories that can be"
            checks.append(Probe(what, "fail", f"{place} cannot be written", fix, "nothing"))
        elif not has_room(place):
            fix = "make room there; the store is unharmed, leave it where it is"
            checks.append(Probe(what, "fail", f"{place} is on a full disk", fix, "`plan`", "store"))
        elif free < _FREE_MB:
            fix = f"remove old runs: {settings.state_dir / 'runs'}; or set TESTBED_STATE_DIR"
            checks.append(
                Probe(what, "warn", f"{free} MB free in {place}", fix, "runs of a few minutes")
            )
        elif place.stat().st_dev not in seen:
            checks.append(Probe(what, "ok", f"{free / 1024:.1f} GB free in {place}"))
        seen.add(place.stat().st_dev)
    return checks


def _reported(command: list[str]) -> str:
    """What a command prints, on either stream; empty if it does not run."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (ended.stdout + ended.stderr).strip() or f"exit {ended.returncode}"


def _run(command: list[str]) -> str:
    """Run a command; empty if it succeeded, else its output."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if ended.returncode == 0 else ended.stderr.strip() or f"exit {ended.returncode}"
