"""The pages of docs/ stay short enough to be read, and their lines to be compared.

A word is what lies between blanks and has a letter or a digit: bars and rules of tables and dashes
are none, so a table costs what it says and not how it is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.house.repository import ROOT, blocks, pages

MOST_WORDS, MOST_COLUMNS = 110_000, 140
GENERATED = {"benchmarks.md", "cli.md", "python-api.md", "telemetry.md"}
"""Pages of docs/reference/ that a program writes."""
DOCS = [page for page in pages() if page.is_relative_to(ROOT / "docs")]


def words(text: str) -> int:
    return sum(bool(re.search("[A-Za-z0-9]", word)) for word in text.split())


def long_lines(lines: Iterable[str]) -> list[str]:
    """Lines of prose that are too long. A row of a table has no other form than one line; what
    begins with four blanks is code.
    """
    return [
        line for line in lines if len(line) > MOST_COLUMNS and not line.startswith(("|", "    "))
    ]


def prose(text: str, fenced: Iterable[tuple[int, int]]) -> list[str]:
    """The lines of a page outside its blocks: of each, its first line of text from 1, and how many
    it has.
    """
    inside = {number for first, count in fenced for number in range(first, first + count)}
    return [line for number, line in enumerate(text.splitlines(), 1) if number not in inside]


def test_the_pages_have_at_most_110_000_words() -> None:
    found = {page: words(page.read_text()) for page in DOCS}
    longest = sorted(found, key=lambda page: -found[page])[:5]
    assert sum(found.values()) <= MOST_WORDS, [(page.name, found[page]) for page in longest]


def test_no_line_of_prose_is_longer_than_140_columns() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in DOCS
        if page.parent.name != "reference" or page.name not in GENERATED
        for line in long_lines(
            prose(page.read_text(), [(b.line, len(b.text.splitlines())) for b in blocks(page)])
        )
    ]
    assert wrong == []


def test_what_is_no_word_and_what_may_be_long_is_not_counted() -> None:
    assert words("| a cell | - |\n|---|---|\n\n```sh\nls -l\n```\n") == 5
    text = f"{'x' * 141}\n| {'y' * 141} |\n```\n{'z' * 141}\n```\n    {'c' * 141}\n"
    assert long_lines(prose(text, [(4, 1)])) == ["x" * 141]
