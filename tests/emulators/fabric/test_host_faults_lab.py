"""Faults of hosts and links as kernels see them: rates, losses, stopped and killed programs,
switches that are down; all undone.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from emulators.fabric.netlink import Netlink
from emulators.generate.command import free_ports
from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from tests.emulators.fabric.emulated import EmulatedLab, eventually
from tests.emulators.fabric.test_fabric_lab import parent, ssh

pytestmark = [pytest.mark.lab, pytest.mark.long]

RANK = """
import itertools, os, pathlib
pathlib.Path("/run/pid").write_text(str(os.getpid()))
for n in itertools.count():
    if n % 1000 == 0: pathlib.Path("/run/count").write_text(str(n))
"""


@pytest.fixture(scope="module")
def lit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    """Two hosts joined by light at port 1, with addresses, and by a packet switch at port 3."""
    folder, numbers = tmp_path_factory.mktemp("lab"), free_ports(4)
    generate(
        folder / "inventory",
        Wanted(
            numbers[:2], numbers[2:], str(folder / "state"), 0.02, electrical=(parse("ideal@50"),)
        ),
    )
    running = EmulatedLab(folder / "inventory")
    running.give_address("gpu01", 1, "10.1.0.1")
    running.give_address("gpu02", 1, "10.1.0.2")
    running.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: running.carrier("gpu01", 1) and running.carrier("gpu02", 1))
    yield running
    assert running.stop() == 0, running.log.read_text()


def added(lab: EmulatedLab, host: str, kind: str, **values: object) -> int:
    answer = lab.ask("faults.add", host=host, kind=kind, **values)
    assert answer["ok"], answer
    return int(answer["number"])


def removed(lab: EmulatedLab, host: str, number: int) -> None:
    answer = lab.ask("faults.remove", host=host, number=number)
    assert answer["ok"], answer


def carries(lab: EmulatedLab, source: str, target: str, within_s: float) -> bool:
    """Whether one TCP connection brings 1 MiB over in time."""
    with lab.inside(target):
        listener = socket.create_server((f"10.1.0.{target[-1]}", 0))
    with lab.inside(source):
        mouth = socket.socket()
    for sock in (listener, mouth):  # there are no routes
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"opt1")
    mouth.bind((f"10.1.0.{source[-1]}", 0))
    mouth.connect(listener.getsockname())
    ear, _ = listener.accept()

    def pour() -> None:
        with suppress(OSError):  # the receiver has seen enough
            while True:
                mouth.send(b"\0" * 65_536)

    pouring = threading.Thread(target=pour)
    pouring.start()
    taken, ends = 0, time.monotonic() + within_s
    while taken < 1 << 20 and (left := ends - time.monotonic()) > 0:
        ear.settimeout(left)
        with suppress(TimeoutError):
            taken += len(ear.recv(1 << 20))
    for sock in (ear, listener):
        sock.close()
    mouth.shutdown(socket.SHUT_RDWR)
    pouring.join(10)
    mouth.close()
    return taken >= 1 << 20


@pytest.mark.parametrize(("source", "target"), [("gpu01", "gpu02"), ("gpu02", "gpu01")])
def test_a_slow_link_is_slow_both_ways_until_the_fault_is_removed(
    lit: EmulatedLab, source: str, target: str
) -> None:
    number = added(lit, "gpu01", "slow-link", port=1, mbps=0.1)
    try:
        assert not carries(lit, source, target, 1.0)  # it would take 84 s
    finally:
        removed(lit, "gpu01", number)
    assert carries(lit, source, target, 30.0)


def test_a_slow_link_is_slow_to_whom_its_light_goes_next(lit: EmulatedLab) -> None:
    number = added(lit, "gpu01", "slow-link", port=1, mbps=0.1)
    lit.scpi("ocs1", ":oxc:swit:disc:all")
    lit.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: lit.carrier("gpu01", 1) and lit.carrier("gpu02", 1))
    assert not carries(lit, "gpu01", "gpu02", 1.0)
    removed(lit, "gpu01", number)


def arrived(lab: EmulatedLab, source: str, target: str, frames: int = 2000) -> int:
    with lab.raw(source, 1) as mouth, lab.raw(target, 1) as ear:
        ear.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)  # SO_RCVBUFFORCE
        for _ in range(frames):
            mouth.send(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + b"lost" * 12)
        found = 0
        try:
            while ear.recv(100):
                found += 1
        except TimeoutError:
            return found
    return found


def test_the_share_that_was_asked_for_is_lost_both_ways(lit: EmulatedLab) -> None:
    number = added(lit, "gpu01", "loss", port=1, percent=30)
    both = [arrived(lit, *ends) for ends in (("gpu01", "gpu02"), ("gpu02", "gpu01"))]
    removed(lit, "gpu01", number)
    assert all(1280 < found < 1520 for found in both), both  # 1400, standard deviation 20
    assert arrived(lit, "gpu01", "gpu02") == 2000


@pytest.fixture
def rank(lit: EmulatedLab) -> Iterator[str]:
    """A rank of a job on each host, started as the agent does; its process number on gpu01."""
    start = "export TESTBED_JOB_DIR=/run LOCAL_RANK=0; rm -f /run/exit /run/pid; setsid sh -c "
    start += f"""'trap : TERM; "$@"; echo $? >/run/exit' x python3 -c '{RANK}' </dev/null >/dev/null 2>&1 &"""
    for host in ("gpu01", "gpu02"):
        assert ssh(lit, host, start).returncode == 0
        assert eventually(lambda: ssh(lit, host, "cat /run/pid").stdout, 20)  # noqa: B023
    yield ssh(lit, "gpu01", "cat /run/pid").stdout
    for host in ("gpu01", "gpu02"):
        ssh(lit, host, "kill -KILL $(cat /run/pid)")


def state(lab: EmulatedLab, host: str, pid: str) -> str:
    return ssh(lab, host, f"cut -d' ' -f3 /proc/{pid}/stat").stdout.strip()


def spins(lab: EmulatedLab) -> bool:
    """Whether the hog's program is there: at the lowest priority it ends only when a processor is
    free.
    """
    return "spin" in ssh(lab, "gpu01", "ps -eo comm").stdout


def test_a_rank_hangs_goes_on_is_slowed_and_is_killed(lit: EmulatedLab, rank: str) -> None:
    number = added(lit, "gpu01", "hang-rank")
    assert state(lit, "gpu01", rank) == "T"
    hog = added(lit, "gpu01", "cpu-hog", threads=3)
    looks = {state(lit, "gpu01", rank) for _ in range(10)}
    assert looks == {"T"}  # the hog lets nobody go that it did not stop
    removed(lit, "gpu01", number)
    watch = "for i in $(seq 60); do cut -d' ' -f3 /proc/$(cat /run/pid)/stat; sleep 0.007; done; ps -eo comm"
    slowed, other = (ssh(lit, host, watch).stdout.split() for host in ("gpu01", "gpu02"))
    assert 60 > slowed[:60].count("T") > 20 and "spin" in slowed
    assert "T" not in other and "spin" not in other
    removed(lit, "gpu01", hog)
    assert state(lit, "gpu01", rank) != "T" and eventually(lambda: not spins(lit), 30)
    added(lit, "gpu01", "kill-rank")
    assert eventually(lambda: ssh(lit, "gpu01", "cat /run/exit").stdout == "137\n")
    assert (
        "no rank 0 of a job runs on gpu01"
        in lit.ask("faults.add", host="gpu01", kind="kill-rank")["error"]
    )


def cable_up(lab: EmulatedLab, host: str) -> bool:
    with lab.inside(host):
        netlink = Netlink()
    up = next(carrier for name, _, carrier in netlink.links().values() if name == "el3")
    netlink.close()
    return up


def test_a_switch_that_is_down_takes_all_its_hosts_carrier_until_it_ends_by_itself(
    lit: EmulatedLab,
) -> None:
    added(lit, "ideal", "tor", for_s=1.0)
    assert eventually(lambda: not cable_up(lit, "gpu01") and not cable_up(lit, "gpu02"), 1.0)
    assert eventually(lambda: cable_up(lit, "gpu01") and cable_up(lit, "gpu02"), 5.0)
    assert [entry["event"] for entry in lit.ask("faults.list")["log"]][-1] == "end"


def test_a_program_that_starts_on_a_host_with_another_clock_has_that_clock(
    lit: EmulatedLab,
) -> None:
    def ahead_s() -> float:
        return (
            float(ssh(lit, "gpu02", "python3 -c 'import time; print(time.monotonic())'").stdout)
            - time.monotonic()
        )

    number = added(lit, "gpu02", "clock-drift", offset_s=1000, ppm=100)
    assert 900 < ahead_s() < 1100
    removed(lit, "gpu02", number)
    assert abs(ahead_s()) < 60


def test_a_storm_leaves_the_lab_as_it_was(lit: EmulatedLab) -> None:
    number = added(lit, "all", "storm", per_s=0.05, seconds=10, seed=5)
    assert eventually(lambda: len(lit.ask("faults.list")["log"]) > 60, 20)
    removed(lit, "all", number)
    assert eventually(
        lambda: all([cable_up(lit, "gpu01"), cable_up(lit, "gpu02"), lit.carrier("gpu01", 1)])
    )
    assert arrived(lit, "gpu01", "gpu02") == 2000
    assert eventually(lambda: not spins(lit), 30)
    for port, rate in ((1, "250Mbit"), (2, "250Mbit"), (3, "50Mbit")):
        shown = light(lit, "class", "show", "dev", f"h1p{port}") + light(
            lit, "filter", "show", "dev", f"h1p{port}", "ingress"
        )
        assert f"rate {rate} " in shown and "bpf" not in shown, shown


def light(lab: EmulatedLab, *argv: str) -> str:
    """What tc(8) says in the namespace of the light path."""
    root = parent(lab.host_pid("gpu01"))
    command = ["nsenter", "-t", str(root), "-m", "-n", "ip", "netns", "exec", "ocs", "tc", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
