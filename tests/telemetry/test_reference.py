"""The reference pages say what the code declares."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.main import EXIT_CODES
from orchestrator.telemetry.reference import rewrite_tables

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def test_the_telemetry_page_lists_the_declared_names() -> None:
    page = (DOCS / "telemetry.md").read_text(encoding="utf-8")
    assert page == rewrite_tables(page), (
        "run: python -m orchestrator.telemetry.reference docs/reference/telemetry.md"
    )


def test_the_cli_page_lists_every_exit_code() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning.split(':')[0]}" in page, code
