"""The verbs of the command line: few, each in one group, with a help that fits on a screen; old
names are told their new place.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from typer.main import get_command

from optics.errors import Usage
from orchestrator.cli.groups import SCREEN, Family
from orchestrator.cli.listing import GROUPS, VERBS, help_text
from orchestrator.cli.main import app, run
from orchestrator.cli.moved import MOVED, refuse_moved
from orchestrator.cli.reference import rewrite_tables
from tests.house.repository import ROOT
from tests.house.test_commands import leaves

MOST_VERBS = 24
WHOLE = get_command(app())
LEAVES = [path for path, _ in leaves(WHOLE)]


def command_of(words: list[str]) -> Any:
    """The command that these words name; those behind it are its arguments. Raises: KeyError -
    there is none.
    """
    found: Any = WHOLE
    for word in words:
        if not hasattr(found, "get_command"):
            break
        if (inner := found.get_command(None, word)) is None:
            raise KeyError(word)
        found = inner
    return found


def shown(command: Any) -> list[Any]:
    """The options that a help may show."""
    return [param for param in command.params if param.opts[0].startswith("-") and not param.hidden]


def options(command: Any) -> set[str]:
    return {name for param in command.params for name in param.opts}


def test_there_are_at_most_24_verbs_and_each_is_in_one_group() -> None:
    names = Counter(verb for verbs in GROUPS.values() for verb in verbs)
    assert len(names) <= MOST_VERBS and not [verb for verb, times in names.items() if times > 1]


def test_what_a_newcomer_types_first_is_listed_first() -> None:
    assert list(VERBS)[:3] == ["up", "plan", "down"]
    assert list(GROUPS) == ["Change", "Look", "Jobs", "Design and measure", "Share", "Set up"]


def test_the_list_of_verbs_fits_a_terminal_of_80_columns() -> None:
    assert not [line for line in help_text().splitlines() if len(line) > 80]


def test_every_old_name_is_refused_with_a_place_that_there_is() -> None:
    for old, new in MOVED.items():
        words = [word for word in new.split() if not word.startswith("-")]
        assert {word for word in new.split() if word.startswith("-")} <= options(
            command_of(words)
        ), new
        assert old not in VERBS and tuple(old.split()) not in LEAVES, f"{old} is a verb"
        with pytest.raises(Usage, match=f"is now `testbed {new}`"):
            refuse_moved(old.split())


def test_an_old_name_that_is_typed_is_wrong_usage_with_its_new_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--as", "ann", "history", "--limit", "3"]) == 2
    assert (
        capsys.readouterr().err
        == "E-USAGE `testbed history` is now `testbed run list`\nnext: testbed run list --help\n"
    )
    assert run(["lock", "--hosts", "gpu01", "--for", "2h", "--reason", "x"]) == 2
    assert "is now `testbed lock reserve`" in capsys.readouterr().err
    refuse_moved(["lock", "reserve", "--hosts", "gpu01"])
    refuse_moved(["lock", "list"])


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_the_help_of_a_verb_fits_on_a_screen_and_names_the_command_that_shows_all_of_it(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= SCREEN
    assert run([*path, "--help", "--all"]) == 0
    whole = capsys.readouterr().out
    assert all(max(param.opts, key=len) in whole for param in shown(command_of(list(path))))
    assert text == whole or text.rstrip().endswith(
        f"more options: testbed {' '.join(path)} --help --all"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["run"], ["run", "list"]),
        (["lock", "--json"], ["lock", "list", "--json"]),
        (["run", "--limit", "5"], ["run", "list", "--limit", "5"]),
        (["devices", "--inventory", "lab", "power"], ["devices", "power", "--inventory", "lab"]),
        (["job", "queue"], ["job", "queue", "list"]),
        (
            ["experiment", "sweep", "--check", "x.yaml"],
            ["experiment", "sweep", "run", "--check", "x.yaml"],
        ),
        (["experiment", "sweep", "show"], ["experiment", "sweep", "show"]),
        (["run", "shwo"], ["run", "shwo"]),
        (["run", "--help"], ["run", "--help"]),
    ],
)
def test_a_family_lists_where_no_verb_of_it_is_named_and_options_may_come_before_the_verb(
    typed: list[str], meant: list[str]
) -> None:
    family: Any = WHOLE
    path: list[str] = []
    while typed and typed[0] in getattr(family, "commands", ()):
        family, path, typed = family.commands[typed[0]], [*path, typed[0]], typed[1:]
    assert [*path, *(family.ordered(typed) if isinstance(family, Family) else typed)] == meant


def test_the_page_of_the_command_line_lists_its_verbs() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert page == rewrite_tables(page), (
        "run: python -m orchestrator.cli.reference docs/reference/cli.md"
    )
