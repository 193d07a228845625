"""Holds: routes left out for a short time, TCP that waits in its sockets, and who goes back to what
when nobody ends the hold.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.agent.routes.test_generations import path, rules, wait_for
from tests.agent.space import AGENT, Peer, Space

pytestmark = pytest.mark.lab

OLD, HOLD, NEW = 1, 2, 3


def staged(peer: Peer) -> None:
    """The host runs OLD, confirmed; a hold without any route and a new generation are staged."""
    for request in (rules(OLD), {"generation": HOLD}, rules(NEW, port=2)):
        assert peer.ask("stage", **request)["ok"]
    peer.ask("commit", generation=OLD)
    peer.ask("confirm", generation=OLD)


def hold(peer: Peer, revert_after_s: float = 30.0, **more: object) -> dict[str, object]:
    return peer.ask("commit", generation=HOLD, hold=True, revert_after_s=revert_after_s, **more)


def test_a_hold_has_no_route_is_never_confirmed_and_ends_by_itself(host: Space, peer: Peer) -> None:
    staged(peer)
    assert hold(peer, 0.5)["ok"] and path(host) == ""
    refused = peer.ask("confirm", generation=HOLD)
    assert refused["code"] == "refused"
    assert (
        refused["error"]
        == "generation 2 is a hold, which is never confirmed: commit the one that follows it, or revert"
    )
    reverted = peer.event("reverted")
    assert (reverted["generation"], reverted["from"]) == (OLD, HOLD) and reverted["flush"][
        "sockets"
    ] == 0
    assert path(host) == "opt1"


@pytest.mark.parametrize("more", [{"hold": True}, {"hold": True, "flush": False}])
def test_a_hold_without_an_end_is_refused(host: Space, peer: Peer, more: dict[str, object]) -> None:
    staged(peer)
    answer = peer.ask("commit", generation=HOLD, **more)
    assert answer["code"] == "bad-request" and "revert_after_s" in answer["error"]
    assert path(host) == "opt1" and peer.ask("hello")["pending"] is None


def test_a_refused_hold_leaves_no_mark(host: Space, peer: Peer) -> None:
    staged(peer)
    peer.ask("commit", generation=HOLD)
    peer.ask("confirm", generation=HOLD)  # an ordinary generation, as far as the host knows
    assert peer.ask("commit", generation=HOLD, hold=True)["code"] == "bad-request"
    assert peer.ask("commit", generation=HOLD, hold=True, revert_after_s=30)["code"] == "refused", (
        "it is active and no hold"
    )
    peer.ask("commit", generation=NEW, revert_after_s=30)
    assert peer.ask("hello")["pending"]["to"] == HOLD, (
        "it was confirmed, so the host goes back to it"
    )


def test_a_host_that_leaves_a_hold_for_what_it_had_before_keeps_its_routes(
    host: Space, peer: Peer
) -> None:
    staged(peer)
    hold(peer)
    assert peer.ask("commit", generation=OLD, revert_after_s=0.2)["ok"]
    hello = peer.ask("hello")
    assert (hello["active"], hello["previous"], hello["pending"]) == (OLD, None, None), (
        "there is nothing to go back to"
    )
    assert path(host) == "opt1" and peer.ask("revert")["code"] == "refused" and path(host) == "opt1"


def test_a_commit_that_fails_leaves_the_host_owing_what_it_owed(host: Space, peer: Peer) -> None:
    staged(peer)
    broken = [{"do": ["false"], "undo": ["true"]}]
    assert peer.ask("stage", generation=4, commands=broken)["ok"]
    peer.ask("commit", generation=NEW, revert_after_s=1.0)
    assert peer.ask("commit", generation=4, revert_after_s=30)["code"] == "failed"
    assert peer.ask("hello")["pending"]["to"] == OLD and path(host) == "opt2"
    assert peer.event("reverted")["generation"] == OLD and path(host) == "opt1"


def test_the_commit_after_a_hold_goes_back_to_what_was_confirmed_before_it(
    host: Space, peer: Peer
) -> None:
    staged(peer)
    hold(peer)
    assert peer.ask("commit", generation=NEW, revert_after_s=0.5)["previous"] == OLD
    assert path(host) == "opt2" and peer.ask("hello")["pending"]["to"] == OLD
    assert peer.event("reverted")["generation"] == OLD
    assert path(host) == "opt1"


def test_what_was_not_confirmed_before_a_hold_is_not_gone_back_to(host: Space, peer: Peer) -> None:
    staged(peer)
    peer.ask("stage", **rules(4, port=2))
    peer.ask("commit", generation=4, revert_after_s=30)
    hold(peer)
    assert peer.ask("hello")["pending"]["to"] == OLD
    peer.ask("commit", generation=NEW, revert_after_s=30)
    assert peer.ask("hello")["pending"]["to"] == OLD
    assert peer.ask("revert")["generation"] == OLD and path(host) == "opt1"


def test_a_confirmed_commit_after_a_hold_stays_and_can_be_taken_back(
    host: Space, peer: Peer
) -> None:
    staged(peer)
    hold(peer)
    peer.ask("commit", generation=NEW, revert_after_s=30)
    assert peer.ask("confirm", generation=NEW)["was_pending"] is True
    assert peer.ask("hello")["staged"] == [OLD, NEW], "the hold is gone"
    assert peer.ask("revert")["generation"] == OLD and path(host) == "opt1"


def test_an_armed_commit_ends_a_hold(host: Space, peer: Peer) -> None:
    staged(peer)
    peer.ask("arm", generation=NEW, when_up=["opt1"], revert_after_s=30)
    hold(peer)
    for state in ("down", "up"):
        host.far.ip("link", "set", "opt1", state)  # type: ignore[attr-defined]
        assert wait_for(
            lambda state=state: peer.ask("hello")["ports"]["1"]["carrier"] is (state == "up")
        )  # type: ignore[misc]
    committed = next(
        e for e in iter(lambda: peer.event("committed"), None) if e["generation"] == NEW
    )
    assert committed["flush"]["pushed"] == 0 and committed["previous"] == OLD
    assert path(host) == "opt2" and peer.ask("hello")["pending"]["to"] == OLD


def killed(host: Space, peer: Peer) -> None:
    """Kill the daemon; return when the next one answers."""
    before = peer.ask("hello")["pid"]
    host.run("kill", "-9", str(before))
    assert wait_for(lambda: host.agent("status")[0].get("pid", before) != before)


def test_a_host_whose_operator_and_daemon_die_in_a_hold_goes_back_by_itself(
    host: Space, peer: Peer
) -> None:
    staged(peer)
    hold(peer, 3.0)
    killed(host, peer)
    state = host.agent("status")[0]
    assert (state["active"], state["pending"]["to"], path(host)) == (HOLD, OLD, "")
    assert wait_for(lambda: path(host) == "opt1", 8) and host.agent("status")[0]["active"] == OLD


def test_a_daemon_that_takes_over_in_a_hold_still_knows_it_for_one(host: Space, peer: Peer) -> None:
    staged(peer)
    hold(peer)
    killed(host, peer)
    later = host.attach()
    assert "never confirmed" in later.ask("confirm", generation=HOLD)["error"]
    committed = later.ask("commit", generation=NEW, revert_after_s=30)
    assert committed["previous"] == OLD and committed["flush"]["sockets"] == 0
    assert later.ask("revert")["generation"] == OLD and path(host) == "opt1"


def test_a_daemon_that_died_on_its_way_out_of_a_hold_leaves_it(host: Space, peer: Peer) -> None:
    staged(peer)
    hold(peer)
    host.agent("stop")
    # written, but the kernel was not asked yet
    went_back = json.dumps({"active": OLD, "previous": None, "pending": None})
    host.run("sh", "-c", f"echo '{went_back}' >/run/testbed/state.json")
    assert path(host) == ""
    host.agent("start")
    assert wait_for(lambda: path(host) == "opt1")
    assert wait_for(lambda: host.agent("status")[0]["active"] == OLD)


# --- the flush
# -------------------------------------------------------------------------------------------------------------------

PROGRAM = """
import ctypes, socket, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: end with nsenter
s = socket.socket(socket.AF_INET6 if sys.argv[1] == "v6" else socket.AF_INET)
prefix = "::ffff:" if sys.argv[1] == "v6" else ""
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if sys.argv[2] == "listen":
    s.bind((prefix + sys.argv[3], 5000))
    s.listen(4)
    print("ready", flush=True)
    s, _ = s.accept()
    while data := s.recv(1 << 16):
        print(len(data), flush=True)
