"""The mechanisms that are folders of `extensions/`: found by name, and imported when first asked
for.

A job may have *attachments* while it runs, beside its ranks: functions of packet switches, a
congestion control, a process. What a plan knows of one is in `extensions/NAME/plan.py` (`PLANNED`),
what is done with it in `operator.py` (`ATTACHMENT`). If it has figures, `view.py` (`VIEW`),
`measurements.py` (`MEASUREMENTS`) and `panels.py` (`NUMBERS`, `panels`) say how they are shown;
`board.py` (`PAGE`, `build`) is a dashboard of its own. Two packages are copied to hosts, and no
other part imports them: `host`, which is part of the agent there (`MECHANISMS`), and `rank`, which
runs beside ranks.

An extension may have a *service*, which works in the background: its kind, with its options and its
function, is in `service.py` (`KIND`), and `testbed service` starts, runs, stops and shows it. How
it is shown to viewers is in `live.py` (`SERVICE_VIEW`), when and with which options it runs beside
the jobs of a scenario in `arm.py` (`ARM`). Verbs of its own are in `command.py` (`app`; `GROUP` for
those of `testbed GROUP`), and in `__init__.py`, which imports nothing, with a line each (`VERBS`);
what they print with `--json` is in `shapes.py` (`DATA`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optics.plan import Job

NAMES = ["switch_functions", "congestion", "shadow", "storage", "adapt", "pacing", "tend"]
"""In the order in which a job is given attachments; what it has is taken away in the same order,
once its ranks have ended. The services of an arm begin and end in this order, too."""


@cache
def by_name(module: str, part: str) -> Mapping[str, Any]:
    """This part of every extension that has such a module, by the extension's name, in order."""
    existing = [name for name in NAMES if find_spec(f"extensions.{name}.{module}") is not None]
    return {name: getattr(module_of(name, module), part) for name in existing}


def extension_parts(module: str, part: str) -> tuple[Any, ...]:
    """As `by_name`, the parts alone: extension_parts("plan", "PLANNED")."""
    return tuple(by_name(module, part).values())


def module_of(name: str, module: str) -> ModuleType:
    """This module of an extension."""
    return import_module(f"extensions.{name}.{module}")


def verbs() -> dict[str, dict[str, str]]:
    """Of each extension that has verbs: `VERB` or `GROUP VERB`, with its line in lists. Their
    modules are not imported.
    """
    declared = {name: getattr(import_module(f"extensions.{name}"), "VERBS", None) for name in NAMES}
    return {name: found for name, found in declared.items() if found}


def folders(package: str) -> dict[str, Path]:
    """The folder of this package of every extension that has one, by its name where it is copied
    to: folders("host").
    """
    specs = {
        f"extensions/{name}/{package}": find_spec(f"extensions.{name}.{package}") for name in NAMES
    }
    return {
        name: Path(place)
        for name, spec in specs.items()
        if spec
        for place in spec.submodule_search_locations or ()
    }


def job_of(data: Mapping[str, Any]) -> Job:
    """The job that `data` (`to_json` of one) describes. Raises: StoreFailed - it has an attachment
    that no extension knows.
    """
    from optics.errors import StoreFailed
    from optics.plan import Job  # takes 20 ms, which a list of the verbs need not wait for

    job, known = Job.of(data), {each.key: each for each in extension_parts("plan", "PLANNED")}
    if strange := sorted(job.attached.keys() - known.keys()):
        text = f"the store has a job with {', '.join(strange)}, which no extension of this version knows"
        raise StoreFailed(text, hint="testbed doctor")
    return replace(job, attached={key: known[key].of(value) for key, value in job.attached.items()})
