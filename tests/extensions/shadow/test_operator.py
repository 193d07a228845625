"""A job's shadow from the operator's side: started before the ranks, its verdicts brought home,
what can be restored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extensions.shadow.operator import ATTACHMENT
from extensions.shadow.plan import Shadow
from extensions.shadow.view import VIEW
from optics import HostPort, Missing, Refused, Unreachable
from optics.plan import Job
from orchestrator.hosts.api import ClockReading
from orchestrator.hosts.channels import Channels
from orchestrator.jobs.attachments import (
    Inspection,
    Launch,
    attachment_figures,
    stop_attachments,
)
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import spec_of
from orchestrator.jobs.report import JobStatus
from orchestrator.session import Session
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.store import Store
from orchestrator.telemetry.reader import read_points
from orchestrator.verbs import job as job_verbs
from tests.change.fibrelab import SWITCH, hosts_yml, read

THREE = ("gpu01", "gpu02", "gpu03")
JOB = Job(
    "mlp",
    "train",
    THREE,
    (THREE,),
    {"iterations": 0},
    attached={"shadow": Shadow("gpu04")},
    aside=("gpu04",),
)
FAILED = JobStatus("mlp", "failed")
FIBRES = [
    f'name: f{h}, host: gpu{h:02d}, port: 1, device: ocs1, enters: "{h}", leaves: "{100 + h}"'
    for h in range(1, 5)
]


class Asked(Channels):
    """Agents that say what they are told to."""

    def __init__(self) -> None:
        super().__init__(read(hosts_yml(4, ports=1), {"ocs1": SWITCH}, FIBRES))
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.tap_error = ""
        self.silent: dict[str, str] = {}
        self.unreachable = ""
        self.starts, self.shadow, self.log = 0, "running", ""
        self.answers = asyncio.Event()

    def attached(self) -> tuple[str, ...]:
        return () if self.unreachable else ("gpu04",)

    async def connect(self, names: Any = None, timeout_s: float = 10.0) -> dict[str, Any]:
        return {name: Unreachable(self.unreachable) for name in names}

    async def ask(
        self, requests: Mapping[str, Mapping[str, Any]], op: str, timeout_s: float = 5.0, **_: Any
    ) -> dict[str, Any]:
        self.asked.append((op, {name: dict(fields) for name, fields in requests.items()}))
        if op in self.silent:
            raise Unreachable(self.silent[op])
        if self.starts <= sum(op == "job.status" for op, _ in self.asked):
            self.answers.set()
        if op == "tap":  # the taps answer once the shadow has been looked at `starts` times
            await self.answers.wait()
        state = {"state": self.shadow} | ({"code": 1} if self.shadow == "exited" else {})
        return {name: {"error": self.tap_error, "data": self.log, **state} for name in requests}


async def given(
    hosts: Asked,
    job: Job = JOB,
    run: str = "r1",
    *,
    restore: str = "",
    left_out: bool = False,
    notify: Callable[[str], object] = lambda _: None,
) -> str:
    """Give the job its shadow; why it is launched without."""
    session = cast(Any, SimpleNamespace(hosts=SimpleNamespace(channels=hosts)))
    latest = cast(Any, SimpleNamespace(spec=JobSpec(job, "mlp.r0", "gloo"))) if restore else None
    launch = Launch(session, job, run, latest, bool(restore), False, left_out, notify)
    return str((await ATTACHMENT.begin(job.attached["shadow"], {}, launch)).get("missing", ""))


async def test_the_shadow_comes_first_then_its_taps_and_the_key_stands_in_no_start_of_a_rank() -> (
    None
):
    hosts = Asked()
    await given(hosts, JOB, "2026-11-23-0001")
    assert [(op, list(to)) for op, to in hosts.asked] == [
        ("job.start", ["gpu04"]),
        ("tap", ["gpu01", "gpu02"]),
        ("job.secret", ["gpu01"]),
    ]
    start, taps, secret = (to for _, to in hosts.asked)
    met = json.loads(start["gpu04"]["env"]["TESTBED_OBSERVER_SHADOW"])
    assert (
        start["gpu04"]["argv"] == ["python3", "-m", "extensions.shadow.rank"]
        and len(met["key"]) == 64
        and not met["restore"]
    )
    assert secret["gpu01"]["env"] == {
        "TESTBED_OBSERVER_SHADOW": start["gpu04"]["env"]["TESTBED_OBSERVER_SHADOW"]
    }
    assert taps["gpu02"]["lanes"] == [
        hosts.lab.hosts["gpu02"].lane_address(lane)
        for lane in range(hosts.lab.hosts["gpu02"].lanes)
    ]
    assert {(to["name"], to["key"], to["shadow"], to["port"]) for to in taps.values()} == {
        ("mlp.2026-11-23-0001", met["key"], met["address"], met["port"])
    }
    hosts.asked.clear()
    await given(hosts, JOB, "2026-11-23-0002", restore="newest")
    assert list(hosts.asked[2][1]) == [*THREE], (
        "every rank is to know that it begins from what rank 0 gets"
    )
    again = json.loads(hosts.asked[0][1]["gpu04"]["env"]["TESTBED_OBSERVER_SHADOW"])
    assert again["key"] != met["key"] and again["restore"] == "newest"


async def test_a_shadow_is_told_the_rate_at_which_its_host_keeps_checkpoints() -> None:
    hosts = Asked()
    hosts.lab = replace(
        hosts.lab,
        hosts={**hosts.lab.hosts, "gpu04": replace(hosts.lab.hosts["gpu04"], storage_mbps=320.0)},
    )
    await given(hosts, JOB, "r1")
    assert hosts.asked[0][1]["gpu04"]["env"]["TESTBED_STORAGE_MBPS"] == "320"


async def test_a_tap_that_cannot_begin_ends_the_shadow() -> None:
    hosts = Asked()
    hosts.tap_error = "no such device"
    with pytest.raises(
        Refused, match="could not begin on gpu01: no such device; gpu02: no such device"
    ):
        await given(hosts, JOB, "r1")
    assert [op for op, _ in hosts.asked] == [
        "job.start",
        "tap",
        "job.status",
        "job.stop",
        "tap.stop",
    ], "no rank waits for it"


async def test_a_shadow_that_starts_for_long_is_waited_for_and_said_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("extensions.shadow.hosts.LOOK_S", 0.0)
    hosts, lines = Asked(), list[str]()
    hosts.starts = 3
    await given(hosts, JOB, "r1", notify=lines.append)
    asked = [op for op, _ in hosts.asked]
    assert asked[:5] == ["job.start", "tap", *["job.status"] * 3] and asked[-1] == "job.secret"
    assert lines and all(
        text.startswith("the shadow on gpu04 still starts, for ") for text in lines
    )
    assert all(to["within_s"] >= 3600 for to in hosts.asked[1][1].values()), (
        "only its end, and the command's time, end the wait"
    )


@pytest.mark.parametrize("starts", [10**9, 0])
async def test_a_shadow_that_ends_as_it_starts_is_waited_for_no_longer_and_its_last_words_are_told(
    monkeypatch: pytest.MonkeyPatch, starts: int
) -> None:
    monkeypatch.setattr("extensions.shadow.hosts.LOOK_S", 0.0)
    hosts = Asked()
    hosts.starts, hosts.shadow, hosts.log = (
        starts,
        "exited",
        "Traceback\nOSError: address already in use\n",
    )
    hosts.tap_error = "the job's shadow closed the connection"
    text = r"the shadow of job mlp on gpu04 ended as it started \(exit 1\): OSError: address already in use"
    with pytest.raises(Refused, match=text):
        await given(hosts, JOB, "r1")
    assert [op for op, _ in hosts.asked][-2:] == ["job.stop", "tap.stop"]


async def test_a_command_whose_time_is_over_leaves_neither_shadow_nor_taps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("extensions.shadow.hosts.LOOK_S", 0.0)
    hosts = Asked()
    hosts.starts = 10**9
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await given(hosts, JOB, "r1")
    assert [op for op, _ in hosts.asked][-2:] == ["job.stop", "tap.stop"]


async def test_a_job_that_may_do_without_its_shadow_is_told_why_and_no_rank_knows_of_one() -> None:
    hosts = Asked()
    hosts.unreachable = "gpu04: ssh 10.254.0.4:22: no answer"
    with pytest.raises(Unreachable, match=r"gpu04: ssh 10\.254\.0\.4:22: no answer"):
        await given(hosts, JOB, "r1", restore="newest")
    why = await given(hosts, JOB, "r1", restore="newest", left_out=True)
    assert why == "gpu04: ssh 10.254.0.4:22: no answer" and hosts.asked == []
    ended = Job(
        "mlp", "train", THREE, (THREE,), attached={"shadow": Shadow("gpu09")}, aside=("gpu09",)
    )
    why = await given(hosts, ended, "r1", restore="newest", left_out=True)
    assert why == "gpu09, where the shadow of job mlp is to be, is not in the inventory any more"
    hosts.unreachable, hosts.tap_error = "", "no such device"
    why = await given(hosts, JOB, "r1", restore="newest", left_out=True)
    assert "could not begin on gpu01: no such device" in why and "job.secret" not in [
        op for op, _ in hosts.asked
    ]


async def test_ranks_are_not_launched_where_only_some_know_that_they_begin_from_the_shadow() -> (
    None
):
    hosts = Asked()
    hosts.silent = {"job.secret": "gpu02: no answer", "job.stop": "gpu04: no answer"}
    with pytest.raises(Unreachable, match="gpu02: no answer"):
        await given(hosts, JOB, "r1", restore="newest", left_out=True)
    assert [op for op, _ in hosts.asked][-2:] == ["job.stop", "tap.stop"]


class Bench:
    """A store with a job that has a shadow, and the shadow's host."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.lab = read(hosts_yml(4, ports=1), {"ocs1": SWITCH}, FIBRES)
        self.store, self.folder = store, folder
        self.session = Session(self.lab, folder, {}, cast(Any, self))
        self.jobs = Jobs(self.session, store, "lab/ann", folder)
        self.channels = self.measure = self
        self.connects = 0
        self.text, self.present, self.ended, self.status = "", True, list[str](), FAILED

    def launched(self, job: Job) -> None:
        self.store.add_job("lab/ann", "r1", job.name, spec_of(job, self.lab, "r1"))

    def attached(self) -> tuple[str, ...]:
        return ("gpu04",) if self.present else ()

    async def connect(self, names: Any, timeout_s: float) -> None:
        assert list(names) == ["gpu04"] and timeout_s <= 5
        self.connects += 1

    async def ask(
        self, requests: Mapping[str, Mapping[str, Any]], op: str, timeout_s: float = 5.0
    ) -> dict[str, dict[str, Any]]:
        [(host, fields)] = requests.items()
        assert (fields["name"], host) == ("mlp.r1", "gpu04")
        if op == "job.stop":
            self.ended.append(host)
            return {host: {"state": "exited"}}
        if not self.present:
            raise Unreachable("gpu04: no answer")
        data = self.text[fields["offset"] :]
        return {
            host: {
                "data": data,
                "offset": len(self.text),
                "size": len(self.text),
                "state": "running",
            }
        }

    async def clocks(self, names: Any) -> dict[str, ClockReading]:
        return {name: ClockReading(0, 0) for name in names}

    async def look(self, folder: Path) -> dict[str, Any] | None:
        """What is known of the shadow of the latest job."""
        record = self.store.latest_job("lab/ann")
        assert record is not None
        found = (
            await attachment_figures(
                Inspection(self.session, self.store, record, folder, alive=True)
            )
        ).get("shadow", ())
        return dict(found[0]) if found else None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Store(tmp_path / "store.sqlite3") as store:
        yield Bench(store, tmp_path)


