"""A job's storage from the operator's side: its receiver comes before the ranks, what they sent is
brought home, what can be restored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from extensions.storage.operator import ATTACHMENT
from extensions.storage.plan import Storage
from extensions.storage.view import VIEW
from optics import Missing, Refused, Unreachable
from optics.plan import Job
from orchestrator.hosts.api import ClockReading, Tail
from orchestrator.jobs.attachments import Inspection, Launch, attachment_figures, stop_attachments
from orchestrator.jobs.record import spec_of
from orchestrator.session import Session
from orchestrator.store.store import Store
from orchestrator.telemetry.reader import read_points
from tests.change.fibrelab import SWITCH, hosts_yml, read

TWO = ("gpu01", "gpu02")
VALUE = Storage("gpu04", 200.0)
JOB = Job("mlp", "train", TWO, attached={"storage": VALUE}, aside=("gpu04",))
FIBRES = [
    f'name: f{h}, host: gpu{h:02d}, port: 1, device: ocs1, enters: "{h}", leaves: "{100 + h}"'
    for h in range(1, 5)
]


class Bench:
    """Agents and a store; the session's hosts, their channels, jobs and clocks, too."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.lab = read(hosts_yml(4, ports=1), {"ocs1": SWITCH}, FIBRES)
        self.store, self.folder = store, folder
        self.session = Session(self.lab, folder, {}, cast(Any, self))
        self.channels = self.jobs = self.measure = self
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.log, self.state, self.present, self.refuses = "storage: listens", "running", True, ""
        self.sent = dict.fromkeys(TWO, "")

    def attached(self) -> tuple[str, ...]:
        return ("gpu04",) if self.present else ()

    async def connect(self, names: Any, timeout_s: float = 10.0) -> dict[str, Any]:
        return {name: Unreachable(f"{name}: no answer") for name in names}

    async def ask(
        self, requests: Mapping[str, Mapping[str, Any]], op: str, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        self.asked.append((op, {name: dict(fields) for name, fields in requests.items()}))
        if op == self.refuses:
            raise Unreachable("gpu02: no answer")
        reply = {"state": self.state, "code": 1, "data": self.log}
        return dict.fromkeys(requests, reply)

    async def tail(self, job: str, rank: str, file: str, offset: int) -> Tail:
        assert (job, file) == ("mlp.r1", "storage.jsonl")
        text = self.sent[rank]
        return Tail(text[offset:], len(text), len(text), "running")

    async def clocks(self, names: Any) -> dict[str, ClockReading]:
        return {name: ClockReading(0, 0) for name in names}

    def launch(self, **more: Any) -> Launch:
        return Launch(self.session, JOB, "r1", self.store.latest_job("lab/ann"), **more)

    async def look(self) -> dict[str, Any]:
        record = self.store.latest_job("lab/ann")
        assert record is not None
        look = Inspection(self.session, self.store, record, self.folder / "run", alive=True)
        [found] = (await attachment_figures(look))["storage"]
        return dict(found)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Store(tmp_path / "store.sqlite3") as store:
        made = Bench(store, tmp_path)
        yield made


def launched(bench: Bench, job: Job = JOB) -> None:
    bench.store.add_job("lab/ann", "r1", job.name, spec_of(job, bench.lab, "r1"))


async def test_the_receiver_listens_before_ranks_know_of_it_and_the_key_is_on_no_command_line(
    bench: Bench,
) -> None:
    assert await ATTACHMENT.begin(VALUE, {}, bench.launch()) == {}
    assert [(op, list(to)) for op, to in bench.asked] == [
        ("job.start", ["gpu04"]),
        ("job.tail", ["gpu04"]),
        ("job.secret", [*TWO]),
    ]
    start, secret = bench.asked[0][1]["gpu04"], bench.asked[2][1]
    known = json.loads(start["env"]["TESTBED_OBSERVER_STORAGE"])
    assert start["name"] == "mlp.r1.storage", "a shadow on that host is mlp.r1"
    assert start["argv"] == ["python3", "-m", "extensions.storage.rank"]
    assert start["env"]["TESTBED_STORAGE_RANKS"] == "2"
    assert (known["mbps"], known["restore"], known["lane"]) == (100.0, "", False)
    assert known["address"] == bench.lab.hosts["gpu04"].mgmt_address and len(known["key"]) == 64
    assert secret["gpu02"]["name"] == "mlp.r1" and secret["gpu02"]["env"] == {
        "TESTBED_OBSERVER_STORAGE": start["env"]["TESTBED_OBSERVER_STORAGE"]
    }
    bench.asked.clear()
    await ATTACHMENT.begin(replace(VALUE, over="optical"), {}, bench.launch())
    known = json.loads(bench.asked[0][1]["gpu04"]["env"]["TESTBED_OBSERVER_STORAGE"])
    assert known["lane"] and known["address"] == bench.lab.hosts["gpu04"].lane_address(0)


async def test_ranks_begin_from_it_only_after_the_same_training_with_the_same_host(
    bench: Bench,
) -> None:
    async def restore(**more: Any) -> str:
        bench.asked.clear()
        await ATTACHMENT.begin(VALUE, {}, bench.launch(**more))
        known = json.loads(bench.asked[0][1]["gpu04"]["env"]["TESTBED_OBSERVER_STORAGE"])
        return str(known["restore"])

    assert await restore(resume=True) == ""
    launched(bench, replace(JOB, attached={"storage": Storage("gpu03", 9.0)}))
    assert await restore(resume=True) == ""
    launched(bench)
    assert await restore(resume=True) == "newest"
    assert await restore() == ""
    assert await restore(resume=True, restore=True) == "only"


async def test_a_receiver_that_ends_as_it_starts_is_said_and_one_that_may_be_left_out_is(
    bench: Bench,
) -> None:
    bench.state, bench.log = "exited", "Traceback\nOSError: address already in use\n"
    text = r"the storage of job mlp on gpu04 ended as it started \(exit 1\): OSError: address"
    with pytest.raises(Refused, match=text):
        await ATTACHMENT.begin(VALUE, {}, bench.launch())
    assert [op for op, _ in bench.asked][-1] == "job.stop"
    bench.present = False
    with pytest.raises(Unreachable, match="gpu04: no answer"):
        await ATTACHMENT.begin(VALUE, {}, bench.launch())
    given = await ATTACHMENT.begin(VALUE, {}, bench.launch(left_out=True))
    assert given == {"missing": "gpu04: no answer"}


async def test_ranks_are_not_launched_where_only_some_know_of_the_storage(bench: Bench) -> None:
    bench.refuses = "job.secret"
    with pytest.raises(Unreachable, match="gpu02: no answer"):
        await ATTACHMENT.begin(VALUE, {}, bench.launch(left_out=True))
    assert [op for op, _ in bench.asked][-2:] == ["job.secret", "job.stop"]


def line(iteration: int, kept: int) -> str:
    record = {"iter": iteration, "bytes": 1_250_000, "send_ms": 101.0, "kept": kept}
    return json.dumps({**record, "limit_mbps": 100.0, "t_wall_ns": iteration}) + "\n"


async def test_what_ranks_sent_is_brought_home_once_and_shown(bench: Bench) -> None:
    launched(bench)
    found = await bench.look()
    assert VIEW.text(found) == "storage on gpu04: no checkpoint yet"
    bench.sent = {"gpu01": line(10, 1) + line(20, 1), "gpu02": line(10, 1) + line(20, 1)[:9]}
    text = "storage on gpu04: checkpoint of iteration 20, 1 of 2 ranks, 198 of 200 Mb/s"
    assert VIEW.text(await bench.look()) == text
    bench.sent["gpu02"] = line(10, 1) + line(20, 1)
    bench.sent["gpu01"] += line(30, 0)
    bench.state = "killed"
    found = await bench.look()
    assert (found["checkpoint"], found["ranks"], found["unsent"]) == (20, 2, 1)
    text = "storage on gpu04: checkpoint of iteration 20, 2 of 2 ranks, 198 of 200 Mb/s"
    assert VIEW.text(found) == f"{text}; 1 checkpoint not sent; it is killed"
    points = [each for each in read_points(bench.folder / "run") if each.measurement == "storage"]
    assert sorted((each.fields["iter"], each.fields["rank"]) for each in points) == [
        (10, 0),
        (10, 1),
        (20, 0),
        (20, 1),
        (30, 0),
    ]
    [mark] = VIEW.marks(points[-1:])
    assert str(mark["message"]).startswith("on gpu04: checkpoint of iteration")
    bench.present = False
    assert VIEW.text(await bench.look()).endswith("it is silent")


async def test_it_is_stopped_with_the_job_and_a_silent_host_is_left_alone(bench: Bench) -> None:
    launched(bench)
    record = bench.store.latest_job("lab/ann")
    await stop_attachments(bench.session, record)
    assert [(op, to["gpu04"]["name"]) for op, to in bench.asked] == [("job.stop", "mlp.r1.storage")]
    bench.present = False
    bench.asked.clear()
    await stop_attachments(bench.session, record)
    assert bench.asked == []


def test_what_cannot_be_restored_is_said(bench: Bench) -> None:
    launched(bench)
    record = bench.store.latest_job("lab/ann")
    assert record is not None
    ATTACHMENT.followed(VALUE, JOB, record, "")
    ATTACHMENT.restorable(VALUE, record, [{"checkpoint": 7}], "")
    for found in ({"checkpoint": 0}, {"missing": "launched without", "checkpoint": 0}):
        with pytest.raises(Missing):
            ATTACHMENT.restorable(VALUE, record, [found], "")
    with pytest.raises(Missing, match="had no storage on gpu03"):
        ATTACHMENT.followed(
            Storage("gpu03", 1.0),
            replace(JOB, attached={"storage": Storage("gpu03", 1.0)}),
            record,
            "",
        )
