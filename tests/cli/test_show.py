"""`run list` and `run show`: the runs, and where their milliseconds went."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.waterfall import Bar, draw
from orchestrator.settings import load
from orchestrator.store.store import Store
from orchestrator.telemetry import Journal

MS = 1_000_000


class HandClock:
    now = 0

    def monotonic_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return 1_795_000_000 * 10**9 + self.now


@pytest.fixture
def recorded(cli: Any) -> str:
    """A run with four phases, two devices, three hosts and a job."""
    settings = load()
    with Store(settings.store_path) as store:
        run = store.new_run("up", "emulated-1f", plan_name="ring-12", user="ann")
        with run.step("device", "ocs1", "apply 12"):
            pass
        run.finish("ok")
    with Journal(settings.run_dir(run.id), run.id, "emulated", clock=HandClock()) as journal:
        phase = journal.phase
        phase("stage", 0, 1100 * MS)
        phase("switch", 1100 * MS, 1152 * MS)
        phase("link", 1152 * MS, 1153 * MS)
        phase("commit", 1153 * MS, 1157 * MS, ok=False)
        phase("switch", 1100 * MS, 1150 * MS, kind="device", subject="ocs1")
        phase("switch", 1101 * MS, 1152 * MS, kind="device", subject="ocs3")
        for host, end in (("gpu01", 1155), ("gpu02", 1157), ("gpu03", 1154)):
            phase("commit", 1153 * MS, end * MS, kind="host", subject=host)
        journal.point(
            "reconfig",
            {"job": "ddp", "trigger": "operator", "policy": "drain", "ok": "1"},
            {
                "reconfig_id": f"{run.id}/1",
                "seq": 1,
                "n_circuits": 24,
                "value": 1,
                "dark_ms": 52.0,
                "link_ms": 1.0,
                "total_ms": 57.0,
            },
            1100 * MS,
        )
        for n in range(100):
            journal.point(
                "iteration",
                {"job": "ddp", "workload": "train"},
                {"iter": n, "iter_ms": 40.0 + n / 10},
                (2000 + n) * MS,
            )
        journal.point(
            "collective",
            {"job": "ar", "op": "allreduce", "algo": "ring"},
            {"iter": 0, "iter_ms": 5.0, "busbw_gbps": 0.94},
            1,
        )
    return run.id


def plain(text: str, run: str) -> str:
    text = text.replace(run, "RUN").replace(run[-4:], "NNNN")
    text = re.sub(r"took .*", "took T", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d by ann@\S+", "DATE by ann@HOST", text)
    return re.sub(r"journal  .*", "journal  PATH", text)


def test_show_draws_the_phases(cli: Any, recorded: str, golden: Callable[[str, str], None]) -> None:
    result = cli("run", "show", recorded, "--steps")
    assert result.code == 0
    golden(
        "show.txt",
        re.sub(
            r"done   ocs1  apply 12  .*", "done   ocs1  apply 12  T", plain(result.out, recorded)
        ),
    )


def test_show_draws_with_plain_letters_where_asked(
    cli: Any, recorded: str, golden: Callable[[str, str], None]
) -> None:
    result = cli("run", "show", recorded[-4:], "--no-unicode")
    assert result.out.isascii()
    golden("show-ascii.txt", plain(result.out, recorded))


def test_show_without_a_name_is_the_newest_run(cli: Any, recorded: str) -> None:
    body = cli("run", "show", "--json").json["data"]
    assert body["run"]["id"] == recorded and "plan_text" not in body["run"]
    assert [p["phase"] for p in body["phases"]] == ["stage", "switch", "link", "commit"]
    assert [p["ms"] for p in body["phases"]] == [1100.0, 52.0, 1.0, 4.0]
    assert {p["subject"] for p in body["parts"]} == {"ocs1", "ocs3", "gpu01", "gpu02", "gpu03"}
    assert body["reconfigs"][0]["dark_ms"] == 52.0
    jobs = {j["job"]: j for j in body["jobs"]}
    assert (
        jobs["ddp"]["count"] == 100
        and jobs["ddp"]["median_ms"] == pytest.approx(44.95)
        and jobs["ar"]["busbw_gbps"] == 0.94
    )
    assert body["steps"][0]["state"] == "done" and body["trouble"] == []


def test_a_torn_journal_is_shown_with_what_it_lost(cli: Any, recorded: str) -> None:
    path = load().run_dir(recorded) / "telemetry" / "000.lp"
    path.write_bytes(path.read_bytes()[:-5])
    result = cli("run", "show")
    assert result.code == 0 and "torn last line" in result.out


def test_a_run_without_a_journal_is_still_shown(cli: Any) -> None:
    with Store(load().store_path) as store:
        store.new_run("up", "emulated").finish("failed", 5, "ocs1: no answer\nocs2: no answer")
    result = cli("run", "show", "last")
    assert (
        result.code == 0
        and "no phases were recorded" in result.out
        and "  ocs2: no answer\n" in result.out
    )


def test_a_run_that_is_not_there_names_those_that_are(cli: Any, recorded: str) -> None:
    result = cli("run", "show", "nine")
    assert result.code == 2 and f"no run 'nine'; the latest are {recorded}" in result.err


def test_history_lists_the_newest_first(cli: Any, recorded: str) -> None:
    with Store(load().store_path) as store:
        store.new_run("down", "emulated", user="bob").finish("interrupted", 130)
    lines = cli("run", "list").out.splitlines()
    assert lines[0].split() == ["run", "verb", "plan", "status", "took", "started", "by"]
    assert (
        "down" in lines[1]
        and "interrupted" in lines[1]
        and "bob@" in lines[1]
        and recorded in lines[2]
    )
    assert [r["verb"] for r in cli("run", "list", "--json", "-n", "1").json["data"]["runs"]] == [
        "down"
    ]


def test_no_runs_yet_is_said(cli: Any) -> None:
    assert cli("run", "list").out == "No runs yet\n"


def test_a_phase_that_came_twice_stands_once_and_what_overlaps_others_says_so() -> None:
    notices = [
        ("switch", 0.0, 100.0),
        ("resume", 90.0, 700.0),
        ("job", 100.0, 200.0),
        ("launch", 300.0, 200.0),
        ("job", 500.0, 500.0),
    ]
    lines = draw(
        [Bar("run", "", name, begin, ms) for name, begin, ms in notices], 70, unicode=False
    )
    shown = [line.split()[:2] for line in lines[1:]]
    assert shown == [
        ["switch", "100.0"],
        ["job", "700.0"],
        ["launch", "200.0"],
        ["resume", "700.0"],
    ]
    job, resume = (lines[n].split(maxsplit=2)[2] for n in (2, 4))
    assert job.count("#  ") == 1 and set(resume.removesuffix("overlaps others")) == {"-", " "}


times = st.floats(0, 1e7)


@given(
    st.lists(
        st.builds(
            Bar,
            st.sampled_from(["run", "device", "host"]),
            st.just("gpu01"),
            st.just("switch"),
            times,
            times,
        )
    ),
    st.integers(0, 300),
    st.booleans(),
)
def test_a_waterfall_of_any_run_fits_its_width(found: list[Bar], width: int, unicode: bool) -> None:
    lines = draw(found, width, unicode=unicode)
    for line in lines:
        assert len(line) <= max(width, 34 + 20 + 60)
    marks = "█▏▎▍▌▋▊▉" if unicode else "#|"
    rows = (
        sum(b.kind == "device" for b in found)
        + any(b.kind == "run" for b in found)
        + any(b.kind == "host" for b in found)
    )
    assert sum(any(m in line for m in marks) for line in lines) == rows
