"""A lab with lines: what two hosts send each other takes its time, over light and over a packet
switch.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from emulators.generate.command import free_ports
from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from tests.emulators.fabric.emulated import EmulatedLab, eventually

pytestmark = [pytest.mark.lab, pytest.mark.long]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    """Two hosts: port 1 over light takes 40 ms each way, port 3 over a packet switch 70 ms."""
    folder, numbers = tmp_path_factory.mktemp("lab"), free_ports(4)
    generate(
        folder / "inventory",
        Wanted(
            numbers[:2], numbers[2:], str(folder / "state"), 0.02, electrical=(parse("ideal@50"),)
        ),
    )
    lines = [
        {
            "ports": [f"gpu0{n}:p{port}" for n in (1, 2)],
            "delay_ms": delay_ms,
            "queue_packets": 4,
            "rate_mbps": 2,
        }
        for port, delay_ms in ((1, 40), (3, 70))
    ]
    with (folder / "inventory" / "emulator.yml").open("a") as file:
        file.write(yaml.safe_dump({"lines": lines}))
    running = EmulatedLab(folder / "inventory")
    yield running
    running.stop()


def frame(number: int) -> bytes:
    return b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + bytes([number]) * 1400


def raw(lab: EmulatedLab, host: str, interface: str) -> socket.socket:
    with lab.inside(host):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
    sock.bind((interface, 0x88B5))
    sock.settimeout(0.5)
    return sock


def test_sockets_of_hosts_on_lines_with_delay_have_room_from_the_start(slow: EmulatedLab) -> None:
    with slow.inside("gpu02"), socket.socket() as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 1 << 20


@pytest.mark.parametrize(("interface", "delay_s"), [("opt1", 0.04), ("el3", 0.07)])
def test_a_packet_takes_its_time_and_a_burst_beyond_the_queue_is_dropped(
    slow: EmulatedLab, interface: str, delay_s: float
) -> None:
    slow.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: slow.carrier("gpu01", 1) and slow.carrier("gpu02", 1))
    with raw(slow, "gpu01", interface) as near, raw(slow, "gpu02", interface) as far:
        near.send(frame(0))
        assert far.recv(10_000)
        sent = time.monotonic()
        for number in range(1, 41):
            near.send(frame(number))
        assert far.recv(10_000)[20] == 1 and time.monotonic() - sent > delay_s
        count = 1
        with suppress(TimeoutError):
            while far.recv(10_000):
                count += 1
        assert 4 <= count < 40


def test_nothing_of_it_is_left_when_the_lab_ends(slow: EmulatedLab) -> None:
    root = slow.host_pid("gpu01")
    assert slow.stop() == 0
    assert eventually(lambda: not Path(f"/proc/{root}").exists(), 5)
