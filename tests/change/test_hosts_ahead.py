"""Hosts that know a newer run than a store can make: told, seen by `doctor`, and taken back by a
word of the operator's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from optics import HostName, Locked, Unreachable
from orchestrator.hosts import Hello
from orchestrator.hosts.channel import hello_of, refusal
from orchestrator.store.audit import audit
from orchestrator.store.locks import next_token
from orchestrator.verbs.fencing import take_hosts
from tests.drills.bench import Bench, opened, plan_text

ONE = [("gpu01:p1", "gpu02:p1")]
YEAR_S = 365 * 86_400


class Fences:
    """What committers do with tokens (`agent/fence.py`)."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.highest = dict.fromkeys(bench.fleet.all, 0)
        self._hello = bench.fleet.hello
        monkeypatch.setattr(bench.fleet, "hello", self.hello)
        monkeypatch.setattr(bench.fleet.channels, "fence", self.fence)

    def hello(self, name: HostName) -> Hello:
        return replace(self._hello(name), token=self.highest[name])

    async def fence(self, token: int, names: Collection[HostName]) -> None:
        for name in names:
            if token < self.highest[name]:
                raise refusal(
                    name,
                    {
                        "code": "overtaken",
                        "error": f"a newer run, with token {self.highest[name]}, holds this host",
                    },
                )
            self.highest[name] = token


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=2) as made:
        yield made


@pytest.fixture
def fences(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Fences:
    return Fences(bench, monkeypatch)


async def test_after_a_run_with_a_clock_a_year_ahead_and_a_new_store_a_word_of_the_operators_opens_the_lab(
    bench: Bench, fences: Fences, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + YEAR_S)
    await bench.up(plan_text("one", ONE))
    monkeypatch.setattr(time, "time", wall)
    bench.settings().store_path.rename(bench.folder / "lost")
    with pytest.raises(Locked, match="holds this host") as shut:
        await bench.up(plan_text("one", ONE))
    assert "testbed doctor" in shut.value.hint
    report = await bench.verb(take_hosts, "the store was lost")
    assert (
        set(report.hosts) == {"gpu01", "gpu02"}
        and report.token == max(fences.highest.values())
        and not report.silent
    )
    with bench.store() as store:
        assert next_token(store, bench.key) == report.token + 1
        (record,) = (r for r in audit(store, bench.key) if r.what == "hosts taken")
        assert "the store was lost" in record.why
        run = store.new_run("up", bench.key)
    await fences.fence(run.token, bench.fleet.all)
    assert not (await bench.verb(take_hosts, "again")).hosts, (
        "a second time there is nothing to take"
    )


async def test_hosts_that_know_no_newer_run_are_left_as_they_are(
    bench: Bench, fences: Fences
) -> None:
    await bench.up(plan_text("one", ONE))
    with bench.store() as store:
        before = store.last_token(bench.key)
    assert not (await bench.verb(take_hosts, "just so")).hosts
    with bench.store() as store:
        assert store.last_token(bench.key) == before


async def test_hosts_that_do_not_answer_are_named_and_if_none_does_nothing_is_taken(
    bench: Bench, fences: Fences
) -> None:
    fences.highest["gpu01"] = int(time.time()) + YEAR_S
    bench.fleet.all["gpu02"].up = False
    report = await bench.verb(take_hosts, "clock")
    assert list(report.hosts) == ["gpu01"] and list(report.silent) == ["gpu02"]
    bench.fleet.all["gpu01"].up = False
    with pytest.raises(Unreachable, match="gpu01"):
        await bench.verb(take_hosts, "clock")


def test_a_host_says_the_highest_token_it_knows() -> None:
    reply = dict.fromkeys(("host", "provision", "active", "previous", "armed")) | {
        "ports": {},
        "staged": [],
        "congctl": [],
    }
    assert hello_of(reply | {"token": 17}, True).token == 17
