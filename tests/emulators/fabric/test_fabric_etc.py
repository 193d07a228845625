"""A host's /etc is its own: users and host names come and go on the machine, and on the host,
without a word between the two.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulators.fabric.emulated import write_inventory

pytestmark = pytest.mark.lab

# In a mount namespace with a copy of /etc, so that the machine's own is never written.
STORY = """
import pathlib, subprocess, sys
from tests.emulators.fabric.emulated import EmulatedLab

inventory, copy = map(pathlib.Path, sys.argv[1:])
copy.mkdir()
subprocess.run(f"mount -t tmpfs none {copy} && cp -a /etc/. {copy} && mount --bind {copy} /etc", shell=True, check=True)
lab = EmulatedLab(inventory)

def on(host, command):
    words = ["nsenter", "-m", "-t", str(lab.host_pid(host)), "sh", "-c", command]
    print(subprocess.run(words, capture_output=True, text=True).stdout)

try:
    for name in ("passwd", "shadow", "hosts", "hostname"):
        new, old = pathlib.Path("/etc", name + ".new"), pathlib.Path("/etc", name)
        new.write_text("another:x:4711:4711::/nonexistent:/bin/false\\n")
        new.rename(old)
    on("gpu01", "id -u testbed-job; getent hosts gpu02; cat /etc/hostname; grep -c another /etc/passwd; stat -c %a /etc/shadow")
    on("gpu01", "userdel testbed-job; useradd --system --no-create-home zed; id -un zed; id -u testbed-job")
    on("gpu02", "id -u testbed-job; id -u zed")
    print(pathlib.Path("/etc/passwd").read_text().count("zed"))
finally:
    lab.stop()
"""


def test_a_user_who_comes_to_the_machine_takes_none_from_its_hosts(tmp_path: Path) -> None:
    inventory = write_inventory(tmp_path, hosts=2, ports=1)
    argv = ["unshare", "--mount", sys.executable, "-c", STORY, inventory, tmp_path / "etc"]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    address = "10.254.0.2"
    assert done.stdout.split() == [
        "65100",
        address,
        "gpu02",
        "gpu01",
        "0",
        "600",
        "zed",
        "65100",
        "0",
    ], done.stdout
