"""A lab whose hosts have so many routes that they become prefixes, and whose pairs are drawn."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.end_to_end.conftest import Lab, ring

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
HOSTS = 28
SMALL = ["--hosts", str(HOSTS), "--ports", "4", "--free-ports"]


def tables(lab: Lab) -> dict[str, list[str]]:
    """The lines of the table that each host's rule selects."""
    found = {}
    for name, host in lab.ask("status")["hosts"].items():

        def ip(*argv: str, pid: int = int(host["pid"])) -> str:
            inside = ["nsenter", "-t", str(pid), "-n", "ip", *argv]
            return subprocess.run(inside, capture_output=True, text=True, check=True).stdout

        table = str(json.loads(ip("-j", "rule", "show", "pref", "7000"))[0]["table"])
        found[name] = ip("route", "show", "table", table).splitlines()
    return found


def test_prefixes_come_and_go_with_a_change_and_its_rollback_and_what_was_not_asked_is_said(
    small: Lab,
) -> None:
    one, two = (
        small.plan(f"s{s}", ring((1, 2), 1, HOSTS) + ring((3, 4), s, HOSTS)) for s in (5, 3)
    )
    first = small.testbed(
        "up", "--topology", one, "--no-job", "--pairs", "300", within_s=250
    ).must()
    assert (first["pairs_ok"], first["pairs_total"], first["pairs_unasked"]) == (
        300,
        300,
        HOSTS * (HOSTS - 1) - 300,
    )
    assert any("456 of 756 pairs of hosts were not asked" in note for note in first["notes"])
    assert any(
        "prefixes on 28 hosts" in phase["detail"]
        for phase in first["phases"]
        if phase["name"] == "stage"
    )
    before = tables(small)
    assert all(len(lines) < 4 * (HOSTS - 1) for lines in before.values())
    assert any("throw" in line for lines in before.values() for line in lines)
    small.testbed("up", "--topology", two, "--no-job", within_s=250).must()
    assert tables(small) != before
    back = small.testbed("rollback", "--yes", within_s=250).must()
    assert (back["pairs_ok"], back["pairs_unasked"]) == (756, 0)
    assert tables(small) == before
    levels = {
        level["name"]: level
        for level in small.testbed("verify", TESTBED_VERIFY_PAIRS="200").must()["levels"]
    }
    assert (
        levels["forwarding"]["pairs"]["asked"] == 200
        and levels["identity"]["detail"] == "neighbours 112/112"
    )
