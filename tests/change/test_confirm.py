"""A change that stands only if somebody says so in time; judged by what devices and hosts hold, and
by what the store says.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from optics import Interlock, Interrupted, Locked, Missing, NotVerified, Unreachable
from orchestrator.change import confirm as confirming
from orchestrator.change import expiry as overdue
from orchestrator.change import run as changes
from orchestrator.change.up import Up
from orchestrator.cli import render
from orchestrator.cli.text import when
from orchestrator.store import confirmations
from orchestrator.store.confirmations import Awaited, Confirmations
from orchestrator.store.locks import who
from orchestrator.verbs import change as engine
from tests.drills.bench import Bench, Killed, Process, opened, plan_text

RING = [("gpu01:p1", "gpu02:p1"), ("gpu02:p2", "gpu03:p2")]
MOVED = [("gpu01:p3", "gpu02:p3"), ("gpu01:p2", "gpu02:p2")]  # nothing stays, and gpu03 leaves
WITHIN_S = 60.0


class Clock:
    """The clock that nobody sets, which the test does."""

    def __init__(self) -> None:
        self.ns = 10**12

    def __call__(self) -> int:
        return self.ns

    def pass_s(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (confirming, confirmations):
        monkeypatch.setattr(module, "boot_clock_ns", made)
    monkeypatch.setattr(overdue, "LOOK_S", 0.01)
    monkeypatch.setattr(overdue, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(changes, "watch_over", lambda settings, run: os.getpid())
    return made


@pytest.fixture
async def bench(tmp_path: Path, clock: Clock) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as made:
        yield made


async def waiting(bench: Bench, links: list[tuple[str, str]] = MOVED) -> str:
    """A ring is up, and another plan waits to be confirmed; return its run."""
    await bench.up(plan_text("ring", RING))
    report = await bench.up(plan_text("moved", links), confirm_s=WITHIN_S)
    assert (
        report.confirm.run == report.run
        and report.confirm.back == "ring"
        and report.confirm.watched
    )
    return str(report.run)


def record(bench: Bench) -> Awaited:
    with bench.store() as store:
        found = Confirmations(store, bench.tenancy(), who(bench.settings())).last()
    assert found is not None
    return found


def alone(bench: Bench) -> None:
    """The hosts' own time is over."""
    for host in bench.fleet.all.values():
        if host.pending:
            host.active, host.previous, host.pending = host.pending_to, None, False


async def is_up(bench: Bench, name: str, links: list[tuple[str, str]]) -> None:
    """This plan and nothing else is up, and nobody owes anything."""
    status = await bench.status()
    assert status.plan == name and status.ok and status.confirm is None, status
    assert bench.held() == bench.wanted(links) and not bench.dark(links)
    assert not bench.owing() and not bench.locked() and not bench.violations()
    hosts = {port.partition(":")[0] for link in links for port in link}
    assert {n for n, g in bench.fleet.all.items() if g.active is not None} == hosts


async def test_it_waits_with_hosts_that_will_go_back_and_says_so(bench: Bench) -> None:
    run = await waiting(bench)
    assert bench.owing() == ["gpu01", "gpu02"], "both hosts of the new plan count down"
    ring = record(bench).generation - 1
    assert bench.fleet.all["gpu03"].active == ring, (
        "a host that leaves keeps its routes as the way back"
    )
    status = await bench.status()
    assert (status.plan, status.confirm.run, status.confirm.back) == ("moved", run, "ring")
    text = render.status(status, False)
    assert f"confirm  within {status.confirm.left_s // 60:.0f} min" in text
    assert "or it is rolled back to ring: testbed confirm" in text


class Launch:
    """A launch that takes longer than there is to confirm. during: what happens in it."""

    def __init__(
        self,
        bench: Bench,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
        during: Callable[[], Any] = lambda: None,
    ) -> None:
        self.bench, self.clock, self.during = bench, clock, during
        self.left_s, self.reverts_s = 0.0, list[float]()
        commit = bench.fleet.routes.commit

        async def committed(
            generation: int, names: Any = None, revert_after_s: float | None = None
        ) -> Any:
            self.reverts_s += [revert_after_s] if revert_after_s is not None else []
            return await commit(generation, names, revert_after_s)

        monkeypatch.setattr(bench.fleet.routes, "commit", committed)
        monkeypatch.setattr(Up, "_job", lambda *_, **__: self.job())

    async def job(self) -> None:
        self.left_s = record(self.bench).left_s()
        self.clock.pass_s(self.left_s - 1)
        watch = asyncio.create_task(self.bench.verb(engine.watch, None))
        await asyncio.sleep(0.05)
        assert record(self.bench).state == "pending", "nothing goes back while the job is launched"
        watch.cancel()
        await asyncio.wait([watch])
        self.during()