def line(iteration: int, equal: int, checkpoint: int) -> str:
    reply = {
        "iter": iteration,
        "equal": equal,
        "fetched": 0,
        "missing": 9,
        "lost": 3,
        "lag_ms": 1.5,
        "checkpoint": checkpoint,
    }
    return json.dumps({**reply, "t_wall_ns": iteration}) + "\n"


async def test_verdicts_are_brought_home_once_and_counted(bench: Bench, tmp_path: Path) -> None:
    bench.launched(JOB)
    bench.text = line(1, 1, 1) + line(2, 0, 1) + "nonsense\n" + line(3, 1, 3)[:20]
    found = await bench.look(tmp_path / "run")
    followed = {
        "iterations": 2,
        "equal": 1,
        "fetched": 0,
        "checkpoint": 1,
        "lost": 3,
        "lag_ms": 1.5,
    }
    assert found == {"host": "gpu04", "taps": "gpu01 gpu02", "state": "running", **followed}
    bench.text = bench.text[:-20] + line(3, 1, 3)
    found = await bench.look(tmp_path / "run")
    assert found is not None and (found["iterations"], found["equal"], found["checkpoint"]) == (
        3,
        2,
        3,
    )
    points = [point for point in read_points(tmp_path / "run") if point.measurement == "shadow"]
    assert [point.fields["iter"] for point in points] == [1, 2, 3] and points[0].tags[
        "job"
    ] == "mlp"
    assert (points[0].fields["host"], points[0].fields["taps"]) == ("gpu04", "gpu01 gpu02")
    bench.text += line(4, 0, 3).replace("4,", "4.5,", 1) + line(4, 0, 3).replace(
        ": 4}", ": 9.99e18}"
    )
    assert await bench.look(tmp_path / "run") == found, "these are no records"
    bench.present = False
    found = await bench.look(tmp_path / "run")
    assert found is not None and (found["state"], found["checkpoint"]) == ("silent", 3)
    text = "shadow on gpu04: 2 of 3 iterations equal, checkpoint of iteration 3, 1.5 ms behind; 0 states fetched, 3 packets lost"
    assert VIEW.text(found) == f"{text}; taps on gpu01, gpu02; it is silent"


