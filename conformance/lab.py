"""A private emulated lab: a separate process with one device per driver, on free ports, stopped
when its block ends.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optical_testbed_home
from conformance.truth import Truth
from drivers.registry import driver_class
from optics import DeviceConfig, Missing

START_S, STOP_S = 300.0, 10.0
"""A lab that starts is waited for as long as a command may take; one that dies ends the wait."""
SETTLE_S = 0.02
"""Switching time of the devices (s): long enough to be seen, short enough for hundreds of
changes.
"""
BOOT_S = 0.1
PATIENCE_S = "0.6"
FREE = (*range(20_000, 22_000), *range(28_000, 32_000))
"""Loopback ports for labs: below those that the kernel gives to outgoing connections, and none of a
lab with fixed ports.
"""


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab. inventory: its directory; state: its keys and its control socket; devices:
    what to open them with.
    """

    inventory: Path
    state: Path
    devices: Mapping[str, DeviceConfig] = field(default_factory=dict)

    def truth(self, device: str) -> Truth:
        """The true state of one of the lab's devices."""
        return Truth(self.state / "control.sock", device)

    @property
    def truths(self) -> dict[str, Truth]:
        return {name: self.truth(name) for name in self.devices}


def name_of(driver: str) -> str:
    """The device's name in a lab of several families."""
    return "dut-" + driver


def families() -> dict[str, dict[str, Any]]:
    """The emulators' description of each family: driver -> schemes, login, time_scale, size."""
    found: dict[str, dict[str, Any]] = json.loads(
        _python("-m", "emulators.devices.families").stdout
    )
    return found


@contextmanager
def devices_lab(
    drivers: Iterable[str],
    *,
    keep_under: Path | None = None,
    emulated: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Lab]:
    """Run one fast-settling device of each driver in one process, without hosts. emulated: driver
    -> keys of emulator.yml.

    Raises: Missing - a driver without an emulator, or the lab does not start; the message quotes
    its output.
    """
    folder = Path(tempfile.mkdtemp(prefix="testbed-conform-", dir=keep_under))
    try:
        configs = _write(folder, tuple(drivers), emulated or {})
        with running(folder / "lab", "--devices-only"):
            lab = Lab(folder / "lab", folder / "state", configs)
            for truth in lab.truths.values():
                truth.settle(SETTLE_S, BOOT_S)
            yield lab
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def hosts_lab(driver: str, hosts: int) -> Iterator[Lab]:
    """Run a lab of one family with real hosts, which needs root. Raises: Missing - with the lab's
    own message.
    """
    folder = Path(tempfile.mkdtemp(prefix="testbed-lab-"))
    try:
        generate(folder / "lab", folder / "state", [driver], hosts)
        with running(folder / "lab"):
            yield Lab(folder / "lab", folder / "state", _configs(folder / "lab"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def generate(out: Path, state: Path, drivers: Sequence[str], hosts: int | None) -> None:
    """Write the inventory of a lab of one or more families with the emulators' generator; hosts:
    None or 0 for its default number.

    Raises: Missing - a driver has no emulator, or its device cannot serve that many hosts; the
    message is the generator's.
    """
    argv = [
        "--free-ports",
        *(f"--driver={driver}" for driver in drivers),
        "--out",
        str(out),
        "--state",
        str(state),
    ]
    try:
        _python("-m", "emulators.generate", *argv, *(["--hosts", str(hosts)] if hosts else []))
    except Missing as error:
        text = str(error).rpartition("error: ")[2]
        raise Missing(
            f"no lab of {' and '.join(drivers)}: {text}", hint="testbed devices driver list"
        ) from None


def _write(
    folder: Path, drivers: tuple[str, ...], emulated: Mapping[str, Mapping[str, object]]
) -> dict[str, DeviceConfig]:
    """One inventory with a device of every driver, on free ports."""
    import yaml

    known = families()
    if missing := sorted(set(drivers) - set(known)):
        raise Missing(
            f"{missing[0]} has no emulator; there are {', '.join(sorted(known))}",
            hint="check a real device: --device NAME",
        )
    ports = iter(free_ports(len(drivers)))
    devices = {
        name_of(driver): _entry(driver, known[driver], folder / "state", next(ports))
        for driver in drivers
    }
    lab = folder / "lab"
    for part in (lab, folder / "state"):
        part.mkdir(mode=0o700)
    host = {  # never started; its key file shows where the lab keeps its state
        "ansible_port": 1,
        "testbed_host_id": 1,
        "testbed_mgmt_address": "10.254.0.1",
        "testbed_ports": {1: {"interface": "opt1"}},
        "ansible_ssh_private_key_file": str(folder / "state" / "id_ed25519"),
        "ansible_user": "root",
    }
    (lab / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"unused": host}}}))
    (lab / "devices.yml").write_text(yaml.safe_dump({"lab": "conformance", "devices": devices}))
    (lab / "fibres.yml").write_text("fibres: []\n")
    keys = {
        name_of(driver): {**known[driver]["quick"], **emulated.get(driver, {})}
        for driver in drivers
    }
    (lab / "emulator.yml").write_text(yaml.safe_dump({"hosts": False, "seed": 1, "devices": keys}))
    return _configs(lab)


