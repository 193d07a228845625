"""The program in the driver that takes its time: what is loaded, and that the kernel takes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.driver_program import MOST_NS, MOST_ROUNDS, instructions
from tests.house.repository import ROOT

IN_A_THREAD = """
import os
from pathlib import Path
from benchmarks.driver_program import MOST_NS, attach, own_network, threaded
from emulators.fabric.netlink import End, Netlink, link_state, veth

name = f"x{os.getpid()}"
own_network()
netlink = Netlink()
netlink.send([veth(End(11, "far"), End(12, name)), link_state(11, True), link_state(12, True)])
attach(netlink, 12, MOST_NS)
print("a thread" if Path(f"/proc/{threaded(name)}/comm").read_text().startswith(f"napi/{name}-") else "none")
"""


def test_a_program_ends_at_its_time_or_after_so_many_rounds_and_drops() -> None:
    steps = instructions(20_000)
    assert steps[:1] == b"\x85" and steps[-16:] == instructions(0)
    assert (20_000).to_bytes(4, sys.byteorder) in steps and MOST_ROUNDS.to_bytes(
        4, sys.byteorder
    ) in steps


@pytest.mark.parametrize("cost_ns", [-1, MOST_NS + 1])
def test_a_time_that_no_program_here_takes_is_refused(cost_ns: int) -> None:
    with pytest.raises(ValueError, match="0 to 50000"):
        instructions(cost_ns)


def kernel_threads_are_seen() -> bool:
    """Not in a process namespace of one's own, as containers have."""
    first = Path("/proc/2/comm")
    return first.exists() and first.read_text() == "kthreadd\n"


@pytest.mark.lab
@pytest.mark.skipif(not kernel_threads_are_seen(), reason="kernel threads are not in this /proc")
def test_the_driver_takes_it_and_a_thread_runs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "a thread"), done.stderr
