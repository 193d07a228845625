"""What a command line without a verb does: `testbed` prints the list of its verbs."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from orchestrator.cli.listing import help_text


class Root(TyperGroup):
    """The command `testbed`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text())
