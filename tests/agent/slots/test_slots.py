"""Schedules of slots on a real host: rule swaps by carrier, leases, what a killed daemon's
successor does, and hostile requests.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pytest

from tests.agent.ranks import Job
from tests.agent.routes.test_generations import path, rules
from tests.agent.space import Peer, Space
from tests.agent.tcp.test_holds import killed
from tests.kit.waiting import until

pytestmark = pytest.mark.lab

DAYS, DARK_WINDOWS = (11, 12), (13, 14)
SLOTS = [
    {"generation": d, "hold": n, "falling": ["opt1"], "rising": ["opt1"]}
    for d, n in zip(DAYS, DARK_WINDOWS, strict=True)
]
TIMES = {"dwell_s": 0.6, "dark_window_s": 0.1, "guard_s": 0.05, "late_s": 0.15}


@pytest.fixture
def loaded(host: Space, peer: Peer) -> Peer:
    """Two slots, over port 1 and port 2, whose light is at port 1 in both; a hold has no route."""
    peer.ask("slots.stop")
    for request in (
        rules(DAYS[0]),
        rules(DAYS[1], port=2),
        *({"generation": n} for n in DARK_WINDOWS),
    ):
        assert peer.ask("stage", **request)["ok"]
    assert peer.ask("slots.load", slots=SLOTS, **TIMES)["ok"]
    return peer


def tick(peer: Peer, count: int, ends_s: float = 0.6, lease_s: float = 30.0) -> dict[str, Any]:
    answer = peer.ask("slots.tick", count=count, ends_s=ends_s, lease_s=lease_s)
    assert answer["ok"], answer
    return answer


def flash(host: Space) -> None:
    """The light of port 1 is another one."""
    for state in ("down", "up"):
        host.far.ip("link", "set", "opt1", state)  # type: ignore[attr-defined]


def test_a_loaded_schedule_changes_nothing_before_it_is_told_a_slot(
    host: Space, loaded: Peer
) -> None:
    assert path(host) == "" and loaded.ask("hello")["active"] is None
    assert tick(loaded, 0, ends_s=30)["state"] == "day" and path(host) == "opt1"
    assert loaded.ask("hello")["pending"] is None, "a slot is confirmed"


def test_new_light_brings_the_next_slot_and_its_event_says_how_wrong_the_host_was(
    host: Space, loaded: Peer
) -> None:
    tick(loaded, 0, ends_s=30)
    flash(host)
    event = next(e for e in iter(lambda: loaded.event("slot"), None) if e["why"] == "light")
    assert (event["slot"], event["count"], event["state"]) == (1, 1, "day") and event["dark_ns"] > 0
    assert path(host) == "opt2" and loaded.ask("hello")["pending"] is None


def test_a_slot_is_held_before_its_end_and_gone_back_to_where_no_turn_comes(
    host: Space, loaded: Peer
) -> None:
    tick(loaded, 0, ends_s=0.3)
    until(lambda: path(host) == "")
    assert (
        loaded.ask("slots")["state"] == "held" and loaded.ask("hello")["pending"]["to"] == DAYS[0]
    )
    until(lambda: path(host) == "opt1")
    answer = loaded.ask("slots")
    assert (answer["state"], answer["late"]) == ("free", 1) and loaded.ask("hello")[
        "pending"
    ] is None


def test_without_a_lease_nothing_is_held(host: Space, loaded: Peer) -> None:
    tick(loaded, 0, ends_s=0.2, lease_s=0.0)
    until(lambda: loaded.ask("slots")["state"] == "free")
    assert path(host) == "opt1"


def test_a_killed_daemons_successor_ends_the_hold_and_follows_the_next_light(
    host: Space, loaded: Peer
) -> None:
    tick(loaded, 0, ends_s=0.3)
    until(lambda: path(host) == "")
    killed(host, loaded)
    until(lambda: path(host) != "")
    with_new = host.attach()
    with_new.ask("watch")
    status = with_new.ask("slots")
    assert status["loaded"] and path(host) == ("opt1" if status["slot"] == 0 else "opt2")
    tick(with_new, status["count"], ends_s=30)
    flash(host)
    until(lambda: with_new.ask("slots")["count"] == status["count"] + 1)
    with_new.close()


def test_a_newer_run_ends_the_schedule_of_an_older_one(host: Space, loaded: Peer) -> None:
    token = loaded.ask("hello")["token"] + 10
    tick(loaded, 0, ends_s=30)
    assert loaded.ask("fence", token=token)["ok"]
    assert (
        loaded.ask("slots") == {"loaded": False, "id": loaded._last, "ok": True}
        and path(host) == "opt1"
    )
    assert loaded.ask("slots.tick", count=0, lease_s=1, token=token - 1)["code"] == "overtaken"


def test_its_generations_are_kept_although_others_are_staged_after_them(
    host: Space, loaded: Peer
) -> None:
    tick(loaded, 0, ends_s=30)
    loaded.ask("confirm", generation=DAYS[0])
    assert set(DAYS + DARK_WINDOWS) <= set(loaded.ask("hello")["staged"])
    clash = loaded.ask("stage", generation=DAYS[1] + 250)
    assert clash["code"] == "refused" and "occupies" in clash["error"]
    loaded.ask("slots.stop")
    loaded.ask("confirm", generation=DAYS[0])
    assert loaded.ask("slots.load", slots=SLOTS, **TIMES)["ok"], (
        "what was staged after the active one is still there"
    )


BAD = [
    ({"slots": "all"}, "bad-request", "slots: a list of 2 to 64 is needed"),
    ({"slots": SLOTS[:1]}, "bad-request", "slots: a list of 2 to 64 is needed"),
    ({"slots": SLOTS * 33}, "bad-request", "slots: a list of 2 to 64 is needed"),
    (
        {"slots": [SLOTS[0], {"generation": 99}]},
        "refused",
        "slots[1]: generation 99 is not staged here",
    ),
    (
        {"slots": [SLOTS[0], {"generation": 11, "hold": 11}]},
        "bad-request",
        "slots[1]: its hold needs a generation of its own",
    ),
    (
        {"slots": [SLOTS[0], {"generation": 13}]},
        "bad-request",
        "slots: a generation is a slot's and a hold",
    ),
    (
        {"slots": [SLOTS[0], {**SLOTS[1], "rising": ["eth9"]}]},
        "refused",
        "slots[1].rising: no interface eth9 on this host",
    ),
    (
        {"slots": [SLOTS[0], {**SLOTS[1], "falling": "opt1"}]},
        "bad-request",
        "slots[1].falling: a list of interfaces is needed",
    ),
    (
        {"dwell_s": 0.01, "dark_window_s": 0},
        "bad-request",
        "dwell_s, dark_window_s: a slot takes from 0.05 to 3600 s",
    ),
    ({"dwell_s": 1e300}, "bad-request", "dwell_s: seconds from 0 to 86400 are needed, got 1e+300"),
    ({"guard_s": 0.6}, "bad-request", "guard_s: must be shorter than dwell_s"),
    ({"follow": "stars"}, "bad-request", "follow: light or clock is needed, got 'stars'"),
    ({"count": -1}, "bad-request", "count: a whole number >= 0 is needed, got -1"),
]


@pytest.mark.parametrize(("more", "code", "text"), BAD, ids=[text for _, _, text in BAD])
def test_a_schedule_that_cannot_be_is_refused_and_the_one_before_it_stays(
    host: Space, loaded: Peer, more: dict[str, object], code: str, text: str
) -> None:
    answer = loaded.ask("slots.load", **{"slots": SLOTS, **TIMES, **more})
    assert (answer["code"], answer["error"]) == (code, text)
    assert loaded.ask("slots")["slots"] == 2


@pytest.mark.parametrize("op", ["slots.tick", "slots.change"])
def test_without_a_schedule_there_is_nothing_to_turn(host: Space, peer: Peer, op: str) -> None:
    peer.ask("slots.stop")
    assert peer.ask(op, count=0, lease_s=1)["error"] == "no schedule is loaded here"


# --- the notification socket

READER = """
import json, os, socket
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["TESTBED_SLOTS"])
exec(os.environ.get("FIRST", ""))
with open("heard", "a") as file:
    try:
        for line in link.makefile():
            file.write(line)
            file.flush()
    except OSError:
        pass
    file.write("closed\\n")
