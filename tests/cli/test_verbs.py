"""Every verb: its words, its JSON, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optics import (
    BadFile,
    ChangeFailed,
    Garbled,
    HandsNeeded,
    Infeasible,
    Interlock,
    Interrupted,
    Locked,
    Missing,
    NotVerified,
    Refused,
    RolledBack,
    TestbedError,
    TimedOut,
    Unreachable,
)
from orchestrator.change.report import DownReport, UpReport
from orchestrator.change.unfinished import Unfinished
from orchestrator.cli.main import EXIT_CODES
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.report import PlanReport
from orchestrator.store.confirmations import Awaiting
from orchestrator.store.options import UpOptions
from orchestrator.verbs.report import StatusReport
from orchestrator.verify.report import LevelResult, VerifyReport
from tests.house.repository import ROOT

ENGINE_VERBS = {
    "up": ("up", "--topology", "plan.json"),
    "plan": ("plan", "-t", "plan.json"),
    "down": ("down", "--yes"),
    "rollback": ("rollback",),
    "confirm": ("confirm",),
    "watch": ("confirm", "--watch", "0007"),
    "resume": ("resume", "0007"),
    "restore": ("restore",),
    "status": ("status",),
    "verify": ("verify",),
    "stall": ("verify", "--stall"),
    "stall_curves": ("verify", "--history"),
    "job_launch": ("job", "launch"),
    "job_status": ("job", "status"),
    "job_env": ("job", "env"),
    "job_logs": ("job", "logs"),
    "job_pause": ("job", "pause", "--for", "5m"),
    "job_resume": ("job", "resume"),
    "job_stop": ("job", "stop"),
}
ERRORS = [
    BadFile,
    Infeasible,
    Locked,
    Unreachable,
    Garbled,
    TimedOut,
    Refused,
    Interlock,
    NotVerified,
    ChangeFailed,
    RolledBack,
    Interrupted,
    Missing,
    TestbedError,
]


@pytest.mark.parametrize("name", ENGINE_VERBS)
def test_each_verb_prints_its_report(
    cli: Any, golden: Callable[[str, str], None], name: str
) -> None:
    result = cli(*ENGINE_VERBS[name])
    assert result.code == 0 and result.err == f"plan       {'computed':<55} 50 ms\n"
    golden(f"{name}.txt", result.out)


@pytest.mark.parametrize("name", ENGINE_VERBS)
def test_each_verb_prints_its_json_and_nothing_else(cli: Any, name: str) -> None:
    result = cli(*ENGINE_VERBS[name], "--json")
    assert result.code == 0 and result.err == "" and result.out.count("\n") == 1
    assert result.json["ok"] is True and result.json["code"] == "OK"
    assert result.json["data"] == json.loads(json.dumps(cli.answers[name].to_json()))


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("name", ["up", "status", "job_stop"])
def test_an_error_has_the_same_exit_code_in_words_and_in_json(
    cli: Any, name: str, kind: type[TestbedError]
) -> None:
    cli.answers[name] = (
        kind(["plan.json:5:23: no"], hint="do this")
        if kind is BadFile
        else kind("plan.json:5:23: no", hint="do this")
    )
    text, body = cli(*ENGINE_VERBS[name]), cli(*ENGINE_VERBS[name], "--json")
    assert text.code == body.code == kind.exit_code in EXIT_CODES
    assert f"{kind.code} plan.json:5:23: no\nnext: do this\n" in text.err and text.out == ""
    assert (body.json["ok"], body.json["code"], body.json["message"], body.json["hint"]) == (
        False,
        kind.code,
        "plan.json:5:23: no",
        "do this",
    )
    if kind is BadFile:
        assert body.json["data"] == {"problems": ["plan.json:5:23: no"]}


def test_a_fault_of_ours_keeps_its_traceback_in_a_file(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cli.answers["status"] = ZeroDivisionError("division by zero")
    result = cli("status", "--json")
    assert (
        result.code == 1
        and result.json["code"] == "E-UNEXPECTED"
        and result.json["message"] == "ZeroDivisionError: division by zero"
    )
    assert "Traceback" in Path(result.json["hint"].split()[-1]).read_text()


def test_the_engine_gets_what_the_line_said(cli: Any) -> None:
    (cli.home / "lab").mkdir()
    cli("up", "-t", "plan.json", "--dry-run", "--no-job", "-i", "lab", "--timeout", "90s")
    ((name, (command, plan, asked), options),) = cli.calls
    assert name == "up" and plan == Path("plan.json") and not options
    assert (asked, command.timeout_s) == (UpOptions(dry_run=True, launch_job=False), 90.0)
    assert command.inventory == cli.home / "lab"


@pytest.mark.parametrize(
    "line", ["up -t plan.json", "down --yes", "rollback --yes", "resume last", "restore"]
)
def test_whoever_changes_the_lab_can_wait_for_locks(cli: Any, line: str) -> None:
    cli(*line.split(), "--wait", "10m")
    assert cli.calls[-1][1][0].settings.wait_s == 600.0


def test_a_change_that_waits_to_be_confirmed_says_until_when_and_where_it_goes_back(
    cli: Any,
) -> None:
    waits = Awaiting("2026-11-21-0007", "topoopt-12", "ring-12", 1.8e9, 192.4)
    cli.answers["up"] = replace(cli.answers["up"], confirm=waits)
    assert (
        "  confirm    within 3 min 12 s, or it is rolled back to ring-12: testbed confirm\n"
        in cli(*ENGINE_VERBS["up"], "--confirm-within", "4m").out
    )
    assert cli.calls[-1][1][-1].confirm_s == 240.0
    cli.answers["status"] = replace(
        cli.answers["status"], confirm=replace(waits, back="", watched=False)
    )
    unwatched = "or it is rolled back to no plan: testbed confirm; no process watches the deadline: testbed confirm --watch\n"
    assert unwatched in cli("status").out
    cli.answers["status"] = replace(cli.answers["status"], confirm=replace(waits, left_s=-1.0))
    assert (
        "your next change first rolls back to ring-12; to do it now: testbed rollback 2026-11-21-0007\n"
        in cli("status").out
    )
    assert cli("status", "--json").json["data"]["confirm"]["back"] == "ring-12"


def test_the_common_options_may_stand_before_or_after_the_verb(cli: Any) -> None:
    cli("--timeout", "5s", "status")
    cli("status", "--timeout", "6s")
    cli("--timeout", "5s", "status", "--timeout", "7s")
    cli("--timeout", "8s", "job", "status")
    assert [arguments[0].timeout_s for _, arguments, _ in cli.calls] == [5.0, 6.0, 7.0, 8.0]
    assert cli("--json", "status").json["ok"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("upp",), "Did you mean 'up'?"),
        (("up", "--topologie", "x"), "--topologie"),
        (("up",), "no plan given"),
        (("up", "-t", "plan.json", "--plan", "saved.json"), "cannot be combined"),
        (
            ("up", "-t", "plan.json", "--confirm-within", "soon"),
            "--confirm-within: 'soon' is not a duration",
        ),
        (
            ("up", "-t", "plan.json", "--confirm-within", "13h"),
            "--confirm-within: must be from 1 s to 12 h, not 13h",
        ),
        (("job",), ""),
        (("job", "logs", "--lines", "none"), "--lines"),
        (("down",), "there is no terminal"),
        (("examples", "schema", "moon"), "moon"),
    ],
)
def test_wrong_usage_is_two_in_words_and_in_json(
    cli: Any, argv: tuple[str, ...], text: str
) -> None:
    plain, body = cli(*argv), cli(*argv, "--json")
    assert plain.code == body.code == 2 and text in plain.err and text in body.json["message"]
    assert body.json["code"] == "E-USAGE" and body.json["hint"] and cli.calls == []


def test_a_missing_plan_file_is_named_with_the_nearest_one(cli: Any) -> None:
    result = cli("up", "-t", "plam.json")
    assert (
        result.code == 3
        and result.err == "E-BAD-FILE plam.json: no such file; did you mean plan.json?\n"
    )


def test_down_without_a_terminal_names_the_flag(cli: Any) -> None:
    result = cli("down")
    assert result.code == 2 and "next: add --yes" in result.err and cli.calls == []


def test_a_second_up_says_nothing_to_do(cli: Any) -> None:
    cli.answers["up"] = UpReport(
        "", "ring-12", "emulated", nothing_to_do=True, diff=cli.answers["up"].diff[1:]
    )
    result = cli("up", "-t", "plan.json")
    assert (
        result.out == "Nothing to do: ring-12 is up on emulated (2 circuits kept, 0 writes)\n"
        and result.code == 0
    )


def test_a_dry_run_says_that_nothing_was_written(
    cli: Any, golden: Callable[[str, str], None]
) -> None:
    cli.answers["up"] = replace(cli.answers["up"], dry_run=True, job=None, dark_ms=None)
    golden("up-dry-run.txt", cli("up", "-t", "plan.json", "--dry-run").out)


def test_packet_switches_of_a_plan_are_named(cli: Any) -> None:
    tree = ("oversubscribed (4 ports of 100 Mb/s, 2 racks)",)
    for verb in ("up", "plan", "status"):
        cli.answers[verb] = replace(cli.answers[verb], segments=tree)
    assert f"  segments   {tree[0]}\n" in cli("up", "-t", "plan.json").out
    assert f"  segments   {tree[0]}\n" in cli("plan", "-t", "plan.json").out
    assert f"segment  {tree[0]}\n" in cli("status").out
    cli.answers["plan"] = PlanReport("over-tree", "emulated", segments=tree)
    assert (
        "Plan: over-tree on emulated: no light moves (0 circuits kept)"
        in cli("plan", "-t", "plan.json").out
    )


def test_differences_are_eight_only_when_asked_for(cli: Any) -> None:
    assert cli("plan", "-t", "plan.json").code == 0
    result = cli("plan", "-t", "plan.json", "--exit-code", "--json")
    assert result.code == 8 and result.json["ok"] is True and result.json["code"] == "DIFFERENCES"
    assert cli("status").code == 0 and cli("status", "--exit-code").code == 8
    cli.answers["plan"] = PlanReport("ring", "emulated")
    assert cli("plan", "-t", "plan.json", "--exit-code").code == 0


def test_a_device_that_does_not_answer_makes_status_five(cli: Any) -> None:
    status: StatusReport = cli.answers["status"]
    cli.answers["status"] = replace(
        status, devices=(replace(status.devices[0], ok=False, error="ocs1: refused"),)
    )
    result = cli("status", "--json")
    assert (
        result.code == 5
        and result.json["code"] == "E-UNREACHABLE"
        and result.json["message"] == "1 does not answer: ocs1"
    )
    assert result.json["data"]["devices"][0]["error"] == "ocs1: refused"


def test_a_rung_that_fails_shows_its_evidence_and_is_seven(
    cli: Any, golden: Callable[[str, str], None]
) -> None:
    levels = (
        LevelResult("map", True, "4 devices", 0.03),
        LevelResult(
            "link", False, "47/48", 2.0, ("gpu03:p2: no carrier, ocs2:19 is lit",), "E-LINK"
        ),
    )
    cli.answers["verify"] = VerifyReport("emulated", "ring-12", levels)
    result = cli("verify")
    assert result.code == 7 and result.err.splitlines()[1:] == [
        "E-NOT-VERIFIED not verified: link (E-LINK)",
        "next: testbed status",
    ]
    golden("verify-failed.txt", result.out)


def test_verify_of_a_plan_whose_host_is_silent_is_five_and_names_it(cli: Any) -> None:
    levels = (
        LevelResult("link", False, "47/48", 2.0, ("gpu03: ssh: connection refused",), "E-LINK"),
    )
    cli.answers["verify"] = VerifyReport(
        "emulated", "ring-12", levels, silent={"gpu03": "ssh: connection refused"}
    )
    result = cli("verify", "--json")
    assert (
        result.code == 5
        and result.json["code"] == "E-UNREACHABLE"
        and result.json["message"].endswith("1 does not answer: gpu03")
    )
    assert result.json["data"]["levels"][0]["code"] == "E-LINK"


def test_verify_takes_rungs_by_name_and_says_which_there_are(cli: Any) -> None:
    assert cli("verify", "--rung", "map", "--rung", "light", "--beside-job").code == 0
    assert (
        cli.calls[-1][2]["levels"] == ("map", "light") and cli.calls[-1][2]["next_to_job"] is True
    )
    result = cli("verify", "--rung", "lihgt", "--json")
    assert result.code == 2 and result.json["code"] == "E-USAGE"
    assert result.json["message"].endswith("collective; did you mean light?")


def test_what_down_could_not_restore_is_a_numbered_list(cli: Any) -> None:
    cli.answers["down"] = DownReport("r", "emulated", left=("gpu03: ip rule 7000", "ocs1: 1->17"))
    result = cli("down", "-y")
    assert result.code == 7 and "  1. gpu03: ip rule 7000\n  2. ocs1: 1->17\n" in result.out


def test_what_a_failed_change_left_for_hands_is_a_numbered_list_and_data(cli: Any) -> None:
    cli.answers["up"] = HandsNeeded(
        "ocs1: silent\nmanual repair is needed:",
        ("ocs1: does not answer", "gpu03: runs generation 4"),
        hint="x",
    )
    result, body = cli("up", "-t", "plan.json"), cli("up", "-t", "plan.json", "--json")
    assert (
        result.code == 7
        and "manual repair is needed:\n  1. ocs1: does not answer\n  2. gpu03: runs generation 4\n"
        in result.err
    )
    assert body.json["code"] == "E-HANDS-NEEDED" and body.json["data"] == {
        "left": ["ocs1: does not answer", "gpu03: runs generation 4"]
    }


def test_going_back_to_no_plan_tells_what_is_left_for_hands(cli: Any) -> None:
    cli.answers["rollback"] = DownReport(
        "r", "emulated", left=("gpu03: ip rule 7000",), verb="rollback"
    )
    result = cli("rollback", "0007")
    assert (
        result.code == 7
        and "Rolled back to no plan" in result.out
        and cli.calls[-1][1][1] == "0007"
    )


def test_up_takes_a_failed_change_back_unless_told_otherwise(cli: Any) -> None:
    cli("up", "-t", "plan.json")
    cli("up", "-t", "plan.json", "--no-rollback")
    assert [asked.rollback for _, (_, _, asked), _ in cli.calls] == [True, False]


def test_status_tells_of_a_run_that_died_with_both_ways_on(cli: Any) -> None:
    left = Unfinished(
        "2026-11-21-0007",
        "up ring-12",
        "died",
        0.0,
        ("ocs1: 1/2 made, 2/2 removed",),
        ("ocs1: not made: 2->18",),
        (),
        "testbed resume 2026-11-21-0007",
        "testbed rollback 2026-11-21-0007",
    )
    cli.answers["status"] = replace(cli.answers["status"], unfinished=(left,))
    result = cli("status")
    assert (
        "run 2026-11-21-0007 (up ring-12) died before its end\n"
        "  done:     ocs1: 1/2 made, 2/2 removed\n"
        "  not done: ocs1: not made: 2->18\n"
        "  continue: testbed resume 2026-11-21-0007   roll back: testbed rollback 2026-11-21-0007\n"
    ) in result.out


def test_a_failed_job_is_told_with_its_exit_codes(cli: Any) -> None:
    cli.answers["job_status"] = JobStatus("ddp", "failed", ranks=2, exit_codes={0: 0, 1: -9})
    result = cli("job", "status")
    assert (
        result.code == 1
        and "exit codes: rank 1: -9" in result.out
        and "next: testbed job logs" in result.err
    )


def test_a_saved_plan_is_applied_only_to_the_lab_it_was_made_for(cli: Any) -> None:
    result = cli("plan", "-t", "plan.json", "-o", "saved.json")
    assert "next: testbed up --plan saved.json" in result.err
    (cli.home / "plan.json").unlink()
    assert cli("up", "--plan", "saved.json").code == 0
    name, (_, applied, asked), _ = cli.calls[-1]
    assert (
        name == "up"
        and applied.name == "plan.json"
        and applied.read_text() == '{"name": "topoopt-12"}'
    )
    assert asked.expected == "f00d", "compared by the engine, once nobody else can change the lab"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema": "other/1"}', '{"schema": "testbed.saved-plan/1"}']
)
def test_a_file_that_is_no_saved_plan_is_refused(cli: Any, text: str) -> None:
    (cli.home / "saved.json").write_text(text)
    result = cli("up", "--plan", "saved.json")
    assert result.code == 3 and "saved.json: not a saved plan" in result.err and cli.calls == []


def test_there_is_no_colour_without_a_terminal(cli: Any) -> None:
    for argv in ENGINE_VERBS.values():
        assert "\033" not in cli(*argv).out


def test_version_names_what_it_stands_on(cli: Any) -> None:
    result = cli("--version", "--json")
    assert {"testbed", "python", "kernel", "paramiko"} <= set(result.json["data"])


def test_schema_prints_a_json_schema(cli: Any) -> None:
    printed = json.loads(cli("examples", "schema", "plan").out)
    assert printed == cli("examples", "schema", "--json").json["data"] and "$schema" in printed


def test_help_puts_examples_first_and_every_verb_has_some(cli: Any) -> None:
    verbs: list[tuple[str, ...]] = [
        ("up",),
        ("plan",),
        ("down",),
        ("status",),
        ("verify",),
        ("run", "list"),
        ("run", "show"),
        ("doctor",),
        ("examples", "schema"),
    ]
    verbs += [("rollback",), ("resume",), ("restore",)]
    verbs += [("job", v) for v in ("launch", "status", "logs", "stop")] + [
        ("lab", v) for v in ("start", "stop", "status")
    ]
    verbs += [("lab", "fault", v) for v in ("add", "list", "remove")] + [
        ("lab", "fibre", v) for v in ("cut", "splice", "swap")
    ]
    for argv in verbs:
        result = cli(*argv, "--help")
        assert result.code == 0 and f"Examples:\n    testbed {' '.join(argv)}" in result.out, argv
        assert result.out.index("Examples:") < result.out.index("Options:")
    assert cli().out == cli("--help").out and cli().code == 0


@pytest.mark.parametrize(
    "argv",
    [
        ("up",),
        ("plan",),
        ("down",),
        ("status",),
        ("design",),
        ("design", "ring"),
        ("job", "queue", "list"),
    ],
)
def test_the_first_screen_of_help_has_examples_and_the_first_options(
    cli: Any, argv: tuple[str, ...]
) -> None:
    screen = cli(*argv, "--help").out.splitlines()[:24]
    assert "  Examples:" in screen and "Options:" in screen


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("devices", "driver", "conform", "polatis-scpi", "--device", "ocs9"),
            "there is no device 'ocs9' in this lab; did you mean ocs1?",
        ),
        (
            ("devices", "driver", "record", "ocs9", "--out", "x.txt"),
            "there is no device 'ocs9' in this lab; did you mean ocs1?",
        ),
        (
            ("devices", "driver", "conform", "polatis-spci"),
            "there is no driver 'polatis-spci'; did you mean polatis-scpi?",
        ),
    ],
)
def test_a_device_or_driver_that_is_not_there_is_no_fault_of_a_file(
    cli: Any, argv: tuple[str, ...], message: str
) -> None:
    found = cli(*argv, "--json", "-i", str(ROOT / "inventory" / "emulated"))
    assert (found.code, found.json["code"], found.json["message"]) == (2, "E-MISSING", message)


def test_help_imports_nothing_heavy() -> None:
    program = """