async def test_the_time_to_confirm_begins_when_the_job_is_launched_and_up_ends(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(bench, clock, monkeypatch)
    report = await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    assert launch.left_s > WITHIN_S, "meanwhile it is longer than `up` may still take"
    assert report.confirm.left_s == record(bench).left_s() == WITHIN_S
    longer_s, shorter_s = launch.reverts_s
    assert (
        longer_s - confirming.REVERT_MARGIN_S == pytest.approx(launch.left_s)
        and shorter_s == WITHIN_S + confirming.REVERT_MARGIN_S
    )
    assert (
        render.up(report, False)
        .splitlines()[-1]
        .startswith(f"Up until {when(report.confirm.due)}, unless confirmed: moved")
    )
    clock.pass_s(WITHIN_S + 1)
    assert (await bench.verb(engine.watch, None)).state == "reverted"
    await is_up(bench, "", [])


@pytest.mark.parametrize("watched", [True, False], ids=["somebody watches", "nobody watches"])
async def test_an_up_that_is_killed_while_its_job_is_launched_leaves_a_change_that_goes_back(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    await bench.up(plan_text("ring", RING))
    process = Process("")

    def die() -> None:
        process.dead = True
        process.alive()

    process.points.append("in the launch")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        launch = Launch(bench, clock, patched, die)
        await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S, process=process)
    assert record(bench).left_s() == pytest.approx(1) and bench.owing() == ["gpu01", "gpu02"]
    (revert_s,) = launch.reverts_s
    assert revert_s == pytest.approx(launch.left_s + confirming.REVERT_MARGIN_S), (
        "hosts go back by themselves, after the deadline"
    )
    clock.pass_s(2)
    if watched:
        assert (await bench.verb(engine.watch, None)).state == "reverted"
    else:
        alone(bench)
        await bench.up(plan_text("ring", RING))
    await is_up(bench, "ring", RING)


async def test_whoever_watches_counts_from_the_death_of_up_and_not_from_its_longest_life(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process("")

    async def died(*_: object, **__: object) -> None:
        process.points.append("in the launch")
        process.dead = True
        process.alive()

    monkeypatch.setattr(Up, "_job", died)
    with pytest.raises(Killed):
        await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S, process=process)
    assert record(bench).left_s() > WITHIN_S
    watch = asyncio.create_task(bench.verb(engine.watch, None))
    await asyncio.sleep(0.05)
    assert record(bench).left_s() == WITHIN_S and not watch.done()
    clock.pass_s(WITHIN_S + 1)
    assert (await watch).state == "reverted"
    await is_up(bench, "", [])


@pytest.mark.parametrize(
    "how",
    [NotVerified("rank 2: no peer", hint="testbed job logs"), asyncio.CancelledError()],
    ids=["fails", "Ctrl-C"],
)
async def test_an_up_whose_job_does_not_start_says_when_the_change_goes_back(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch, how: BaseException
) -> None:
    await bench.up(plan_text("ring", RING))

    def fail() -> None:
        raise how

    launch = Launch(bench, clock, monkeypatch, fail)
    with pytest.raises((NotVerified, Interrupted)) as error:
        await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    text = r"moved is up, and goes back to ring in 1 min 00 s, at \d\d:\d\d:\d\d, unless it is confirmed; its job"
    assert re.search(text, str(error.value)) and "stays up" not in str(error.value)
    assert "to keep it: testbed confirm; to roll it back now: testbed rollback" in str(
        error.value.hint
    )
    assert (
        record(bench).left_s() == WITHIN_S < launch.left_s
        and launch.reverts_s[-1] == WITHIN_S + confirming.REVERT_MARGIN_S
    )


async def test_a_host_that_does_not_hear_when_the_time_begins_counts_the_longer_one(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(
        bench, clock, monkeypatch, lambda: setattr(bench.fleet.all["gpu02"], "up", False)
    )
    report = await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    assert report.confirm.left_s == WITHIN_S and len(launch.reverts_s) == 2
    bench.fleet.all["gpu02"].up = True
    await bench.verb(engine.confirm, None)
    await is_up(bench, "moved", MOVED)


async def test_confirmed_it_stands_and_the_hosts_that_left_are_cleared(
    bench: Bench, clock: Clock
) -> None:
    run = await waiting(bench)
    report = await bench.verb(engine.confirm, None)
    assert (report.of, report.plan, report.hosts) == (run, "moved", 2)
    await is_up(bench, "moved", MOVED)
    clock.pass_s(2 * WITHIN_S)
    assert (await bench.verb(engine.watch, run)).state == "confirmed"
    assert (await bench.verb(engine.confirm, run)).already
    await is_up(bench, "moved", MOVED)
    await bench.verb(engine.rollback, None)
    await is_up(bench, "ring", RING)


@pytest.mark.parametrize("hosts", ["still there", "back already", "half of them back"])
async def test_unconfirmed_light_and_hosts_go_back_to_what_was(
    bench: Bench, clock: Clock, hosts: str
) -> None:
    run = await waiting(bench)
    watch = asyncio.create_task(bench.verb(engine.watch, run))
    await asyncio.sleep(0.05)
    assert not watch.done() and bench.owing()
    if hosts == "half of them back":
        bench.fleet.all["gpu01"].active, bench.fleet.all["gpu01"].pending = (
            bench.fleet.all["gpu01"].pending_to,
            False,
        )
    elif hosts == "back already":
        alone(bench)
    clock.pass_s(WITHIN_S + 1)
    assert (await watch).state == "reverted"
    await is_up(bench, "ring", RING)
    with pytest.raises(
        Interlock,
        match=f"run {run} .moved. was rolled back by run .*, as it was not confirmed in time",
    ):
        await bench.verb(engine.confirm, None)


async def test_without_a_plan_before_it_goes_back_to_nothing(bench: Bench, clock: Clock) -> None:
    report = await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    assert report.confirm.back == "" and "or it is rolled back to no plan" in render.up(
        report, False
    )
    clock.pass_s(WITHIN_S + 1)
    assert (await bench.verb(engine.watch, None)).state == "reverted"
    await is_up(bench, "", [])


@pytest.mark.parametrize(
    "reverted", [False, True], ids=["hosts still there", "hosts back by themselves"]
)
async def test_when_nobody_watches_the_next_command_takes_it_back_first_and_says_so(
    bench: Bench, clock: Clock, reverted: bool
) -> None:
    run = await waiting(bench)
    clock.pass_s(WITHIN_S + 1)
    if reverted:
        alone(bench)
    held = bench.held()
    status = await bench.status()
    assert status.confirm.left_s < 0 and bench.held() == held, "a look changes nothing"
    assert "confirm  overdue since" in render.status(status, False)
    other = [("gpu02:p3", "gpu03:p3")]
    report = await bench.up(plan_text("other", other))
    assert report.notes[0].startswith(f"run {run} (moved) was not confirmed in time; run ")
    assert report.notes[0].endswith(" went back to ring")
    await is_up(bench, "other", other)
    with bench.store() as store:
        back = store.get(record(bench).ended_by)
        assert back is not None and (back.verb, back.plan_name, back.status) == (
            "rollback",
            "ring",
            "ok",
        )


async def test_a_confirmation_that_comes_too_late_takes_it_back(bench: Bench, clock: Clock) -> None:
    run = await waiting(bench)
    clock.pass_s(WITHIN_S + 1)
    with pytest.raises(
        Interlock, match=f"run {run} .moved. was not confirmed in time; run .* went back to ring"
    ):
        await bench.verb(engine.confirm, None)
    await is_up(bench, "ring", RING)


async def test_rollback_and_down_end_the_waiting_and_nothing_comes_after(
    bench: Bench, clock: Clock
) -> None:
    run = await waiting(bench)
    await bench.verb(engine.rollback, None)
    await is_up(bench, "ring", RING)
    clock.pass_s(WITHIN_S + 1)
    assert (await bench.verb(engine.watch, run)).state == "superseded"
    await is_up(bench, "ring", RING)
    await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    await bench.verb(engine.down)
    clock.pass_s(WITHIN_S + 1)
    await bench.up(plan_text("ring", RING))
    await is_up(bench, "ring", RING)


async def test_a_rollback_that_comes_after_it_was_taken_back_does_not_bring_it_up_again(
    bench: Bench, clock: Clock
) -> None:
    run = await waiting(bench)
    clock.pass_s(WITHIN_S + 1)
    await bench.verb(engine.watch, None)
    with pytest.raises(Interlock, match=f"run {run}, was rolled back by run .* already"):
        await bench.verb(engine.rollback, None)
    await is_up(bench, "ring", RING)


async def test_meanwhile_other_changes_are_refused_with_both_commands(bench: Bench) -> None:
    run = await waiting(bench)
    (bench.folder / "next.json").write_text(plan_text("next", RING))
    for change in (
        lambda: bench.up(plan_text("other", RING)),
        lambda: bench.up(plan_text("moved", MOVED)),
        lambda: bench.verb(engine.restore),
        lambda: bench.verb(engine.prewire, bench.folder / "next.json"),
    ):
        with pytest.raises(
            Interlock, match=f"run {run} .moved. waits to be confirmed within"
        ) as refused:
            await change()
        assert (
            "testbed confirm" in refused.value.hint
            and f"testbed rollback {run}" in refused.value.hint
        )
    await bench.verb(engine.confirm, run)
    await is_up(bench, "moved", MOVED)


async def test_the_hosts_stay_its_owners_until_it_is_decided(bench: Bench, clock: Clock) -> None:
    await waiting(bench)
    bobs = [("gpu01:p4", "gpu02:p4")]
    with pytest.raises(Locked, match=r"is reserved by .*waits to be confirmed: moved"):
        await bench.up(plan_text("bobs", bobs), owner="bob")
    clock.pass_s(WITHIN_S + 1)
    with pytest.raises(Locked):
        # overdue or not, it is ann's to put right
        await bench.up(plan_text("bobs", bobs), owner="bob")
    await bench.verb(engine.down)
    await bench.up(plan_text("bobs", bobs), owner="bob")
    assert not bench.dark(bobs)


async def test_a_wall_clock_that_is_set_neither_shortens_nor_stretches_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S14."""
    await waiting(bench)
    wall, boot = time.time(), confirmations.boot_id()
    for step in (-86_400, 86_400):
        monkeypatch.setattr(confirmations.time, "time", lambda now=wall + step: now)
        assert record(bench).left_s() == WITHIN_S
    # Only where the machine restarted the wall clock is all there is, and never makes it longer
    # than it was.
    monkeypatch.setattr(confirmations, "boot_id", lambda: f"not {boot}")
    monkeypatch.setattr(confirmations.time, "time", lambda: wall - 86_400)
    assert record(bench).left_s() == WITHIN_S
    monkeypatch.setattr(confirmations.time, "time", lambda: wall + 2 * WITHIN_S)
    assert record(bench).left_s() < 0
    monkeypatch.undo()


async def test_a_host_that_runs_something_else_or_is_silent_keeps_it_from_being_confirmed(
    bench: Bench, clock: Clock
) -> None:
    run = await waiting(bench)
    bench.fleet.all["gpu02"].up = False
    with pytest.raises(Unreachable, match=r"gpu02: .*\nnothing was confirmed"):
        await bench.verb(engine.confirm, None)
    bench.fleet.all["gpu02"].up = True
    assert bench.owing() == ["gpu01", "gpu02"]
    lost = bench.fleet.all["gpu02"]
    lost.active, lost.pending = lost.pending_to, False
    with pytest.raises(
        NotVerified, match=r"gpu02 runs generation 1\nnot the plan's .2., so nothing was confirmed"
    ) as refused:
        await bench.verb(engine.confirm, None)
    assert f"testbed rollback {run}" in refused.value.hint and bench.owing() == ["gpu01"]
    clock.pass_s(WITHIN_S + 1)
    assert (await bench.verb(engine.watch, None)).state == "reverted"
    await is_up(bench, "ring", RING)


async def test_a_way_back_that_cannot_be_gone_yet_is_tried_until_it_can(
    bench: Bench, clock: Clock
) -> None:
    await waiting(bench)
    clock.pass_s(WITHIN_S + 1)
    bench.fleet.all["gpu01"].up = False
    watch = asyncio.create_task(bench.verb(engine.watch, None))
    await asyncio.sleep(0.3)
    assert record(bench).state == "pending" and not watch.done()
    with pytest.raises(
        Unreachable, match="was not confirmed in time, and is not rolled back: gpu01"
    ):
        await bench.up(plan_text("other", RING))
    bench.fleet.all["gpu01"].up = True
    report = await watch
    assert report.state == "reverted" and report.tries > 1
    await is_up(bench, "ring", RING)


async def test_a_change_that_fails_is_taken_back_at_once_and_waits_for_nobody(bench: Bench) -> None:
    await bench.up(plan_text("ring", RING))
    steps = len(bench.requests.names)
    await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    last = len(bench.requests.names) - steps - 1
    ends = [name.startswith("hosts: commit") for name in bench.requests.names[-2:]]
    assert ends == [True, True], (
        "the hosts' own countdown comes last, and once more when the time to confirm begins"
    )
    await bench.verb(engine.rollback, None)
    bench.requests.fail = {len(bench.requests.names) + last: "refused"}
    with pytest.raises(Exception, match="rolled back, everything is as before"):
        await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    await is_up(bench, "ring", RING)
    with pytest.raises(Interlock, match="was rolled back by run"):
        await bench.verb(engine.confirm, None)


async def test_where_nothing_changes_nothing_waits(bench: Bench) -> None:
    with pytest.raises(Missing, match="nothing waits to be confirmed"):
        await bench.verb(engine.confirm, None)
    await bench.up(plan_text("ring", RING))
    report = await bench.up(plan_text("ring", RING), confirm_s=WITHIN_S)
    assert report.confirm is None and "nothing waits to be confirmed" in report.notes[-1]
    assert not bench.locked()


async def test_a_run_that_died_while_it_waited_can_be_resumed_and_then_waits_anew_for_the_same_way_back(
    bench: Bench, clock: Clock
) -> None:
    await bench.up(plan_text("ring", RING))
    process = Process("")

    def last_word(name: str) -> None:
        process.kill_at = len(process.points) if name == "after hosts commit 2" else 0

    process.act = last_word
    with pytest.raises(Killed):
        await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S, process=process)
    died = record(bench).run
    clock.pass_s(WITHIN_S / 2)
    report = await bench.verb(engine.resume, died)
    assert report.confirm.run == report.run != died and report.confirm.left_s == WITHIN_S
    assert (record(bench).undo, len(bench.locked())) == (died, 1)
    clock.pass_s(WITHIN_S + 1)
    assert (await bench.verb(engine.watch, died)).state == "superseded"
    assert (await bench.verb(engine.watch, None)).state == "reverted"
    await is_up(bench, "ring", RING)


async def test_a_way_back_that_was_killed_half_way_is_gone_by_the_next_command(
    bench: Bench, clock: Clock
) -> None:
    await bench.up(plan_text("ring", RING))
    await bench.up(plan_text("moved", MOVED), confirm_s=WITHIN_S)
    clock.pass_s(WITHIN_S + 1)
    process, held = Process(""), bench.held()

    def act(name: str) -> None:
        if bench.held() != held and not process.kill_at:
            process.kill_at = len(process.points)

    process.act = act
    with pytest.raises(Killed):
        await bench.verb(engine.watch, None, process=process)
    alone(bench)
    assert (await bench.status()).confirm is not None
    await bench.up(plan_text("ring", RING))
    await is_up(bench, "ring", RING)


async def test_where_nothing_moves_nothing_has_to_be_confirmed_and_that_is_said(
    bench: Bench,
) -> None:
    await bench.up(plan_text("ring", RING))
    report = await bench.up(plan_text("ring", RING), confirm_s=WITHIN_S)
    assert (
        report.nothing_to_do and "nothing was changed, nothing has to be confirmed" in report.notes
    )
