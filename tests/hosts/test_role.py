"""The role that provisions hosts, played on emulated hosts: from nothing, again, beside the
program, and away.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.watchdog import UNIT
from optics import BadFile, Missing, Usage
from orchestrator.hosts import Hosts, facts, openssh
from orchestrator.hosts.facts import PLAYBOOKS
from orchestrator.verbs.hosts import for_ansible, variables
from tests.hosts.test_hosts_lab import Emulated
from tests.house.repository import ROOT
from tests.kit.labs import lab_in

COLLECTION = PLAYBOOKS / "collections/ansible_collections/optical/testbed"
ROLE = COLLECTION / "roles/host"
PLAYBOOK = PLAYBOOKS / "provision.yml"
TRAINER = "testbed_job_user: trainer"
LOOK = (
    "ip -brief address; ip rule; ip link | grep -o 'opt.*mtu [0-9]*'; cat /etc/passwd /etc/group; ls -A /var/lib/testbed /run;"
    " sysctl -a -r '^net.ipv4.(conf|ip_forward|tcp_(rto|congestion_control|slow|no_m))'"
)
"""What provisioning changes. Directories that no agent needs any more are empty at most: what is
mounted stays.
"""


class Site(Emulated):
    """An emulated lab, and Ansible on its inventory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # the lab has started: its hosts do not have the user yet
        file = self.inventory / "hosts.yml"
        file.write_text(
            re.sub(r"( *)testbed_lanes:", rf"\1{TRAINER}\n\1testbed_lanes:", file.read_text())
        )
        self.lab = lab_in(self.inventory)

    def play(self, *argv: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        command = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(self.inventory),
            str(PLAYBOOK),
            *argv,
        ]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=150, check=False
        )
        assert "WARNING" not in done.stderr + done.stdout, done.stderr + done.stdout
        return done

    def on(self, host: str, command: str) -> str:
        code, out, err = openssh.run(self.lab.hosts[host], (command,), capture=True, timeout_s=60)
        assert code == 0, err
        return out


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("the emulated hosts need root")
    made = Site(tmp_path_factory.mktemp("lab"))
    yield made
    made.end()


