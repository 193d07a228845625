"""The report's part on what knew a job's traffic: its attachments, what was sent, lost and
saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.views.attached import views
from orchestrator.views.carried import WHOLE
from orchestrator.views.report.figures import MADE, one_figure
from orchestrator.views.report.gather import Source
from orchestrator.views.report.ledger import quoted
from orchestrator.views.report.model import ReportContext, ReportSection, result_table
from orchestrator.views.report.questions import before_next
from orchestrator.views.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEFORE_S, AFTER_S = 60.0, 1800.0
"""What is read of the job's journal: from this long (s) before the run until this long after it."""


def carried_section(c: ReportContext, source: Source) -> None:
    """Add what the job around this run used of these; no section where it used none."""
    run = source.now or source.was
    if run not in c.campaign.journals:
        return
    record = source.record
    begin = round((record.started - BEFORE_S) * 1e9)
    end = before_next(c.book, source, round(((record.ended or record.started) + AFTER_S) * 1e9))
    for name in (*(view.measurement for view in views()), "collective"):
        c.book.read_more(c.campaign.journals[run], name, [(begin, end)])
    where = f"run = {quoted(run)} AND time_ns BETWEEN {begin} AND {end}"
    made = ReportSection("carried", "What knew the job's traffic")
    for add in (*(view.section for view in views()), _sent, _lost, _saves):
        add(c, made, where)
    if made.tables:
        c.sections.append(made)


def _sent(c: ReportContext, made: ReportSection, where: str) -> None:
    answer = c.book.query(
        "sent",
        "what rank 0 sent for the job's sums, over what whole sums over a ring in every iteration would be",
        "SELECT COUNT(*) AS n, MAX(size_bytes) AS size_bytes, SUM(wire_bytes) AS wire_bytes, SUM(whole_bytes) AS whole_bytes,"
        f" 1.0 * SUM(wire_bytes) / SUM(whole_bytes) AS share, median(iter_ms) AS exchange_ms FROM collective WHERE {where}"
        " AND whole_bytes IS NOT NULL",
    )
    share = next(iter(answer.values("share")), None)
    if share is None or abs(share - 1) <= WHOLE:
        del c.book.answers["sent"]
        return
    heads = {
        "n": "exchanges",
        "size_bytes": "numbers of one",
        "wire_bytes": "sent by rank 0",
        "whole_bytes": "whole sums",
    }
    made.tables.append(
        result_table(answer, heads | {"share": "share", "exchange_ms": "an exchange, median"})
    )


def _lost(c: ReportContext, made: ReportSection, where: str) -> None:
    where += " AND lost_share IS NOT NULL"
    answer = c.book.query(
        "lost",
        "the share of all ranks' numbers that sums lacked, beside what was allowed, and what was sent again of the bytes sent",
        "SELECT COUNT(*) AS n, AVG(lost_share) AS lost, percentile(lost_share, 99) AS lost_p99, MAX(lost_share) AS lost_most,"
        f" MAX(loss_bound) AS bound, 1.0 * SUM(resent_bytes) / SUM(wire_bytes) AS again FROM collective WHERE {where}",
    )
    if not next(iter(answer.values("n")), 0):
        del c.book.answers["lost"]
        return
    sql = f"SELECT iter, lost_share, loss_bound FROM collective WHERE {where} ORDER BY time_ns"
    caption = (
        "The share that the sums of each iteration lacked; the line is the most that is allowed."
    )
    c.draw(
        made, "lost", "loss of datagrams", caption, _losses(c.book.database.execute(sql).fetchall())
    )
    heads = {
        "n": "exchanges by datagrams",
        "lost": "sums lacked, mean",
        "lost_p99": "99 %",
        "lost_most": "at most",
    }
    made.tables.append(result_table(answer, heads | {"bound": "allowed", "again": "sent again"}))


def _losses(points: list[tuple[int, float, float | None]]) -> Figure | None:
    if len(points) < 2:
        return None
    with one_figure(2.0) as (figure, axes):
        axes.plot(
            [n for n, _, _ in points],
            [100 * share for _, share, _ in points],
            "o",
            markersize=2,
            color=MADE,
            label="lacked",
        )
        if (bound := points[-1][2]) is not None:
            axes.axhline(100 * bound, color=INK, linewidth=0.8, linestyle="--", label="allowed")
        axes.set_xlabel("iteration of the job")
        axes.set_ylabel("of all numbers, %")
        axes.set_ylim(
            0, 108 * max(each for _, share, limit in points for each in (share, limit or 0)) or 1
        )
        axes.grid(True)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2)
    return figure


def _saves(c: ReportContext, made: ReportSection, where: str) -> None:
    answer = c.book.query(
        "saves",
        "how long training paused for checkpoints: until each was written (sync) or copied (async), and per iteration",
        "SELECT COUNT(save_ms) AS n, COUNT(*) AS iterations, median(save_ms) AS save_ms, percentile(save_ms, 99) AS"
        f" save_p99_ms, MAX(save_ms) AS save_most_ms, SUM(save_ms) / COUNT(*) AS each_ms, median(iter_ms) AS usual_ms"
        f" FROM iteration WHERE {where}",
    )
    if not next(iter(answer.values("n")), 0):
        del c.book.answers["saves"]
        return
    heads = {
        "n": "checkpoints",
        "iterations": "iterations",
        "save_ms": "training paused, median",
        "save_p99_ms": "99 %",
    }
    heads |= {
        "save_most_ms": "longest",
        "each_ms": "per iteration",
        "usual_ms": "an iteration, median, without",
    }
    made.tables.append(result_table(answer, heads))
