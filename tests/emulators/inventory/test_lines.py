"""Lines with delay: queue, rate, delay and loss as numbers, and `lines` of emulator.yml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulators.fabric.line import DARK_WINDOW, Line, Network
from emulators.generate.command import line_of, main
from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from emulators.inventory.config import LabConfig, read_config
from emulators.inventory.files import BadInventory

PACKET = bytes(1250)  # 10 ms at a megabit a second


def numbered(count: int) -> list[bytes]:
    return [bytes([n]) + PACKET[1:] for n in range(count)]


def arrivals(line: Line, until: float, step: float = 0.001) -> list[tuple[float, int]]:
    """(time, number) of everything that comes out, looked at every `step` seconds."""
    found, now = [], 0.0
    while now <= until:
        found += [(round(now, 3), packet[0]) for packet in line.due(now)]
        now += step
    return found


def test_packets_leave_at_the_rate_arrive_after_the_delay_and_a_full_queue_drops_the_last() -> None:
    line = Line(Network(1e6, 0.1), queue_packets=3)
    for packet in numbered(5):
        line.offer(packet, 0.0)
    assert line.dropped == 2 and line.next_s == pytest.approx(0.11)
    assert [n for _, n in arrivals(line, 0.2)] == [0, 1, 2]
    assert line.next_s == float("inf")


def test_a_late_look_changes_no_rate() -> None:
    line = Line(Network(1e6, 0.0), queue_packets=10)
    for packet in numbered(3):
        line.offer(packet, 0.0)
    assert len(list(line.due(0.025))) == 2
    line.offer(PACKET, 0.031)  # the third left at 0.030
    assert line.next_s == pytest.approx(0.03)
    assert len(list(line.due(0.0409))) == 1 and len(list(line.due(0.0411))) == 1


def test_at_night_nothing_leaves_and_a_packet_that_was_half_sent_goes_on_in_the_next_network() -> (
    None
):
    line = Line(Network(1e6, 0.1), queue_packets=10)
    for packet in numbered(2):
        line.offer(packet, 0.0)
    line.change(DARK_WINDOW, 0.015)  # the first flies, half of the second is sent
    assert [n for _, n in arrivals(line, 0.5)] == [0] and line.next_s == float("inf")
    line.change(Network(10e6, 0.02), 0.5)
    assert line.next_s == pytest.approx(0.5 + 0.0005 + 0.02)


def test_a_faster_network_overtakes_what_still_flies() -> None:
    line = Line(Network(1e6, 0.1), queue_packets=10)
    one, other = numbered(2)
    line.offer(one, 0.0)
    list(line.due(0.02))
    line.change(Network(1e6, 0.01), 0.02)
    line.offer(other, 0.02)
    assert [n for _, n in arrivals(line, 0.2)] == [1, 0]


def test_a_share_is_lost_the_same_for_the_same_seed() -> None:
    def passed(seed: int) -> list[int]:
        line = Line(Network(1e9, 0.0), queue_packets=256, loss=0.3, seed=seed)
        for packet in numbered(200):
            line.offer(packet, 0.0)
        return [packet[0] for packet in line.due(10.0)]

    assert 110 < len(passed(1)) < 170 and passed(1) == passed(1) != passed(2)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Any], LabConfig]:
    """Reads a lab of two hosts, port 3 at a packet switch of 50 Mb/s, with these `lines`."""
    generate(tmp_path, Wanted((30_001, 30_002), (30_003, 30_004), electrical=(parse("ideal@50"),)))
    plain = (tmp_path / "emulator.yml").read_text()

    def with_lines(lines: Any) -> LabConfig:
        (tmp_path / "emulator.yml").write_text(plain + yaml.safe_dump({"lines": lines}))
        return read_config(tmp_path)

    return with_lines


def test_a_line_has_the_rate_of_its_ports_unless_it_says_another(
    read: Callable[[Any], LabConfig],
) -> None:
    one = {"ports": ["gpu01:p3", "gpu02:p3"], "delay_ms": 50, "queue_packets": 16}
    other = {
        "ports": ["gpu01:p1"],
        "delay_ms": 20,
        "queue_packets": 16,
        "rate_mbps": 100,
        "loss": 0.01,
    }
    packet, optical = read([one, other]).lines
    assert (packet.rate_bps, packet.delay_s, packet.loss) == (50e6, 0.05, 0.0)
    assert (optical.rate_bps, optical.loss, optical.ports) == (100e6, 0.01, (("gpu01", 1),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ports": ["gpu09:p1"]}, "no cable at port 1 of a host gpu09"),
        ({"ports": []}, "ports: at least one is needed"),
        ({"ports": ["gpu01:p1", "gpu01:p1"]}, "gpu01:p1 has 2 lines"),
        ({"delay_ms": -1}, "delay_ms -1: wanted 0 to 10000"),
        ({"queue_packets": 0}, "queue_packets 0: wanted 1 to 10000"),
        ({"loss": 2}, "loss 2: wanted 0 to 1"),
        (
            {"jitter_ms": 1},
            "jitter_ms: unknown; known are delay_ms, loss, ports, queue_packets, rate_mbps",
        ),
        (
            {"rate_mbps": 250},
            "250 Mb/s: 2000 packets of 9000 bytes a second are the most: rate_mbps 144",
        ),
    ],
)
def test_a_line_that_cannot_be_is_refused_with_the_reason(
    read: Callable[[Any], LabConfig], change: dict[str, Any], message: str
) -> None:
    usual = {"ports": ["gpu01:p1"], "delay_ms": 20, "queue_packets": 16, "rate_mbps": 100}
    with pytest.raises(BadInventory) as refusal:
        read([usual | change])
    assert message in str(refusal.value) and "emulator.yml: lines" in str(refusal.value)


def test_a_generated_lab_has_its_lines_at_the_port_of_every_host(tmp_path: Path) -> None:
    argv = [
        "--hosts",
        "2",
        "--ports",
        "1",
        "--rate-mbps",
        "100",
        "--electrical",
        "ideal@10",
        "--state",
        str(tmp_path / "state"),
    ]
    assert (
        main([*argv, "--line", "1:20:16", "--line", "2:50:8", "--out", str(tmp_path / "lab")]) == 0
    )
    found = [
        (line.ports, line.rate_bps, line.delay_s, line.queue_packets)
        for line in read_config(tmp_path / "lab").lines
    ]
    assert found == [
        ((("gpu01", 1), ("gpu02", 1)), 100e6, 0.02, 16),
        ((("gpu01", 2), ("gpu02", 2)), 10e6, 0.05, 8),
    ]
    with pytest.raises(SystemExit):
        main(["--line", "1:20", "--out", str(tmp_path / "other")])


def test_a_line_of_the_command_line_may_lose() -> None:
    assert line_of("1:20:16") == (1, 20, 16, 0, 0) and line_of("2:1:4:0.01") == (2, 1, 4, 0.01, 0)
    assert line_of("2:1:4:0:10") == (2, 1, 4, 0, 10)
    with pytest.raises(ValueError, match=r"wanted PORT:MS:PACKETS\[:LOST"):
        line_of("1:20")
