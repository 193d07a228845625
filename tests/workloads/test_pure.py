"""The parts of the workloads that are plain values: splitting, sizes, the table, the checkpoint in
common.
"""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optics import ranks
from workloads.collectives.rings import bus_factor
from workloads.programs import program
from workloads.programs.allreduce import HEADER, row, sizes
from workloads.programs.option import size
from workloads.progress.records import rates
from workloads.transport.accord import Accord, common
from workloads.transport.buffers import pieces


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_pieces_cover_everything_once_in_order_and_differ_by_one_at_most(
    length: int, parts: int
) -> None:
    cut = pieces(length, parts)
    assert len(cut) == parts
    assert [begin for begin, _ in cut] == [0, *(end for _, end in cut[:-1])]
    assert cut[-1][1] == length
    lengths = [end - begin for begin, end in cut]
    assert max(lengths) - min(lengths) <= 1


def test_the_program_that_watches_a_job_knows_the_exit_code_of_a_rank_that_lost_a_peer() -> None:
    assert ranks.LOST_PEER == program.LOST_PEER


def test_a_ring_of_twelve_carries_eleven_sixths_of_the_size() -> None:
    # planning anchor: 10^9 B over 12 ranks in 0.1467 s is algbw 6.818 GB/s and busbw 12.5 GB/s
    assert bus_factor(12) == pytest.approx(11 / 6)
    measured = rates(10**9, 0.146666667, 12)
    assert measured["algbw_gbps"] == pytest.approx(8 * 6.818182, rel=1e-6)
    assert measured["busbw_gbps"] == pytest.approx(8 * 12.5, rel=1e-6)
    assert bus_factor(1) == 0


def test_sizes_are_those_of_nccl_tests() -> None:
    assert [size(text) for text in ("8", "64K", "64M", "1G", "64MB")] == [
        8,
        65536,
        67108864,
        1073741824,
        67108864,
    ]
    assert list(sizes(8, 100, 4)) == [8, 32]
    with pytest.raises(
        argparse.ArgumentTypeError, match="'64 bananas': not a size such as 8, 64K or 1G"
    ):
        size("64 bananas")


def test_a_row_stands_under_its_heading() -> None:
    line = row(
        {
            "size_bytes": 67108864,
            "count": 16777216,
            "type": "float",
            "redop": "sum",
            "time_us": 3987863.2,
            "algbw_gbytes_per_s": 0.016828,
            "busbw_gbytes_per_s": 0.030852,
            "wrong": 0,
        }
    )
    names = HEADER.splitlines()[0]
    assert names.split()[1:] == [
        "size",
        "count",
        "type",
        "redop",
        "time",
        "algbw",
        "busbw",
        "#wrong",
    ]
    assert len(line) == len(names)
    ends = [
        [word.end() for word in re.finditer(r"\S+", text)]
        for text in (names.replace("#", " ", 1), line)
    ]
    assert ends[0] == ends[1], "right-aligned, as nccl-tests does"


@given(st.lists(st.sets(st.integers(1, 6)).map(sorted), min_size=1, max_size=4))
def test_the_common_checkpoint_is_the_newest_that_all_have_who_have_any(
    kept: list[list[int]],
) -> None:
    shared = set.intersection(*(set(have) for have in kept if have)) if any(kept) else set()
    if shared:
        assert common(kept) == max(shared)
    elif not any(kept):
        assert common(kept) == 0
    else:
        with pytest.raises(ValueError, match="no checkpoint is common to all ranks: rank 0 has"):
            common(kept)


class Shared(dict[str, str]):
    """What Accord needs of torch's store, in one process."""

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return self.setdefault(key, desired) if expected == "" else self[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def test_the_first_announcement_of_a_stop_stands() -> None:
    store = Shared()
    first, second, third = (Accord(store, rank, 3) for rank in range(3))
    first.before(4)
    assert not first.last(4), "nobody asked"
    for accord in (first, second):
        accord.ask_to_stop()
    first.before(5)
    second.before(6)
    assert [accord.last(5) for accord in (first, second, third)] == [True] * 3
    assert not third.last(4)


def test_ranks_that_may_take_longer_than_a_lost_peer_are_waited_for_as_long_as_is_said() -> None:
    class Late(Shared):
        def set(self, key: str, value: str) -> None:
            self[key] = value

        def wait(self, keys: list[str], within: timedelta) -> None:
            if within > timedelta(seconds=599):
                self["restored/1"] = "8"

    assert Accord(Late(), 0, 2).gather("restored", 9, within_s=600.0) == [9, 8]


def test_of_an_error_of_gloo_people_are_shown_what_happened_and_not_where_it_was_compiled() -> None:
    compared = "[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/common/socket.cc:142] rv != -1. -1 vs -1. "
    reply = {
        f"{compared}connect: Network is unreachable": "connect: Network is unreachable",
        "[/pytorch/gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5": "Connection closed by peer [10.0.0.1]:5",
        "Socket Timeout. This is typically caused by a crash": "Socket Timeout",
        "Unable to cast connection from rank 1: closed by peer to Tensor": "connection from rank 1: closed by peer",
    }
    assert {text: program._first_line(RuntimeError(text)) for text in reply} == reply
