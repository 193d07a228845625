"""The declared names as the tables of docs/reference/telemetry.md:
`python -m orchestrator.telemetry.reference PAGE`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from orchestrator.measurement import COMMON_TAGS, Field
from orchestrator.telemetry.names import MEASUREMENTS

BEGIN, END = "<!-- names: begin (generated) -->\n", "<!-- names: end -->\n"


def tables() -> str:
    """One section per measurement."""
    lines = []
    for m in MEASUREMENTS.values():
        own = ", ".join(f"`{tag}`" for tag in m.tags[len(COMMON_TAGS) :])
        about = f"{m.what[0].upper()}{m.what[1:]}. Tags: {own}; {m.rate}."
        lines += [f"### {m.name}", "", *wrap(about, 120, break_on_hyphens=False), ""]
        lines += ["| field | type | meaning |", "|---|---|---|", *_rows(m.fields), ""]
    return "\n".join(lines)


def _rows(fields: Mapping[str, Field]) -> Iterator[str]:
    """A row for each field; one for a duration that is there in milliseconds and in nanoseconds."""
    for name, field in fields.items():
        stem, _, unit = name.rpartition("_")
        twins = [
            both
            for each in ("ms", "ns")
            if (both := f"{stem}_{each}") in fields and fields[both].what == field.what
        ]
        names = twins if unit in ("ms", "ns") else [name]
        if name == names[0]:
            types = (f"{fields[each].kind} {fields[each].unit}".strip() for each in names)
            yield f"| {', '.join(f'`{each}`' for each in names)} | {', '.join(types)} | {field.what} |"


def rewrite_tables(page: str) -> str:
    """The page with its tables as declared now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewrite_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
