"""A job's storage from the operator's side: its receiver comes before the ranks, what they sent is
brought home, what can be restored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from extensions.shadow.plan import Shadow
from extensions.storage.operator import ATTACHMENT
from extensions.storage.plan import Storage
from extensions.storage.view import VIEW
from optics import Missing, Refused, Unreachable
from optics.plan import Job
from orchestrator.hosts.api import ClockReading
from orchestrator.hosts.launch import rank_numbers
from orchestrator.jobs.attachments import (
    Inspection,
    Launch,
    attachment_figures,
    followers,
    restoring,
    stop_attachments,
    willing,
)
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
        self.state, self.present, self.refuses = "running", True, ""
        self.log = "storage: listens on port 4711, newest checkpoint 0\n"
        self.sent, self.ahead_ns = "", 0

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
        text, size = self.log, 0
        if op == "job.tail" and (fields := requests["gpu04"])["file"] == "storage.jsonl":
            assert fields["name"] == "mlp.r1.storage"
            text, size = self.sent[fields["offset"] :], len(self.sent)
        reply = {"state": self.state, "code": 1, "data": text, "offset": size, "size": size}
        return dict.fromkeys(requests, reply)

    async def clocks(self, names: Any) -> dict[str, ClockReading]:
        return {name: ClockReading(self.ahead_ns, 0) for name in names}

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


def launched(bench: Bench, job: Job = JOB, **given: Any) -> None:
    spec = replace(spec_of(job, bench.lab, "r1"), given={"storage": given})
    bench.store.add_job("lab/ann", "r1", job.name, spec)


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
    assert (known["mbps"], known["restore"], known["lane"]) == (100.0, "", False)
    assert known["port"] == 0 and len({*known["ranks"]}) == 2
    assert known["address"] == bench.lab.hosts["gpu04"].mgmt_address and len(known["key"]) == 64
    assert secret["gpu02"]["name"] == "mlp.r1"
    numbers = known.pop("ranks")
    for rank, number in zip(TWO, numbers, strict=True):
        told = json.loads(secret[rank]["env"]["TESTBED_OBSERVER_STORAGE"])
        assert told == {**known, "port": 4711, "number": number}, "where it says that it listens"
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
    bench.log = bench.log.replace("checkpoint 0", "checkpoint 1000")
    assert await restore(resume=True, restore=True) == "only"


async def test_what_is_kept_of_a_training_that_began_anew_without_its_storage_is_not_begun_from(
    bench: Bench,
) -> None:
    """It is of the training before: a resumed one would go back to that."""
    launched(bench)
    for resume, offered in ((True, "newest"), (False, ""), (True, "")):
        bench.present = False
        given = await ATTACHMENT.begin(VALUE, {}, bench.launch(resume=resume, left_out=True))
        assert given == {"missing": "gpu04: no answer", "restore": offered}
        launched(bench, **given)
        bench.present = True
        bench.asked.clear()
        assert await ATTACHMENT.begin(VALUE, {}, bench.launch(resume=True)) == {}
        known = json.loads(bench.asked[0][1]["gpu04"]["env"]["TESTBED_OBSERVER_STORAGE"])
        assert known["restore"] == offered
    bench.log = bench.log.replace("checkpoint 0", "checkpoint 1000")
    bench.asked.clear()
    await ATTACHMENT.begin(VALUE, {}, bench.launch(resume=True, restore=True))
    known = json.loads(bench.asked[0][1]["gpu04"]["env"]["TESTBED_OBSERVER_STORAGE"])
    assert known["restore"] == "only", "who asks for it by name has it"


async def test_what_cannot_be_restored_is_refused_once_the_receiver_has_said_what_it_has(
    bench: Bench,
) -> None:
    """What ranks sent in the latest run says little: it may have ended before the first one."""
    launched(bench)
    with pytest.raises(Missing, match="the storage of job mlp on gpu04 has no checkpoint"):
        await ATTACHMENT.begin(VALUE, {}, bench.launch(resume=True, restore=True))
    assert [op for op, _ in bench.asked][-1] == "job.stop"
    record = bench.store.latest_job("lab/ann")
    assert record is not None
    ATTACHMENT.restorable(VALUE, record, [{"checkpoint": 0}], "")
    both = replace(JOB, attached={"shadow": Shadow("gpu04"), "storage": VALUE})
    launched(bench, both)
    launch = replace(bench.launch(resume=True, restore=True), job=both)
    assert await ATTACHMENT.begin(VALUE, {}, launch) == {}, "the shadow may have one"


def test_a_rank_keeps_its_number_when_another_leaves_and_hands_it_on_to_a_spare() -> None:
    before = rank_numbers(replace(JOB, ranks=("gpu01", "gpu02", "gpu03")))
    without = replace(JOB, ranks=("gpu01", "gpu03"), evicted={"gpu02": ""})
    assert rank_numbers(without) == [before[0], before[2]]
    spare = replace(JOB, ranks=("gpu01", "gpu04", "gpu03"), evicted={"gpu02": "gpu04"})
    assert rank_numbers(spare) == before
    grown = replace(spare, ranks=(*spare.ranks, "gpu00"), joined=("gpu00",))
    assert rank_numbers(grown) == [*before, 3]


def test_no_two_ranks_have_one_number_whatever_they_are_called() -> None:
    """These two have one CRC-32."""
    assert sorted(rank_numbers(replace(JOB, ranks=("plumless", "buckeroo")))) == [0, 1]


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
    assert given == {"missing": "gpu04: no answer", "restore": ""}


async def test_ranks_are_not_launched_where_only_some_know_of_the_storage(bench: Bench) -> None:
    bench.refuses = "job.secret"
    with pytest.raises(Unreachable, match="gpu02: no answer"):
        await ATTACHMENT.begin(VALUE, {}, bench.launch(left_out=True))
    assert [op for op, _ in bench.asked][-2:] == ["job.secret", "job.stop"]


def line(rank: int, iteration: int, unsent: int = 0, ago_s: int = 7261) -> str:
    record = {"rank": rank, "iter": iteration, "bytes": 1_250_000, "send_ms": 101.0}
    at_ns = time.time_ns() - ago_s * 10**9
    return json.dumps({**record, "unsent": unsent, "t_wall_ns": at_ns}) + "\n"


async def test_what_the_receiver_has_is_brought_home_once_and_shown(bench: Bench) -> None:
    launched(bench)
    found = await bench.look()
    assert VIEW.text(found) == "storage on gpu04: no checkpoint yet"
    bench.sent = line(0, 10, ago_s=9000) + line(1, 10) + line(0, 20) + line(1, 20)[:9]
    text = "storage on gpu04: checkpoint of iteration 20, 1 of 2 ranks, 198 Mb/s, 2 h 01 min ago"
    assert VIEW.text(await bench.look()) == text
    bench.sent = bench.sent[:-9] + line(1, 20) + line(1, 20).replace('"rank": 1', '"rank": 0.5')
    bench.sent += line(0, 30, unsent=2) + line(1, 30, unsent=1)
    bench.state = "killed"
    found = await bench.look()
    assert (found["checkpoint"], found["ranks"], found["unsent"]) == (30, 2, 3)
    text = "storage on gpu04: checkpoint of iteration 30, 2 of 2 ranks, 198 Mb/s, 2 h 01 min ago"
    assert VIEW.text(found) == f"{text}; 3 checkpoints not sent; it is killed"
    points = [each for each in read_points(bench.folder / "run") if each.measurement == "storage"]
    assert sorted((each.fields["iter"], each.fields["rank"]) for each in points) == [
        (iteration, rank) for iteration in (10, 20, 30) for rank in (0, 1)
    ]
    assert {(each.fields["host"], each.fields["over"]) for each in points} == {
        ("gpu04", "management")
    }
    bench.present = False
    text = "storage on gpu04: checkpoint of iteration 30, 2 of 2 ranks, 198 Mb/s"
    assert VIEW.text(await bench.look()) == f"{text}; 3 checkpoints not sent; it is silent"


async def test_the_age_of_a_checkpoint_is_by_the_clock_of_its_host(bench: Bench) -> None:
    launched(bench)
    bench.sent, bench.ahead_ns = line(0, 10, ago_s=7261 - 86400), 86400 * 10**9
    assert VIEW.text(await bench.look()).endswith("1 of 2 ranks, 99 Mb/s, 2 h 01 min ago")


async def test_it_is_stopped_with_the_job_and_a_silent_host_is_left_alone(bench: Bench) -> None:
    launched(bench)
    record = bench.store.latest_job("lab/ann")
    await stop_attachments(bench.session, record)
    assert [(op, to["gpu04"]["name"]) for op, to in bench.asked] == [("job.stop", "mlp.r1.storage")]
    bench.present = False
    bench.asked.clear()
    await stop_attachments(bench.session, record)
    assert bench.asked == []


def test_a_storage_on_another_host_has_nothing_of_the_latest_job(bench: Bench) -> None:
    launched(bench)
    record = bench.store.latest_job("lab/ann")
    assert record is not None
    ATTACHMENT.followed(VALUE, JOB, record, "")
    other = Storage("gpu03", 1.0)
    with pytest.raises(Missing, match="had no storage on gpu03"):
        ATTACHMENT.followed(other, replace(JOB, attached={"storage": other}), record, "")


def test_a_job_is_restored_from_what_does_not_refuse(bench: Bench) -> None:
    record = replace(JOB, attached={"shadow": Shadow("gpu03"), "storage": VALUE})
    launched(bench, record)
    latest = bench.store.latest_job("lab/ann")
    assert latest is not None
    job = replace(record, attached={"shadow": Shadow("gpu04"), "storage": VALUE})
    assert [kind.key for kind, _ in followers(job, latest, "")] == ["storage"]
    nowhere = replace(job, attached={**job.attached, "storage": Storage("gpu02", 1.0)})
    with pytest.raises(Missing, match="had no storage on gpu02"):
        followers(nowhere, latest, "")
    found = [{"checkpoint": 0, "state": "exited"}]
    having = restoring(job)

    def restorable(kind: Any, value: Any) -> None:
        kind.restorable(value, latest, found, "")

    assert [kind.key for kind, _ in willing(having, restorable)] == ["storage"]