else:
    s.bind((prefix + sys.argv[3], 0))
    s.connect((prefix + sys.argv[4], 5000))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(sys.argv[5]))
    print("ready", flush=True)
    for line in sys.stdin:
        s.send(b"x" * int(line))
        print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), flush=True)
"""


@contextmanager
def program(space: Space, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of somebody else on a host, ready; it ends with the body."""
    argv = space.argv(sys.executable, "-S", "-E", "-c", PROGRAM, *arguments)
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        try:
            yield running
        finally:
            if arguments[1] == "send":  # it ends with its input
                running.communicate(timeout=10)
            running.kill()


def send(sender: subprocess.Popen[str], size: int) -> str:
    """Let the program send; return whether it has TCP_NODELAY set, as it sees it."""
    assert sender.stdin is not None and sender.stdout is not None
    sender.stdin.write(f"{size}\n")
    sender.stdin.flush()
    return sender.stdout.readline().strip()


@pytest.fixture
def pair(host: Space, peer: Peer) -> Iterator[Peer]:
    """The far end gets an address and a route back, so that connections over opt1 can be made;
    `peer` runs OLD towards it.
    """
    far = host.far  # type: ignore[attr-defined]
    far.ip("addr", "replace", "10.255.0.2/32", "dev", "lo")
    far.ip("link", "set", "lo", "up")
    far.ip("route", "replace", "10.255.0.1/32", "dev", "opt1", "src", "10.255.0.2", "scope", "link")
    far.ip("neigh", "replace", "10.255.0.1", "lladdr", host.mac("opt1"), "dev", "opt1")
    for generation in (OLD, NEW):
        request = rules(generation) | {"neighbours": [["10.1.0.9", far.mac("opt1"), "opt1"]]}
        assert peer.ask("stage", **request)["ok"]
    peer.ask("stage", generation=HOLD)
    peer.ask("commit", generation=OLD)
    peer.ask("confirm", generation=OLD)
    yield peer


