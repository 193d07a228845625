"""However the lab ends, nothing of it is left; and it does not start half."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.emulators.fabric.emulated import EmulatedLab, eventually, write_inventory

pytestmark = pytest.mark.lab


def namespace(pid: object, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def namespaces() -> set[str]:
    """Every network, mount and pid namespace some process is in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        for kind in ("net", "mnt", "pid"):
            try:
                found.add(namespace(process.name, kind))
            except OSError:
                continue
    return found


def processes(inventory: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(inventory).encode() in text:
            found.append(process.name)
    return found


def mounts() -> list[str]:
    return Path("/proc/mounts").read_text().splitlines()


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Path]:
    """A small inventory; whatever lab of it still runs after the test is killed."""
    folder = write_inventory(tmp_path, hosts=2, ports=1)
    yield folder
    for pid in processes(folder):
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def root_of(lab: EmulatedLab) -> int:
    return int(
        Path(f"/proc/{lab.keeper.pid}/task/{lab.keeper.pid}/children").read_text().split()[0]
    )


@pytest.mark.parametrize("victim", ["keeper", "root"])
def test_kill_9_leaves_no_process_namespace_mount_or_file(inventory: Path, victim: str) -> None:
    mounts_before, libraries_before = mounts(), sorted(Path("/var/lib").iterdir())
    lab = EmulatedLab(inventory)
    hosts = [lab.host_pid(h) for h in ("gpu01", "gpu02")]
    of_the_lab = {
        namespace(pid, kind) for pid in (*hosts, root_of(lab)) for kind in ("net", "mnt", "pid")
    }
    of_the_lab -= {namespace("self", kind) for kind in ("net", "mnt", "pid")}
    assert len(of_the_lab) == 9
    os.kill(lab.keeper.pid if victim == "keeper" else root_of(lab), signal.SIGKILL)
    lab.keeper.wait(5)
    assert eventually(lambda: not processes(inventory), 30)
    assert eventually(lambda: not of_the_lab & namespaces(), 30)
    assert mounts() == mounts_before
    assert eventually(
        lambda: (
            sorted(p.name for p in lab.state.iterdir())
            == ["host_keys", "id_ed25519", "id_ed25519.pub", "known_hosts"]
        )
    )
    assert sorted(Path("/var/lib").iterdir()) == libraries_before


def test_a_lab_that_was_killed_starts_again_with_the_same_keys(inventory: Path) -> None:
    lab = EmulatedLab(inventory)
    key = (lab.state / "id_ed25519").read_text()
    known = (lab.state / "known_hosts").read_text()
    lab.keeper.kill()
    lab.keeper.wait(5)
    assert eventually(lambda: not processes(inventory), 30)
    again = EmulatedLab(inventory)
    assert (lab.state / "id_ed25519").read_text() == key
    assert (lab.state / "known_hosts").read_text() == known
    assert again.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_lab_cleanly(inventory: Path, number: int) -> None:
    lab = EmulatedLab(inventory)
    lab.keeper.send_signal(number)
    assert lab.keeper.wait(5) == 0, lab.log.read_text()
    assert not (lab.state / "control.sock").exists() and not (lab.state / "lab.pid").exists()
    assert eventually(lambda: not processes(inventory))


@pytest.mark.parametrize("light_path", ["kill -9", "host.down"])
def test_a_killed_host_is_gone_and_the_others_live_on(inventory: Path, light_path: str) -> None:
    lab = EmulatedLab(inventory)
    if light_path == "kill -9":
        os.kill(lab.host_pid("gpu02"), signal.SIGKILL)
    else:
        assert lab.ask("host.down", host="gpu02")["ok"]
    assert eventually(lambda: not lab.ask("status")["hosts"]["gpu02"]["sshd"])
    status = lab.ask("status")["hosts"]
    assert status["gpu01"]["sshd"] and status["gpu01"]["pid"]
    port = int(status["gpu02"]["ssh"].rpartition(":")[2])
    # the kernel closes the dead process's sockets one after the other
    assert eventually(lambda: refuses(port))
    assert lab.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@17,18)") == '0,"No error"'
    assert eventually(lambda: lab.carrier("gpu01", 1))  # looped back to itself
    assert lab.ask("light")["light"]["ocs1"] == [["1", "17"]]  # a dead host sends no light
    assert lab.stop() == 0, lab.log.read_text()


def refuses(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) != 0


def start(inventory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "emulators", str(inventory), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)


def test_a_busy_port_is_named_before_anything_is_made(inventory: Path) -> None:
    port = int((inventory / "hosts.yml").read_text().split("ansible_port: ")[1].split()[0])
    with socket.create_server(("127.0.0.1", port)):
        done = start(inventory)
    assert done.returncode == 5
    assert f"error: gpu01: cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert str(os.getpid()) in done.stderr  # ... and who has it
    assert not list((inventory.parent / "state").iterdir())
    assert not processes(inventory)


def test_an_unknown_device_setting_is_named_before_anything_is_made(inventory: Path) -> None:
    path = inventory / "emulator.yml"
    path.write_text(path.read_text().replace("settle_s", "setle_s"))
    done = start(inventory)
    assert done.returncode == 3
    assert (
        "emulator.yml: devices: ocs1: unknown key 'setle_s'; did you mean settle_s?" in done.stderr
    )


def test_a_second_lab_on_the_same_state_is_refused_and_the_first_lives_on(inventory: Path) -> None:
    lab = EmulatedLab(inventory)
    done = start(inventory)
    assert done.returncode == 4
    assert f"already runs (pid {lab.keeper.pid})" in done.stderr
    assert lab.ask("status")["pid"] == lab.keeper.pid
    assert lab.stop() == 0


def test_in_the_background_the_command_returns_when_the_lab_is_ready(inventory: Path) -> None:
    done = start(inventory)
    assert done.returncode == 0, done.stderr
    assert "2 hosts, 1 devices" in done.stdout
    pid = int((inventory.parent / "state" / "lab.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    assert eventually(lambda: not processes(inventory), 30)


UNPRIVILEGED = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
# the checkout may be root's alone
UNPRIVILEGED += ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "+dac_read_search"]


@pytest.fixture
def open_inventory() -> Iterator[Path]:
    """An inventory in a folder that anybody may enter and write to; pytest's own folders are root's
    alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield write_inventory(Path(folder), hosts=2, ports=1)


def test_without_root_the_message_says_what_is_missing_and_what_still_works(
    open_inventory: Path,
) -> None:
    argv = [*UNPRIVILEGED, sys.executable, "-m", "emulators", str(open_inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done
    assert "emulated hosts need root: run with sudo" in done.stderr
    assert "--devices-only" in done.stderr


def test_devices_alone_need_no_root(open_inventory: Path) -> None:
    port = int((open_inventory / "devices.yml").read_text().split("127.0.0.1:")[1].split('"')[0])
    argv = [
        *UNPRIVILEGED,
        sys.executable,
        "-m",
        "emulators",
        str(open_inventory),
        "--devices-only",
        "--foreground",
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as lab:
        try:
            assert lab.stderr is not None
            assert "1 devices, 0 hosts, ready" in lab.stderr.readline()
            with socket.create_connection(("127.0.0.1", port), 5) as link:
                link.sendall(b"*IDN?\n")
                assert link.recv(200).startswith(b"Polatis,")
        finally:
            lab.terminate()
    assert lab.returncode == 0
    assert not (open_inventory.parent / "state" / "control.sock").exists()
