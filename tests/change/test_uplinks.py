"""Emulated switches are told which hosts are one job's, where a segment's inventory has
queues."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optics.errors import Unreachable
from optics.plan import Job
from orchestrator import emulated
from orchestrator.change.uplinks import uplinks_notified
from orchestrator.inventory.segments import Segment, SegmentQueue

JOB = Job(name="j", workload="train", ranks=("gpu02/0", "gpu02/1", "gpu01"))


def session(folder: Path, queue: SegmentQueue | None) -> Any:
    hosts = {
        name: SimpleNamespace(machine=name.partition("/")[0])
        for name in ("gpu01", "gpu01/a", "gpu02", "gpu02/a")
    }
    lab = SimpleNamespace(segments={"tree": Segment("tree", {}, 10.0, queue=queue)}, hosts=hosts)
    return SimpleNamespace(lab=lab, inventory=folder)


async def test_the_lab_is_told_a_jobs_hosts_once_each_and_its_silence_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = []
    (tmp_path / "emulator.yml").touch()
    monkeypatch.setattr(
        emulated, "ask", lambda inventory, op, **text: lines.append((inventory, op, text))
    )
    assert await uplinks_notified(session(tmp_path, SegmentQueue(128, "job")), JOB) == ()
    assert lines == [(tmp_path, "queue.job", {"hosts": ["gpu01", "gpu02"]})]

    def silent(*_: object, **__: object) -> None:
        raise Unreachable("the emulated lab is not running")

    monkeypatch.setattr(emulated, "ask", silent)
    (note,) = await uplinks_notified(session(tmp_path, SegmentQueue(128, "job")), JOB)
    assert note.endswith("share uplinks as before: the emulated lab is not running")


async def test_of_a_job_on_parts_of_hosts_the_lab_is_told_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = []
    (tmp_path / "emulator.yml").touch()
    monkeypatch.setattr(emulated, "ask", lambda inventory, op, **text: lines.append(text))
    parts = Job(name="j", workload="train", ranks=("gpu02/a", "gpu01/a"))
    assert await uplinks_notified(session(tmp_path, SegmentQueue(128, "job")), parts) == ()
    assert lines == [{"hosts": ["gpu01", "gpu02"]}], "the emulated lab knows no parts of hosts"


async def test_nobody_is_told_of_real_switches_or_without_queues_or_without_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(emulated, "ask", never)
    assert await uplinks_notified(session(tmp_path, SegmentQueue(128, "job")), JOB) == (), (
        "no emulator.yml: a real lab"
    )
    (tmp_path / "emulator.yml").touch()
    assert await uplinks_notified(session(tmp_path, None), JOB) == ()
    assert await uplinks_notified(session(tmp_path, SegmentQueue(128, "job")), None) == ()
