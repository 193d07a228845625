"""Shared by the parts of a report: query results, the sections so far, tables and figures as on the
page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from markupsafe import Markup

from orchestrator.views.report import questions, ringquestions, texts
from orchestrator.views.report.figures import Drawing
from orchestrator.views.report.gather import ReportedRuns, Source
from orchestrator.views.report.ledger import Answer, Cell, Ledger, missing_mark
from orchestrator.views.report.questions import Reconfiguration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Shown = Cell | Markup | str
FEW = 3
"""Up to this many moves of one run are shown individually."""
SPREAD = {"n": "n", "median_ms": "median", "p90_ms": "p90", "p99_ms": "p99", "most_ms": "longest"}
"""The column heads of a distribution of times."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells (numbers with their query, or words); `heads` as shown; `wide`: may be long."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Shown]]


@dataclass
class ReportSection:
    """One part of the page."""

    id: str
    title: str
    intro: str = ""
    notes: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    codes: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Report:
    """A finished report. `html` is the page; `drawings` are its figures; `answers` its numbers with
    their queries.
    """

    title: str
    html: str
    drawings: list[Drawing]
    answers: Mapping[str, Answer]
    trouble: list[str]


class ReportContext:
    """A report being written. few: one run with so few moves that each is shown individually."""

    def __init__(self, campaign: ReportedRuns, book: Ledger) -> None:
        self.campaign, self.book = campaign, book
        self.sections: list[ReportSection] = []
        self.tiles: list[tuple[str, Markup, str]] = []
        self.speed = texts.kind_of_devices(campaign.sources)
        self.reconfigs = questions.reconfigs(book, campaign)
        self.devices = questions.device_times(book, campaign)
        self.moves = questions.reconfigurations(self.reconfigs, self.devices, campaign)
        self.ring_changes = ringquestions.ring_changes(book, campaign)
        self.changes = sorted(
            [*self.moves, *ringquestions.unlit(self.ring_changes, self.moves, campaign)],
            key=lambda m: m.t0,
        )
        """The moves, and the ring changes of the job for which no light moved."""
        self.job = questions.effects_on_job(book, self.changes)
        self.few = campaign.single and len(self.moves) <= FEW

    def longest(self, most: int) -> list[Reconfiguration]:
        """The moves that took longest, in order of time."""
        return sorted(
            sorted(self.moves, key=lambda m: (m.t0 - m.t1, m.t0))[:most], key=lambda m: m.t0
        )

    def draw(
        self,
        section: ReportSection,
        name: str,
        title: str,
        caption: str,
        figure: Figure | None,
        none: str = "",
    ) -> None:
        if figure is not None:
            section.drawings.append(
                Drawing(name, title, f"{caption} Measured; {self.speed}.", figure)
            )
        elif none:
            section.notes.append(none)

    def expected(self, source: Source) -> Cell:
        """The dark time (ms) of a run expected from data sheets, as the store has it."""
        found = source.record.summary.get("dark_ms_expected")
        value = found if isinstance(found, (int, float)) else None
        return Cell(value, f"store:{source.record.id}/summary/dark_ms_expected", "ms")

    @staticmethod
    def expected_scale(source: Source, scale: float) -> float:
        """The time scale of the device that expectation is of; `scale` where the run did not keep
        it.
        """
        found = source.record.summary.get("dark_time_scale")
        return float(found) if isinstance(found, (int, float)) else scale

    def scale_of(self, source: Source, reconfig: str) -> float:
        """The time scale of the device that was dark longest."""
        found = [
            (line["dark_ms"].value, line["device"].value)
            for line in self.devices.lines()
            if line["reconfig_id"].value == reconfig and line["dark_ms"]
        ]
        return (source.devices or {}).get(max(found)[1], 1.0) if found else 1.0

    def scale_of_all(self, sources: Sequence[Source] | None = None) -> float:
        """The one time scale all devices have, 1 where they differ (the page says so)."""
        found = {
            scale
            for source in sources or self.campaign.sources
            for scale in (source.devices or {}).values()
        }
        return found.pop() if len(found) == 1 else 1.0


def result_table(
    answer: Answer,
    heads: Mapping[str, str],
    scale: float = 1.0,
    none: Mapping[str, str] | None = None,
) -> Table:
    """Columns of a result under these heads; `scale` for times; `none`: text for missing values."""
    rows = []
    for line in answer.lines():
        row: list[Cell | Markup | str] = []
        for column in heads:
            cell = line[column]
            row.append(
                missing_mark(none[column])
                if none and column in none and not cell
                else cell.show(scale if cell.unit == "ms" else 1.0)
            )
        rows.append(row)
    return Table(list(heads.values()), rows)
