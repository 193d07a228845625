"""What the agent says it would change, what it keeps of the time before, and that its removal
brings that back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from tests.agent.space import Space, facts

pytestmark = pytest.mark.lab

FACTS = facts("gpu01", 1, 1) | {"mtu": 1600}
FACTS["sysctls"] = [
    ["net.ipv4.ip_forward", "1", True],
    ["net.ipv4.conf.all.accept_redirects", "0", True],
    ["net.ipv4.no_such", "1", False],
]
LOOK = "ip -o address; ip -o link; ip rule; sysctl -a -r '^net.ipv4.(ip_f|conf.all)'; ls /run"


@pytest.fixture
def bare(spaces: Callable[[str], Space]) -> Space:
    """A host that nobody provisioned, with one port, which is down: its kernel changes nothing."""
    here, other = spaces(f"bare{os.urandom(2).hex()}"), spaces("far")
    here.fibre(1, other, 1)
    here.ip("link", "set", "opt1", "down")
    here.run("sysctl", "-q", "net.ipv4.ip_forward=0", "net.ipv4.conf.all.accept_redirects=0")
    return here


def test_check_says_what_install_does_and_changes_nothing(bare: Space) -> None:
    before = bare.run("sh", "-c", LOOK).stdout
    [reply] = bare.agent("check", FACTS)
    assert bare.run("sh", "-c", LOOK).stdout == before
    made, started = bare.agent("install", FACTS)
    assert (
        reply["changed"] == [*made["changed"], "facts"]
        and started["started"]
        and not reply["running"]
    )
    [reply] = bare.agent("check", FACTS)
    assert (reply["changed"], reply["running"]) == ([], True)
    [reply] = bare.agent("check", FACTS | {"mtu": 99999})
    assert reply["changed"] == ["mtu 99999 on opt1", "facts"]
    assert "mtu 99999 on opt1" in bare.agent("install", FACTS | {"mtu": 99999})[0]["notes"][0]
    assert bare.agent("check", FACTS | {"mtu": 99999})[0]["changed"] == [], (
        "what the kernel refused is not promised again"
    )
    [refused] = bare.agent("check", facts("gpu01", 1, 2))
    assert not refused["ok"] and "no interface opt2 on this host" in refused["error"]


def test_removal_brings_back_what_was_before_the_first_provisioning(bare: Space) -> None:
    before = bare.run("sh", "-c", LOOK).stdout
    bare.agent("install", FACTS)
    # what was before is still what was before the first one
    bare.agent("install", FACTS | {"lanes": [], "mtu": 1700})
    [made] = bare.agent("remove")
    assert "agent stopped" in made["changed"] and "net.ipv4.ip_forward = 0" in made["changed"]
    assert bare.run("sh", "-c", LOOK).stdout == before
    assert bare.daemon_pids() == []


def test_what_somebody_set_since_stays_and_a_host_in_use_is_not_removed(bare: Space) -> None:
    bare.agent("install", FACTS)
    bare.run("sysctl", "-q", "net.ipv4.conf.all.accept_redirects=1")
    bare.ip("address", "add", "192.0.2.9/32", "dev", "opt1")
    bare.run("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $! >/run/one")
    pid = bare.run("cat", "/run/one").stdout.strip()
    born = bare.run("cut", "-d ", "-f22", f"/proc/{pid}/stat").stdout.strip()
    bare.run(
        "tee", "/run/var/started/mlp.0.json", stdin=json.dumps({"pid": int(pid), "born": int(born)})
    )
    [refused] = bare.agent("remove")
    assert (refused["code"], refused["error"]) == (
        "refused",
        "in use: job mlp.0; take it down first: testbed down",
    )
    assert bare.agent("status")[0]["ok"] and "10.255.0.1" in bare.ip("address")
    bare.run("kill", pid)
    bare.agent("remove")
    assert (
        "192.0.2.9" in bare.ip("address")
        and bare.run("sysctl", "-n", "net.ipv4.conf.all.accept_redirects").stdout == "1\n"
    )
    assert not {"var", "testbed"} & {*bare.run("ls", "/run").stdout.split()}
