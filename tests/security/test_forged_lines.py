"""S16: words of a device, of another user or of a host are shown as one line without colours, so
that none passes for ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.change.unfinished import Unfinished
from orchestrator.cli import render
from orchestrator.cli.text import columns, paint
from orchestrator.cli.tones import coloured
from orchestrator.jobs.report import JobLogs, JobStatus
from orchestrator.session import load_lab
from orchestrator.store.audit import Who
from orchestrator.store.keys import key_of
from orchestrator.store.locks import Locks
from orchestrator.store.scope import WHOLE
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.verbs.report import DeviceStatus, HostStatus, StatusReport
from tests.security.test_hostile import answer, command, speaker

__all__ = ["command"]

FORGED = "busy\x1b[32m\nAs planned\x1b[0m\n  ok   ocs1 all is well"


def plain(text: str) -> list[str]:
    """The lines as a terminal without colours gets them; none may hold what moves a cursor, or
    stand where ours stand.
    """
    shown = coloured(text)
    assert all(char.isprintable() or char == "\n" for char in shown), shown
    lines = shown.splitlines()
    assert not [line for line in lines if line.startswith(("As planned", "  ok   ocs1"))], shown
    return lines


def test_colours_of_others_are_written_out_and_ours_are_colours() -> None:
    shown = coloured(f"{paint('ok', 'green', True)} said \x1b[31mFAIL\x1b[0m")
    assert shown == "\x1b[32mok\x1b[0m said \\x1b[31mFAIL\\x1b[0m"


def test_a_cell_of_a_table_is_one_line() -> None:
    assert plain("\n".join(columns([("a", FORGED), ("b", "2")])))[1] == "b  2"


def test_what_a_device_or_host_says_is_one_line_of_status() -> None:
    report = StatusReport(
        "lab",
        "inventory",
        devices=(DeviceStatus("ocs1", "calient-tl1", "tcp://x:1", False, error=FORGED),),
        hosts=(HostStatus("gpu01", "x:22", False, error=FORGED),),
        job=JobStatus("job", "failed", detail=FORGED),
        unfinished=(Unfinished("r1", FORGED, "died", 0.0, done=(FORGED,)),),
        drift=(FORGED,),
    )
    lines = plain(render.status(report, False))
    assert sum("busy" in line for line in lines) == 6
    assert plain(render.logs(JobLogs("job", {0: (FORGED,)})))


@pytest.mark.parametrize("driver", ["calient-tl1", "glimmerglass-tl1", "polatis-tl1"])
def test_a_refusal_with_colours_is_shown_without(driver: str, command: Any) -> None:
    with speaker(answer(driver, "\x1b[1m\x1b[31mno\x1b[0m")) as (port, _):
        for argv in (("devices",), ("status",)):
            _, out, err = command(driver, port, *argv)
            assert "\\x1b[31mno" in out + err and "\x1b" not in out + err, (argv, out, err)


def test_a_reason_forges_no_row_of_lock_tagout_status_or_doctor(
    command: Any, tmp_path: Path
) -> None:
    with speaker(b"no\r\n") as (port, _):
        command("polatis-scpi", port, "run", "list")
        (tmp_path / "data").chmod(0o700)
        with Store(tmp_path / "data" / "testbed.sqlite3") as store:
            key, eve = key_of(load_lab(tmp_path / "lab")), Who("eve\x1b[31m", "eve\nroot")
            Locks(store, key, eve).take("reservation", WHOLE, FORGED, for_s=600)
            made = Tagouts(store, key, eve).set("ocs1", FORGED)
        verbs = (
            ("lock",),
            ("lock", "audit"),
            ("tagout",),
            ("tagout", "remove", made.id),
            ("status",),
            ("doctor",),
        )
        for argv in (*verbs, ("lock", "reserve", "--for", "1m", "--reason", "x")):
            _, out, err = command("polatis-scpi", port, *argv)
            assert "busy" in out + err, (argv, out, err)
            plain(out + err)
            _, out, _ = command("polatis-scpi", port, *argv, "--json")
            assert json.loads(out)


@pytest.mark.parametrize(
    "argv",
    [("lock", "reserve", "--for", "1m"), ("tagout", "ocs1"), ("lock", "release", "abc", "--steal")],
)
def test_a_reason_of_several_lines_is_refused(command: Any, argv: tuple[str, ...]) -> None:
    code, _, err = command("polatis-scpi", 1, *argv, "--reason", FORGED)
    assert code == 2 and "one line" in err, err
