"""What a host's port takes at once, and the room that sockets have where lines have delay."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from emulators.fabric.hosts import sysctls
from emulators.fabric.switches import QUEUE_BYTES, at_once
from emulators.generate.command import free_ports
from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from emulators.inventory.config import Queue, read_config
from emulators.inventory.lines import LineConfig
from tests.emulators.fabric.emulated import EmulatedLab


@pytest.mark.parametrize(
    ("mbps", "mtu", "packets"),
    [
        (5, 9000, 1),
        (20, 9000, 1),
        (100, 9000, 2),
        (250, 9000, 6),
        (250, 1500, 41),
        (1_000, 9000, 0),
        (25_000, 1500, 0),
        (0, 9000, 0),
    ],
)
def test_a_port_takes_what_it_carries_in_two_milliseconds_at_once_and_a_packet_at_least(
    mbps: int, mtu: int, packets: int
) -> None:
    assert at_once(mbps * 1_000_000, mtu) == packets


@pytest.mark.lab
@pytest.mark.parametrize("slower", [1, 2])
def test_each_port_of_a_host_takes_at_once_what_its_own_rate_allows_undilated(
    tmp_path: Path, slower: int
) -> None:
    numbers = free_ports(4)
    electrical = (parse(f"ideal@{20 / slower:g}"),)
    wanted = Wanted(
        numbers[:2],
        numbers[2:],
        str(tmp_path / "state"),
        0.02,
        rate_mbps=100 / slower,
        electrical=electrical,
    )
    generate(tmp_path / "inventory", wanted)
    with (tmp_path / "inventory" / "emulator.yml").open("a") as page:
        page.write(f"dilation: {slower}\n")
    lab = EmulatedLab(tmp_path / "inventory")
    try:
        enter = ["nsenter", "-t", str(lab.host_pid("gpu01")), "-n", "-m"]
        links = json.loads(subprocess.check_output([*enter, "ip", "-d", "-j", "link", "show"]))
        found = {link["ifname"]: link["gso_max_segs"] for link in links}
        assert (found["opt1"], found["el3"]) == (2, 1) and found["mgmt"] > 1000
        enter_run = Path(f"/proc/{lab.host_pid('gpu01')}/root/run/lab/sshd_config").read_text()
        assert ("TESTBED_DILATION=2" in enter_run) == (slower == 2), (
            "what runs on a host finds it in its environment"
        )
        own = subprocess.check_output([*enter, "cat", "/proc/sys/net/ipv4/tcp_rmem"])
        assert own == Path("/proc/sys/net/ipv4/tcp_rmem").read_bytes(), "no line has delay"
    finally:
        assert lab.stop() == 0, lab.log.read_text()


@pytest.mark.parametrize(
    ("lines", "room"),
    [
        ([], None),
        ([LineConfig((("gpu01", 1),), 1e8, 0.0, 10)], None),
        ([LineConfig((("gpu01", 1),), 36e6, 0.015, 10)], 1 << 20),
        (
            [
                LineConfig((("gpu01", 1),), 36e6, 0.015, 10),
                LineConfig((("gpu02", 1),), 1e8, 0.1, 10),
            ],
            5_000_000,
        ),
    ],
)
def test_where_lines_have_delay_sockets_have_room_for_twice_what_is_on_its_way(
    tmp_path: Path, lines: list[LineConfig], room: int | None
) -> None:
    generate(tmp_path, Wanted((30_001, 30_002), (30_003, 30_004), str(tmp_path / "state"), 0.02))
    found = sysctls(replace(read_config(tmp_path), lines=tuple(lines)))
    assert found == ({} if room is None else {"tcp_rmem": f"4096 {room} {32 << 20}"})


def test_an_uplink_of_a_generated_lab_has_the_queue_of_a_port(tmp_path: Path) -> None:
    kinds = (parse("ideal"), parse("oversubscribed:2"))
    generate(
        tmp_path,
        Wanted(
            (30_001, 30_002),
            (30_003, 30_004),
            str(tmp_path / "state"),
            0.02,
            electrical=kinds,
            rack=1,
        ),
    )
    single, tree = read_config(tmp_path).segments
    assert single.queue is None and tree.queue == Queue(QUEUE_BYTES, "fifo")
