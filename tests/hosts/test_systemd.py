"""Ansible's role on a host whose first process is systemd: the agent's unit starts it, again after
it was killed, and at boot, when it makes addresses and sysctls anew.

The host is this machine's files under an overlay, in namespaces of its own, with the ports of
gpu01 as ends of veth pairs. Only units of the role are started in it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from playbooks import __path__ as playbooks
from tests.house.repository import ROOT
from tests.kit.waiting import until

SYSTEMD = Path("/usr/lib/systemd/systemd")
UNIT = "testbed-committer.service"
PORTS = ("opt1", "opt2", "opt3", "opt4")

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SYSTEMD.is_file(), reason="systemd is not installed"),
]

BOOT = f"""
set -e
root=$1/root
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir=$1/upper,workdir=$1/work $root
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount -t tmpfs tmpfs $root/run
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then mount -t cgroup2 cgroup2 $root/sys/fs/cgroup; else
mount -t tmpfs tmpfs $root/sys/fs/cgroup
mkdir $root/sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup $root/sys/fs/cgroup/systemd
fi
mount --rbind /dev $root/dev
ip link set lo up
for port in {" ".join(PORTS)}; do ip link add $port type veth peer name far-$port; done
exec env -i container=testbed PATH=$PATH chroot $root {SYSTEMD} --unit=multi-user.target
"""
_OWN = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
_VENDORS = ("sysinit", "multi-user", "local-fs", "sockets", "timers", "graphical")


class Server:
    """A host that can be booted again; its files stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("root", "upper", "work"):
            (folder / name).mkdir()
        system = folder / "upper" / "etc" / "systemd" / "system"
        vendors = folder / "upper" / "usr" / "lib" / "systemd" / "system"
        for hidden in (system, *(vendors / f"{name}.target.wants" for name in _VENDORS)):
            hidden.mkdir(parents=True)
            os.setxattr(hidden, "trusted.overlay.opaque", b"y")
        self.inventory = folder / "inventory"
        shutil.copytree(ROOT / "inventory" / "emulated", self.inventory)
        self._log = folder / "log"
        self._outer: subprocess.Popen[bytes] | None = None

    @property
    def _first(self) -> int:
        assert self._outer is not None
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text()
        return int(children.split()[0])

    def boot(self) -> None:
        with self._log.open("ab") as log:
            self._outer = subprocess.Popen(
                ["unshare", *_OWN, "--fork", "--kill-child", "sh", "-c", BOOT, "sh", self.folder],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: self._booted)

    @property
    def _booted(self) -> bool:
        try:
            return self.run("systemctl", "is-system-running").stdout.strip() == "running"
        except IndexError:  # no first process yet
            assert self._outer is not None and self._outer.poll() is None, self._log.read_text()
            return False

    def cut(self) -> None:
        """Its power is cut."""
        if self._outer is not None:
            self._outer.kill()
            self._outer.wait()
            self._outer = None

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "--target", str(self._first), "--all", "--root", "env", "-C", str(ROOT)]
        return subprocess.run(
            [*enter, *argv], capture_output=True, text=True, timeout=200, check=False
        )

    def play(self, *argv: str) -> int:
        """Play the role here; return how many tasks changed something."""
        command = [str(Path(sys.executable).parent / "ansible-playbook")]
        command += ["-i", str(self.inventory / "hosts.yml"), f"{playbooks[0]}/provision.yml"]
        done = self.run(*command, "--connection", "local", "--limit", "gpu01", *argv)
        assert done.returncode == 0, done.stdout + done.stderr
        return sum(map(int, re.findall(r"^gpu01 .* changed=(\d+)", done.stdout, re.MULTILINE)))

    @property
    def agent(self) -> int:
        """The first process of the unit; 0: it does not run."""
        return int(self.run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout)


@pytest.fixture
def server() -> Iterator[Server]:
    # not below /, which is the overlay's other layer
    with tempfile.TemporaryDirectory(prefix="testbed-systemd-", dir="/dev/shm") as folder:
        made = Server(Path(folder))
        try:
            made.boot()
            yield made
        finally:
            made.cut()


def test_the_role_has_systemd_start_the_agent_again_and_at_boot(server: Server) -> None:
    assert server.play() > 0
    assert server.run("systemctl", "is-enabled", UNIT).stdout.strip() == "enabled"
    assert server.run("systemctl", "is-active", UNIT).stdout.strip() == "active"
    assert server.play() == 0

    killed = server.agent
    server.run("kill", f"-{signal.SIGKILL}", str(killed))
    until(lambda: server.agent not in (0, killed))
    assert server.play() == 0

    server.cut()
    server.boot()
    until(lambda: server.agent != 0)
    assert "inet 10.1.0.1/" in server.run("ip", "-4", "address", "show", PORTS[0]).stdout
    assert server.play() == 0

    assert server.play("-e", "host_state=absent") > 0
    assert server.run("systemctl", "cat", UNIT).returncode != 0
    assert "inet" not in server.run("ip", "-4", "address", "show", PORTS[0]).stdout
    assert server.play("-e", "host_state=absent") == 0
