"""How a job's shadow is shown: a line, a row of verdicts, and a part of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from extensions.shadow.figures import judged
from extensions.shadow.plan import PlannedShadow
from optics.plain import counted, seconds_text
from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.telemetry.palette import MARK, PHASE_COLOURS
from orchestrator.views.attached import Figures, KeeperView, Mark, made_mark
from orchestrator.views.report.model import ReportContext, ReportSection, result_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEHIND = 5
"""A checkpoint that is so many iterations older than the newest that was judged is trouble."""
EQUAL, FETCHED, FLAGGED = "equal", "fetched", "flagged"


class ShadowView(KeeperView):
    """Its checkpoint is there when the job has ended, too."""

    key = PlannedShadow.key
    measurement = key
    outlives = True

    def kept(self, found: Figures) -> str:
        """How it follows: `312 of 312 iterations equal, checkpoint of iteration 312, 4.1 ms behind;
        ...`.
        """
        text = f"{found['equal']} of {found['iterations']} iterations equal, checkpoint of iteration {found['checkpoint']}"
        if "lag_ms" in found:
            text += f", {seconds_text(float(found['lag_ms']) / 1e3)} behind"
        if found["fetched"] or found["lost"]:
            text += f"; {counted(int(found['fetched']), 'state')} fetched, {counted(int(found['lost']), 'packet')} lost"
        if found.get("taps"):
            text += f"; taps on {', '.join(str(found['taps']).split())}"
        return text

    def marks(self, points: Sequence[Point]) -> Sequence[Mark]:
        newest, figures = points[-1].fields, judged([point.fields for point in points])
        figures |= {name: str(newest.get(name, "")) for name in ("host", "taps")}
        behind = int(newest.get("iter", 0)) - int(newest.get("checkpoint", 0))
        cells = cast(Json, [_verdict(point) for point in points])
        text = self.text(figures).removeprefix(f"{self.key} ")
        return [made_mark(self.key, text, bad=behind >= BEHIND, cells=cells)]

    def copies(self, points: Sequence[Point]) -> tuple[str, list[str]]:
        newest = points[-1].fields
        return str(newest.get("host", "")), str(newest.get("taps", "")).split()

    def section(self, c: ReportContext, made: ReportSection, where: str) -> None:
        answer = c.book.query(
            "shadow",
            "the job's shadow: iterations it judged, how many were equal to the job's, how far it was behind",
            "SELECT host, taps, COUNT(*) AS n, SUM(equal) AS equal, SUM(equal = 0) AS flagged, SUM(fetched) AS fetched,"
            " SUM(missing) AS missing_bytes, MAX(lost) AS lost, MAX(checkpoint) AS checkpoint, median(lag_ms) AS lag_ms,"
            f" percentile(lag_ms, 99) AS lag_p99_ms, MAX(lag_ms) AS lag_most_ms FROM shadow WHERE {where} GROUP BY host, taps",
        )
        if not answer:
            del c.book.answers["shadow"]
            return
        caption = "How much later than the job's word the shadow's verdict on each iteration came; flagged ones were never used."
        verdict = "CASE WHEN fetched THEN 1 WHEN equal THEN 0 ELSE 2 END"
        sql = f"SELECT iter, lag_ms, {verdict} FROM shadow WHERE {where} AND lag_ms IS NOT NULL"
        c.draw(
            made,
            "shadow",
            "the shadow's lag",
            caption,
            _lags(c.book.database.execute(sql).fetchall()),
        )
        heads = {
            "host": "shadow on",
            "taps": "taps on",
            "n": "iterations judged",
            "equal": "equal",
            "flagged": "flagged",
        }
        heads |= {
            "fetched": "states fetched",
            "missing_bytes": "missed",
            "lost": "packets without room",
            "checkpoint": "checkpoint of",
        }
        made.tables.append(
            result_table(
                answer,
                heads | {"lag_ms": "lag, median", "lag_p99_ms": "99 %", "lag_most_ms": "longest"},
            )
        )
        made.notes.append(
            "Equal: the shadow's weights and momentum had the hash that rank 0 published. Flagged: they had not, or sums were"
            " missed; its state is then fetched from the job over the management network. Checkpoint of: the newest iteration"
            " one could go on from."
        )


def _verdict(point: Point) -> str:
    if point.fields.get("fetched"):  # of such a one `equal` is 0: it was not followed
        return FETCHED
    return EQUAL if point.fields.get("equal") else FLAGGED


def _lags(points: list[tuple[int, float, int]]) -> Figure | None:
    if len(points) < 2:
        return None
    from orchestrator.views.report.figures import MADE, one_figure  # here, as it loads matplotlib

    verdicts = {"equal": MADE, "state fetched": MARK, "flagged": PHASE_COLOURS["fault"]}
    with one_figure(2.0) as (figure, axes):
        for kind, (name, colour) in enumerate(verdicts.items()):
            found = [(n, ms) for n, ms, verdict in points if verdict == kind]
            if found:
                size = 2 if kind == 0 else 4
                axes.plot(
                    *zip(*found, strict=True),
                    "o",
                    markersize=size,
                    color=colour,
                    label=f"{name} (n = {len(found)})",
                )
        axes.set_xlabel("iteration of the job")
        axes.set_ylabel("behind, ms")
        axes.set_ylim(0, 1.08 * max(ms for _, ms, _ in points) or 1)
        axes.grid(True)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)
    return figure


VIEW = ShadowView()
