"""The API as the sections of docs/reference/python-api.md:
`python -m optical_testbed.reference PAGE`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from optical_testbed.campaign import Campaign
from optical_testbed.lab import Job, Lab
from optical_testbed.plans import Designed
from optical_testbed.progress import Event
from optical_testbed.telemetry import Rows

BEGIN, END = "<!-- api: begin (generated) -->\n", "<!-- api: end -->\n"
_OPENED = re.compile(r"^\(lab: 'Opened'(?:, )?")


def signature(function: object) -> str:
    """The parameters and the result as one types them:
    `(plan: PlanLike, *, job: Mode | None = None) -> UpReport`.
    """
    text = str(inspect.signature(function))  # type: ignore[arg-type]
    text = _OPENED.sub("(", text)
    text = re.sub(r"^\((?:self|cls)(?:, )?", "(", text).replace("(/, ", "(")
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # annotations are kept as texts


def members(kind: type) -> Iterator[tuple[str, str, str]]:
    """Public methods and properties of a class, in the order of its source and then of its bases':
    name, signature, docstring.
    """
    seen: set[str] = set()
    for one in kind.__mro__:
        if not one.__module__.startswith("optical_testbed"):
            continue
        for name, found in vars(one).items():
            if (
                name.startswith("_")
                or name in seen
                or not (callable(found) or isinstance(found, classmethod | property))
            ):
                continue
            seen.add(name)
            function = (
                found.__func__
                if isinstance(found, classmethod)
                else found.fget
                if isinstance(found, property)
                else found
            )
            shown = "" if isinstance(found, property) else signature(function)
            yield name, shown, inspect.getdoc(function) or ""


def filled(text: str) -> str:
    """The paragraphs of a docstring, in lines of at most 120 characters."""
    return "\n\n".join(
        fill(" ".join(each.split()), 120, break_on_hyphens=False) for each in text.split("\n\n")
    )


def sections() -> str:
    """A section per class, its methods with signature and docstring."""
    lines: list[str] = []
    for kind in (Lab, Job, Designed, Rows, Event, Campaign):
        about = (inspect.getdoc(kind) or "").partition("\n>>> ")[0].strip()
        lines += [f"## {kind.__name__}", "", filled(about), ""]
        for name, shown, text in members(kind):
            lines += [
                f"### {kind.__name__}.{name}",
                "",
                *(["```text", f"{name}{shown}", "```", ""] if shown else []),
            ]
            lines += [filled(text), ""] if text else []
    return "\n".join(lines)


def rewritten(page: str) -> str:
    """The page with its sections as the code gives them now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{sections()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