import sys
from orchestrator.cli.main import run
heavy = {"paramiko", "pyvisa", "ansible", "ansible_runner", "influxdb_client", "torch", "numpy", "serial", "sqlite3"}
run(["--help"])
light = heavy | {"pydantic", "rich", "yaml", "asyncio"}
print(sorted(light & set(sys.modules)), file=sys.stderr)
for words in (["up"], ["run", "show"], ["doctor"]):
    run([*words, "--help"])
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stderr == "[]\n[]\n"


def test_job_env_prints_one_thing_at_a_time(cli: Any) -> None:
    assert "srun --nodes=2 --ntasks=2" in cli("job", "env", "--srun").out
    assert cli("job", "env", "--rank", "1").out.count("# rank") == 1
    for both in (("--srun", "--mpirun"), ("--rank", "1", "--torchrun")):
        result = cli("job", "env", *both)
        assert result.code == 2 and "exclude each other" in result.err
    assert cli("job", "env", "--rank", "2").code == 3


def test_spares_are_checked_before_a_stopped_lab_is_started_for_the_plan(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("orchestrator.cli.change.is_stopped_lab", lambda inventory: True)
    monkeypatch.setattr("orchestrator.cli.call.start_lab", lambda *text: started.append(text))
    at = ("--inventory", ROOT / "inventory" / "emulated", "-t", ROOT / "examples" / "ring-12.json")
    result = cli("up", *at, "--spares", "nosuch")
    assert (
        result.code == 2
        and "--spares nosuch: nosuch is not in the lab" in result.err
        and "next:" in result.err
    )
    assert not started and not cli.calls
    assert cli("up", *at).code == 0 and started


def test_every_verb_says_in_the_same_words_that_there_is_no_such_run(cli: Any) -> None:
    asked = (
        ("run", "show", "9999"),
        ("run", "note", "9999", "--tag", "x"),
        ("telemetry", "query", "9999", "SELECT 1"),
    )
    for argv in asked:
        body = cli(*argv, "--json")
        assert (body.code, body.json["code"], body.json["hint"]) == (
            2,
            "E-MISSING",
            "testbed run list",
        ), argv
        assert body.json["message"] == "there is no run '9999'; there are no runs yet", argv


def test_an_option_that_cannot_be_read_is_wrong_usage_and_no_bad_file(cli: Any) -> None:
    asked = {
        (
            "up",
            "-t",
            "plan.json",
            "--timeout",
            "5minutes",
        ): "--timeout: '5minutes' is not a duration: a number with ms, s",
        ("status", "--as", "a/b"): "--as: 'a/b' is no name",
        (
            "verify",
            "--pairs",
            "none",
        ): "--pairs: wanted a whole number from 1 to 100000000 or all, found 'none'",
        (
            "telemetry",
            "replay",
            "last",
            "--to",
            "here",
        ): "--to: wanted none, auto or http://HOST:PORT; found 'here'",
        (
            "up",
            "-t",
            "plan.json",
            "--job",
            "lve",
        ): "--job lve: not one of live, restart, keep; did you mean live?",
        (
            "examples",
            "schema",
            "plam",
        ): "plam: not one of plan, scenario, sweep, data; did you mean plan?",
        (
            "service",
            "start",
            "pacing",
            "--by",
            "shft",
        ): "--by shft: not one of shift, mltcp, together; did you mean shift?",
        (
            "devices",
            "driver",
            "new",
            "acme",
            "--protocol",
            "scp",
        ): "--protocol scp: not one of scpi, tl1, http, cli; did you mean scpi?",
        (
            "lab",
            "start",
            "--driver",
            "polaris-scpi",
        ): "--driver polaris-scpi: there is no such driver; did you mean polatis-scpi?",
    }
    for argv, text in asked.items():
        body = cli(*argv, "--json")
        assert (body.code, body.json["code"]) == (2, "E-USAGE") and text in body.json["message"], (
            argv,
            body.json,
        )
