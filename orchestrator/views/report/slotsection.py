"""The report's part on slots of a schedule."""

from __future__ import annotations

from orchestrator.telemetry.palette import PHASE_COLOURS
from orchestrator.views.report import figures
from orchestrator.views.report.gather import Source
from orchestrator.views.report.ledger import quoted
from orchestrator.views.report.model import ReportContext, ReportSection, result_table

LAST_S = 1800.0
"""Of a schedule that ran longer, slots of the last so many seconds are read: a day's are 100 MB."""


def timeslots_section(c: ReportContext, source: Source) -> None:
    """Add what there is of slots to a report on one run."""
    run = source.record.id
    if run not in c.campaign.journals:
        return
    begin, end = (
        source.record.started,
        source.record.ended or source.record.started + 10 * 365 * 86400,
    )
    cut = source.record.ended is not None and end - begin > LAST_S
    window = [(round(((end - LAST_S) if cut else begin - 1) * 1e9), round((end + 1) * 1e9))]
    for name in ("slot", "slot_host"):
        c.book.read_more(c.campaign.journals[run], name, window)
    _slots(c, run, cut)


def _slots(c: ReportContext, run: str, cut: bool) -> None:
    # What a device did in a slot change stands beside what the slot before had, so that the latter
    # is the slot of the row before.
    ends = (
        "SELECT slot, cycle, MAX(dark_ms) AS dark_ms, MAX(late_ms) AS late_ms, MAX(lit_ms) AS lit_ms FROM slot"
        f" WHERE run = {quoted(run)} GROUP BY cycle, slot"
    )
    answer = c.book.query(
        "slots",
        "each slot of the schedule: how often it came, its darkness before it (the slowest device), and of the slot before it the"
        " light and how late it ended; duty: light over light and darkness",
        f"SELECT slot, COUNT(*) AS n, median(dark_ms) AS dark_ms, percentile(dark_ms, 99) AS dark_p99_ms, median(lit_ms) AS lit_ms,"
        f" median(late_ms) AS late_ms, percentile(late_ms, 99) AS late_p99_ms, MAX(late_ms) AS late_most_ms,"
        f" SUM(lit_ms) / SUM(lit_ms + dark_ms) AS duty FROM ({ends}) GROUP BY slot ORDER BY slot",
    )
    if not answer:
        del c.book.answers["slots"]
        return
    hosts = c.book.query(
        "slot_hosts",
        "each host: by how much the end of a slot was later than it expected (edge), and its darkness; the worst first",
        "SELECT host, COUNT(edge_error_ms) AS n, median(edge_error_ms) AS edge_ms,"
        f" percentile(ABS(edge_error_ms), 99) AS edge_p99_ms, median(dark_ms) AS dark_ms,"
        f" percentile(dark_ms, 99) AS dark_p99_ms FROM slot_host WHERE run = {quoted(run)}"
        " GROUP BY host ORDER BY edge_p99_ms DESC, host",
    )
    made = ReportSection("slots", "Slots of the schedule")
    times = {
        "dark: command to new state, slowest device": (
            PHASE_COLOURS["dark"],
            _column(c, ends, "dark_ms"),
        ),
        "late: end of a slot after its time": (PHASE_COLOURS["pause"], _column(c, ends, "late_ms")),
        "dark: carriers of a host": (
            PHASE_COLOURS["link"],
            _column(c, f"SELECT * FROM slot_host WHERE run = {quoted(run)}", "dark_ms"),
        ),
    }
    drawn = figures.cdf(
        {name: (hue, [max(0.0, ms) for ms in found]) for name, (hue, found) in times.items()}
    )
    c.draw(
        made,
        "slots-cdf",
        "darkness and lateness of slots",
        "Share of slot changes that took no longer.",
        drawn,
    )
    heads = {
        "slot": "slot",
        "n": "changes",
        "dark_ms": "dark before it",
        "dark_p99_ms": "99 %",
        "lit_ms": "light of the slot before",
    }
    heads |= {
        "late_ms": "it ended late by",
        "late_p99_ms": "99 % ",
        "late_most_ms": "at most",
        "duty": "duty",
    }
    made.tables.append(result_table(answer, heads))
    if hosts:
        heads = {
            "host": "host",
            "n": "changes",
            "edge_ms": "edge, median",
            "edge_p99_ms": "99 % of its size",
        }
        made.tables.append(
            result_table(hosts, heads | {"dark_ms": "dark, median", "dark_p99_ms": "99 %"})
        )
    else:
        del c.book.answers["slot_hosts"]
    made.notes.append(
        "Dark: first command byte sent to new state reported, so that a host's own darkness, from carrier to carrier, is a little"
        " shorter. Edge: how much later than a host expected the slot ended by its own carriers."
        + (f" Of this run the last {LAST_S / 60:g} minutes were read." if cut else "")
    )
    c.sections.append(made)


def _column(c: ReportContext, of: str, name: str) -> list[float]:
    return [
        ms
        for (ms,) in c.book.database.execute(f"SELECT {name} FROM ({of}) WHERE {name} IS NOT NULL")
    ]
