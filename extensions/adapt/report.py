"""The report's part on circuits that followed a job's traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extensions.adapt.measurements import WHY
from orchestrator.telemetry.palette import PHASE_COLOURS
from orchestrator.views.report import figures
from orchestrator.views.report.figures import Drawing, one_figure
from orchestrator.views.report.gather import Source
from orchestrator.views.report.ledger import Answer, quoted
from orchestrator.views.report.model import ReportContext, ReportSection, Table, result_table
from orchestrator.views.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 40
"""So many looks that changed circuits are listed: the latest."""
_GAIN = {"changed": PHASE_COLOURS["up"], "skipped": figures.GREY, "failed": PHASE_COLOURS["fault"]}


def section(c: ReportContext, source: Source) -> None:
    """Add what came of the looks of a run to the report on it, if there were any."""
    run = source.record.id
    if run not in c.campaign.journals:
        return
    begin, end = (
        source.record.started,
        source.record.ended or source.record.started + 10 * 365 * 86400,
    )
    c.book.read_more(
        c.campaign.journals[run], "adapt", [(round((begin - 1) * 1e9), round((end + 1) * 1e9))]
    )
    answer = c.book.query(
        "adapt",
        "what came of every look at the job's traffic: changed, skipped and why, or failed; medians",
        "SELECT what, CASE WHEN what = 'changed' THEN '' ELSE why END AS reason, COUNT(*) AS n, median(gain) AS gain, MAX(gain) AS"
        " gain_most, median(skew) AS skew, median(change_ms) AS change_ms, median(dark_ms) AS dark_ms, median(exposed_ms) AS exposed_ms"
        f" FROM adapt WHERE run = {quoted(run)} GROUP BY what, reason ORDER BY n DESC",
    )
    if not answer:
        del c.book.answers["adapt"]
        return
    changed = c.book.query(
        "adapt_changes",
        f"the latest {MOST} changes of the adapt service, with the predicted times of one exchange before and after",
        "SELECT iteration, gain, skew, now_ms, then_ms, moved, planned_ms, change_ms, dark_ms, exposed_ms FROM (SELECT * FROM adapt"
        f" WHERE run = {quoted(run)} AND what = 'changed' ORDER BY time_ns DESC LIMIT {MOST}) ORDER BY time_ns",
    )
    made = ReportSection("adapt", "Circuits that followed the job's traffic")
    looks = c.book.database.execute(
        f"SELECT what, iteration, gain FROM adapt WHERE run = {quoted(run)} AND gain IS NOT NULL ORDER BY time_ns"
    ).fetchall()
    text = (
        "Predicted time of an exchange over the circuits of then, divided by that over the proposed ones; 1 where the traffic was"
        " as at the last look. Predicted, not measured."
    )
    if (drawn := _gains(looks)) is not None:
        made.drawings.append(Drawing("adapt-gain", "predicted gain at each look", text, drawn))
    made.tables.append(_outcomes(answer))
    if changed:
        heads = {
            "iteration": "changed in iteration",
            "gain": "gain",
            "skew": "skew",
            "now_ms": "exchange before",
            "then_ms": "after",
        }
        heads |= {
            "moved": "settings",
            "planned_ms": "planned in",
            "change_ms": "change",
            "dark_ms": "dark",
            "exposed_ms": "exposed",
        }
        made.tables.append(result_table(changed, heads))
    else:
        del c.book.answers["adapt_changes"]
    made.notes.append(
        "The times of an exchange (one all-to-all; an iteration may have several) are predicted, all others measured. Planned in:"
        " circuits to settings and routes. Change: the first host's drain to the last commit. Exposed: of the change, what fell into"
        " the job's exchanges. Skew: bytes of the largest pair of hosts over the mean of all pairs."
    )
    c.sections.append(made)


def _outcomes(answer: Answer) -> Table:
    heads = {
        "what": "looks that",
        "n": "number",
        "gain": "gain, median",
        "gain_most": "largest",
        "skew": "skew",
    }
    heads |= {"change_ms": "change", "dark_ms": "dark", "exposed_ms": "exposed"}
    shown = result_table(answer, heads)
    rows = []
    for row, line in zip(shown.rows, answer.lines(), strict=True):
        why = str(line["reason"].value or "")
        rest = row[5:] if line["what"].value == "changed" else ["", "", ""]
        rows.append([row[0], WHY.get(why, why), *row[1:5], *rest])
    return Table([shown.heads[0], "why", *shown.heads[1:]], rows)


def _gains(looks: list[tuple[str, int, float]]) -> Figure | None:
    if len(looks) < 2:
        return None
    with one_figure(2.3) as (figure, axes):
        for what, colour in _GAIN.items():
            points = [(iteration, gain) for reported, iteration, gain in looks if reported == what]
            if points:
                axes.vlines(
                    [x for x, _ in points],
                    1.0,
                    [y for _, y in points],
                    color=colour,
                    linewidth=0.8,
                    alpha=0.6,
                )
                axes.plot(
                    *zip(*points, strict=True),
                    "o",
                    markersize=3,
                    color=colour,
                    label=f"{what} (n = {len(points)})",
                )
        axes.axhline(1.0, color=INK, linewidth=0.6)
        axes.set_xlabel("iteration of the job")
        axes.set_ylabel("predicted gain")
        axes.grid(True)
        # seen without scrolling
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)
    return figure
