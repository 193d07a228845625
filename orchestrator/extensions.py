"""The mechanisms that are folders of `extensions/`: found by name, and imported when first asked for.

A job may have *attachments* while it runs, beside its ranks: a shadow, functions of packet switches, a congestion control. What a
plan knows of one is in `extensions/NAME/plan.py` (`PLANNED`), what is done with it in `operator.py` (`ATTACHMENT`). If it has
figures, `view.py` (`VIEW`), `measurements.py` (`MEASUREMENTS`) and `panels.py` (`NUMBERS`, `panels`) say how they are shown;
`board.py` (`PAGE`, `build`) is a dashboard of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from optics.errors import StoreFailed
from optics.plan import Job

NAMES = ["switch_functions", "congestion", "shadow", "adapt"]
"""In the order in which a job is given them; what it has is taken away in the same order, once its ranks have ended."""


@cache
def parts(module: str, part: str) -> tuple[Any, ...]:
    """This part of every extension that has such a module, in order: parts("plan", "PLANNED")."""
    modules = (f"extensions.{name}.{module}" for name in NAMES)
    return tuple(getattr(import_module(each), part) for each in modules if find_spec(each) is not None)


def job_of(data: Mapping[str, Any]) -> Job:
    """The job that `data` (`to_json` of one) describes. Raises: StoreFailed - it has an attachment that no extension knows."""
    job, known = Job.of(data), {each.key: each for each in parts("plan", "PLANNED")}
    if strange := sorted(job.attached.keys() - known.keys()):
        words = f"the store has a job with {', '.join(strange)}, which no extension of this version knows"
        raise StoreFailed(words, hint="testbed doctor")
    return replace(job, attached={key: known[key].of(value) for key, value in job.attached.items()})
