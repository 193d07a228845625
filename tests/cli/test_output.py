"""What a reader sees: nothing twice, no broken words, one sentence where one will do, and a word
where output is lost.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optics import BadFile, Change, CrossConnect, Interlock, Port
from orchestrator.change.interlock import Interlocks
from orchestrator.cli import main
from orchestrator.cli.text import phase_line, wrapped
from orchestrator.jobs.report import JobStatus
from orchestrator.session import load_lab, load_plan
from orchestrator.store.tagouts import Tagout
from tests.house.repository import ROOT
from tests.kit.command_line import typed

ONE_STREAM = """
import sys
from types import SimpleNamespace
from orchestrator.cli.main import main
from orchestrator.change.report import UpReport
from orchestrator.telemetry.phases import PhaseTime

async def up(command, *arguments, **options):
    progress = command.progress
    progress.note("run 0006 died before its end")
    progress.done("plan", "24 links", 0.05)
    phases = (PhaseTime("plan", 0.05, "24 links"), PhaseTime("verify", 0.4, "pairs 132/132"))
    return UpReport("0007", "ring", "emulated", phases=phases, notes=("run 0006 died before its end", "another note"))

sys.modules["orchestrator.verbs.change"] = SimpleNamespace(up=up)
sys.argv = ["testbed", "up", "-t", "plan.json"]
main()
"""


def test_phases_and_notes_stand_once_where_both_streams_are_one(cli: Any) -> None:
    one = subprocess.run(
        [sys.executable, "-c", ONE_STREAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
    assert one.count("24 links") == 1 and one.count("run 0006 died") == 1
    assert "  verify     pairs 132/132" in one and "another note" in one, (
        "what was not said before stands in the report"
    )
    two = subprocess.run(
        [sys.executable, "-c", ONE_STREAM], capture_output=True, text=True, check=True
    )
    assert "24 links" in two.stdout and "24 links" in two.stderr


def test_long_lines_are_broken_between_words_and_set_in() -> None:
    line = (
        "  verify     48/48 circuits lit, worst margin +26.5 dB, 48/48 ports up, neighbours 48/48, "
    )
    line += "pairs 132/132 at planned hop counts"
    broken = wrapped(f"short\n{line}", 80).split("\n")
    assert broken[0] == "short" and all(len(part) <= 80 for part in broken) and len(broken) == 3
    assert (
        broken[2].startswith(" " * 13)
        and " ".join(part.strip() for part in broken[1:]) == line.strip()
    )
    assert wrapped("\033[32mUp\033[0m: " + "x" * 70, 80) == "\033[32mUp\033[0m: " + "x" * 70, (
        "colours have no width"
    )
    assert "y" * 90 in wrapped("see " + "y" * 90, 80), "paths can be copied"


@pytest.mark.parametrize("width", [40, 60, 72])
def test_in_a_narrow_terminal_times_stay_in_their_column_and_no_path_is_broken(width: int) -> None:
    path = "~/.local/state/testbed/t/2026-11-24"
    details = (
        "24 links: 0 kept, 0 broken, 48 made",
        "48/48 circuits lit, worst margin +26.5 dB, pairs 132/132 at hop counts",
    )
    lines = [
        phase_line("plan", details[0], 0.0021),
        phase_line("verify", details[1], 97.4),
        f"  journal    {path}",
    ]
    broken = wrapped("\n".join(lines), width).split("\n")
    assert all(len(part) <= width for part in broken), broken
    times = [part for part in broken if part.endswith((" 2.1 ms", " 1 min 37 s"))]
    assert [part.split()[0] for part in times] == ["plan", "verify"] and all(
        len(part) == width for part in times
    )
    assert any(part.strip().endswith(path) for part in broken), "whole"
    text = " ".join(" ".join(broken).split())
    assert all(word in text for detail in details for word in detail.split())


def test_no_word_of_a_result_is_broken_by_a_terminal(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    cli.answers["up"] = replace(cli.answers["up"], notes=("word " * 40,))
    out = cli("up", "plan.json").out
    assert "word word" in out and max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    "argv", [("up",), ("tagout",), ("lock",), ("plan",), ("lab", "fault", "add"), ("verify",)]
)
def test_help_texts_fit_eighty_columns(cli: Any, argv: tuple[str, ...]) -> None:
    assert max(map(len, cli(*argv, "--help").out.splitlines())) <= 80


def test_one_of_something_is_in_the_singular(cli: Any) -> None:
    cli.answers["status"] = replace(
        cli.answers["status"], links=1, job=JobStatus("x", "running", "train", "gloo", 1, 1)
    )
    out = cli("status").out
    assert ", 1 link, generation" in out and "1 rank, " in out and "1 iteration\n" in out


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["--version", "--json"]])
def test_output_that_cannot_be_written_is_told_without_a_traceback(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # it would leave nothing for the end of the process to write
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert ended.returncode == 1 and ended.stderr.startswith(
        "E-OUTPUT the output cannot be written: No space left on device"
    )
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
    with Path("/dev/full").open("w") as full:
        silent = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *argv],
            stdout=full,
            stderr=full,
            cwd=ROOT,
            check=False,
        )
    assert silent.returncode == 1


def test_output_that_is_lost_keeps_the_exit_code_of_the_command(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(main, "_show", full)
    monkeypatch.setattr(main, "_drop_output", lambda: None)
    assert main.run(["up", "no-such-plan.json"]) == 3 and main.run(["status"]) == 1


def test_an_inventory_that_is_not_there_is_one_sentence(cli: Any) -> None:
    (cli.home / "inventory" / "emulated" / "devices.yml").write_text("")
    result = cli("lab", "status", "-i", "inventory/emulatde")
    assert result.code == 3
    assert (
        result.err.splitlines()[0]
        == f"E-BAD-FILE {cli.home}/inventory/emulatde: no such directory; did you mean emulated?"
    )
    with pytest.raises(BadFile) as refused:
        load_lab(cli.home / "inventory")
    assert len(refused.value.problems) == 1 and "Errno" not in str(refused.value)
    with pytest.raises(BadFile) as half:
        load_lab(cli.home / "inventory" / "emulated")
    assert [p.rpartition("/")[2] for p in half.value.problems] == [
        f"{n}: No such file or directory" for n in ("hosts.yml", "fibres.yml")
    ]
    for verb in (("lab", "start"), ("lab", "fault", "list")):
        assert "no such directory" in cli(*verb, "-i", "nowhere").err


@pytest.mark.parametrize("lab", ["emulated-wss", "emulated-lookahead", "example-lab"])
def test_a_plan_for_another_lab_is_refused_in_one_sentence(lab: str) -> None:
    with pytest.raises(BadFile) as refused:
        load_plan(ROOT / "examples" / "topoopt-12.json", load_lab(ROOT / "inventory" / lab))
    (sentence,) = refused.value.problems
    assert (
        "this is a plan for another lab" in sentence
        and ":" in sentence
        and "--inventory" in refused.value.hint
    )


def test_a_plan_may_stand_alone(cli: Any) -> None:
    for verb in ("up", "plan"):
        assert cli(verb, "plan.json").code == 0
        assert cli.calls[-1][0] == verb and cli.calls[-1][1][1] == Path("plan.json")
    result = cli("up", "plan.json", "-t", "plan.json")
    assert result.code == 2 and "two plans given" in result.err
    assert cli("up", "plan.json", "--plan", "saved.json").code == 2


def complete(*argv: str) -> list[str]:
    asked = {"_TYPER_COMPLETE_ARGS": " ".join(("testbed", *argv))}
    return typed(at=ROOT, _TESTBED_COMPLETE="complete_zsh", **asked).stdout.split()


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (("up", "--avoid", "f-gpu03"), "f-gpu03-p2"),
        (("verify", "--rung", "li"), "light"),
        (("up", "examples/ri"), "examples/ring-12.json"),
        (("up", "--plan", "examples/ri"), "examples/ring-12.json"),
        (
            ("design", "topoopt", "--workload", "examples/workloads/dl"),
            "examples/workloads/dlrm.yaml",
        ),
        (("lab", "fibre", "cut", "f-gpu12"), "f-gpu12-p4"),
        (("tagout", "f-gpu07"), "f-gpu07-p1"),
        (("lab", "fault", "add", "oc"), "ocs1"),
        (("--inventory", "inventory/emulated-wss", "lab", "fault", "add", "ws"), "wss1"),
    ],
)
def test_completion_knows_what_the_lab_has(cli: Any, argv: tuple[str, ...], wanted: str) -> None:
    assert any(wanted in found for found in complete(*argv))


def test_the_audit_of_locks_is_bounded_and_says_so(cli: Any) -> None:
    folder = cli.home / "inventory" / "emulated"
    for name in ("hosts.yml", "devices.yml", "fibres.yml"):
        (folder / name).write_bytes((ROOT / "inventory" / "emulated" / name).read_bytes())
    for number in range(4):
        made = cli("tagout", f"f-gpu0{number + 1}-p1", "--reason", "hands", "--json")
        assert made.code == 0, made
    few, all_ = cli("lock", "audit", "--last", "3"), cli("lock", "audit")
    assert (
        len(few.out.splitlines()) == 4
        and "Older records are not shown" in few.out
        and "--last 30" in few.err
    )
    assert len(all_.out.splitlines()) == 4 and all_.err == ""
    assert cli("lock", "list", "--last", "3").code == 2


def test_a_refusal_for_a_tag_says_nothing_of_too_much_light() -> None:
    lab = load_lab(ROOT / "inventory" / "emulated")

    class Tags:
        def listed(self) -> list[Tagout]:
            return [Tagout("9c02d1", "ocs1:1", "ann", "ann", "h", 0.0, "hands")]

    interlocks = Interlocks(lab, {}, Tags())  # type: ignore[arg-type]
    change = Change("ocs1", add=frozenset({CrossConnect(Port("ocs1", "1"), Port("ocs1", "18"))}))
    with pytest.raises(Interlock) as refused:
        asyncio.run(interlocks.check({"ocs1": change}))
    assert "tagout remove" in refused.value.hint and "max_input_dbm" not in refused.value.hint


@pytest.mark.parametrize(
    "argv",
    [
        ("up", "--plan", "none.json"),
        ("devices", "driver", "replay", "none"),
        ("experiment", "report", "none.json"),
    ],
)
def test_a_file_that_is_not_there_is_told_without_numbers_of_the_system(
    cli: Any, argv: tuple[str, ...]
) -> None:
    result = cli(*argv)
    assert result.code and "Errno" not in result.err and "Traceback" not in result.err


def test_a_hint_names_a_page_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optical_testbed_home import HOME
    from orchestrator.cli import pages

    monkeypatch.setattr(pages, "examples_home", lambda: tmp_path / "share")
    monkeypatch.chdir(tmp_path)
    assert pages.with_pages("see docs/how-to/grafana.md") == "see docs/how-to/grafana.md", (
        "no pages are installed"
    )
    (tmp_path / "share" / "docs" / "how-to").mkdir(parents=True)
    assert (
        pages.with_pages("see docs/how-to/grafana.md, x")
        == f"see {tmp_path}/share/docs/how-to/grafana.md, x"
    )
    assert (
        pages.with_pages("see extensions/shadow/README.md")
        == f"see {HOME}/extensions/shadow/README.md"
    ), "a mechanism's"
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "docs" / "how-to" / "grafana.md").touch()
    assert pages.with_pages("see docs/how-to/grafana.md") == "see docs/how-to/grafana.md", (
        "it is below this directory"
    )