"""


def reader(host: Space, peer: Peer, name: str, **env: str) -> Job:
    return Job(
        host,
        peer,
        f"{name}-{time.monotonic_ns()}",
        ["/usr/bin/env", "python3", "-S", "-E", "-c", READER],
        **env,
    )


def heard(job: Job) -> list[str]:
    file = job.folder / "heard"
    return file.read_text().splitlines() if file.exists() else []


def test_programs_are_told_what_they_reach_and_until_when(host: Space, loaded: Peer) -> None:
    job = reader(host, loaded, "told")
    until(lambda: heard(job))
    before = time.monotonic_ns()
    tick(loaded, 0, ends_s=0.4)
    until(lambda: any('"slot":0' in line for line in heard(job)))
    day = next(reply for line in heard(job) if (reply := json.loads(line)).get("reach"))
    assert set(day) == {"slot", "cycle", "until_ns", "reach"} and set(day["reach"]) == {
        f"10.255.0.{n}" for n in (2, 3, 4)
    }
    assert before < day["reach"]["10.255.0.2"] == day["until_ns"] < before + int(0.9e9)
    until(lambda: any(json.loads(line).get("reach") == {} for line in heard(job)))  # the hold
    loaded.ask("slots.stop")
    until(lambda: json.loads(heard(job)[-1]) == {"slot": None})
    job.end()


@pytest.mark.parametrize(
    "sent",
    [
        "b'x' * 5000",
        "b'{}\\n'",
        "b'[' * 200 + b'\\n'",
        "b'{\"ended\": -1}\\n'",
        "b'{\"ended\": 1e400}\\n'",
        "b'\\xff\\n'",
    ],
)
def test_who_sends_anything_else_is_cut_off_alone(host: Space, loaded: Peer, sent: str) -> None:
    good, bad = (
        reader(host, loaded, "good"),
        reader(host, loaded, "bad", FIRST=f"link.sendall({sent})"),
    )
    until(lambda: heard(bad)[-1:] == ["closed"])
    tick(loaded, 0, ends_s=30)
    until(lambda: any('"slot":0' in line for line in heard(good)))
    for job in (good, bad):
        job.end()


def test_who_floods_the_socket_is_cut_off_and_who_reads_nothing_delays_nobody(
    host: Space, loaded: Peer
) -> None:
    flood = "n = 0\nwhile True:\n    n += 1\n    link.sendall(b'{\"ended\": %d}\\n' % n)"
    flooder = reader(
        host, loaded, "flooder", FIRST=f"try:\n    exec({flood!r})\nexcept OSError:\n    pass"
    )
    deaf = reader(host, loaded, "deaf", FIRST="import time\ntime.sleep(1000)")
    until(lambda: heard(flooder)[-1:] == ["closed"])
    for count in range(400):
        tick(loaded, count, ends_s=30)
    assert tick(loaded, 400, ends_s=30)["slot"] == 0
    for job in (flooder, deaf):
        job.end()


def test_the_socket_is_the_jobs_alone(host: Space, loaded: Peer) -> None:
    job = reader(host, loaded, "mine")
    until(lambda: heard(job))
    paths = [
        line
        for line in host.run("sh", "-c", "ls -l /run/var/slots").stdout.splitlines()
        if line.startswith("s")
    ]
    assert paths and all(path.startswith("srw-------") for path in paths)
    name = hashlib.sha256(job.name.encode()).hexdigest()[:16]
    outside = host.run(
        "python3",
        "-c",
        f"import socket; s = socket.socket(1); s.connect('/run/var/slots/{name}'); print(s.recv(9))",
    )
    assert outside.stdout == "b''\n", "a process of another session is refused"
    job.end()
    until(lambda: name not in host.run("ls", "/run/var/slots").stdout)


# --- what happens beside it


def test_a_slot_that_was_committed_with_a_time_to_go_back_is_confirmed_by_the_schedule(
    host: Space, loaded: Peer
) -> None:
    assert loaded.ask("commit", generation=DAYS[0], revert_after_s=60)["ok"]
    tick(loaded, 0, ends_s=30)
    assert loaded.ask("hello")["pending"] is None, "a slot is confirmed"


def test_who_clears_the_host_ends_its_schedule(host: Space, loaded: Peer) -> None:
    tick(loaded, 0, ends_s=30)
    assert loaded.ask("clear")["ok"]
    assert not loaded.ask("slots")["loaded"]
    assert loaded.ask("stage", **rules(DAYS[1]))["ok"]
    flash(host)
    assert loaded.ask("hello")["active"] is None, "nobody committed it"


def test_a_hold_is_no_slot(host: Space, loaded: Peer) -> None:
    tick(loaded, 0, ends_s=0.3)
    until(lambda: loaded.ask("slots")["state"] == "held")
    changed = [{**slot, "generation": slot["hold"], "hold": None} for slot in SLOTS]
    answer = loaded.ask("slots.load", slots=changed, **TIMES)
    assert (answer["code"], answer["error"]) == (
        "refused",
        f"slots[0]: generation {DARK_WINDOWS[0]} is a hold; stage it again",
    )
    assert loaded.ask("slots")["loaded"]


@pytest.mark.parametrize("path", ["slots.json", "networks.json"])
@pytest.mark.parametrize(
    "kept",
    [
        "[1]",
        '{"request": 3, "networks": 4}',
        '{"request": {"slots": [7]}, "networks": {}, "states": []}',
    ],
)
def test_a_daemon_starts_whatever_an_older_version_left(
    host: Space, peer: Peer, path: str, kept: str
) -> None:
    peer.ask("slots.stop")
    assert host.run("sh", "-c", f"cat > /run/testbed/{path}", stdin=kept).returncode == 0
    killed(host, peer)
    fresh = host.attach()
    assert not fresh.ask("slots")["loaded"] and fresh.ask("networks.drop")["ok"]
    fresh.ask("slots.stop")
    fresh.close()
    host.run("rm", "-f", f"/run/testbed/{path}")


def test_a_slot_that_no_time_can_reach_keeps_the_daemon_alive(host: Space, loaded: Peer) -> None:
    tick(loaded, 0, ends_s=30)
    assert loaded.ask("slots.tick", count=10**40, lease_s=30)["code"] == "bad-request"
    assert loaded.ask("slots.tick", count=1 << 53, lease_s=30)["ok"] and loaded.ask("hello")["ok"]
