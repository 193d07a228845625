"""A retrieval over the emulated cache of a packet switch on loopback, and without one."""

from __future__ import annotations

import json
import random
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.workloads.packetswitch import switch
from tests.workloads.programs.test_train import summary
from tests.workloads.ranks import ranks, records
from workloads.host.grants import Grant
from workloads.programs import retrieve
from workloads.programs.retrieve import KEY, Cache, Owners, Shelf, Zipf, value_of


def test_a_value_that_was_put_is_found_under_its_key_however_many_packets_are_lost() -> None:
    with switch() as at:
        cache = Cache(Grant.of(at.grant("cache", 1, 32)), "127.0.0.1", 0, 10.0)
        at.order(do="loss", share=0.2)
        for key in (0, 7, 2**64 - 1):
            assert cache.get(key) is None
            cache.put(key, value_of(key, 100))
            assert cache.get(key) == value_of(key, 100)
        at.order(do="restart")
        cache._timeout_s = 0.1
        with pytest.raises(RuntimeError, match="timed out: nothing from the packet switch"):
            cache.get(7)
        cache._link.close()


def test_owners_answer_with_their_values_and_are_missed_when_gone() -> None:
    shelves = [Shelf("127.0.0.1", 5000, 0.0) for _ in range(2)]
    owners = Owners([shelf.address for shelf in shelves], "127.0.0.1", 5000, 5.0)
    assert [owners.ask(key) == value_of(key, 5000) for key in (0, 1, 3)] == [True] * 3
    assert value_of(1, 5000) != value_of(3, 5000)
    shelves[0].close()
    late = Owners([shelf.address for shelf in shelves], "127.0.0.1", 5000, 5.0)
    with pytest.raises(RuntimeError, match="connection to rank 0: "):
        late.ask(2)
    shelves[1].close()
    for each in (owners, late):
        each.close()


def test_strangers_get_no_values_and_keep_no_rank_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieve, "SILENT", 2)
    shelf = Shelf("127.0.0.1", 16, 0.0)
    strangers = [socket.create_connection(tuple(shelf.address[:2]), 20) for _ in range(3)]
    assert strangers[0].recv(1) == b"", "the longest silent one gives way"
    strangers[2].sendall(bytes(16) + KEY.pack(1))
    with suppress(ConnectionResetError):
        assert strangers[2].recv(1) == b"", "without the secret nothing is answered"
    owners = Owners([shelf.address], "127.0.0.1", 16, 20.0)
    assert owners.ask(1) == value_of(1, 16)
    for each in (owners, shelf, *strangers):
        each.close()


def test_keys_follow_zipfs_law() -> None:
    keys = Zipf(1000, 1.0, random.Random(1))
    drawn = [keys.draw() for _ in range(20_000)]
    share = sum(key < 10 for key in drawn) / len(drawn)
    assert abs(share - 2.929 / 7.485) < 0.02  # harmonic numbers of 10 and of 1000


def test_popular_values_come_from_the_switch(tmp_path: Path) -> None:
    argv = (
        "-m",
        "workloads.programs.retrieve",
        "--iterations",
        "3",
        "--requests",
        "200",
        "--keys",
        "200",
        "--lookup-ms",
        "0",
    )
    with switch() as at:
        more = {
            "TESTBED_FUNCTIONS": json.dumps({"cache": at.grant("cache", 2, 64)}),
            "TESTBED_LANES": '["127.0.0.1"]',
        }
        with ranks(2, *argv, directory=tmp_path, more=lambda _: more) as job:
            ended = job.finish()
        counted = at.counted()
    assert [code for code, _, _ in ended] == [0, 0], ended
    reply, lines = summary(tmp_path), records(tmp_path)
    assert reply["requests"] == 3 * 2 * 200 and reply["hits"] == sum(
        int(str(line["hits"])) for line in lines
    )
    assert (
        reply["asked_bytes"]
        == sum(int(str(line["asked_bytes"])) for line in lines)
        == 256 * (reply["requests"] - reply["hits"])
    )
    assert (
        0.5 < reply["hits"] / reply["requests"] < 1
        and reply["hits"] <= counted["hits"]
        and counted["stored"] == 64
    )
