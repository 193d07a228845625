"""One module, one idea: at most 370 logical lines in a module and 25 methods in a class.

A logical line is a statement, a docstring or the head of a block, however many lines the formatter
gives it: a module of 370 had about 450 lines of 132 columns.

The exceptions are those of today. Each may shrink and none may grow; one that is no longer needed
is to be removed.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.house.repository import ROOT, nodes, tracked

LINES, METHODS = 370, 25
LONG, MOST_LONG = 300, 10
"""So many modules outside of the tests may have more than so many lines: nobody is to trim to the
limit above.
"""
DIALECTS = "emulators/devices/dialects/"
"""A class that is the language of a device has a method for each of its sentences."""

LONGER: Mapping[str, int] = {
    "tests/drivers/test_http_drivers.py": 379,
    "tests/emulators/devices/test_emulator_faults.py": 413,
    "tests/end_to_end/test_sharing.py": 386,
    "tests/services/guard/test_job_watch.py": 587,
}
"""Modules, with their logical lines."""

LARGER: Mapping[str, int] = {
    "emulators/devices/dialects/base.py:Dialect": 43,
    "emulators/devices/dialects/calient_rest.py:CalientRest": 31,
    "emulators/devices/dialects/calient_tl1.py:CalientTl1": 28,
    "emulators/devices/dialects/glimmerglass_tl1.py:GlimmerglassTl1": 29,
    "emulators/devices/dialects/netconf.py:NetconfDialect": 33,
    "emulators/devices/dialects/polatis_restconf.py:PolatisRestconf": 26,
    "emulators/devices/dialects/rome_cli.py:RomeCli": 36,
    "emulators/devices/dialects/rotor.py:Rotor": 34,
    "emulators/devices/dialects/sonic_ocs.py:SonicOcs": 28,
}
"""Classes, with their methods."""


def logical(file: Path) -> int:
    """The logical lines of a file; of a short one, which has no more of them, simply its lines."""
    if (count := file.read_bytes().count(b"\n")) <= LONG:
        return count
    with tokenize.open(file) as text:
        return sum(
            token.type == tokenize.NEWLINE for token in tokenize.generate_tokens(text.readline)
        )


def lines(files: Mapping[str, Path]) -> dict[str, int]:
    return {name: logical(file) for name, file in files.items()}


def methods(files: Mapping[str, Path]) -> dict[str, int]:
    """The functions in the body of each class, by `file:class`; properties count, inherited ones do
    not.
    """
    return {
        f"{name}:{node.name}": sum(
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body
        )
        for name, file in files.items()
        for node in nodes(file)
        if isinstance(node, ast.ClassDef)
    }


def wrong(found: Mapping[str, int], limit: int, exceptions: Mapping[str, int]) -> list[str]:
    most = {name: exceptions.get(name, limit) for name in found}
    over = [
        f"{name}: {size}, at most {most[name]}" for name, size in found.items() if size > most[name]
    ]
    return over + [
        f"{name}: no exception is needed" for name in exceptions if found.get(name, 0) <= limit
    ]


def long(found: Mapping[str, int]) -> list[str]:
    return [name for name, size in found.items() if size > LONG and not name.startswith("tests/")]


def strangers(exceptions: Mapping[str, int]) -> list[str]:
    """Classes that are too large and no dialects."""
    return [name for name in exceptions if not name.startswith(DIALECTS)]


@pytest.fixture(scope="module")
def ours() -> dict[str, Path]:
    return {str(file.relative_to(ROOT)): file for file in tracked() if file.suffix == ".py"}


@pytest.fixture(scope="module")
def sizes(ours: dict[str, Path]) -> dict[str, int]:
    return lines(ours)


def test_a_module_has_at_most_370_logical_lines(sizes: dict[str, int]) -> None:
    assert wrong(sizes, LINES, LONGER) == []


def test_a_class_has_at_most_25_methods(ours: dict[str, Path]) -> None:
    assert wrong(methods(ours), METHODS, LARGER) == []
    assert strangers(LARGER) == []


def test_few_modules_are_long(sizes: dict[str, int]) -> None:
    found = long(sizes)
    assert len(found) <= MOST_LONG, found


def test_what_is_too_large_is_found_and_so_is_an_exception_that_is_not_needed(
    tmp_path: Path,
) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * (LINES + 1))
    (tmp_path / "large.py").write_text(
        "class Large:\n" + "".join(f"    def f{n}(self): ...\n" for n in range(METHODS + 1))
    )
    files = {file.name: file for file in sorted(tmp_path.iterdir())}
    assert wrong(lines(files), LINES, {}) == ["long.py: 371, at most 370"]
    assert wrong(methods(files), METHODS, {}) == ["large.py:Large: 26, at most 25"]
    assert wrong(lines(files), LINES, {"long.py": 371}) == []
    assert wrong(lines(files), LINES, {"long.py": 371, "large.py": 380, "gone.py": 500}) == [
        "large.py: no exception is needed",
        "gone.py: no exception is needed",
    ]
    (tmp_path / "long.py").write_text("x = 1\n" * (LINES + 2))
    assert wrong(lines(files), LINES, {"long.py": 371}) == ["long.py: 372, at most 371"]


def test_long_modules_are_counted_without_tests_and_only_dialects_may_be_large(
    tmp_path: Path,
) -> None:
    (tmp_path / "tests").mkdir()
    for name, more in {"tests/a.py": 1, "b.py": 1, "c.py": 0}.items():
        (tmp_path / name).write_text("x = 1\n" * (LONG + more))
    assert long(lines({name: tmp_path / name for name in ("tests/a.py", "b.py", "c.py")})) == [
        "b.py"
    ]
    assert strangers({f"{DIALECTS}tl1.py:Tl1": 30, "agent/daemon.py:Daemon": 26}) == [
        "agent/daemon.py:Daemon"
    ]
