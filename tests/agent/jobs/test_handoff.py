"""Moves of a running job: what its ranks are asked for, when by the agent itself, and what the
operator gets to know.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.ranks import Job
from tests.agent.space import Peer, Space
from tests.kit.waiting import until

pytestmark = pytest.mark.lab

RINGS = [["gpu01", "gpu02"], ["gpu02", "gpu01"]]
TRAFFIC = {"pairs": [[0, 1, 5]]}


@pytest.fixture
def job(start: Callable[..., Job]) -> Job:
    return start().connected()


def routes(peer: Peer, *generations: int) -> None:
    for generation in generations:
        route = [
            "10.255.0.2/32",
            f"10.{1 + generation % 2}.0.9",
            f"opt{1 + generation % 2}",
            "10.255.0.1",
        ]
        assert peer.ask("stage", generation=generation, routes=[route], neighbours=[])["ok"]


def sockets(host: Space) -> list[Path]:
    return sorted(Path(f"/proc/{host.pid}/root/run/var/ring_changes").iterdir())


def states(reply: dict[str, Any]) -> list[tuple[int, int, str]]:
    assert reply["ok"], reply
    return [(row["rank"], row["move"], row["state"]) for row in reply["ranks"]]


def killed(host: Space) -> None:
    """Kill the daemon and wait for the next."""
    before = host.agent("status")[0]["pid"]
    host.run("kill", "-9", str(before))
    until(lambda: host.agent("status")[0].get("pid", before) != before)


# --- operations


def test_a_move_is_prepared_held_and_carried_out(job: Job) -> None:
    assert job.ask("ring_changes")["move"] is None
    prepared = job.ask("prepare", move=1, lease_s=60, rings=RINGS, traffic=TRAFFIC)
    assert states(prepared) == [(0, 1, "prepared"), (1, 1, "prepared")]
    row = prepared["ranks"][0]
    assert (row["took_ms"], row["world"], row["iteration"]) == (1.5, 2, 7) and "surprise" not in row
    asked = job.gets("prepare", 1, rank=1)
    assert (asked["rings"], asked["traffic"], asked["lease_s"]) == (RINGS, TRAFFIC, 60)
    assert states(job.ask("hold", move=1, lease_s=2.5)) == [(0, 1, "held"), (1, 1, "held")]
    assert job.gets("hold", 1)["lease_s"] == 2.5
    changed = job.ask("go", move=1)
    assert states(changed) == [(0, 1, "changed"), (1, 1, "changed")]
    assert {
        key: changed["ranks"][1][key] for key in ("after", "held_ms", "stall_ms", "took_ms")
    } == {
        "after": 7,
        "held_ms": 2,
        "stall_ms": 0.5,
        "took_ms": 1.5,
    }
    assert job.gets("go", 1)["decide"] is True
    seen = job.ask("ring_changes")
    assert states(seen) == states(changed) and (
        seen["move"],
        seen["generation"],
        seen["cut_off"],
    ) == (1, None, None)


def test_a_pause_needs_no_layout_and_a_dropped_move_is_void(job: Job) -> None:
    job.ask("prepare", move=1, lease_s=60)
    assert "rings" not in job.gets("prepare", 1)
    job.ask("hold", move=1, lease_s=60)
    assert job.ask("drop", move=1)["ok"]
    until(lambda: states(job.ask("ring_changes")) == [(0, 1, "void"), (1, 1, "void")])
    assert states(job.ask("go", move=1, decide=False, within_s=60)) == [
        (0, 1, "void"),
        (1, 1, "void"),
    ], "answered at once"
    assert job.gets("go", 1)["decide"] is False


def test_watching_peers_get_an_event_for_each_state(job: Job, peer: Peer) -> None:
    job.ask("prepare", move=3, lease_s=60)
    seen = [peer.event("ring_change") for _ in range(4)]
    assert {(e["name"], e["rank"], e["move"], e["state"]) for e in seen} == {
        ("j", rank, 3, state) for rank in (0, 1) for state in ("preparing", "prepared")
    }
    assert all(e["t_ns"] > 0 and e["iteration"] == 7 for e in seen)


def test_a_rank_that_cannot_is_reported_at_once(start: Callable[..., Job]) -> None:
    job = start(MODE="cannot").connected()
    reply = job.ask("prepare", move=1, lease_s=60, within_s=60, rings=RINGS)
    assert (1, 1, "cannot") in states(reply) and reply["ranks"][1]["error"] == "no such host"


def test_when_time_is_up_the_states_reached_are_reported(start: Callable[..., Job]) -> None:
    job = start(MODE="mute").connected()
    job.ask("prepare", move=1, lease_s=60, within_s=0)
    until(lambda: states(job.ask("ring_changes")) == [(0, 1, "preparing"), (1, 1, "preparing")])
    before = job.rows()[0]["silent_s"]
    held = job.ask("hold", move=1, lease_s=60, within_s=0.2)
    assert states(held) == [(0, 1, "preparing"), (1, 1, "preparing")]
    assert held["ranks"][0]["silent_s"] > before + 0.19
    assert ("hold", 1) in job.asked()
    assert states(job.ask("go", move=1, within_s=0)) == [(0, 1, "preparing"), (1, 1, "preparing")]


def test_a_request_that_is_repeated_prepares_once(job: Job) -> None:
    for _ in range(2):
        assert states(job.ask("prepare", move=1, lease_s=60)) == [
            (0, 1, "prepared"),
            (1, 1, "prepared"),
        ]
    job.ask("hold", move=1, lease_s=60)
    assert job.asked() == [("prepare", 1), ("hold", 1)]


def test_a_job_without_ranks_is_answered_with_none(start: Callable[..., Job]) -> None:
    job = start(RANKS="0")
    for reply in (
        job.ask("prepare", move=1, lease_s=60),
        job.ask("hold", move=1, lease_s=60),
        job.ask("go", move=1),
    ):
        assert reply["ok"] and reply["ranks"] == []
    assert job.ask("drop", move=1)["ranks"] == job.ask("ring_changes")["ranks"] == []


def test_a_layout_larger_than_a_sockets_buffer_arrives_whole(job: Job) -> None:
    rings = [["gpu" + "0" * 990 for _ in range(1000)]]
    assert states(job.ask("prepare", move=1, lease_s=60, rings=rings)) == [
        (0, 1, "prepared"),
        (1, 1, "prepared"),
    ]
    assert job.gets("prepare", 1, rank=1)["rings"] == rings


@pytest.mark.parametrize(
    ("op", "fields", "code", "text"),
    [
        (
            "prepare",
            {"lease_s": 0},
            "bad-request",
            "lease_s: seconds above 0 and up to 86400 are needed, got 0",
        ),
        ("prepare", {"lease_s": 86401}, "bad-request", "up to 86400 are needed, got 86401"),
        ("prepare", {"lease_s": True}, "bad-request", "lease_s: seconds above 0"),
        (
            "prepare",
            {},
            "bad-request",
            "lease_s: seconds above 0 and up to 86400 are needed, got None",
        ),
        (
            "prepare",
            {"lease_s": 1, "move": 0},
            "bad-request",
            "move: a whole number >= 1 is needed, got 0",
        ),
        ("prepare", {"lease_s": 1, "rings": {}}, "bad-request", "rings: a list is needed"),
        ("prepare", {"lease_s": 1, "traffic": []}, "bad-request", "traffic: a mapping is needed"),
        (
            "prepare",
            {"lease_s": 1, "generation": 0},
            "bad-request",
            "generation: a whole number >= 1 is needed",
        ),
        (
            "prepare",
            {"lease_s": 1, "within_s": -1},
            "bad-request",
            "within_s: seconds from 0 to 86400 are needed",
        ),
        (
            "hold",
            {"lease_s": 3600.5},
            "bad-request",
            "lease_s: seconds above 0 and up to 3600 are needed, got 3600.5",
        ),
        ("hold", {"lease_s": -1}, "bad-request", "up to 3600 are needed, got -1"),
        ("go", {"decide": 1}, "bad-request", "decide: true or false is needed, got 1"),
        (
            "go",
            {"name": "other"},
            "refused",
            "job other does not run here, or has no hand-off socket",
        ),
        ("drop", {"name": "../x"}, "bad-request", "name: letters, digits"),
        ("ring_changes", {"name": "other"}, "refused", "job other does not run here"),
    ],
)
def test_what_makes_no_sense_is_refused_and_reaches_no_rank(
    start: Callable[..., Job], peer: Peer, op: str, fields: dict[str, Any], code: str, text: str
) -> None:
    job = start().connected()
    reply = peer.ask(f"job.{op}", **{"name": "j", "move": 1, **fields})
    assert (reply["ok"], reply["code"]) == (False, code) and text in reply["error"], reply
    assert job.ask("ring_changes")["move"] is None
    job.ask("hold", move=9, lease_s=1)
    assert job.asked() == [("hold", 9)]


# --- with route generations


def test_a_move_goes_when_its_generation_becomes_active(job: Job, peer: Peer) -> None:
    routes(peer, 1, 2)
    peer.ask("commit", generation=1)
    job.ask("prepare", move=1, lease_s=60, rings=RINGS, generation=2)
    assert job.ask("ring_changes")["generation"] == 2
    refused = job.ask("prepare", move=2, lease_s=60, generation=1)
    assert refused["code"] == "refused" and "generation 1 is active already" in refused["error"]
    assert ("go", 1) not in job.asked()
    committed = peer.ask("commit", generation=2)
    went = job.gets("go", 1, rank=1)
    assert (
        went["decide"] is False
        and committed["ok"]
        and went["received_ns"] >= committed["t_commit_ns"]
    )
    until(lambda: states(job.ask("ring_changes")) == [(0, 1, "changed"), (1, 1, "changed")])


def test_an_armed_generation_that_becomes_active_is_no_drop(
    job: Job, host: Space, peer: Peer
) -> None:
    routes(peer, 1)
    job.ask("prepare", move=1, lease_s=60, rings=RINGS, generation=1)
    for _ in range(2):  # the second one replaces the first
        assert peer.ask("arm", generation=1, when_up=["opt1"], deadline_s=60)["ok"]
    host.far.ip("link", "set", "opt1", "down")  # type: ignore[attr-defined]
    host.far.ip("link", "set", "opt1", "up")  # type: ignore[attr-defined]
    peer.event("committed")
    job.gets("go", 1)
    routes(peer, 2)
    job.ask("prepare", move=2, lease_s=60, rings=RINGS, generation=2)
    peer.ask("arm", generation=2, when_up=["opt2"])
    peer.ask("commit", generation=2)
    job.gets("go", 2)
    assert job.asked() == [("prepare", 1), ("go", 1), ("prepare", 2), ("go", 2)]


def test_a_move_is_dropped_when_the_host_goes_back(start: Callable[..., Job], peer: Peer) -> None:
    job = start(MODE="mute").connected()
    routes(peer, 1, 2, 3)
    peer.ask("commit", generation=1)
    for move, generation in ((1, 2), (2, 3)):
        job.ask("prepare", move=move, lease_s=60, within_s=0, generation=generation)
        peer.ask("commit", generation=generation, revert_after_s=0.05 if move == 2 else None)
        if move == 1:
            peer.ask("revert")
        else:
            peer.event("reverted")
            peer.event("reverted")
        job.gets("drop", move)
    assert job.asked() == [
        ("prepare", 1),
        ("go", 1),
        ("drop", 1),
        ("prepare", 2),
        ("go", 2),
        ("drop", 2),
    ]


@pytest.mark.parametrize("how", ["expire", "disarm", "another", "clear", "fail"])
def test_a_move_is_dropped_when_its_generation_will_not_become_active(
    job: Job, host: Space, peer: Peer, how: str
) -> None:
    routes(peer, 1, 2)
    if how == "fail":
        no = {"do": ["/bin/false"]}
        assert peer.ask("stage", generation=1, routes=[], neighbours=[], commands=[no])["ok"]
    job.ask("prepare", move=1, lease_s=60, rings=RINGS, generation=1)
    peer.ask("arm", generation=1, when_up=["opt1"], deadline_s=0.05 if how == "expire" else 60)
    if how == "expire":
        peer.event("expired")
    elif how == "another":
        peer.ask("arm", generation=2, when_up=["opt1"])
    elif how == "fail":
        host.far.ip("link", "set", "opt1", "down")  # type: ignore[attr-defined]
        host.far.ip("link", "set", "opt1", "up")  # type: ignore[attr-defined]
        peer.event("failed")
    else:
        assert peer.ask(how)["ok"]
    job.gets("drop", 1)
    until(lambda: states(job.ask("ring_changes")) == [(0, 1, "void"), (1, 1, "void")])
    peer.ask("disarm")
    assert job.asked() == [("prepare", 1), ("drop", 1)]


def test_a_commit_that_the_kernel_refuses_sends_no_go(job: Job, peer: Peer) -> None:
    assert peer.ask(
        "stage", generation=1, routes=[], neighbours=[], commands=[{"do": ["/bin/false"]}]
    )["ok"]
    job.ask("prepare", move=1, lease_s=60, generation=1)
    assert peer.ask("commit", generation=1)["code"] == "failed"
    job.ask("hold", move=1, lease_s=60)
    assert job.asked() == [("prepare", 1), ("hold", 1)]


def test_a_newer_run_drops_what_an_older_one_prepared(job: Job, peer: Peer) -> None:
    token = int(peer.ask("hello")["token"]) + 1
    assert states(job.ask("prepare", move=1, lease_s=60, token=token)) == [
        (0, 1, "prepared"),
        (1, 1, "prepared"),
    ]
    job.ask("hold", move=1, lease_s=60, token=token)
    assert peer.ask("fence", token=token)["ok"] and job.asked() == [("prepare", 1), ("hold", 1)]
    peer.ask("fence", token=token + 1)
    job.gets("drop", 1)
    until(lambda: states(job.ask("ring_changes")) == [(0, 1, "void"), (1, 1, "void")])
    for op in ("prepare", "hold", "go", "drop"):
        assert job.ask(op, move=1, lease_s=60, token=token)["code"] == "overtaken"
    assert job.ask("ring_changes", token=token)["ok"]


# --- ends of ranks, jobs and daemons


def test_a_rank_that_ends_is_no_longer_waited_for(
    start: Callable[..., Job], peer: Peer, host: Space
) -> None:
    job = start(MODE="mute").connected()
    job.ask("prepare", move=1, lease_s=60, within_s=0)
    other = host.attach()
    other.write(
        json.dumps(
            {"id": 1, "op": "job.hold", "name": "j", "move": 1, "lease_s": 60, "within_s": 600}
        ).encode()
        + b"\n"
    )
    job.gets("hold", 1)
    (job.folder / "end").touch()
    answer = other.line(20)
    assert answer is not None and answer["ok"] and answer["ranks"] == []
    assert peer.event("job")["name"] == "j" and job.ask("ring_changes")["code"] == "refused"


def test_the_end_of_a_job_removes_its_socket(
    job: Job, host: Space, peer: Peer, start: Callable[..., Job]
) -> None:
    [socket] = sockets(host)
    found = socket.stat()
    assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o711 and len(socket.name) == 16
    job.ask("prepare", move=1, lease_s=60)
    job.end()
    peer.event("job")
    assert sockets(host) == []
    again = start().connected()
    assert again.ask("ring_changes")["move"] is None, "another job of the same name begins again"


def test_two_jobs_of_a_host_are_asked_one_by_one(
    job: Job, start: Callable[..., Job], host: Space
) -> None:
    other = start("other", RANKS="1").connected(1)
    assert len(sockets(host)) == 2
    job.ask("prepare", move=1, lease_s=60)
    assert states(other.ask("prepare", move=2, lease_s=60)) == [(0, 2, "prepared")]
    assert (job.asked(), other.asked()) == ([("prepare", 1)], [("prepare", 2)])


def test_a_plans_word_for_the_socket_does_not_count(start: Callable[..., Job]) -> None:
    assert len(start(TESTBED_HANDOFF="/etc/passwd").connected().rows()) == 2


def test_what_was_prepared_outlives_the_daemon(job: Job, host: Space) -> None:
    assert states(job.ask("prepare", move=1, lease_s=60, rings=RINGS)) == [
        (0, 1, "prepared"),
        (1, 1, "prepared"),
    ]
    killed(host)
    job.peer = host.attach()
    assert states(job.connected().ask("ring_changes")) == [(0, 1, "prepared"), (1, 1, "prepared")]
    assert job.ask("ring_changes")["move"] == 1
    assert states(job.ask("go", move=1, decide=True)) == [(0, 1, "changed"), (1, 1, "changed")]


def test_the_next_daemon_still_sends_go_at_the_commit(job: Job, host: Space, peer: Peer) -> None:
    routes(peer, 1)
    job.ask("prepare", move=1, lease_s=60, generation=1)
    killed(host)
    job.peer = host.attach()
    assert job.connected().peer.ask("commit", generation=1)["ok"]
    job.gets("go", 1, rank=1)
    job.end()


def test_a_rank_that_was_away_gets_what_was_decided(job: Job, host: Space, peer: Peer) -> None:
    job.ask("prepare", move=1, lease_s=60)
    assert host.run("pkill", "-STOP", "-s", str(job.pid), "-f", "TESTBED_HANDOFF").returncode == 0
    killed(host)
    job.peer = host.attach()
    assert job.ask("go", move=1)["ranks"] == []
    host.run("pkill", "-CONT", "-s", str(job.pid), "-f", "TESTBED_HANDOFF")
    job.gets("go", 1, rank=0)
    job.gets("go", 1, rank=1)
    killed(host)
    job.peer = host.attach()
    assert states(job.connected().ask("ring_changes")) == [(0, 1, "changed"), (1, 1, "changed")]
    assert job.asked() == [("prepare", 1), ("go", 1)], "a rank that turned is not asked again"


def test_a_job_that_ends_while_no_daemon_runs_leaves_no_socket(job: Job, host: Space) -> None:
    assert len(sockets(host)) == 1
    host.agent("stop")
    (job.folder / "end").touch()
    until(Path(f"/proc/{host.pid}/root/run/var/started/j.exit").exists)
    assert len(sockets(host)) == 1
    host.agent("start")
    job.peer = host.attach()
    assert job.ask("ring_changes")["code"] == "refused" and sockets(host) == []
