"""`run note`, and the filters of `run list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.settings import load
from orchestrator.store.notes import MOST_TEXT, annotate
from orchestrator.store.store import Store


@pytest.fixture
def runs(cli: Any, tmp_path: Path) -> list[str]:
    """Four ended runs, oldest first: up ok, up failed, verify ok, up ok of another plan."""
    found = []
    with Store(tmp_path / "data" / "testbed.sqlite3", durable=False) as store:
        for verb, plan, status in (
            ("up", "a", "ok"),
            ("up", "a", "failed"),
            ("verify", "", "ok"),
            ("up", "b", "ok"),
        ):
            run = store.new_run(verb, "lab", plan_name=plan, user=load().user)
            run.finish(status)
            found.append(run.id)
    return found


def listed(cli: Any, *argv: str) -> list[str]:
    return [run["id"][-4:] for run in cli("run", "list", "--json", *argv).json["data"]["runs"]]


def test_a_tag_finds_its_runs_again_and_goes(cli: Any, runs: list[str]) -> None:
    assert cli("run", "note", "0001", "0004", "--tag", "paper-fig3", "--tag", "v2").code == 0
    assert listed(cli, "--tag", "paper-fig3") == ["0004", "0001"]
    assert cli("run", "note", "--json").json["data"]["tags"] == {"paper-fig3": 2, "v2": 2}
    output = cli("run", "list").out
    assert "tags" in output.splitlines()[0] and output.count("paper-fig3, v2") == 2
    cli("run", "note", "0001", "--untag", "v2", "--tag", "v2b")
    assert listed(cli, "--tag", "paper-fig3", "--tag", "v2") == ["0004"], "all of several tags"
    assert "No run matches" in cli("run", "list", "--tag", "none-such").out


def test_a_note_is_in_show_and_can_be_dropped_by_its_number(cli: Any, runs: list[str]) -> None:
    cli("run", "note", "0002", "-m", "  fibre of gpu07\x1b[2J cleaned\nbefore ")
    number = cli("run", "note", "last", "0002", "-m", "again", "--json").json["data"]["runs"][1][
        "notes"
    ][1]["number"]
    shown = cli("run", "show", "0002").out
    assert "fibre of gpu07\\x1b[2J cleaned" in shown and "again" in shown
    refused = cli("run", "note", "last", "--drop", str(number))
    assert refused.code == 2 and f"no note {number}" in refused.err, "it is of another run"
    lines = cli("run", "note", "0002", "--drop", str(number), "--json").json["data"]["runs"][0][
        "notes"
    ]
    assert [note["text"] for note in lines] == ["fibre of gpu07\x1b[2J cleaned\nbefore"] and lines[
        0
    ]["user"] == load().user


def test_history_is_filtered_by_verb_status_plan_user_and_time(cli: Any, runs: list[str]) -> None:
    assert listed(cli, "--verb", "up") == ["0004", "0002", "0001"]
    assert listed(cli, "--verb", "up", "--status", "ok", "--limit", "1") == ["0004"]
    assert listed(cli, "--plan", "a", "--status", "ok", "--since", "1h") == ["0001"]
    assert listed(cli, "--by", "somebody-else") == [] == listed(cli, "--since", "2999-01-01")
    assert (
        cli("run", "list", "--since", "soon").code == 2
        and cli("run", "list", "--prune", "--tag", "x").code == 2
    )


def test_a_filter_that_fits_no_run_says_what_there_is(cli: Any, runs: list[str]) -> None:
    cli("run", "note", "0001", "--tag", "fig3")
    output = cli("run", "list", "--status", "fail", "--verb", "up", "--tag", "fig4").out
    assert (
        "no run has --status fail; there are: failed, ok; did you mean failed?" in output
        and "--verb" not in output
    )
    assert "no run has --tag fig4; there are: fig3; did you mean fig3?" in output
    assert cli("run", "list", "--status", "failed", "--verb", "verify").out == "No run matches\n", (
        "some run has either"
    )


def test_a_note_of_somebody_else_is_removed_only_when_confirmed(cli: Any, runs: list[str]) -> None:
    with Store(load().store_path, durable=False) as store:
        annotate(store, [runs[0]], "somebody-else", text="theirs")
    refused = cli("run", "note", "0001", "--drop", "1")
    assert refused.code == 2 and "asks for confirmation" in refused.err
    assert (
        cli("run", "note", "0001", "--drop", "1", "--yes", "--json").json["data"]["runs"][0][
            "notes"
        ]
        == []
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "list", "--limit", "{}"],
        ["run", "list", "--prune", "--dry-run", "--keep", "{}"],
        ["run", "note", "last", "--drop", "{}"],
        ["job", "queue", "drop", "{}"],
        ["lab", "fault", "remove", "ocs1", "{}"],
        ["design", "topoopt", "--seed", "{}"],
    ],
)
def test_a_whole_number_that_nothing_has_room_for_is_refused_by_the_name_of_its_option(
    cli: Any, argv: list[str]
) -> None:
    result = cli(*(word.format(10**20) for word in argv))
    name = argv[-2] if argv[-2].startswith("--") else {"drop": "N", "ocs1": "NUMBER"}[argv[-2]]
    assert (
        result.code == 2 and f"{name}: {10**20} is too large, the most is {2**63 - 1}" in result.err
    )
    assert cli(*(word.format(2**63 - 1) for word in argv)).code != 1, (
        "what fits is no unexpected error"
    )


def test_a_run_with_a_tag_is_not_pruned(cli: Any, runs: list[str]) -> None:
    cli("run", "note", "0001", "--tag", "paper-fig3", "-m", "x")
    cli("run", "note", "0003", "-m", "forgotten with its run")
    done = cli("run", "list", "--prune", "--keep", "1", "--yes", "--json").json["data"]
    assert [run[-4:] for run in done["removed"]] == ["0002", "0003"]
    assert done["stay"] == {runs[0]: "it has the tag paper-fig3"}
    with Store(load().store_path) as store:
        assert [row["run"] for row in store.read("SELECT run FROM notes")] == [runs[0]]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["run", "note", "--tag", "x"], 2, "which run"),
        (["run", "note", "9999", "--tag", "x"], 2, "no run '9999'"),
        (["run", "note", "last", "--tag", "two words"], 2, "tag 'two words'"),
        (["run", "note", "last", "--tag", ""], 2, "tag ''"),
        (["run", "note", "last", "-m", "  "], 2, "1 to 4000 characters"),
        (["run", "note", "last", "-m", "gr\udcfcn"], 2, "not UTF-8"),
        (["run", "note", "last", "--drop", str(2**70)], 2, "--drop"),
        (
            ["run", "note", "last", "--tag", "good", "-m", "x" * (MOST_TEXT + 1)],
            2,
            "1 to 4000 characters",
        ),
    ],
)
def test_what_is_no_tag_or_note_is_refused_and_nothing_is_written(
    cli: Any, runs: list[str], argv: list[str], code: int, message: str
) -> None:
    answer = cli(*argv)
    assert answer.code == code and message in answer.err
    assert cli("run", "note", "--json").json["data"]["tags"] == {}
