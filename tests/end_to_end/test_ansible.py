"""Ansible's role and `testbed up` on the same hosts, with a plan up, a host that drifts, and a
controller without the program.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.hosts import openssh
from playbooks import __path__ as playbooks
from tests.end_to_end.conftest import Lab
from tests.house.repository import ROOT
from tests.kit.labs import lab_in

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]

SMALL = ("--hosts", "2", "--ports", "2", "--free-ports", "--settle-s", "0.02")


def play(lab: Lab, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        str(lab.inventory),
        f"{playbooks[0]}/provision.yml",
    ]
    return subprocess.run(
        [*command, *argv], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def changed(done: subprocess.CompletedProcess[str]) -> set[int]:
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        int(count)
        for count in re.findall(r"^\S+ +: ok=.* changed=(\d+)", done.stdout, re.MULTILINE)
    }


def on(lab: Lab, host: str, command: str) -> None:
    assert openssh.run(lab_in(lab.inventory).hosts[host], (command,), capture=True)[0] == 0


def test_a_host_that_the_role_made_is_used_by_up_refuses_to_go_and_is_put_right_by_the_role(
    small: Lab,
) -> None:
    assert changed(play(small)) != {0}
    done = small.testbed("host", "provision", "--limit", "gpu02").must()
    assert (
        list(done["hosts"]) == ["gpu02"]
        and done["hosts"]["gpu02"]["changed"] == []
        and not done["hosts"]["gpu02"]["started"]
    )

    up = small.up(small.plan("pair", [("gpu01:p1", "gpu02:p1")])).must()
    phases = {phase["name"] for phase in up["phases"]}
    assert "provision" not in phases and "observe" in phases
    assert changed(play(small)) == {0}, "the routes of a plan are none of its business"

    refused = play(small, "-e", "host_state=absent")
    assert (
        refused.returncode == 2
        and "in use: the routes of a plan; take it down first: testbed down" in refused.stdout
    )

    # an agent that somebody changed, an older one, none
    on(small, "gpu01", "echo '# by hand' >>/var/lib/testbed/agent/calls.py")
    on(
        small,
        "gpu02",
        "echo older >/var/lib/testbed/archive.digest; python3 /var/lib/testbed/agent/__main__.py stop",
    )
    before = play(small, "--check", "--diff")
    assert 0 not in changed(before) and changed(before) == changed(play(small, "--check")), (
        before.stdout
    )
    assert 0 not in changed(play(small)) and changed(play(small)) == {0}
    assert small.testbed("status").must()["hosts"]
    small.testbed("verify").must()

    small.testbed("down", "--yes").must()
    assert changed(play(small, "-e", "host_state=absent", "--tags", "agent", "--check")) == {1}
    assert changed(play(small, "-e", "host_state=absent", "--tags", "agent")) == {1}
    assert changed(play(small, "-e", "host_state=absent", "--tags", "agent")) == {0}
    assert changed(play(small, "--tags", "packages,user")) == {0}
    assert small.testbed("host", "provision").must()["hosts"]["gpu01"]["started"]
    assert changed(play(small)) == {0}


def test_a_controller_without_the_program_plays_what_host_variables_prints(
    small: Lab, tmp_path: Path
) -> None:
    argv = [
        "host",
        "variables",
        "--inventory",
        str(small.inventory),
        "--archive",
        str(tmp_path / "lab.tar.gz"),
    ]
    shown = subprocess.run(
        [str(Path(sys.executable).parent / "testbed"), *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (tmp_path / "lab.yml").write_text(shown.stdout)
    notices = ("-e", f"@{tmp_path / 'lab.yml'}", "-e", "host_inventory=/nowhere")
    changed(play(small, *notices))
    assert changed(play(small, *notices)) == changed(play(small)) == {0}