def changed(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The number of changes on each host, of a play in which nothing failed."""
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        host: int(count)
        for host, count in re.findall(r"^(\S+) +: ok=.* changed=(\d+)", done.stdout, re.MULTILINE)
    }


@pytest.mark.long
@pytest.mark.lab
@pytest.mark.timeout(400)
async def test_the_role_and_the_program_accept_each_others_hosts_and_the_role_leaves_nothing(
    site: Site, tmp_path: Path
) -> None:
    before = site.on("gpu01", LOOK)
    result = site.play("--limit", "gpu01", "--check", "--diff")
    assert changed(result)["gpu01"] >= 4 and "no agent of this release is there" in result.stdout
    assert site.on("gpu01", LOOK) == before, "nothing was changed"

    assert changed(site.play("--limit", "gpu01"))["gpu01"] >= 4
    assert "\ntrainer:x:" in site.on("gpu01", LOOK)

    async with Hosts(site.lab, site.inventory, tmp_path) as hosts:
        await hosts.channels.connect(["gpu01", "gpu02"])
        assert hosts.channels.unready() == ("gpu02",), "gpu01 is as the program would make it"
        assert (
            hosts.channels.hellos["gpu01"].provision == facts.facts(site.lab.hosts["gpu01"])["sha"]
        )
        assert (await hosts.provision(["gpu01"]))["gpu01"].changed == ()
        await hosts.provision(["gpu02"])

    result = site.play("--limit", "gpu01,gpu02", "--diff")
    assert changed(result) == {"gpu01": 0, "gpu02": 0}, result.stdout
    site.on(
        "gpu02",
        "sysctl -q net.ipv4.conf.all.rp_filter=1; ip address del 10.2.0.2/32 dev opt2; ip link set opt1 mtu 1500",
    )
    result = site.play("--limit", "gpu02", "--check", "--diff")
    assert changed(result) == {"gpu02": 1} and set(
        re.findall('^        "(.*)"', result.stdout, re.MULTILINE)
    ) == {
        "net.ipv4.conf.all.rp_filter = 0",
        "10.2.0.2 on opt2",
        "mtu 9000 on opt1",
    }

    assert set(
        changed(site.play("-e", "host_state=absent", "--limit", "gpu01,gpu02")).values()
    ) == {2}
    assert site.on("gpu01", LOOK) == before


# --- what is wrong is said before a host is touched


def ansible(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / argv[0]), *argv[1:]]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


EXAMPLE = ROOT / "inventory/example-lab"
ANYWHERE = """
- hosts: all
  gather_facts: false
  strategy: linear
  roles: [{role: optical.testbed.host}]
"""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("-e", "testbed_lanes=8"),
            r"node-a: testbed_lanes is '8' for Ansible, and '4' in .*hosts\.yml.*set it in hosts\.yml alone",
        ),
        (
            ("-e", "host_state=gone"),
            r"value of host_state must be one of: present, absent, got: gone",
        ),
        pytest.param(
            ("-e", "host_inventory=/nowhere"),
            r"/nowhere: no such directory.*an inventory is a directory with hosts\.yml",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("--limit", "grafana"),
            r"grafana is not on the fabric of .*example-lab: it has no testbed_host_id and testbed_ports",
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_role_says_what_is_wrong_before_it_reaches_a_host(
    argv: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    book = tmp_path / "anywhere.yml"
    book.write_text(ANYWHERE)
    (tmp_path / "collections").symlink_to(PLAYBOOKS / "collections")
    done = ansible("ansible-playbook", "-i", str(EXAMPLE), str(book), *argv)
    assert done.returncode == 2 and re.search(message, done.stdout.replace("\n", " ")), (
        done.stdout + done.stderr
    )
    assert "Look for Python" not in done.stdout and "UNREACHABLE" not in done.stdout


def test_machines_that_are_not_on_the_fabric_are_left_alone() -> None:
    done = ansible("ansible-playbook", "-i", str(EXAMPLE), str(PLAYBOOK), "--limit", "grafana")
    assert done.returncode == 0 and "Look for Python" not in done.stdout, done.stdout


@pytest.mark.parametrize(
    "lab", sorted(path.parent.name for path in (ROOT / "inventory").glob("*/hosts.yml"))
)
def test_ansible_takes_the_folder_of_a_lab_as_its_inventory_without_a_warning(lab: str) -> None:
    done = ansible("ansible-inventory", "-i", f"inventory/{lab}", "--list")
    listed = json.loads(done.stdout)["_meta"]["hostvars"]
    assert (
        done.stderr == ""
        and {host.machine for host in lab_in(ROOT / "inventory" / lab).hosts.values()}
        <= listed.keys()
    )


def test_what_the_role_is_told_is_what_up_installs(tmp_path: Path) -> None:
    archive = tmp_path / "lab.tar.gz"
    found = variables(EXAMPLE, ["node-b"], archive)
    assert (
        list(found["hosts"]) == ["node-b"]
        and found["hosts"]["node-b"]["sha"] == facts.facts(lab_in(EXAMPLE).hosts["node-b"])["sha"]
    )
    assert archive.read_bytes() == facts.archive() and found["archive"] == str(archive)
    assert "archive" not in variables(EXAMPLE, ["node-b"])
    with pytest.raises(Missing, match=r"node-z is no host of this lab"):
        variables(EXAMPLE, ["node-z"])
    with pytest.raises(Missing, match=r"all:!node-a is no host of this lab"):
        variables(EXAMPLE, ["all:!node-a"])
    with pytest.raises(Usage, match=r"/nowhere/lab\.tar\.gz: No such file or directory"):
        variables(EXAMPLE, [], Path("/nowhere/lab.tar.gz"))


def test_variables_that_only_ansible_has_are_refused_all_at_once(tmp_path: Path) -> None:
    known = {name: {"testbed_lanes": 4, "testbed_gpus": 1} for name in ("node-a", "node-b")}
    assert list(for_ansible(EXAMPLE, tmp_path, known)["hosts"])[:2] == ["node-a", "node-b"]
    known["node-b"] |= {
        "testbed_gpus": 2,
        "testbed_job_user": "{{ lookup('pipe', 'id') }}",
        "host_state": "absent",
    }
    with pytest.raises(BadFile) as caught:
        for_ansible(EXAMPLE, tmp_path, known)
    assert (
        len(caught.value.problems) == 2
        and 'testbed_job_user is "{{ lookup' in caught.value.problems[1]
    )


# --- the role's own files


def test_the_unit_is_the_one_that_the_agent_writes(tmp_path: Path) -> None:
    python, file = shutil.which("python3"), "/var/lib/testbed/agent/__main__.py"
    mine = (
        (ROLE / "templates/testbed-committer.service.j2")
        .read_text()
        .replace("{{ __host_python }}", str(python))
    )
    assert mine == UNIT.format(
        python=python, file=file, own=f"ExecStartPre=-{python} -S -E {file} boot\n"
    )
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "testbed-committer.service"
        unit.write_text(mine)
        done = subprocess.run(
            ["systemd-analyze", "verify", unit],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_every_option_is_declared_and_explained_and_every_default_is_one() -> None:
    def read(name: str) -> dict[str, Any]:
        return dict(yaml.safe_load((ROLE / name).read_text()))

    options = read("meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert read("defaults/main.yml").keys() == options.keys() - {"host_lab"}
    page = (ROLE / "README.md").read_text()
    assert all(f"`{name}`" in page for name in options)


def test_tasks_are_modules_of_ansible_itself_and_have_tags() -> None:
    for file in sorted((ROLE / "tasks").glob("*.yml")):
        for task in yaml.safe_load(file.read_text()):
            modules = [key for key in task if "." in key]
            assert len(modules) == 1 and modules[0].startswith("ansible.builtin."), (
                file.name,
                task["name"],
            )
            assert "tags" in task or modules[0].endswith(".import_tasks"), (file.name, task["name"])
