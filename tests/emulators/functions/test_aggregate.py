"""Sums in a packet switch: exact whatever the network does, and nobody else's business."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.emulators.functions.workers import (
    ADD,
    GET,
    SUM,
    WAIT,
    Wire,
    Worker,
    exact,
    packet,
    through,
    vectors,
)

POOL = {"slots": 8, "slot_bytes": 64, "jobs": 2}
PAGE = Path(__file__).parents[3] / "docs/reference/functions-dialect.md"


def text(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


@pytest.mark.parametrize("seed", range(6))
def test_sums_are_exact_whatever_is_lost_late_or_sent_twice(seed: int) -> None:
    chance = random.Random(seed)
    count, slots, chunks = chance.choice([1, 2, 5]), chance.choice([1, 2, 7]), chance.randint(1, 40)
    loss, late = chance.choice([0.0, 0.01, 0.3]), chance.choice([0.0, 0.4])
    wire = Wire(aggregate=POOL)
    made, parts = wire.allocate(count, slots), vectors(chance, count, chunks, 16)
    workers = [Worker(made, n, parts[n], slots, 7) for n in range(count)]
    through(wire, workers, chance, loss, late)
    wanted = exact(parts)
    for worker in workers:
        got = np.array([np.frombuffer(worker.sums[chunk], "<i4") for chunk in range(chunks)])
        assert (got == wanted).all()
    assert wire.counted()["sums"] == chunks and wire.counted()["added"] == count * chunks


def test_the_page_shows_a_packet_that_the_switch_takes() -> None:
    shown = bytes.fromhex(re.findall(r"^    (54 46 .*)$", PAGE.read_text(), re.MULTILINE)[0])
    made = {"allocation": 1, "token": "5f1c0a9e3b77d210"}
    assert shown == packet(made, 1, ADD, 3, text(1, -1), epoch=7)
    wire = Wire(aggregate=POOL)
    wire.allocate(2, 4)
    wire.switch.allocations[1].token = bytes.fromhex(made["token"])
    assert wire.give(packet(made, 0, ADD, 3, text(5, 5), epoch=7), 0) == []
    assert wire.give(shown, 1) == [(SUM, n, 3, text(6, 4)) for n in (0, 1)]


def test_a_part_sent_again_is_answered_and_never_added_again() -> None:
    wire = Wire(aggregate=POOL)
    made = wire.allocate(2, 1)
    one, two = packet(made, 0, ADD, 0, text(1)), packet(made, 1, ADD, 0, text(2))
    assert wire.give(one, 0) == [] and wire.give(one, 0) == [(WAIT, 0, 0, b"")]
    assert len(wire.give(two, 1)) == 2
    assert wire.give(one, 0) == [(SUM, 0, 0, text(3))]
    # the other version: the sum of chunk 0 is kept
    assert wire.give(packet(made, 0, ADD, 1, text(10)), 0) == []
    assert wire.give(two, 1) == [(SUM, 1, 0, text(3))]
    counted = wire.counted()
    assert (counted["added"], counted["sums"], counted["duplicates"], counted["repeated"]) == (
        3,
        1,
        3,
        2,
    )


def test_only_a_part_that_is_in_while_others_are_missing_is_answered_with_wait() -> None:
    wire = Wire(aggregate=POOL)
    made = wire.allocate(3, 2)
    for worker in (0, 1):
        assert wire.give(packet(made, worker, ADD, 1, text(1, 2), epoch=7), worker) == []
    again = packet(made, 0, ADD, 1, text(1, 2), epoch=7)
    assert wire.give(again, 0, port=6000) == [(WAIT, 0, 1, b"")]
    answer, at = wire.sent[-1]
    assert at == ("10.0.0.1", 6000) and len(answer) < len(again), (
        "to whom asked, and less than was asked with"
    )
    assert struct.unpack_from("<I", answer, 20) == (7,)
    others = [
        (packet(made, 0, ADD, 1, text(1), epoch=7), 0),  # mismatched
        (packet(made, 0, ADD, 5, text(1, 2), epoch=7), 0),  # early
        (packet(made, 0, ADD, 1, text(1, 2), epoch=6), 0),  # stale
        (packet(made, 1, ADD, 1, text(1, 2), epoch=7), 0),  # from another worker's address
        (packet(made, 0, WAIT, 1, b"", epoch=7), 0),
        (packet(made, 0, WAIT, 1, text(1, 2), epoch=7), 0),
    ]
    assert [wire.give(*each) for each in others] == [[]] * 6
    assert wire.give(packet(made, 2, ADD, 1, text(3, 4), epoch=7), 2) == [
        (SUM, n, 1, text(5, 8)) for n in (0, 1, 2)
    ]
    assert wire.give(again, 0) == [(SUM, 0, 1, text(5, 8))], "which is no WAIT any more"


def test_the_sum_goes_to_where_a_worker_was_last_heard() -> None:
    wire = Wire(aggregate=POOL)
    made = wire.allocate(2, 2)
    wire.give(packet(made, 0, ADD, 0, text(1)), 0, port=5000)
    wire.give(packet(made, 0, ADD, 1, text(1)), 0, port=6000)
    wire.give(packet(made, 1, ADD, 0, text(1)), 1)
    assert [peer for _, peer in wire.sent] == [("10.0.0.1", 6000), ("10.0.0.2", 5000)]


def test_chunks_of_the_past_and_of_the_future_change_nothing() -> None:
    wire = Wire(aggregate=POOL)
    made = wire.allocate(1, 2)
    for chunk in range(6):
        assert len(wire.give(packet(made, 0, ADD, chunk, text(chunk)), 0)) == 1
    replayed = [packet(made, 0, ADD, chunk, text(99)) for chunk in (0, 1)]
    ahead = [packet(made, 0, ADD, chunk, text(99)) for chunk in (8, 10, 2**40, 2**64 - 1)]
    assert [wire.give(each, 0) for each in replayed + ahead] == [[]] * 6
    assert (wire.counted()["stale"], wire.counted()["early"]) == (2, 4)
    # its sum is still there
    assert wire.give(packet(made, 0, ADD, 4, text(99)), 0) == [(SUM, 0, 4, text(4))]


def test_a_worker_that_is_ahead_cannot_empty_a_place_somebody_may_ask_for() -> None:
    wire = Wire(aggregate=POOL)
    made = wire.allocate(2, 1)
    for worker in (0, 1):
        wire.give(packet(made, worker, ADD, 0, text(1)), worker)
    assert wire.give(packet(made, 0, ADD, 1, text(1)), 0) == []
    assert wire.give(packet(made, 0, ADD, 2, text(9)), 0) == [] and wire.counted()["early"] == 1
    assert wire.give(packet(made, 1, ADD, 0, text(1)), 1) == [(SUM, 1, 0, text(2))]


def test_a_job_that_starts_anew_begins_at_chunk_0_of_a_higher_epoch() -> None:
    wire = Wire(aggregate=POOL)
    made = wire.allocate(2, 2)
    for worker in (0, 1):
        wire.give(packet(made, worker, ADD, 0, text(1), epoch=5), worker)
    wire.give(packet(made, 0, ADD, 1, text(50), epoch=5), 0)
    assert wire.give(packet(made, 0, ADD, 1, text(7), epoch=6), 0) == []
    assert (
        wire.give(packet(made, 1, ADD, 1, text(50), epoch=5), 1) == []
        and wire.counted()["stale"] == 1
    )
    assert wire.give(packet(made, 1, ADD, 1, text(7), epoch=6), 1)[0][3] == text(14)
    # that of epoch 5 is not answered with
    assert wire.give(packet(made, 1, ADD, 0, text(7), epoch=6), 1) == []


def test_a_chunk_is_as_long_as_its_first_part_said() -> None:
    wire = Wire(aggregate=POOL)
    made = wire.allocate(2, 1)
    wire.give(packet(made, 0, ADD, 0, text(1, 2)), 0)
    assert (
        wire.give(packet(made, 1, ADD, 0, text(1)), 1) == [] and wire.counted()["mismatched"] == 1
    )
    assert wire.give(packet(made, 1, ADD, 0, text(1, 1)), 1)[0][3] == text(2, 3)


def test_what_is_not_a_workers_own_packet_gets_no_answer_and_changes_no_sum() -> None:
    wire = Wire(aggregate=POOL)
    ours, theirs = wire.allocate(2, 2), wire.allocate(2, 2, job="b")
    wire.give(packet(ours, 0, ADD, 0, text(1)), 0)
    part = packet(ours, 1, ADD, 0, text(100))
    foreign = [
        (packet(ours | {"token": "00" * 8}, 1, ADD, 0, text(100)), 1),
        # our slot by their token
        (packet(theirs, 1, ADD, 0, text(100), allocation=ours["allocation"]), 1),
        (packet(ours, 1, ADD, 0, text(100), allocation=77), 1),
        (part, 0),  # from another worker's address
        (part, 8),
        (packet(ours, 2, ADD, 0, text(100)), 1),
        (packet(ours, 65_535, ADD, 0, text(100)), 1),
    ]
    assert [wire.give(*each) for each in foreign] == [[]] * 7
    malformed = [
        *(part[:cut] for cut in (0, 1, 31, 32, 35)), part + b"\0", packet(ours, 1, ADD, 0),
        packet(ours, 1, ADD, 0, b"\1\0\0"), packet(ours, 1, ADD, 0, bytes(68)), packet(ours, 1, ADD, 0, bytes(65_000)),
        packet(ours, 1, ADD, 0, text(100), magic=0x4655), packet(ours, 1, ADD, 0, text(100), version=2),
        packet(ours, 1, SUM, 0, text(100)), packet(ours, 1, GET, 0), packet(ours, 1, 0, 0, text(100)),
        packet(ours, 1, ADD, 0, text(100), length=8), packet(ours, 1, ADD, 0, text(100), length=65_535),
    ]  # fmt: skip
    assert [wire.give(each, 1) for each in malformed] == [[]] * len(malformed)
    total = wire.switch.total()
    assert (total["foreign"], total["malformed"]) == (len(foreign), len(malformed))
    assert [wire.counted(n)["packets_in"] for n in (1, 2)] == [1, 0]
    assert wire.give(packet(ours, 1, ADD, 0, text(2)), 1) == [(SUM, n, 0, text(3)) for n in (0, 1)]


def test_the_emulators_own_loss_is_counted_both_ways_and_the_sums_stay_exact() -> None:
    chance, wire = random.Random(1), Wire(aggregate=POOL)
    made, parts = wire.allocate(3, 4), vectors(chance, 3, 100, 2)
    wire.switch.loss = 0.2
    workers = [Worker(made, n, parts[n], 4, 1) for n in range(3)]
    through(wire, workers, chance, 0, 0)
    assert all(
        worker.sums[chunk] == each.tobytes()
        for worker in workers
        for chunk, each in enumerate(exact(parts))
    )
    lost, counted = wire.switch.total()["lost"], wire.counted()
    assert lost == wire.switch.total()["packets_in"] - counted["packets_in"] + counted[
        "packets_out"
    ] - len(wire.sent)
    assert 0.1 < lost / (wire.switch.total()["packets_in"] + counted["packets_out"]) < 0.3
