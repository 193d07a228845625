"""Every command that is shown can be typed: in pages, in help texts, in the `next:` hints of
errors.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from orchestrator.cli.call import Result
from orchestrator.cli.groups import TAKE_A_VALUE
from orchestrator.cli.listing import VERBS, help_text
from orchestrator.cli.main import app, named
from tests.house.repository import ROOT, blocks, commands, nodes, pages, split

SHOWN = [
    (str(block), words) for page in pages() for block in blocks(page) for words in commands(block)
]
STAND_INS = {
    "RUN": "last",
    "PLAN": "plan.json",
    "SAVED": "saved.json",
    "DIR": "lab",
    "HOST": "gpu01",
    "NAME": "x",
}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    group = hasattr(command, "list_commands")
    if not group or (path and command.invoke_without_command):
        yield path, command
    for name in command.list_commands(None) if group else ():
        yield from leaves(command.get_command(None, name), (*path, name))


@pytest.fixture
def command_line() -> Any:
    """The real command line, parsing everything, with verbs that do nothing."""
    root = get_command(app())
    for _, leaf in leaves(root):
        leaf.callback = lambda *_, **__: Result({})
    return root


def helped(root: Any) -> str:
    """What `testbed --help` prints."""
    text: str = root.get_help(root.context_class(root, info_name="testbed"))
    return text


def refusal(root: Any, words: list[str]) -> str:
    """Why the command line does not take these words, empty if it does."""
    try:
        outcome = root.main(
            [STAND_INS.get(word, word) for word in words[1:]],
            prog_name="testbed",
            standalone_mode=False,
        )
    except Exception as error:  # typer's own classes have moved between its versions
        return str(error.format_message() if hasattr(error, "format_message") else repr(error))
    return f"exit {outcome}" if isinstance(outcome, int) and outcome else ""


def test_a_command_that_cannot_be_typed_is_noticed(command_line: Any) -> None:
    assert "No such option" in refusal(command_line, ["testbed", "up", "--topologie", "x.json"])
    assert "No such command" in refusal(command_line, ["testbed", "upp"])
    assert (
        "unexpected extra argument" in refusal(command_line, ["testbed", "status", "gpu01"]).lower()
    )
    assert not refusal(command_line, ["testbed", "lab", "start"])


def test_a_run_builds_the_verb_it_names_and_that_is_the_one_of_the_whole_command_line() -> None:
    whole = get_command(app()).commands  # type: ignore[attr-defined]
    assert sorted(whole) == sorted(VERBS)
    for verb, (module, _) in VERBS.items():
        part = get_command(app(verb)).commands  # type: ignore[attr-defined]
        assert set(part) == {name for name, (of, _) in VERBS.items() if of == module}
        assert [path for path, _ in leaves(part[verb])] == [path for path, _ in leaves(whole[verb])]


def test_the_help_of_the_command_line_lists_the_verbs_and_options_without_building_them() -> None:
    whole, alone = get_command(app()), get_command(app(named(["--help"])))
    assert {verb: whole.commands[verb].get_short_help_str(200) for verb in VERBS} == {  # type: ignore[attr-defined]
        verb: summary for verb, (_, summary) in VERBS.items()
    }
    text = helped(alone)
    assert text.rstrip() == helped(whole).rstrip() == help_text()
    for option in whole.get_params(whole.context_class(whole, info_name="testbed")):
        assert (
            f"\n  {', '.join(sorted(option.opts, key=len))}{f' {option.metavar}' if option.metavar else ''}  "
            in text
        )
    assert "No such command" in refusal(alone, ["testbed", "up"])


def test_the_help_of_the_command_line_imports_neither_a_verb_nor_typer() -> None:
    program = "import sys, optical_testbed_command as c; sys.argv = ['testbed', '--help']; c.main(); print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    text, _, modules = printed.rstrip("\n").rpartition("\n")
    assert text == help_text()
    ours = {name for name in modules.split() if name.startswith("orchestrator.")}
    assert (
        ours == {"orchestrator.cli", "orchestrator.cli.listing", "orchestrator.extensions"}
        and "typer" not in modules.split()
    )


def test_the_verb_of_a_command_line_is_found_behind_its_options() -> None:
    root = get_command(app())
    assert {o for p in root.params if not getattr(p, "is_flag", True) for o in p.opts} - {
        "--install-completion"
    } == set(TAKE_A_VALUE)
    assert named(["--json", "-i", "plan", "--as", "up", "status", "--yes"]) == "status"
    assert named(["--help", "up"]) == named(["--json"]) == named([]) == ""


def test_the_pages_show_commands() -> None:
    verbs = {words[1] for _, words in SHOWN if words[0] == "testbed" and len(words) > 1}
    assert verbs >= {"up", "plan", "down", "status", "verify", "job", "run", "lab", "doctor"}


def test_every_testbed_command_of_a_page_parses(command_line: Any) -> None:
    bad = [
        f"{at}: {' '.join(w)}: {why}"
        for at, w in SHOWN
        if w[0] == "testbed" and (why := refusal(command_line, w))
    ]
    assert not bad, "\n".join(bad)


def test_every_file_a_shown_command_takes_from_the_project_is_there() -> None:
    named = [
        (at, word)
        for at, words in SHOWN
        for word in words
        if re.match(r"(examples|inventory|docs|tests|benchmarks)/", word)
    ]
    assert named
    assert not [f"{at}: {word}" for at, word in named if not (ROOT / word).exists()]


def test_every_program_a_page_starts_is_one_we_have() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    bad = []
    for at, words in SHOWN:
        program = Path(words[0]).name
        if program == "make":
            bad += [
                f"{at}: make {word}"
                for word in words[1:]
                if "=" not in word and word not in targets
            ]
        elif (
            program.startswith("python")
            and words[1:2] == ["-m"]
            and words[2] != "pip"
            and find_spec(words[2]) is None
        ):
            bad.append(f"{at}: no module {words[2]}")
        elif (
            "/" in words[0]
            and not words[0].startswith((".venv/bin/", "/"))
            and not (ROOT / words[0]).exists()
        ):
            bad.append(f"{at}: no {words[0]}")
    assert not bad


def test_a_lab_that_a_page_generates_listens_beside_the_one_that_is_up() -> None:
    made = [(at, words) for at, words in SHOWN if "emulators.generate" in words]
    assert made
    assert not [at for at, words in made if not {"--free-ports", "--port-base"} & set(words)]


def test_every_example_in_a_help_text_parses(command_line: Any) -> None:
    lines = [
        (" ".join(path), line.strip())
        for path, leaf in leaves(command_line)
        for line in (leaf.help or "").splitlines()
        if line.startswith("  testbed ")
    ]
    assert {path for path, _ in lines} == {" ".join(path) for path, _ in leaves(command_line)}, (
        "each verb shows an example"
    )
    bad = []
    for path, line in lines:
        words = next(split(re.split(r"\s{3,}", line)[0]))
        if why := refusal(command_line, words):
            bad.append(f"{path}: {line}: {why}")
    assert not bad, "\n".join(bad)


HINT_ENDS = re.compile(
    r" (?:says|shows|gives|measures|is|repeats|was|what|allows|again|with|for|ends|lists)\b"
)


def texts(node: ast.expr) -> Iterator[str]:
    """The texts an expression may come out as; what is computed stands as `X`."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in values)
        case ast.IfExp(body=body, orelse=other):
            yield from texts(body)
            yield from texts(other)
        case ast.BoolOp(values=values):
            yield from (text for value in values for text in texts(value))
        case ast.BinOp(left=left, right=right):
            yield from (
                a + b for a in list(texts(left)) or ["X"] for b in list(texts(right)) or ["X"]
            )


def hints(folder: Path) -> Iterator[tuple[str, str]]:
    """The commands inside what is given as `hint=` anywhere in the program, with their places."""
    for file in sorted(folder.rglob("*.py")):
        for node in nodes(file):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                for text in texts(node.value):
                    for found in re.findall(r"\btestbed [a-z][^;,`:()]*", text):
                        yield f"{file.name}:{node.value.lineno}", HINT_ENDS.split(found)[0]


def test_every_hint_that_is_a_command_can_be_typed(command_line: Any) -> None:
    shown = [
        (at, next(split(text)))
        for folder in ("optics", "drivers", "orchestrator")
        for at, text in hints(ROOT / folder)
    ]
    assert len(shown) > 10
    bad = [
        f"{at}: {' '.join(words)}: {why}"
        for at, words in shown
        if (why := refusal(command_line, words))
    ]
    assert not bad, "\n".join(bad)
