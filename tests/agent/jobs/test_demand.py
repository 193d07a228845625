"""The operation `demand` of a running agent: what ranks are about to send, and what another user's
job may put there instead.
"""

from __future__ import annotations

import os
import struct
import sys

import pytest

from agent.jobs import demand
from tests.agent.space import Peer, Space, facts
from tests.kit.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

ROW = demand.TIMES.pack(7, 1000, 2000, 0) + struct.pack("<2I", 0, 300)
GOOD = (
    demand.HEAD.pack(demand.MAGIC, 0, 2, 15, 2000).ljust(demand.ROWS_AT, b"\0")
    + b"\0" * (7 * demand.ROW_SIZE)
    + ROW
)
WRITTEN = f"open('demand', 'wb').write(bytes.fromhex('{GOOD.hex()}').ljust({demand.SIZE}, b'\\0'))"


def run(peer: Peer, name: str, code: str) -> None:
    started = peer.ask(
        "job.start", name=name, argv=[sys.executable, "-S", "-E", "-c", f"import os, time\n{code}"]
    )
    assert started["ok"], started


def test_what_a_rank_sends_is_told_at_once_or_when_it_has_come_so_far(
    host: Space, peer: Peer
) -> None:
    run(peer, "d1", WRITTEN + "\ntime.sleep(60)")
    until(lambda: peer.ask("demand", name="d1")["step"] == 15)
    reply = peer.ask("demand", name="d1", reach=15, within_s=30.0)
    assert (reply["state"], reply["rank"], reply["world"]) == ("running", 0, 2)
    assert reply["rows"] == [[7, 1000, 2000, 0, [0, 300]]]
    assert peer.ask("demand", name="d1", after=7)["rows"] == []
    late = peer.ask("demand", name="d1", reach=16, within_s=0.3)
    assert late["step"] == 15, "the time is over"
    waits = host.attach()
    waits.write(b'{"id":1,"op":"demand","name":"d1","reach":99,"within_s":30}\n')
    waits.write(b'{"id":2,"op":"job.stop","name":"d1","grace_s":1.0}\n')
    answers = {reply["id"]: reply for reply in (waits.line(), waits.line()) if reply}
    assert answers[1]["state"] != "running", "it waits, and for no job that has ended"
    for wrong in (
        {"name": "../d1"},
        {"name": "d1", "after": "x"},
        {"name": "d1", "reach": -1},
        {"name": "d1", "within_s": "x"},
    ):
        assert peer.ask("demand", **wrong)["code"] == "bad-request"


@pytest.mark.parametrize(
    "code",
    [
        "os.symlink('/dev/zero', 'demand')",
        "os.mkfifo('demand')",
        "os.truncate(os.open('demand', os.O_CREAT | os.O_WRONLY), 1 << 44)",
        f"open('demand', 'wb').write(os.urandom({demand.SIZE}))",
        f"{WRITTEN}; os.link('demand', 'other')",
        "pass",
    ],
)
def test_a_job_that_puts_something_else_there_holds_up_nobody_and_tells_nothing(
    host: Space, peer: Peer, code: str
) -> None:
    host.agent("provision", facts("gpu01", 1, 2) | {"job_user": "daemon"})
    peer.ask("reload")
    try:
        run(peer, "d2", code)
        until(lambda: peer.ask("job.status", name="d2")["state"] == "exited")
        reply = peer.ask("demand", name="d2", reach=1, within_s=30.0)
        assert reply["ok"] and reply["step"] == -1 and reply["rows"] == [] and reply["error"]
        assert peer.ask("clock")["ok"]
    finally:
        host.agent("provision", facts("gpu01", 1, 2))
        peer.ask("reload")


@pytest.mark.parametrize(
    "times",
    [
        (9, 1, 2, 0),
        (7, 3, 2, 0),
        (7, 1, 60, 0),
        (7, 1, 2, 60),
        (7, 2, 3, 1),
        (-1, 1, 2, 0),
        (7, 0, 2, 0),
    ],
)
def test_a_row_whose_times_cannot_be_is_left_out(times: tuple[int, int, int, int]) -> None:
    head = demand.HEAD.pack(demand.MAGIC, 0, 2, 15, 2).ljust(demand.ROWS_AT, b"\0")
    data = (head + demand.TIMES.pack(*times) + b"\1" * 8).ljust(demand.SIZE, b"\0")
    assert demand.parsed(data, -1, 50)["rows"] == []
