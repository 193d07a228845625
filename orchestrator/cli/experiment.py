"""`testbed experiment`: plans compared, scenarios, campaigns, and reports on runs."""

from __future__ import annotations

from orchestrator.cli import compare, report, reproduce, sweep
from orchestrator.cli.groups import family

app = family("experiment")
for part in (compare, reproduce, sweep, report):
    app.add_typer(part.app)
