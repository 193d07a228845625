"""Two committers and a fibre between them: signed looks at its ends, measured traffic over it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agent.space import Peer, Space, facts

pytestmark = pytest.mark.lab

TOKEN = "0123456789abcdef"


class Pair:
    """gpu01:p1 -- p1:gpu02."""

    def __init__(self, make: Callable[[str], Space]) -> None:
        self.hosts = [make(f"gpu0{n}") for n in (1, 2)]
        self.hosts[0].fibre(1, self.hosts[1], 1)
        self.peers: list[Peer] = []
        for n, host in enumerate(self.hosts, 1):
            host.agent("install", facts(host.name, n, 1))
            self.peers.append(host.attach())

    def together(self, **fields: Any) -> list[dict[str, Any]]:
        """Both hosts look at the same time, each with fields of its own where a list gives them."""
        for number, peer in enumerate(self.peers):
            peer._last += 1
            own = {k: v[number] if isinstance(v, tuple) else v for k, v in fields.items()}
            peer.write(
                json.dumps({"id": peer._last, "op": "neighbours", "ports": [1], **own}).encode()
                + b"\n"
            )
        answers = [peer.line() for peer in self.peers]
        assert all(answers)
        return [dict(a["ports"]["1"]) for a in answers if a]


@pytest.fixture(scope="module")
def pair(spaces: Callable[[str], Space]) -> Iterator[Pair]:
    made = Pair(spaces)
    yield made
    for peer in made.peers:
        peer.close()


def test_hosts_that_share_a_key_know_each_other(pair: Pair) -> None:
    one, two = pair.together(key="a" * 64, hear=[1], timeout_s=2.0)
    assert one["heard"] == {"host": "gpu02", "port": 1} and two["heard"] == {
        "host": "gpu01",
        "port": 1,
    }


def test_a_host_with_another_key_is_nobody(pair: Pair) -> None:
    one, two = pair.together(key=("b" * 64, "c" * 64), hear=[1], timeout_s=0.15)
    assert one["heard"] is None and one["answered"] is None and two["heard"] is None
    assert one["carrier"]


def test_an_unsigned_answer_to_a_signed_question_counts_for_nothing(pair: Pair) -> None:
    one, _ = pair.together(key=("d" * 64, None), hear=[1], timeout_s=0.15)
    assert one["heard"] is None and one["answered"] is None


def test_a_key_that_is_too_short_is_refused(pair: Pair) -> None:
    answer = pair.peers[0].ask("neighbours", ports=[1], key="short")
    assert answer["code"] == "bad-request" and "32 characters" in answer["error"]


def flow(pair: Pair, token: str, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send from gpu01 to gpu02; return what was sent and what was heard."""
    one, two = pair.peers
    opened = two.ask(
        "traffic",
        do="listen",
        token=token,
        seconds=3.0,
        flows=[{"flow": "f", "port": 1, "address": "10.1.0.2"}],
    )
    assert opened["ok"], opened
    wanted = {
        "flow": "f",
        "port": 1,
        "address": "10.1.0.1",
        "peer": "10.1.0.2",
        "udp": opened["udp"]["f"],
        **how,
    }
    sent = one.ask("traffic", do="send", token=token, flows=[wanted])
    assert sent["ok"], sent
    heard = two.ask("traffic", do="heard", token=token)
    assert heard["ok"], heard
    return sent["sent"]["f"], heard["heard"]["f"]


def test_a_burst_shows_the_rate_of_the_fibre(pair: Pair) -> None:
    shape(pair, "rate", "100mbit", "burst", "16k", "limit", "4m")
    sent, heard = flow(pair, TOKEN, bytes=500_000)
    assert sent["bytes"] >= 500_000 and "error" not in sent
    assert heard["mbps"] == pytest.approx(98, rel=0.15)
    assert heard["datagrams"] == sent["datagrams"]


def test_steady_traffic_below_the_rate_loses_nothing_and_above_it_shows_the_loss(
    pair: Pair,
) -> None:
    shape(pair, "rate", "100mbit", "burst", "64k", "limit", "200k")
    sent, heard = flow(pair, "a" * 16, rate_mbps=50, seconds=0.3)
    assert heard["datagrams"] == sent["datagrams"] and heard["mbps"] == pytest.approx(50, rel=0.2)
    sent, heard = flow(pair, "b" * 16, rate_mbps=200, seconds=0.3)
    assert heard["datagrams"] < 0.8 * sent["datagrams"]


