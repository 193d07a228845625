"""A job's iterations come home once, however many commands fetch them at the same time."""

from __future__ import annotations

import asyncio
import fcntl
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from optics import Refused
from optics.plan import Job
from orchestrator.hosts import ClockReading, Tail
from orchestrator.jobs.follow import append
from orchestrator.jobs.iterations import collect_iterations, saves, sent, whole_bytes
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry import read_points
from tests.hosts.parts import OwnParts
from tests.kit.jobs import spec

TEXT = "".join(
    json.dumps({"iter": n, "iter_ms": 10.0, "t_wall_ns": n * 10**9}) + "\n" for n in range(1, 51)
)
PIECE = 700


class Rank0(OwnParts):
    """Serves pieces of a file; whoever asks waits until `asked` have asked, so that all ask for the
    same piece.
    """

    def __init__(self, asked: int, ahead_ns: int = 0) -> None:
        self.together = asyncio.Barrier(asked)
        self.ahead_ns = ahead_ns

    async def tail(self, job: str, host: str, file: str, offset: int) -> Tail:
        if offset == 0:
            await self.together.wait()
        piece = TEXT[offset : offset + PIECE]
        return Tail(piece, offset + len(piece), len(TEXT), "running")

    async def clocks(self, names: list[str]) -> dict[str, ClockReading]:
        return dict.fromkeys(names, ClockReading(self.ahead_ns, 2_000_000))


async def test_iterations_stand_in_the_journal_at_our_time_though_the_hosts_clock_is_ahead(
    tmp_path: Path,
) -> None:
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec("gpu01")))
    for run, ahead_ns, moved_ns in (
        ("far", 300_000_000, 300_000_000),
        ("near", 900_000, 0),
    ):  # asked within 2 ms: not to be distinguished
        session = cast(Session, SimpleNamespace(hosts=Rank0(1, ahead_ns), lab=lab))
        await collect_iterations(session, "mlp.1", record, tmp_path / run)
        assert [p.time_ns for p in read_points(tmp_path / run)] == [
            n * 10**9 - moved_ns for n in range(1, 51)
        ]


async def test_what_was_sent_for_an_exchange_is_in_the_journal_and_no_exchange_is_no_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {"iter": 1, "iter_ms": 10.0, "comm_ms": 0.0, "t_wall_ns": 10**9}
    together = alone | {
        "iter": 2,
        "bytes": 4000,
        "wire_bytes": 1500,
        "algbw_gbps": 0.1,
        "busbw_gbps": 0.0375,
    }
    together |= {"resent_bytes": 90, "lost_share": 0.01, "wide_bytes": 700}
    together |= {
        "requests": 400,
        "hits": 240,
        "asked_bytes": 40_960,
        "found_ms": 0.4,
        "found_p99_ms": 6.5,
    }
    served = {"served": 64, "goodput": 0.9, "ttft_ms": 80.5, "ttft_p99_ms": 190.0}
    served |= {"tpot_ms": 11.0, "tpot_p99_ms": 14.0, "kv_bytes": 2**25, "kv_ms": 3.5}
    together |= served
    monkeypatch.setattr(f"{__name__}.TEXT", f"{json.dumps(alone)}\n{json.dumps(together)}\n")
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    session = cast(Session, SimpleNamespace(hosts=Rank0(1), lab=lab))
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec("gpu01")))
    await collect_iterations(session, "mlp.1", record, tmp_path)
    (found,) = (p for p in read_points(tmp_path) if p.measurement == "collective")
    assert (found.fields["iter"], found.fields["size_bytes"], found.fields["wire_bytes"]) == (
        2,
        4000,
        1500,
    )
    assert (found.fields["resent_bytes"], found.fields["lost_share"]) == (90, 0.01)
    assert found.fields["wide_bytes"] == 700
    (asked,) = (p for p in read_points(tmp_path) if p.measurement == "requests")
    assert asked.fields == {"iter": 2} | {
        key: together[key]
        for key in ("requests", "hits", "asked_bytes", "found_ms", "found_p99_ms")
    }
    (answered,) = (p for p in read_points(tmp_path) if p.measurement == "serving")
    assert answered.fields == {"iter": 2} | served