@pytest.mark.parametrize("family", ["v4", "v6"])
@pytest.mark.parametrize("nodelay", ["0", "1"])
def test_what_a_foreign_program_sent_in_a_hold_leaves_with_the_commit_and_its_socket_is_as_before(
    host: Space, pair: Peer, family: str, nodelay: str
) -> None:
    far = host.far  # type: ignore[attr-defined]
    with (
        program(far, family, "listen", "10.255.0.2") as listener,
        program(host, family, "send", "10.255.0.1", "10.255.0.2", nodelay) as sender,
    ):
        assert listener.stdout is not None
        assert send(sender, 10) == nodelay and listener.stdout.readline() == "10\n"
        held = hold(pair)
        assert (
            held["waiting"]["sockets"] == held["waiting"]["found"] == 1
            and "skipped" not in held["waiting"]
        )  # type: ignore[index]
        assert send(sender, 1000) == nodelay
        committed = pair.ask("commit", generation=NEW, revert_after_s=30)
        assert committed["flush"]["pushed"] == 1 and "skipped" not in committed["flush"]
        assert listener.stdout.readline() == "1000\n"
        assert send(sender, 20) == nodelay


ANSWERS = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.255.0.2", 7187))
print("ready", flush=True)
while True:
    data, sender = s.recvfrom(256)
    try:
        s.sendto(b"TBa1" + data[4:12] + bytes([64]) + b"far", sender)
    except OSError:  # no route
        pass
