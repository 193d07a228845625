"""The operation `heartbeats` of a running agent: what ranks wrote, and what another user's job may
put there instead.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.jobs import heartbeats
from tests.agent.space import Peer, Space, facts
from tests.kit.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

GOOD = heartbeats.HEAD.pack(heartbeats.MAGIC, 1, 3, 8, 1, 2, 1, 0, 3_000_000).ljust(
    heartbeats.ROWS_AT, b"\0"
) + heartbeats.ROW.pack(7, 5, 9000, 4000, 3000, 2000, 1500, 2_000_000, 3, 4)
WRITTEN = (
    f"open('heartbeat', 'wb').write(bytes.fromhex('{GOOD.hex()}').ljust({heartbeats.SIZE}, b'\\0'))"
)


def job(peer: Peer, name: str, code: str) -> dict[str, Any]:
    """What the agent says of a job that ran this."""
    started = peer.ask(
        "job.start", name=name, argv=[sys.executable, "-S", "-E", "-c", f"import os, time\n{code}"]
    )
    assert started["ok"], started
    until(lambda: peer.ask("job.status", name=name)["state"] == "exited")
    return peer.ask("heartbeats", name=name)


def test_a_rank_that_ended_left_its_heartbeat_and_its_iterations(host: Space, peer: Peer) -> None:
    reply = job(peer, "b1", WRITTEN + "\nraise SystemExit(75)")
    assert (reply["state"], reply["code"], reply["times"]) == (
        "exited",
        75,
        [[7, 5, 9, 4, 3, 2, 2, 2000, 3, 4]],
    )
    assert (
        reply["heartbeat"]["iteration"],
        reply["heartbeat"]["phase"],
        reply["heartbeat"]["rank"],
    ) == (8, "exchange", 3)
    assert reply["heartbeat"]["age_s"] > 0 and reply["heartbeat"]["save_s"] == 0.003
    assert peer.ask("heartbeats", name="b1", after=7)["times"] == []
    nothing = peer.ask("heartbeats", name="never")
    assert (nothing["state"], nothing["heartbeat"], nothing["times"]) == ("absent", None, [])
    for wrong in ({"name": "../b1"}, {"name": "b1", "after": "x"}, {"name": "b1", "after": -2}):
        assert peer.ask("heartbeats", **wrong)["code"] == "bad-request"


@pytest.mark.parametrize(
    "code",
    [
        "os.symlink('/run/var/provision.json', 'heartbeat')",
        "os.symlink('/dev/zero', 'heartbeat')",
        "os.mkfifo('heartbeat')",
        "os.truncate(os.open('heartbeat', os.O_CREAT | os.O_WRONLY), 1 << 44)",
        f"open('heartbeat', 'wb').write(os.urandom({heartbeats.SIZE}))",
        f"{WRITTEN}; os.link('heartbeat', 'other')",
        "os.mkdir('heartbeat')",
        "pass",
    ],
)
def test_a_job_that_puts_something_else_there_holds_up_nobody_and_reads_nothing(
    host: Space, peer: Peer, code: str
) -> None:
    host.agent("provision", facts("gpu01", 1, 2) | {"job_user": "daemon"})
    peer.ask("reload")
    try:
        reply = job(peer, "b2", code)
        assert (
            reply["ok"]
            and reply["code"] == 0
            and reply["heartbeat"] is None
            and reply["times"] == []
            and reply["error"]
        )
        where = Path(f"/proc/{host.pid}/root/run/var/jobs/b2")
        assert where.stat().st_uid == pwd.getpwnam("daemon").pw_uid
        assert len(str(reply)) < 500
        assert peer.ask("clock")["ok"]
    finally:
        host.agent("provision", facts("gpu01", 1, 2))
        peer.ask("reload")


def test_the_agent_says_when_the_user_of_jobs_is_gone(host: Space, peer: Peer) -> None:
    assert peer.ask("hello")["job_user"], "root, where provisioning names nobody"
    provisioned = Path(f"/proc/{host.pid}/root/run/var/provision.json")
    before = provisioned.read_text()
    try:
        provisioned.write_text(json.dumps(json.loads(before) | {"job_user": "no-such-user"}))
        peer.ask("reload")
        assert not peer.ask("hello")["job_user"]
    finally:
        provisioned.write_text(before)
        peer.ask("reload")