GOOD = {"iter": 1, "iter_ms": 10.0, "t_wall_ns": 10**9}


def collected(hosts: object) -> tuple[Session, str, JobRecord]:
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    session = cast(Session, SimpleNamespace(hosts=hosts, lab=lab))
    return (
        session,
        "mlp.1",
        cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec("gpu01"))),
    )


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"iter": 2.5}, "iter is to be a whole number from 0 to 9007199254740992, and is 2.5"),
        ({"iter": 1e18}, "iter is to be a whole number from 0 to 9007199254740992, and is 1e+18"),
        ({"iter": "2"}, 'iter is to be a whole number from 0 to 9007199254740992, and is "2"'),
        ({"iter_ms": 1e18}, "iter_ms is to be a number from 0 to 1000000000, and is 1e+18"),
        ({"iter_ms": None}, "iter_ms is to be a number from 0 to 1000000000, and is null"),
        (
            {"t_wall_ns": 9.99e18},
            "t_wall_ns is to be a whole number from 0 to 4611686018427387904, and is 9.99e+18",
        ),
        (
            {"t_wall_ns": -1},
            "t_wall_ns is to be a whole number from 0 to 4611686018427387904, and is -1",
        ),
    ],
)
async def test_a_record_that_is_none_is_left_out_and_counted_and_the_others_of_its_piece_come_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: dict[str, object], why: str
) -> None:
    lines = [GOOD, GOOD | {"iter": 2} | odd, GOOD | {"iter": 3, "t_wall_ns": 3 * 10**9}]
    monkeypatch.setattr(f"{__name__}.TEXT", "".join(json.dumps(line) + "\n" for line in lines))
    found = await collect_iterations(*collected(Rank0(1)), tmp_path)
    assert [r["iter"] for r in found] == [1, 3] and (found.bad, found.why) == (1, why)
    assert [p.fields["iter"] for p in read_points(tmp_path)] == [1, 3]


async def test_a_whole_number_with_a_fraction_of_zero_is_one_and_another_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {
        "iter": 2.0,
        "iter_ms": 7,
        "t_wall_ns": 2e9,
        "bytes": 4000.0,
        "wire_bytes": 0.5,
        "algbw_gbps": 1.0,
        "steps": 1e300,
    }
    monkeypatch.setattr(f"{__name__}.TEXT", json.dumps(odd) + "\n")
    found = await collect_iterations(*collected(Rank0(1)), tmp_path)
    assert (found, found.bad) == (
        [{"iter": 2, "iter_ms": 7, "t_wall_ns": 2 * 10**9, "bytes": 4000, "algbw_gbps": 1.0}],
        0,
    )
    step, summed = read_points(tmp_path)
    assert step.fields["iter"] == summed.fields["iter"] == 2 and summed.fields["size_bytes"] == 4000
    assert "wire_bytes" not in summed.fields


class Written(OwnParts):
    """Rank 0's host, as its agent answers: whole lines of a file of bytes, at most `limit` bytes at
    once.
    """

    def __init__(self, data: bytes, limit: int = 120) -> None:
        self.data, self.limit, self.refuses = data, limit, ""

    async def tail(self, job: str, host: str, file: str, offset: int) -> Tail:
        if self.refuses:
            raise Refused(self.refuses)
        piece = self.data[offset : offset + self.limit]
        piece = piece[: piece.rfind(b"\n") + 1] or piece
        return Tail(
            piece.decode("utf-8", "replace"), offset + len(piece), len(self.data), "running"
        )

    async def clocks(self, names: list[str]) -> dict[str, ClockReading]:
        return dict.fromkeys(names, ClockReading(0, 2_000_000))