def _entry(driver: str, family: Mapping[str, Any], state: Path, port: int) -> dict[str, Any]:
    """The device in devices.yml, fast enough that a suite of hundreds of changes stays short."""
    found, scheme = driver_class(driver), family["schemes"][0]
    options = {
        "patience_s": PATIENCE_S,
        "known_hosts": str(state / "known_hosts_devices"),
        "homing": "auto",
        "rest": "1",
        "model": "OSW22",
    }
    entry: dict[str, Any] = {
        "driver": driver,
        "address": f"serial://{state}/{driver}"
        if scheme == "serial"
        else f"{scheme}://127.0.0.1:{port}",
        "options": {name: value for name, value in options.items() if name in found.OPTIONS},
        "traits": {"settle_s": SETTLE_S},
        "timeout_s": 2.0,
    }
    if family["login"]:
        entry["username"], entry["password"] = family["login"]
    # a robot's move, or a slow daemon, becomes as short as a mirror's
    if family["time_scale"] != 1 or found.TRAITS.settle_s > 1:
        entry["time_scale"] = max(family["time_scale"], round(found.TRAITS.settle_s / SETTLE_S))
    return entry


def free_ports(count: int) -> list[int]:
    """Loopback ports that were free just now."""
    with ExitStack() as held:
        found: list[int] = []
        for port in random.sample(FREE, len(FREE)):
            if len(found) == count:
                break
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found


def _configs(inventory: Path) -> dict[str, DeviceConfig]:
    import yaml

    found = yaml.safe_load((inventory / "devices.yml").read_text())["devices"]
    return {
        name: DeviceConfig(
            name,
            entry["driver"],
            entry["address"],
            str(entry.get("username", "")),
            str(entry.get("password", "")),
            entry.get("traits") or {},
            float(entry.get("timeout_s", 5.0)),
            {key: str(value) for key, value in (entry.get("options") or {}).items()},
            float(entry.get("time_scale", 1.0)),
        )
        for name, entry in found.items()
    }


@dataclass(frozen=True, slots=True)
class Running:
    """A lab in the foreground: seconds from starting Python until it reported ready, and its
    process id.
    """

    ready_s: float
    pid: int


@contextmanager
def running(inventory: Path, *options: str) -> Iterator[Running]:
    """Run `python -m emulators` until the block ends; it is ready when the block begins. Raises:
    Missing - with its output.
    """
    here, existing = os.pipe()
    with tempfile.TemporaryFile("w+", prefix="testbed-lab-") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "emulators",
                str(inventory),
                "--foreground",
                "--ready-fd",
                str(existing),
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(existing,),
            start_new_session=True,
            env=optical_testbed_home.environment(),
        )
        os.close(existing)
        try:
            if not _ready(here):
                late = (
                    f"was not ready after {START_S:g} s"
                    if process.poll() is None
                    else "did not start"
                )
                end(process)
                log.seek(0)
                text = "\n".join(log.read().splitlines()[-15:])
                raise Missing(f"the emulated lab {late}: {text or 'no output'}")
            yield Running(time.monotonic() - began, process.pid)
        finally:
            os.close(here)
            end(process)


def _ready(pipe: int) -> bool:
    """Whether the lab reported ready; False if it exited or took too long."""
    deadline = time.monotonic() + START_S
    while (left := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            return os.read(pipe, 16) == b"ready\n"
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def _python(*parts: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-P", *parts],
        env=optical_testbed_home.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Missing(
            f"{' '.join(parts[:3])}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}"
        )
    return done
