"""A host dies and only its BMC brings it back: named by `verify` and `doctor`, cycled when asked,
its plan restored.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.end_to_end.conftest import Lab

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ("--hosts", "4", "--ports", "2", "--free-ports", "--bmc")
FOUR = [f"gpu{n:02d}" for n in range(1, 5)]
LINKS = list(zip(FOUR, FOUR[1:] + FOUR[:1], strict=True))


def on_host(lab: Lab, host: str, command: str) -> str:
    return str(lab.testbed("host", "exec", host, command).must()["stdout"])


def lit(lab: Lab) -> set[str]:
    """The host ports that have carrier."""
    hosts = lab.ask("status")["hosts"]
    return {f"{h}:p{n}" for h in hosts for n, p in hosts[h]["ports"].items() if p["carrier"]}


def test_a_dead_host_is_named_cycled_when_asked_and_its_plan_comes_back(small: Lab) -> None:
    plan = small.plan("ring", LINKS)
    small.up(plan).must()
    on_host(small, "gpu03", "echo kept >/var/lib/testbed/note; echo gone >/run/note")
    assert "10.255." in on_host(small, "gpu03", "ip -4 address")
    alive = small.testbed("host", "power", "gpu03", "--cycle", "--yes")
    assert alive.exit_code == 7 and "gpu03 answers" in alive.envelope["message"]

    before = lit(small)
    small.testbed("lab", "fault", "add", "gpu03", "host-hang").must()
    assert {port.partition(":")[0] for port in before - lit(small)} == {"gpu02", "gpu03", "gpu04"}
    failed = small.testbed("verify")
    assert failed.exit_code == 5 and "1 does not answer: gpu03" in failed.envelope["message"]
    checks = small.testbed("doctor").envelope["data"]["checks"]
    (host,) = (each for each in checks if each["name"] == "gpu03")
    assert host["fix"].endswith("if it is dead: testbed host power gpu03 --cycle")
    refused = small.up(plan)
    assert "testbed host power gpu03 --cycle" in refused.envelope["hint"]
    seen = small.testbed("host", "power", "gpu03").must()
    assert (seen["power"], seen["answers"]) == ("On", False)

    # killed half way: its lock ends with it, and what was requested is in the audit
    half = small.command("host", "power", "gpu03", "--cycle", "--yes", "--reason", "hangs")
    while not small.stored("SELECT what FROM steps WHERE what='power cycle' AND state='done'"):
        assert half.poll() is None
    half.send_signal(signal.SIGKILL)
    half.communicate(timeout=10)
    assert small.testbed("lock", "list").must()["locks"] == []
    audit = small.testbed("lock", "audit").must()["audit"]
    assert next(each["why"] for each in audit if each["what"] == "power cycle").startswith(
        "gpu03 is on and does not answer: hangs"
    )

    small.testbed("lab", "fault", "add", "gpu03", "host-hang").must()  # it hangs while it boots
    done = small.testbed("host", "power", "gpu03", "--cycle", "--yes").must()
    assert done["answers"] and done["reset"] == "PowerCycle" and done["plan"] == "ring"
    assert on_host(small, "gpu03", "cat /var/lib/testbed/note; ls /run").startswith("kept")
    assert "10.255." not in on_host(small, "gpu03", "ip -4 address; cat /run/note || true")
    small.up(plan).must()
    assert small.testbed("verify").must()["ok"] and lit(small) == before


def test_a_host_is_switched_off_and_on_and_the_others_go_on(small: Lab) -> None:
    small.testbed("down", "--yes").must()
    forced = ("--cycle", "--yes", "--force", "--reason", "a test")
    assert small.testbed("host", "power", "gpu02", *forced).must()["answers"]
    assert on_host(small, "gpu01", "hostname") == "gpu01\n"
    assert on_host(small, "gpu02", "hostname") == "gpu02\n"
    small.ask("host.down", host="gpu04")
    # its port refuses: its first process is gone, the lab's network is not
    broken = small.testbed("host", "power", "gpu04", *forced)
    assert broken.exit_code == 7 and "out of order" in broken.envelope["message"]
    seen = small.testbed("host", "power", "gpu04").must()
    assert seen["health"] == "Critical"