@pytest.mark.parametrize(
    "odd",
    [
        b"\xff\xfe \xc3",
        b"\xf0\x9f\x98",
        "\ufffd \u2028".encode(),
        b"\x85\x1e\x1c",
        b"\0" * 60,
        b"x" * 1000,
        b"\xff" * 1000,
        b"",
    ],
)
async def test_bytes_that_are_no_text_and_lines_too_long_cost_no_record_beside_them(
    tmp_path: Path, odd: bytes
) -> None:
    lines = [json.dumps(GOOD | {"iter": n, "t_wall_ns": n * 10**9}).encode() for n in range(1, 8)]
    hosts = Written(b"\n".join([*lines[:3], odd, *lines[3:]]) + b"\n")
    found = await collect_iterations(*collected(hosts), tmp_path)
    assert [r["iter"] for r in found] == [1, 2, 3, 4, 5, 6, 7] and found.bad == 1
    assert [p.fields["iter"] for p in read_points(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


async def test_what_a_job_put_in_the_place_of_its_records_ends_no_verb_and_is_told(
    tmp_path: Path,
) -> None:
    hosts = Written(json.dumps(GOOD).encode() + b"\n")
    session, name, record = collected(hosts)
    await collect_iterations(session, name, record, tmp_path)
    hosts.refuses = "gpu01: file iterations.jsonl is no plain file"
    found = await collect_iterations(session, name, record, tmp_path)
    assert (found, found.bad, found.why) == ([GOOD], 0, hosts.refuses)


async def test_two_at_once_bring_each_iteration_home_once(tmp_path: Path) -> None:
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    session = cast(Session, SimpleNamespace(hosts=Rank0(2), lab=lab))
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec("gpu01")))
    await asyncio.gather(
        *(collect_iterations(session, "mlp.1", record, tmp_path) for _ in range(2))
    )
    brought = (tmp_path / "mlp.1.iterations.jsonl").read_text()
    assert brought == TEXT


def test_whole_sums_are_those_of_every_iteration_since_the_exchange_before_also_in_a_last_short_round() -> (
    None
):
    wanted = Job("mlp", "train", ("gpu01", "gpu02", "gpu03", "gpu04"), args={"sync_every": 8})
    lines = [
        whole_bytes(wanted, {"iter": n, "bytes": 1000, "wire_bytes": 1500}) for n in (8, 16, 19)
    ]
    assert lines == [12_000, 12_000, 4_500], "8, 8 and 3 times 2 (n - 1) / n of 1000"
    assert (
        whole_bytes(wanted, {"iter": 8, "bytes": 1000}) is None
        and whole_bytes(wanted, {"iter": 7}) is None
    )
    records = [
        {"iter": n, **({"bytes": 1000, "wire_bytes": 1500} if n % 8 == 0 else {})}
        for n in range(1, 17)
    ]
    assert sent(wanted, records) == {"wire_bytes": 3000.0, "whole_bytes": 24_000.0}
    assert sent(wanted, records[:7]) is None


def test_what_a_checkpoint_costs_is_spread_over_the_iterations_between_two() -> None:
    records = [
        {"iter": n, **({"save_ms": 12.0} if n % 10 == 1 and n > 1 else {})} for n in range(1, 42)
    ]
    assert saves(records) == {"each_ms": 12.0, "every": 10.0, "iteration_ms": 1.2}
    assert saves(records[:10]) is None


def test_lines_that_another_command_is_writing_are_left_to_it(tmp_path: Path) -> None:
    """It may be stopped in the middle of it (Ctrl-Z): nobody waits for it."""
    file = tmp_path / "iterations.jsonl"
    with file.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not append(file, 0, b"{}\n")
    assert (
        append(file, 0, b"{}\n") and file.read_bytes() == b"{}\n" and not append(file, 0, b"{}\n")
    )
