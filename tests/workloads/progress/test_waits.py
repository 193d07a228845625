"""What a rank knows of why it was slow: fed with files as the kernel writes them, and with sockets
of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.jobs import heartbeats
from orchestrator.hosts.measurements import _beat
from tests.house.repository import ROOT
from tests.kit.waiting import until
from workloads.progress.heartbeat import Heartbeat
from workloads.progress.waits import LOOK_NS, Unknown, Waits

SNMP = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts SndbufErrors\nUdp: 7 1 {}\nUdpLite: InDatagrams SndbufErrors\nUdpLite: 0 99\n"


class Process:
    """A directory as one below /proc."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "task").mkdir(parents=True)
        (path / "net").mkdir()

    def thread(self, number: int, waited_ns: int) -> None:
        """What it has waited since it began; written over, as the kernel does."""
        (self.path / "task" / str(number)).mkdir(exist_ok=True)
        (self.path / "task" / str(number) / "schedstat").write_text(f"123456 {waited_ns} 17\n")

    def end(self, number: int) -> None:
        shutil.rmtree(self.path / "task" / str(number))

    def refused(self, datagrams: int) -> None:
        (self.path / "net" / "snmp").write_text(SNMP.format(datagrams))


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path / "self")


def test_the_waits_of_all_threads_are_counted_and_not_only_those_of_the_first(
    process: Process,
) -> None:
    for number in (10, 11, 12):
        process.thread(number, 1_000)
    waits = Waits(process.path)
    process.thread(11, 501_000)
    process.thread(12, 301_000)
    assert waits.processor_ns() == 800_000
    assert waits.processor_ns() == 1, "since it was asked before: known, and next to nothing"


def test_a_thread_that_began_counts_from_its_beginning_and_one_that_ended_takes_nothing_away(
    process: Process,
) -> None:
    process.thread(10, 5_000)
    process.thread(11, 900_000)
    waits = Waits(process.path)
    process.end(11)
    process.thread(12, 70_000)
    assert waits.processor_ns() == 70_000
    process.end(12)
    process.thread(10, 6_000)
    assert waits.processor_ns() == 1_000
    assert len(waits._files) == 1, "no file of a thread that has ended stays open"


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=3, max_size=3), min_size=1, max_size=6))
def test_what_is_asked_often_adds_up_to_what_is_asked_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]]
) -> None:
    process = Process(tmp_path_factory.mktemp("proc") / "self")
    total = [0, 0, 0]
    for number in range(3):
        process.thread(number, 0)
    often, once = Waits(process.path), Waits(process.path)
    found = 0
    for step in steps:
        for number, more in enumerate(step):
            total[number] += more
            process.thread(number, total[number])
        found += often.processor_ns()
    assert found - len(steps) <= sum(total) <= found and abs(once.processor_ns() - sum(total)) <= 1


def test_a_kernel_that_does_not_say_it_is_not_one_without_waits(process: Process) -> None:
    process.path.joinpath("task", "10").mkdir()
    waits = Waits(process.path)
    assert waits.processor_ns() == 0
    process.path.joinpath("task", "10", "schedstat").write_text("nonsense")
    assert waits.processor_ns() == 0 == Waits(process.path / "ended").processor_ns()
    assert Unknown().processor_ns() == 0 and Unknown().causes(9 * LOOK_NS) == (0, 0, 0)


def test_datagrams_that_the_host_refused_are_counted_once_and_those_of_udplite_never(
    process: Process,
) -> None:
    process.refused(40)
    waits = Waits(process.path)
    process.refused(47)
    assert waits.causes(LOOK_NS + 1) == (0, 0, 0), "it looked less than a second ago"
    assert waits.causes(2 * LOOK_NS) == (0, 0, 7)
    assert waits.causes(3 * LOOK_NS) == (0, 0, 0)


def test_a_receiver_that_takes_nothing_shows_as_time_without_its_window() -> None:
    waits = Waits()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        with far:
            before = waits._connections()
            near.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    near.send(bytes(1 << 16))
            inode = os.fstat(near.fileno()).st_ino
            until(lambda: waits._connections()[inode][0] > before[inode][0])
            assert waits.causes(2 * LOOK_NS)[0] > 0
            near.getpeername(), far.getpeername()  # looking closed neither


SPIN = """
import os, sys
from workloads.progress.waits import Waits
os.sched_setaffinity(0, {int(sys.argv[1])})
waits, waited = Waits(), 0
while waited < 50_000_000:
    waited += waits.processor_ns()
"""


def test_a_neighbour_that_spins_on_the_same_processor_makes_waits_visible() -> None:
    core = str(max(os.sched_getaffinity(0)))
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as neighbour:
        try:
            assert (
                subprocess.run(
                    [sys.executable, "-c", SPIN, core], cwd=ROOT, timeout=60, check=False
                ).returncode
                == 0
            )
        finally:
            neighbour.kill()


def test_what_the_process_waited_for_is_in_the_row_of_its_iteration_and_reaches_the_operator(
    tmp_path: Path, process: Process
) -> None:
    process.thread(10, 0)
    process.refused(0)
    heartbeat = Heartbeat(tmp_path, 0, Waits(process.path))
    heartbeat._waits._looked_ns = 0
    heartbeat.begin(1)
    process.thread(10, 40_000_000)
    process.refused(3)
    heartbeat.end()
    heartbeat.begin(2)
    heartbeat.end()
    found = {"state": "running", **heartbeats.read(str(tmp_path / "heartbeat"), -1)}
    first, second = _beat("gpu01", found).times
    assert (first.processor_ms, first.rwnd_limited_ms, first.retransmitted, first.refused) == (
        40.0,
        0.0,
        0,
        3,
    )
    assert (second.processor_ms, second.refused) == (0.001, 0)
    old = {**found, "times": [row[:6] for row in found["times"]]}
    assert [times.processor_ms for times in _beat("gpu01", old).times] == [0.0, 0.0], (
        "not known of an agent that does not say it"
    )


def test_the_work_of_another_process_is_not_taken_for_that_of_the_one_that_watches_it(
    tmp_path: Path,
) -> None:
    heartbeat = Heartbeat(tmp_path, 0, Unknown())
    heartbeat.shown(1, 4_000_000)
    assert heartbeats.read(str(tmp_path / "heartbeat"), -1)["times"][0][6:] == [0, 0, 0, 0]
