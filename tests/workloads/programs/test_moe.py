"""A mixture of experts between local processes: it learns, and says before it sends what it is
going to send.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.jobs import demand
from tests.workloads.ranks import ranks, records
from workloads.programs.moe import kept, shares

COMMAND = (
    "-m",
    "workloads.programs.moe",
    "--iterations",
    "12",
    "--tokens",
    "256",
    "--width",
    "16",
    "--skew",
    "1.2",
    "--drift",
    "6",
)


def test_a_mixture_of_experts_learns_and_its_file_has_the_bytes_that_it_sends(
    tmp_path: Path,
) -> None:
    with ranks(3, *COMMAND, directory=tmp_path) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 3
    summary = json.loads((tmp_path / "0" / "summary.json").read_text())
    assert summary["ok"] and summary["iterations"] == 12
    assert summary["last_loss"] < 0.9 * summary["first_loss"], (
        "gradients came back to whom they belong"
    )
    lines = records(tmp_path)
    for rank in range(3):
        found = demand.read(str(tmp_path / str(rank) / "demand"), -1)
        assert (found["rank"], found["world"], found["step"]) == (rank, 3, 25)
        for iteration, begin, gate, end, to in found["rows"]:
            assert 5 <= iteration <= 12 and begin <= gate <= end and to[rank] == 0 and len(to) == 3
        if rank == 0:
            assert [sum(to) for *_, to in found["rows"]] == [line["bytes"] for line in lines[-8:]]


NOTED = """
from workloads.programs.moe import main
from workloads.transport.relay import Relay
begin = Relay.begin
Relay.begin = lambda relay: (print("passes on", flush=True), begin(relay))
main()
"""


def test_tokens_that_a_rank_of_the_domain_passes_on_train_the_same_weights(tmp_path: Path) -> None:
    found = []
    for name, more in (("straight", ()), ("relayed", ("--domain", "2"))):
        with ranks(4, "-c", NOTED, *COMMAND[2:], *more, directory=tmp_path / name) as job:
            ended = job.finish()
        assert [(code, err) for code, _, err in ended] == [(0, "")] * 4
        assert all(("passes on" in out) == bool(more) for _, out, _ in ended)
        found.append(
            [(line["loss"], line["bytes"], line["dropped"]) for line in records(tmp_path / name)]
        )
    assert len(found[0]) == 12 and found[0] == found[1]


def test_every_topic_has_had_every_place_once_all_shifts_are_through() -> None:
    over = [shares(6, 2, 1.2, shift, 1) for shift in range(6)]
    assert all(sum(each) == pytest.approx(1.0) for each in over)
    assert [sum(column) / 6 for column in zip(*over, strict=True)] == pytest.approx([1 / 6] * 6)
    assert over[0].index(max(over[0])) == over[1].index(sorted(over[1])[-2]), (
        "the most frequent becomes the second"
    )
    assert shares(6, 2, 1.2, 0, 1) != shares(6, 3, 1.2, 0, 1), "each rank has an order of its own"


def test_an_expert_takes_no_more_tokens_than_its_capacity() -> None:
    assert kept([2, 2, 0, 2, 2], 3, 3) == [[2], [], [0, 1, 3]]
    assert kept([2, 2, 0, 2, 2], 3, 0) == [[2], [], [0, 1, 3, 4]]
