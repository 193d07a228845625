"""Families of devices have labs that start by one command and carry a plan to the end: packets
flow.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from conformance.private import CommandFailed, CommandLine
from drivers.registry import known_drivers
from emulators.devices.families import WHERE

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(110),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
DRIVERS = sorted(set(known_drivers()) & set(WHERE))
HOSTS = 4


@pytest.mark.long  # the conformance run has every one of them
@pytest.mark.parametrize(
    "drivers", [*((driver,) for driver in DRIVERS), ("polatis-scpi", "rome-cli")], ids="+".join
)
def test_a_ring_comes_up_on_the_lab_of_a_family_or_two_and_all_hosts_reach_each_other(
    drivers: tuple[str, ...], tmp_path: Path
) -> None:
    argv = [word for driver in drivers for word in ("--driver", driver)]
    started = CommandLine(tmp_path, tmp_path)("lab", "start", *argv, "--hosts", HOSTS)
    inventory = Path(started["inventory"])
    testbed = CommandLine(inventory, tmp_path)
    try:
        done = testbed("up", "--topology", started["plan"])
        assert (done["pairs_ok"], done["pairs_total"]) == (HOSTS * (HOSTS - 1), HOSTS * (HOSTS - 1))
        light = testbed("lab", "status")["light"]
        assert len(light) == len(drivers) and all(len(lit) >= HOSTS for lit in light.values())
        assert testbed("up", "--topology", started["plan"])["writes"] == 0
    finally:
        assert testbed("lab", "stop", *argv)["stopped"]


@pytest.mark.long
def test_the_lab_of_a_family_is_the_same_one_until_another_number_of_hosts_is_wanted(
    tmp_path: Path,
) -> None:
    testbed = CommandLine(tmp_path, tmp_path)
    first = testbed("lab", "start", "--driver", "polatis-scpi", "--hosts", 0)
    try:
        again = testbed("lab", "start", "--driver", "polatis-scpi", "--hosts", 0)
        assert again["already"] and again["pid"] == first["pid"]
        assert testbed("lab", "status", "--driver", "polatis-scpi")["lab"]["hosts"] == {}
        devices = Path(first["inventory"]) / "devices.yml"
        before = devices.read_text()
        other = testbed("lab", "start", "--driver", "polatis-scpi", "--hosts", 2)
        assert not other["already"] and other["pid"] != first["pid"]
        assert devices.read_text() != before
        assert len(json.loads(Path(other["plan"]).read_text())["links"]) == 2
    finally:
        testbed("lab", "stop", "--driver", "polatis-scpi")


def test_a_driver_without_an_emulator_and_a_lab_that_never_was_are_said_to_be_so(
    tmp_path: Path,
) -> None:
    testbed = CommandLine(tmp_path, tmp_path)
    with pytest.raises(CommandFailed, match=r"E-MISSING: no lab of acme-line: .*invalid choice"):
        testbed("lab", "start", "--driver", "acme-line")
    with pytest.raises(CommandFailed, match="there is no lab of rome-cli"):
        testbed("lab", "stop", "--driver", "rome-cli")
    assert not (tmp_path / "state" / "labs").exists() or not list(
        (tmp_path / "state" / "labs").glob("*/devices.yml")
    )
