"""What is in the repository: nothing of the place it was written at, nothing unfinished, nothing
secret.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.repository import ROOT, tracked

# Put together here, so that this file does not contain what it looks for.
WORKPLACE = re.compile("|".join(["/wo" + "rk/", r"\.\./sha" + "red"]))
HOSTS = [
    "py" + r"pi\.org",
    "pythonh" + r"osted\.org",
    "artif" + "actory",
    r"proxy\.gol" + r"ang\.org",
    "--ind" + "ex-url",
]
REGISTRIES = re.compile("|".join(HOSTS))
UNFINISHED = re.compile(
    "|".join(["NotImpl" + "ementedError", r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bXX" + r"X\b"])
)
KEYS = re.compile("BEGIN [A-Z ]*PRIV" + "ATE KEY")
TEXTS = [path for path in tracked() if b"\0" not in path.read_bytes()[:4096]]


def found(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{path.name}:{number}: {line.strip()[:80]}"
        for path in files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize(
    "pattern",
    [WORKPLACE, REGISTRIES, UNFINISHED, KEYS],
    ids=["workplace", "registries", "unfinished", "keys"],
)
def test_no_file_contains_what_does_not_belong_there(pattern: re.Pattern[str]) -> None:
    assert len(TEXTS) > 200
    assert not found(pattern, TEXTS)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (WORKPLACE, "see /wo" + "rk/main"),
        (REGISTRIES, "https://py" + "pi.org/simple"),
        (UNFINISHED, "raise NotImpl" + "ementedError"),
        (UNFINISHED, "# TO" + "DO later"),
        (KEYS, "-----BEGIN OPENSSH PRIV" + "ATE KEY-----"),
    ],
)
def test_what_does_not_belong_is_noticed(
    pattern: re.Pattern[str], line: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text(f"fine\n{line}\n")
    assert found(pattern, [tmp_path / "x.py"]) == [f"x.py:2: {line}"]


def test_every_file_ends_with_a_line_end_and_has_no_blanks_at_line_ends() -> None:
    checked = [
        path for path in TEXTS if path.suffix in (".py", ".md", ".toml") and path.stat().st_size
    ]
    assert not [str(p.relative_to(ROOT)) for p in checked if not p.read_text().endswith("\n")]
    assert not found(re.compile(r"[ \t]+$"), [p for p in checked if p.suffix == ".md"])


# What a machine may lack: rights, a program, reference files that are no part of the project.
WITHOUT = re.compile(r"root|not installed|kernel threads|TESTBED_GRAFANA_CONTRACTS")


def test_a_test_is_skipped_only_where_the_machine_lacks_something() -> None:
    reasons: list[str] = []
    for path in (p for p in TEXTS if p.suffix == ".py" and p.is_relative_to(ROOT / "tests")):
        text = path.read_text()
        reasons += re.findall(r'pytest\.skip\(\s*f?"([^"]*)"', text) + re.findall(
            r'skipif\([^"]*?reason="([^"]*)"', text
        )
        counted = (
            len(re.findall(r"pytest\.skip\(|mark\.skipif\(", text)) if path != Path(__file__) else 0
        )
        assert counted == len(
            re.findall(r'pytest\.skip\(\s*f?"|skipif\([^"]*?reason="', text)
        ) or path == Path(__file__), path
        assert path == Path(__file__) or not re.search(
            r"importorskip|mark\.(?:skip|xfail)\b", text
        ), path
    assert reasons and all(WITHOUT.search(reason) for reason in reasons), reasons


def test_no_page_has_a_place_left_to_fill_in() -> None:
    assert not found(
        re.compile(r"^[A-Z]+(?:_[A-Z0-9]+)+$"), [path for path in TEXTS if path.suffix == ".md"]
    )


def test_every_test_a_page_names_is_there() -> None:
    missing = []
    for page in (path for path in TEXTS if path.suffix == ".md"):
        file = ""
        for named, test in re.findall(r"`(tests/[\w./-]*)?(?:::(\w+))?`", page.read_text()):
            file = named or file
            if file and not (ROOT / file).exists():
                missing.append(file)
            elif test and f"def {test}(" not in (ROOT / file).read_text():
                missing.append(f"{file}::{test}")
    assert not missing