async def test_a_shadow_whose_host_does_not_tell_its_clock_is_not_silent(
    bench: Bench, tmp_path: Path
) -> None:
    async def clocks(_: Any) -> Any:
        raise Unreachable("gpu04: no answer to clock")

    bench.launched(JOB)
    bench.text, bench.clocks = line(1, 1, 1), clocks  # type: ignore[method-assign]
    found = await bench.look(tmp_path / "run")
    assert found is not None and (found["state"], found["iterations"]) == ("running", 0)


async def test_a_shadow_s_host_that_does_not_answer_is_not_waited_for_at_each_look(
    bench: Bench, tmp_path: Path
) -> None:
    bench.launched(JOB)
    record = bench.store.latest_job("lab/ann")
    bench.present = False
    for _ in range(3):
        found = await bench.look(tmp_path / "run")
        assert found is not None and found["state"] == "silent"
    await stop_attachments(bench.session, record)
    assert bench.connects == 1 and bench.ended == []
    bench.session.away["gpu04"] = 0.0
    await stop_attachments(bench.session, record)
    assert bench.connects == 2
    bench.present = True
    found = await bench.look(tmp_path / "run")
    assert found is not None and found["state"] == "running", (
        "it is attached again by somebody else"
    )


async def test_only_a_job_that_has_one_is_asked_for_its_shadow(
    bench: Bench, tmp_path: Path
) -> None:
    bench.launched(Job("mlp", "train", THREE))
    record = bench.store.latest_job("lab/ann")
    assert await bench.look(tmp_path) is None
    await stop_attachments(bench.session, record)
    await stop_attachments(bench.session, None)
    assert bench.ended == []
    bench.launched(JOB)
    await stop_attachments(bench.session, bench.store.latest_job("lab/ann"))
    assert bench.ended == ["gpu04"]


