"""What is found of jobs that share links, what is told, and how they are paced; hosts are stood
in for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extensions.congestion.plan import Congestion
from extensions.pacing import coordinator as module
from extensions.pacing import text
from extensions.pacing.coordinator import LONGER, Coordinator
from extensions.pacing.links import Use
from extensions.pacing.measure import Seen, Tenant, _seen, iterations, none_runs, stepped
from extensions.pacing.options import CoordinateOptions
from extensions.pacing.phases import Phases
from extensions.pacing.report import FITS, PhasesReport, answer
from extensions.pacing.service import KIND, CoordinateState
from optics import HostPort, Infeasible, Missing, NotVerified, Unreachable
from optics.plan import Job
from orchestrator.background.kind import StateFile
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts import Heartbeat
from orchestrator.hosts.api import RankTimes
from orchestrator.jobs.attachments import attachment
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.keys import key_of, tenancy_key
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store
from tests.hosts.parts import OwnParts
from tests.house.repository import ROOT
from tests.kit.jobs import spec
from tests.services.schedule.fabric import HERE

LINK = "tree rack 1 up"


def tenant(owner: str, *, paceable: bool = True, number: int = 0) -> Tenant:
    port = HostPort(f"gpu-{owner}", 1)
    used = Use({port: 500_000.0}, {LINK: {port: 500_000.0}}, {LINK: 100.0}, declared=True)
    return Tenant(
        owner,
        f"lab/{owner}",
        "job",
        f"job.{owner}",
        number or ord(owner[0]),
        (f"gpu-{owner}",),
        used,
        paceable,
    )


def seen(owner: str, compute_ms: float, burst_ms: float, **more: Any) -> Seen:
    size = 95.0 * burst_ms * 1e3 / 8
    phases = Phases(compute_ms + burst_ms, ((compute_ms, compute_ms + burst_ms, 95.0),))
    return Seen(
        tenant(owner, **more),
        phases,
        "records",
        {LINK: size},
        compute_ms + 2 * burst_ms,
    )


def heartbeat(
    rows: list[tuple[float, float, float]], first: int = 1, gap_ms: float = 0.0
) -> Heartbeat:
    at, times = 0, []
    for number, (whole, compute, exposed) in enumerate(rows, first):
        times.append(RankTimes(number, at, whole, compute, exposed, 0.0))
        at += int((whole + gap_ms) * 1e6)
    return Heartbeat("gpu-a", "running", None, first + len(rows), "compute", 0.0, tuple(times))


def test_jobs_that_fit_are_shifted_into_each_others_computing() -> None:
    found = answer("lab", [seen("ann", 60, 50), seen("bob", 60, 50)])
    assert found.fits and found.score == 1
    one, two = found.jobs
    assert one.paced_ms == two.paced_ms == 113  # 110 ms and the slack of 2 %
    assert 50 <= abs(two.shift_ms - one.shift_ms) <= 63
    assert "score 1.00" in found.message and "######" in text.text(found)


def test_jobs_that_do_not_fit_are_told_so_and_with_force_get_longer_periods() -> None:
    alike = [seen("ann", 30, 70), seen("bob", 30, 70)]
    found = answer("lab", alike)
    assert not found.fits and found.score < FITS and "do not fit" in found.message
    forced = answer("lab", alike, force=True)
    assert forced.fits and forced.jobs[0].paced_ms > 130


def test_an_unknown_period_is_refused_with_what_to_do() -> None:
    lost = Seen(
        tenant("bob"), None, error="no period shows in what the job sends", hint="sample for longer"
    )
    found = answer("lab", [seen("ann", 60, 50), lost])
    assert (
        found.refused == "bob:job: no period shows in what the job sends"
        and found.hint == "sample for longer"
        and not found.fits
    )
    apart = Use({}, {"other": {}}, {"other": 1.0}, declared=True)
    other = replace(lost, tenant=replace(tenant("cat"), use=apart))
    assert answer("lab", [seen("ann", 60, 50), seen("bob", 60, 50), other]).fits, (
        "it shares nothing"
    )


def ended(state: str, code: int | None = None) -> Seen:
    over = replace(heartbeat([(108, 60, 48)] * 12), state=state, code=code)
    return _seen(tenant("cat"), [over, over], {}, False)


def test_a_job_that_does_not_run_any_more_is_said_to_be_and_holds_up_no_other() -> None:
    finished, failed, absent = ended("exited", 0), ended("exited", 75), ended("absent")
    assert (finished.error, failed.error) == ("finished", "failed") and "launched" in absent.error
    found = answer("lab", [seen("ann", 60, 50), seen("bob", 60, 50), finished])
    assert found.fits and "finished" in text.text(found)
    alone = answer("lab", [seen("ann", 60, 50), finished])
    assert not alone.links and alone.message == "no two jobs share a link: nothing to shift"


def test_where_no_job_runs_it_is_said_what_became_of_the_latest(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite3") as store:
        key = key_of(HERE)
        more = {"plan_name": "p", "plan_sha": "", "plan_text": "{}"}
        store.set_current(tenancy_key(key, "ann"), "r", **more, up=UpState(), generation=1)
        assert str(none_runs(store, HERE)) == "no job runs on this lab"
        number = store.add_job(tenancy_key(key, "ann"), "r", "mlp", spec())
        assert (
            str(none_runs(store, HERE))
            == "no job runs on this lab whose phases can be seen: ann:mlp starting"
        )
        store.set_job(number, "finished", ended=True)
        assert str(none_runs(store, HERE)) == "no job runs on this lab: ann:mlp finished"


def test_the_time_of_an_exchange_is_that_after_the_slowest_rank_has_computed() -> None:
    assert (
        iterations([heartbeat([(100, 60, 40)] * 3), heartbeat([(100, 80, 20)] * 3)])
        == [(100, 80, 20)] * 3
    )
    assert (
        iterations([heartbeat([(100, 60, 40)] * 3), heartbeat([(100, 60, 40)] * 3, first=2)])
        == [(100, 60, 40)] * 2
    )
    assert iterations([heartbeat([(100, 0, 0)] * 3)]) == [] and iterations([]) == []


def test_what_is_between_two_iterations_counts_as_computing_unless_the_ranks_wait_there_for_their_pace() -> (
    None
):
    # 500 kB at 95 Mb/s take 42.1 ms; they took 80 beside another job
    one, port = tenant("ann"), HostPort("gpu-ann", 1)
    curves = stepped({port: [(k * 1_000_000, k * 5_000) for k in range(1_000)]})
    free = _seen(one, [heartbeat([(140, 60, 80)] * 9, gap_ms=10)], curves, paced=False)
    assert free.phases is not None and free.phases.period_ms == pytest.approx(
        60 + 10 + 42.1, abs=0.1
    )
    assert (free.now_ms, free.between_ms, free.source) == (150, 10, "records")
    paced = _seen(one, [heartbeat([(140, 60, 80)] * 9, gap_ms=10)], curves, paced=True)
    assert paced.phases is not None and paced.phases.period_ms == pytest.approx(60 + 42.1, abs=0.1)


def test_a_job_whose_computing_varies_is_paced_by_the_longest_that_was_seen() -> None:
    curves = stepped(
        {
            HostPort(f"gpu-{name}", 1): [(k * 1_000_000, k * 5_000) for k in range(1_000)]
            for name in ("ann", "bob")
        }
    )
    rows = [(140.0, 60.0, 80.0)] * 8 + [(148.0, 68.0, 80.0)]
    one, two = (
        _seen(tenant(name), [heartbeat(rows)], curves, paced=False) for name in ("ann", "bob")
    )
    assert one.spread_ms == 8.0 and one.phases is not None
    assert {job.paced_ms for job in answer("lab", [one, two]).jobs} == {
        math.ceil(one.phases.period_ms + 8.0)
    }


def test_a_program_that_does_not_say_when_it_computes_shows_it_in_its_ports_samples() -> None:
    one, port = tenant("ann"), HostPort("gpu-ann", 1)
    sent, lines = 0, []
    for k in range(3_000):
        lines.append((k * 1_000_000, sent))
        sent += 12_000 if k % 120 >= 80 else 0
    found = _seen(one, [], stepped({port: lines}), paced=False)
    assert (
        found.phases is not None
        and found.source == "samples"
        and found.phases.period_ms == pytest.approx(120, abs=1)
    )
    steady = _seen(
        one, [], stepped({port: [(k * 1_000_000, k * 100) for k in range(500)]}), paced=False
    )
    assert steady.phases is None and steady.error


def test_the_picture_has_an_arc_for_every_burst_on_the_circle() -> None:
    found = answer("lab", [seen("ann", 60, 50), seen("bob", 170, 50)])
    assert [job.paced_ms for job in found.jobs] == [113, 226]
    drawn = text.svg(found)
    assert drawn.count("<path") == 3 and "score 1.00" in drawn and "ann:job" in drawn
    assert "no two jobs" in text.svg(PhasesReport("lab", ()))


class Hosts(OwnParts):
    """Writes down what it is asked; `down`: it fails."""

    def __init__(self) -> None:
        self.applied: list[tuple[str, dict[str, Any]]] = []
        self.down, self.ring_changes = False, self
        self.rows: list[tuple[float, float, float]] = [(108, 60, 48)] * 12

    async def connect(self, names: Collection[str]) -> Mapping[str, object]:
        return dict.fromkeys(names)

    async def pace(self, job: str, ranks: Collection[str], **how: Any) -> int:
        if self.down:
            raise Unreachable("gpu01: no answer")
        self.applied.append((job, how))
        return len(ranks)

    async def unpace(self, job: str, ranks: Collection[str], by: str = "") -> None:
        self.applied.append((job, {}))

    async def heartbeats(self, job: str, ranks: Collection[str]) -> Mapping[str, Heartbeat]:
        return {rank: heartbeat(self.rows) for rank in ranks}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A coordinator whose looks follow each other at once. running: what the store says; found:
    what is measured.
    """
    hosts, given = (
        Hosts(),
        SimpleNamespace(
            running=[tenant("ann"), tenant("bob")], found=[seen("ann", 60, 50), seen("bob", 60, 50)]
        ),
    )
    given.hosts, given.reported, given.measured = hosts, [], 0

    async def measured(*_: object, **__: object) -> list[Seen]:
        given.measured += 1
        return list(given.found)

    monkeypatch.setattr(module, "tenants", lambda *_: given.running)
    monkeypatch.setattr(module, "measured", measured)
    for name in ("RENEW_S", "LEAST_LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(Coordinator, "look_s", lambda _: 0.0)
    session = SimpleNamespace(lab=SimpleNamespace(name="lab"), hosts=hosts)
    state = CoordinateState(pid=1)
    with StateFile(KIND, tmp_path / "lab.json", state) as file:
        command = SimpleNamespace(store=None)
        given.file = file

        def make(**options: Any) -> Coordinator:
            return Coordinator(
                cast(Any, command),
                cast(Any, session),
                file,
                given.reported.append,
                CoordinateOptions(**options),
            )

        given.make = make
        yield given


def test_by_windows_only_jobs_that_share_links_get_another_congestion_control_and_get_their_own_back(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = replace(tenant("cat"), use=Use({}, {"other": {}}, {"other": 1.0}, declared=True))
    made.running = [tenant("ann"), tenant("bob"), apart]
    given: list[tuple[str, Any]] = []

    async def adjust(_: object, record: JobRecord, wanted: Any) -> str:
        given.append((record.spec.on_hosts, wanted))
        return ""

    monkeypatch.setattr(attachment("congestion"), "adjust", adjust)
    wanted = {"job.cat": {"congestion": Congestion("reno")}}
    names = {each.record: each.on_hosts for each in made.running}

    def of(number: int) -> Any:
        job = Job("job", "train", ("gpu01",), attached=wanted.get(names[number], {}))
        return SimpleNamespace(spec=JobSpec(job, names[number], "gloo"))

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(hosts=made.hosts)

    command = cast(
        Any,
        SimpleNamespace(
            inventory=ROOT / "inventory" / "example-lab",
            store=SimpleNamespace(job=of),
            opened=opened,
        ),
    )
    assert asyncio.run(module.by_windows(command)) == ["ann:job", "bob:job"]
    assert given == [("job.ann", Congestion("mltcp")), ("job.bob", Congestion("mltcp"))]
    assert asyncio.run(module.released(command)) == ["ann:job", "bob:job", "cat:job"]
    assert given[2:] == [("job.ann", None), ("job.bob", None), ("job.cat", Congestion("reno"))]
    made.running = [tenant("ann"), apart]
    with pytest.raises(Missing, match="no two running jobs share a link"):
        asyncio.run(module.by_windows(command))


def events(made: Any) -> list[str]:
    return [event["event"] for event in made.reported]


async def _for(work: Coordinator, looks: int = 40) -> None:
    task = asyncio.ensure_future(work.work())
    for _ in range(looks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_all_ranks_are_told_the_same_epoch_again_and_again_under_a_lease(made: Any) -> None:
    asyncio.run(_for(made.make()))
    assert {job for job, _ in made.hosts.applied} == {"job.ann", "job.bob"} and len(
        made.hosts.applied
    ) > 4
    assert len({how["epoch_ns"] for _, how in made.hosts.applied}) == 1
    assert {how["lease_s"] for _, how in made.hosts.applied} == {20.0} and made.measured == 1
    assert made.file.state.state == "pacing" and made.file.state.score == 1


def test_jobs_that_do_not_fit_are_left_alone_and_that_is_said(made: Any) -> None:
    made.found = [seen("ann", 30, 70), seen("bob", 30, 70)]
    asyncio.run(_for(made.make()))
    assert not made.hosts.applied and made.file.state.state == "alone"
    assert f"left alone{LONGER}" in made.reported[0]["message"]


def test_a_job_that_became_another_has_the_shifts_worked_out_anew(made: Any) -> None:
    made.hosts.rows = [(130, 60, 70)] * 12
    asyncio.run(_for(made.make(), 12))
    assert made.measured > 1
    assert "takes 130.0 ms, which was 110.0 ms" in next(
        e["message"] for e in made.reported if e["event"] == "changed"
    )
    made.hosts.rows, made.measured, made.reported[:] = [(108, 60, 48)] * 12, 0, []
    made.running = [tenant("ann"), tenant("bob", number=7)]
    asyncio.run(_for(made.make(), 12))
    assert "other jobs run now" in [e["message"] for e in made.reported] and made.measured > 1


def test_a_job_that_misses_its_period_by_little_gets_a_longer_one_and_goes_on_paced(
    made: Any,
) -> None:
    made.hosts.rows = [(115, 66, 49)] * 12
    asyncio.run(_for(made.make(), 30))
    assert made.measured == 1 and "job.ann" in dict(made.hosts.applied)
    assert [e["event"] for e in made.reported[:4]] == ["shifted", "longer", "longer", "shifted"]
    assert {how["period_ms"] for _, how in made.hosts.applied if how} == {113, 118}
    assert all(how for _, how in made.hosts.applied[:-2]), "nobody is released before the end"
    old, new = (
        next(how["epoch_ns"] for _, how in made.hosts.applied if how.get("period_ms") == period)
        for period in (113, 118)
    )
    assert new > old and (new - old) % 113_000_000 == 0, "iterations go on from where they are"


def test_a_coordinator_ends_when_its_jobs_do_and_gives_up_after_three_failures(made: Any) -> None:
    work = made.make()

    async def ends() -> None:
        task = asyncio.ensure_future(work.work())
        await asyncio.sleep(0.01)
        made.running = made.running[:1]
        await asyncio.wait_for(task, 10)

    asyncio.run(ends())
    assert events(made)[-1] == "ended"
    made.running, made.hosts.down = [tenant("ann"), tenant("bob")], True
    with pytest.raises((NotVerified, Unreachable)):
        asyncio.run(made.make().work())


def test_a_program_that_takes_no_part_and_an_unknown_period_are_refused(made: Any) -> None:
    made.found = [seen("ann", 60, 50), seen("bob", 60, 50, paceable=False)]
    with pytest.raises(Infeasible, match="does not take part"):
        asyncio.run(made.make().work())
    made.found = [
        seen("ann", 60, 50),
        Seen(tenant("bob"), None, error="no period shows", hint="sample for longer"),
    ]
    with pytest.raises(Infeasible, match="no period shows") as refused:
        asyncio.run(made.make().work())
    assert refused.value.hint == "sample for longer" and not made.hosts.applied


def test_together_all_begin_once_and_the_lease_ends_before_the_next_time(made: Any) -> None:
    made.found = [seen("ann", 6, 5), seen("bob", 6, 5)]
    asyncio.run(made.make(by="together").work())
    assert len(made.hosts.applied) == 2
    for _, how in made.hosts.applied:
        assert (
            how["shift_ms"] == 0
            and how["period_ms"] == 32
            and how["lease_s"] == pytest.approx(0.0352)
        )
    assert made.file.state.last == "iterations of 2 jobs began at once"