def test_nobody_listens_for_a_token_never_given_and_traffic_is_bounded(pair: Pair) -> None:
    assert "nothing listens" in pair.peers[0].ask("traffic", do="heard", token="c" * 16)["error"]
    assert "16 hexadecimal" in pair.peers[0].ask("traffic", do="heard", token="../x")["error"]
    assert (
        "not a port"
        in pair.peers[0].ask("traffic", do="listen", token=TOKEN, flows=[{"port": 7}])["error"]
    )
    assert "1 to 64" in pair.peers[0].ask("traffic", do="listen", token=TOKEN, flows=[])["error"]


def test_what_no_sender_ends_is_over_in_its_time(pair: Pair) -> None:
    flows = [{"flow": "f", "port": 1, "address": "10.1.0.2"}]
    assert pair.peers[1].ask("traffic", do="listen", token="d" * 16, seconds=0.2, flows=flows)["ok"]
    heard = pair.peers[1].ask("traffic", do="heard", token="d" * 16)["heard"]["f"]
    assert (heard["datagrams"], heard["mbps"]) == (0, None)


def shape(pair: Pair, *argv: str) -> None:
    """Limit what leaves gpu01 by its fibre."""
    done = pair.hosts[0].run("tc", "qdisc", "replace", "dev", "opt1", "root", "tbf", *argv)
    assert done.returncode == 0, done.stderr


def streamed(pair: Pair, token: str, seconds: float) -> None:
    """gpu01 sends to gpu02 over TCP, along a route of its own."""
    one, two = pair.peers
    for host, far in zip(pair.hosts, ("10.1.0.2", "10.1.0.1"), strict=True):
        host.ip("route", "replace", f"{far}/32", "dev", "opt1")
    opened = two.ask("traffic", do="accept", token=token, address="10.1.0.2", seconds=seconds + 5)
    assert opened["ok"], opened
    poured = one.ask(
        "traffic",
        do="pour",
        token=token,
        address="10.1.0.1",
        peer="10.1.0.2",
        tcp=opened["tcp"],
        seconds=seconds,
    )
    assert poured["ok"], poured


def test_a_stream_shows_how_long_nothing_arrived(pair: Pair) -> None:
    shape(pair, "rate", "100mbit", "burst", "64k", "limit", "200k")
    streamed(pair, "e" * 16, 1.5)
    time.sleep(0.5)
    pair.hosts[0].ip("route", "replace", "unreachable", "10.1.0.2/32")
    time.sleep(0.2)
    ended = time.monotonic_ns()
    pair.hosts[0].ip("route", "replace", "10.1.0.2/32", "dev", "opt1")
    heard = pair.peers[1].ask("traffic", do="heard", token="e" * 16)["heard"]["stream"]
    assert heard["bytes"] > 1_000_000
    begin, end = max(heard["gaps"], key=lambda gap: gap[1] - gap[0])
    assert begin < ended < end


def test_a_stranger_who_connects_to_a_stream_first_is_not_measured(pair: Pair) -> None:
    one, two = pair.peers
    for host, far in zip(pair.hosts, ("10.1.0.2", "10.1.0.1"), strict=True):
        host.ip("route", "replace", f"{far}/32", "dev", "opt1")
    opened = two.ask("traffic", do="accept", token="b" * 16, address="10.1.0.2", seconds=10)
    stranger = "import socket, sys; s = socket.create_connection(('10.1.0.2', int(sys.argv[1]))); s.sendall(b'x' * 100); s.recv(1)"
    # ends when the receiver closes the connection
    pair.hosts[0].run("python3", "-c", stranger, str(opened["tcp"]))
    one.ask(
        "traffic",
        do="pour",
        token="b" * 16,
        address="10.1.0.1",
        peer="10.1.0.2",
        tcp=opened["tcp"],
        seconds=0.3,
    )
    heard = two.ask("traffic", do="heard", token="b" * 16)["heard"]["stream"]
    assert heard["bytes"] > 65536 and not heard["open"]


def test_a_stream_that_nobody_sends_is_over_in_its_time(pair: Pair) -> None:
    assert pair.peers[1].ask(
        "traffic", do="accept", token="f" * 16, address="10.1.0.2", seconds=0.2
    )["ok"]
    assert pair.peers[1].ask("traffic", do="heard", token="f" * 16)["heard"]["stream"] == {
        "bytes": 0,
        "gaps": [],
        "open": True,
    }


def test_a_stream_needs_an_address_of_this_host(pair: Pair) -> None:
    refused = pair.peers[0].ask("traffic", do="accept", token="a1" * 8, address="192.0.2.1")
    assert refused["code"] == "bad-request" and refused["error"].startswith("address: ")
    refused = pair.peers[0].ask("traffic", do="pour", token="a1" * 8, address="10.1.0.1", tcp=9)
    assert refused["code"] == "bad-request" and "peer" in refused["error"]