"""


def test_what_the_far_end_could_not_acknowledge_is_asked_for_when_it_has_left_its_hold_too(
    host: Space, pair: Peer
) -> None:
    far = host.far  # type: ignore[attr-defined]
    back = ("10.255.0.1/32", "dev", "opt1", "src", "10.255.0.2", "scope", "link")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from agent.tcp import flush\n"
        "print([s['unacked'] for s in flush.sockets(['10.255.0.1'])])"
    )
    unacked = host.argv(sys.executable, "-S", "-E", "-c", code, str(AGENT.parents[1]))

    def in_flight() -> str:
        return subprocess.run(unacked, check=True, capture_output=True, text=True).stdout.strip()

    with (
        program(far, "v4", "listen", "10.255.0.2") as listener,
        program(host, "v4", "send", "10.255.0.1", "10.255.0.2", "1") as sender,
        subprocess.Popen(
            far.argv(sys.executable, "-c", ANSWERS), stdout=subprocess.PIPE, text=True
        ) as answers,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(answers.kill)
        assert answers.stdout is not None and answers.stdout.readline() == "ready\n"
        assert listener.stdout is not None
        assert send(sender, 10) == "1" and listener.stdout.readline() == "10\n"
        assert wait_for(lambda: in_flight() == "[0]")
        far.ip("route", "del", *back)
        send(sender, 1000)
        assert listener.stdout.readline() == "1000\n"
        hold(pair)
        # an acknowledgement that was put off is lost by then, and the sender tries once in seconds
        time.sleep(1.5)
        assert pair.ask("commit", generation=NEW, revert_after_s=30)["flush"]["pushed"] == 1
        # a probe of the window would be on its way by now, the only one that is answered in 500 ms
        time.sleep(0.1)
        assert in_flight() == "[1]"
        far.ip("route", "replace", *back)
        assert wait_for(lambda: in_flight() == "[0]")


def test_without_a_flush_no_socket_is_touched(host: Space, pair: Peer) -> None:
    far = host.far  # type: ignore[attr-defined]
    with (
        program(far, "v4", "listen", "10.255.0.2"),
        program(host, "v4", "send", "10.255.0.1", "10.255.0.2", "0") as sender,
    ):
        assert send(sender, 10) == "0"
        assert hold(pair, flush=False)["waiting"] is None
        assert pair.ask("commit", generation=NEW, revert_after_s=30)["flush"]["pushed"] == 0


def test_sockets_that_keep_their_route_and_sockets_that_end_are_left_alone(
    host: Space, pair: Peer
) -> None:
    far = host.far  # type: ignore[attr-defined]
    with program(far, "v4", "listen", "10.255.0.2"):
        with program(host, "v4", "send", "10.255.0.1", "10.255.0.2", "0") as sender:
            assert send(sender, 10) == "0"
            kept = rules(5) | {"neighbours": [["10.1.0.9", far.mac("opt1"), "opt1"]]}
            pair.ask("stage", **kept)
            answer = pair.ask("commit", generation=5, hold=True, revert_after_s=30)
            assert answer["waiting"]["sockets"] == 0, (
                "this hold has a route to where the connection goes"
            )
            pair.ask("revert")
            assert hold(pair)["waiting"]["found"] == 1  # type: ignore[index]
        committed = pair.ask("commit", generation=NEW, revert_after_s=30)
        assert (
            committed["ok"]
            and committed["flush"]["pushed"] == 0
            and committed["flush"]["sockets"] == 1
        )


def test_a_host_without_the_system_call_commits_and_says_so(host: Space, pair: Peer) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from agent.tcp import flush; import json\n"
        "flush.PIDFD_GETFD = 100000\n"
        "each = flush.Flush(); print(json.dumps([each.prepare(['10.255.0.1'], []), each.push()]))"
    )
    far = host.far  # type: ignore[attr-defined]
    with (
        program(far, "v4", "listen", "10.255.0.2"),
        program(host, "v4", "send", "10.255.0.1", "10.255.0.2", "0") as sender,
    ):
        assert send(sender, 10) == "0"
        result = host.run(sys.executable, "-S", "-E", "-c", code, str(AGENT.parents[1]))
        assert not result.stderr, result.stderr
        prepared, pushed = json.loads(result.stdout)
    assert (
        prepared["found"] == 1
        and pushed["pushed"] == 0
        and "Function not implemented" in pushed["skipped"]
    )