async def test_what_cannot_be_restored_is_refused_before_anything_is_launched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reported_as(_jobs: Jobs, _record: object) -> JobStatus:
        return bench.status

    monkeypatch.setattr(Jobs, "status", reported_as)
    with pytest.raises(Missing, match="no job was ever launched"):
        await job_verbs._restorable(bench.jobs, JOB)
    bench.launched(JOB)
    kept = {"host": "gpu04", "state": "exited", "checkpoint": 7}
    missing = {"checkpoint": 0, "missing": "launched without: gpu04"}
    other = Job("mlp", "train", THREE, args={"seed": 5}, attached=JOB.attached, aside=JOB.aside)
    elsewhere = Job("mlp", "train", THREE, attached={"shadow": Shadow("gpu05")}, aside=("gpu05",))
    for job, reported, kind, text in (
        (Job("mlp", "train", THREE), FAILED, Missing, "has no shadow or storage in this plan"),
        (other, FAILED, Missing, "another training"),
        (elsewhere, FAILED, Missing, "no shadow on gpu05"),
        (
            JOB,
            JobStatus("mlp", "running", attached={"shadow": (kept,)}),
            Refused,
            "nothing to restore",
        ),
        (JOB, FAILED, Missing, "had no iteration equal"),
        (JOB, replace(FAILED, attached={"shadow": (missing,)}), Missing, "without: gpu04"),
        (
            JOB,
            replace(FAILED, attached={"shadow": ({**kept, "checkpoint": 0},)}),
            Missing,
            "had no iteration equal",
        ),
    ):
        bench.status = reported
        with pytest.raises(kind, match=text):
            await job_verbs._restorable(bench.jobs, job)
    bench.status = JobStatus("mlp", "failed", attached={"shadow": ({**kept, "state": "killed"},)})
    with pytest.raises(
        Missing, match="was killed, and wrote nothing: its checkpoint of iteration 7 is lost"
    ):
        await job_verbs._restorable(bench.jobs, JOB)
    bench.status = JobStatus("mlp", "failed", attached={"shadow": (kept,)})
    await job_verbs._restorable(bench.jobs, JOB)
    taps = Shadow("gpu04", (HostPort("gpu01", 1), HostPort("gpu02", 1)))
    await job_verbs._restorable(
        bench.jobs, Job("mlp", "train", THREE, attached={"shadow": taps}, aside=("gpu04",))
    )
