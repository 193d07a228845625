"""A run's results for people and programs: JSON, JUnit XML, tables, the rows of the support matrix.
Values in, text out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from xml.etree import ElementTree

from conformance.capability import CAPABILITIES
from conformance.run import CapabilityStatus, Report, Verdict
from drivers.registry import driver_class, evidence
from optics import Traits

MATRIX_HEAD = ("driver", "promises kept", "abilities confirmed")


class NoMarkers(ValueError):
    """The page has no place for the table; the message names the markers."""


def as_json(report: Report) -> dict[str, object]:
    """The report as a JSON object."""
    return {
        "driver": report.driver,
        "device": report.device,
        "identity": report.identity,
        "emulated": report.emulated,
        "ok": report.ok,
        "capabilities": {name: str(status) for name, status in report.statuses.items()},
        "checks": [
            {
                "name": result.check.name,
                "sentence": result.check.sentence,
                "capability": result.check.capability,
                "verdict": str(result.verdict),
                "message": result.message,
                "seconds": round(result.seconds, 3),
            }
            for result in report.results
        ],
        "matrix_row": list(matrix_row(report)),
    }


def junit(reports: Iterable[Report]) -> str:
    """The reports as JUnit XML, one suite per driver; checks that were not tried appear as skipped,
    with the reason.
    """
    root = ElementTree.Element("testsuites", name="conformance")
    for report in reports:
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=report.driver,
            tests=str(len(report.results)),
            failures=str(len(report.failed)),
            errors="0",
            skipped=str(sum(result.verdict is Verdict.NOT_TRIED for result in report.results)),
            time=f"{sum(result.seconds for result in report.results):.3f}",
        )
        for result in report.results:
            classname = f"{report.driver}.{result.check.capability}"
            case = ElementTree.SubElement(
                suite,
                "testcase",
                name=result.check.sentence,
                classname=classname,
                time=f"{result.seconds:.3f}",
            )
            if result.verdict is not Verdict.PASSED:
                kind = "failure" if result.verdict is Verdict.FAILED else "skipped"
                ElementTree.SubElement(case, kind, message=_printable(result.message))
    ElementTree.indent(root)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        + ElementTree.tostring(root, encoding="unicode")
        + "\n"
    )


def statuses(report: Report) -> list[tuple[str, str, str]]:
    """Rows (capability, standing, meaning) in order, without those that are not declared."""
    return [
        (name, str(status), CAPABILITIES[name].means)
        for name, status in report.statuses.items()
        if status is not CapabilityStatus.NOT_DECLARED
    ]


def matrix_row(report: Report) -> tuple[str, ...]:
    """The driver's row of the support matrix: what this run confirmed."""
    core = [name for name, capability in CAPABILITIES.items() if capability.core]
    good = [name for name in core if report.status(name) is CapabilityStatus.CONFIRMED]
    missing = [name for name in core if name not in good]
    kept = (
        f"all {len(core)}"
        if not missing
        else f"{len(good)} of {len(core)}, not: {', '.join(missing)}"
    )
    able = [name for name in report.declared if not CAPABILITIES[name].core]
    argv = [
        name
        if report.status(name) is CapabilityStatus.CONFIRMED
        else f"{name} ({report.status(name)})"
        for name in able
    ]
    return f"`{report.driver}`", kept, ", ".join(argv) or "-"


def matrix(reports: Iterable[Report]) -> str:
    """The support matrix."""
    return markdown(
        MATRIX_HEAD,
        [matrix_row(report) for report in sorted(reports, key=lambda report: report.driver)],
    )


def traits_table(drivers: Sequence[str]) -> str:
    """Every driver's own traits."""
    names = [field.name for field in fields(Traits)]
    rows = [
        [
            f"`{driver}`",
            *(_trait(name, getattr(driver_class(driver).TRAITS, name)) for name in names),
        ]
        for driver in drivers
    ]
    return markdown(("driver", *(f"`{name}`" for name in names)), rows)


def options_table(drivers: Sequence[str]) -> str:
    """Every option: the drivers that have it, and what it means; options of one name and meaning
    share a row.
    """
    having: dict[tuple[str, str], list[str]] = {}
    for driver in drivers:
        for option, means in driver_class(driver).OPTIONS.items():
            having.setdefault((option, means), []).append(f"`{driver}`")
    rows = [
        (f"`{option}`", ", ".join(found), means)
        for (option, means), found in sorted(having.items())
    ]
    return markdown(("option", "drivers", "means"), rows)


def evidence_table(drivers: Sequence[str]) -> str:
    """The evidence behind every driver, by grade."""
    rows = []
    for driver in drivers:
        about = evidence(driver)
        by_grade: dict[str, list[str]] = {"REAL": [], "DOC": [], "CODE": []}
        for name, grade in about.grades.items():
            by_grade.setdefault(grade, []).append(name)
        grades = "; ".join(
            f"{grade}: {', '.join(names)}" for grade, names in by_grade.items() if names
        )
        hardware = ", ".join(about.hardware) or "never"
        rows.append(
            (
                f"`{driver}`",
                about.family,
                ", ".join(about.schemes),
                grades or "not stated",
                hardware,
            )
        )
    return markdown(("driver", "devices", "address", "grades", "tried on hardware"), rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a vertical bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    ).replace(" --- ", "---")


def replaced(page: str, tables: Mapping[str, str]) -> str:
    """`page` with each table between its markers `<!-- NAME: ... -->` and `<!-- end NAME -->`.
    Raises: NoMarkers.
    """
    for name, table in tables.items():
        pattern = re.compile(
            rf"(<!-- {re.escape(name)}:[^>]*-->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL
        )
        page, count = pattern.subn(
            lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}",  # type: ignore[misc]
            page,
        )
        if count != 1:
            raise NoMarkers(
                f"wanted one place between <!-- {name}: ... --> and <!-- end {name} -->, found {count}"
            )
    return page


def _trait(name: str, value: object) -> str:
    if value is None:
        return "no limit" if name == "at_once" else "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{a}`→`{b}`" for a, b in value) or "any"
    return str(value).lower()


def _printable(text: str) -> str:
    """XML 1.0 has no control characters."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd]", "?", text)
