"""The report's part on ring changes: the mark in the figure, the tables of ring changes and of slow
iterations.
"""

from __future__ import annotations

from orchestrator.views import ringtext
from orchestrator.views.report import ringquestions
from orchestrator.views.report.ledger import Answer
from orchestrator.views.report.model import ReportContext, ReportSection, Table, result_table
from orchestrator.views.report.questions import Reconfiguration

_SHARES = (*ringtext.CAUSES, "other")


def marks(c: ReportContext, move: Reconfiguration) -> list[tuple[int, str]]:
    """The ring changes of one move for its figure: wall ns, what the job lost."""
    if c.ring_changes is None:
        return []
    lines = [
        line
        for line in c.ring_changes.lines()
        if line["reconfig_id"].value == move.id and line["ok"].value == "1"
    ]
    return [
        (
            round(line["at_ns"].value or line["time_ns"].value),
            ringtext.pause_summary({k: v.value for k, v in line.items()}),
        )
        for line in lines
    ]


def ring_change_tables(c: ReportContext, into: ReportSection) -> None:
    """Add the tables of ring changes and slow iterations to the section on the job."""
    if c.ring_changes is not None:
        _ring_changes(c, into, c.ring_changes)
    if (
        c.campaign.single
        and (answer := ringquestions.slow_iterations(c.book, c.campaign)) is not None
    ):
        _slow(into, answer)


def _ring_changes(c: ReportContext, into: ReportSection, answer: Answer) -> None:
    heads = {
        "reconfig_id": "change",
        "mode": "mode",
        "after": "after iteration",
        "paused_ms": "job lost",
        "dark_ms": "dark",
    }
    heads |= {"commit_ms": "commit", "boundary_ms": "boundary", "worst_rank_ms": "worst rank"}
    shown = result_table(
        answer,
        heads | {"before_ms": "iteration before", "after_ms": "after", "prepare_ms": "prepared in"},
    )
    rows = [
        [*row, "" if line["ok"].value == "1" else "FAILED: the ring change did not happen"]
        for row, line in zip(shown.rows, answer.lines(), strict=True)
    ]
    failed = any(row[-1] for row in rows)
    into.tables.append(Table((*shown.heads, ""), rows) if failed else shown)
    into.notes.append(
        "A ring change: the ranks of the running job took over other rings at the end of an iteration, or went on after a pause (mode"
        " hold). Job lost: time lost beyond the usual, from the first command to the end of the first iteration after the ring change;"
        " boundary is what dark and commit leave of it, not below 0: a job with paths that stay goes on in the dark. Worst"
        " rank: the longest time that any rank moved no byte although some were due."
        " Prepared in: beside the training, at no standstill. Iteration before and after: as in the table of moves, which has them"
        " from here; the command printed the same."
    )
    if c.few and (of_ranks := ringquestions.ranks(c.book, c.campaign)):
        heads = {
            "move": "move",
            "rank": "rank",
            "host": "host",
            "state": "state",
            "iteration": "latest iteration",
        }
        into.tables.append(
            result_table(
                of_ranks,
                heads | {"took_ms": "connected in", "held_ms": "held", "stall_ms": "stall"},
                none={"held_ms": "not paused"},
            )
        )


def _slow(into: ReportSection, answer: Answer) -> None:
    if not answer:
        into.notes.append(
            f"No slow iterations: none {answer.what.split(';')[0].removeprefix('iterations during the run that ')}."
        )
        return
    heads = {
        "iter": "slow iteration",
        "blame": "blame",
        "took_ms": "took",
        "usual_ms": "usual",
        "over_ms": "lost",
    }
    into.tables.append(
        result_table(answer, heads | {f"{share}_ms": f"of it {share}" for share in _SHARES})
    )
    into.notes.append(
        f"Slow: {answer.what}. dark: it overlaps the time from the first removal to the last device's new state; commit: from"
        " there to the last host's commit; boundary: from there to the end of the first iteration after the ring change."
        f" {ringtext.STRAGGLER}: {ringtext.WHY[ringtext.STRAGGLER]}. {ringtext.PAUSE}: {ringtext.WHY[ringtext.PAUSE]}."
    )
