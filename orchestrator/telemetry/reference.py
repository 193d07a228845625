"""The declared names as the tables of docs/reference/telemetry.md: `python -m orchestrator.telemetry.reference PAGE`."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.measurement import COMMON_TAGS
from orchestrator.telemetry.names import MEASUREMENTS

BEGIN, END = "<!-- names: begin (generated) -->\n", "<!-- names: end -->\n"


def tables() -> str:
    """One section per measurement."""
    lines = []
    for m in MEASUREMENTS.values():
        own = ", ".join(f"`{tag}`" for tag in m.tags[len(COMMON_TAGS) :])
        lines += [f"### {m.name}", "", f"{m.what[0].upper()}{m.what[1:]}. Tags: {own}. Rate: {m.rate}.", ""]
        lines += ["| field | type | unit | meaning |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {f.kind} | {f.unit} | {f.what} |" for name, f in m.fields.items()]
        lines.append("")
    return "\n".join(lines)


def rewrite_tables(page: str) -> str:
    """The page with its tables as declared now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewrite_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
