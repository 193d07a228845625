"""A rotor's light and the hosts' packets: slots that carriers follow, and slots too short for
that.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emulators.generate.command import main
from tests.emulators.fabric.emulated import EmulatedLab, eventually

pytestmark = pytest.mark.lab

HOSTS = ("gpu01", "gpu02", "gpu03")
ROUND = ("1>18 2>17", "1>19 3>17", "2>19 3>18")  # each meets each


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    folder = tmp_path_factory.mktemp("rotor")
    where = ["--state", str(folder / "state"), "--out", str(folder / "inventory")]
    assert main(["--driver", "rotor", "--hosts", "3", "--free-ports", *where]) == 0
    running = EmulatedLab(folder / "inventory")
    yield running
    assert running.stop() == 0, running.log.read_text()


def send(lab: EmulatedLab, *commands: str) -> list[str]:
    """Say commands to the rotor; return the data lines of the last. Raises: AssertionError - one is
    refused.
    """
    with socket.create_connection(("127.0.0.1", lab.port("ocs1")), 5) as link:
        lines = link.makefile()
        for command in commands:
            link.sendall(f"{command}\n".encode())
            data: list[str] = []
            while (line := lines.readline().strip()) != "OK":
                assert line and not line.startswith("ERR"), f"{command}: {line}"
                data.append(line)
    return data


def load(lab: EmulatedLab, dwell_us: int, dark_window_us: int, *slots: str) -> None:
    begin = f"LOAD BEGIN {len(slots)} {dwell_us} {dark_window_us}"
    send(
        lab, begin, *(f"LOAD SLOT {number} {slot}" for number, slot in enumerate(slots)), "LOAD END"
    )


@contextmanager
def advanced(lab: EmulatedLab) -> Iterator[None]:
    send(lab, "GOTO 0", "START")
    try:
        yield
    finally:
        send(lab, "STOP")


def heard(sock: socket.socket) -> set[int]:
    """Return the numbers of the hosts whose frames wait at a port."""
    found = set()
    sock.setblocking(False)
    while True:
        try:
            found.add(sock.recv(200)[14])
        except BlockingIOError:
            return found


def send_a_while(ports: list[socket.socket], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for number, port in enumerate(ports, 1):
            try:
                port.send(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + bytes([number]) * 50)
            except OSError:
                pass  # no carrier
        time.sleep(0.0005)


@pytest.fixture
def ports(lab: EmulatedLab) -> Iterator[list[socket.socket]]:
    opened = [lab.raw(host, 1) for host in HOSTS]
    yield opened
    for port in opened:
        port.close()


def test_in_long_slots_ports_lose_carrier_in_turn_and_packets_follow_the_light(
    lab: EmulatedLab, ports: list[socket.socket]
) -> None:
    load(lab, 250_000, 50_000, *ROUND)
    with advanced(lab):
        # one port is idle in each slot
        seen, wanted = set(), {(True, True, False), (True, False, True), (False, True, True)}

        def all_seen() -> bool:
            seen.add(tuple(lab.carrier(host, 1) for host in HOSTS))
            return wanted <= seen

        assert eventually(all_seen, 20.0), seen
        met: list[set[int]] = [set(), set(), set()]

        def all_met() -> bool:
            send_a_while(ports, 0.05)
            for found, port in zip(met, ports, strict=True):
                found |= heard(port)
            return met == [{2, 3}, {1, 3}, {1, 2}]

        assert eventually(all_met, 20.0), met
    assert lab.ask("truth", device="ocs1")["schedule"] is None


def test_in_short_slots_ports_keep_carrier_and_packets_still_follow_the_light(
    lab: EmulatedLab, ports: list[socket.socket]
) -> None:
    load(lab, 900, 100, *ROUND)
    with advanced(lab):
        assert lab.ask("truth", device="ocs1")["schedule"]["dwell_ns"] == 900_000
        assert eventually(lambda: all(lab.carrier(host, 1) for host in HOSTS))
        heard(ports[0])
        send_a_while(ports, 0.5)
        assert [heard(port) for port in ports] == [{2, 3}, {1, 3}, {1, 2}]
        lab.ask("fibre", name="f-gpu03-p1", cut=True)
        heard(ports[0])
        send_a_while(ports, 0.1)
        assert heard(ports[0]) == {2}
        assert not lab.carrier("gpu03", 1)
        lab.ask("fibre", name="f-gpu03-p1", cut=False)
        assert eventually(lambda: lab.carrier("gpu03", 1))
    rest = ROUND[int(send(lab, "POS?")[0].split()[2])]
    send(lab, "GOTO 1")
    assert eventually(lambda: [lab.carrier(host, 1) for host in HOSTS] == [True, False, True]), rest
    for port in ports:
        heard(port)
    send_a_while(ports, 0.1)
    assert [heard(port) for port in ports] == [{3}, set(), {1}]


def test_what_a_port_sends_waits_before_the_glass_not_behind_it(
    lab: EmulatedLab, ports: list[socket.socket]
) -> None:
    load(lab, 3_600_000_000, 20, "1>18 2>17")
    send(lab, "GOTO 0")
    assert eventually(lambda: lab.carrier("gpu01", 1) and lab.carrier("gpu02", 1))
    heard(ports[1])
    slow = lab.ask("faults.add", host="gpu01", kind="slow-link", port=1, mbps=1)
    for _ in range(200):  # 280 kB: 2.2 s at 1 Mb/s
        ports[0].send(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + bytes([1]) * 1400)
    assert eventually(lambda: heard(ports[1]) == {1})
    send(lab, "CLEAR *")
    # the rest goes at once, and into the dark
    lab.ask("faults.remove", host="gpu01", number=slow["number"])
    heard(ports[1])
    time.sleep(0.2)
    assert heard(ports[1]) == set()
