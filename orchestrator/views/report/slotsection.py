"""The report's parts on slots of a schedule, and on circuits that follow a job's traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.telemetry.palette import PHASE_COLOURS
from orchestrator.views.live.adapting import WHY
from orchestrator.views.report import figures
from orchestrator.views.report.figures import Drawing, one_figure
from orchestrator.views.report.gather import Source
from orchestrator.views.report.ledger import Answer, quoted
from orchestrator.views.report.model import Context, Section, Table, table
from orchestrator.views.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST_S = 1800.0
"""Of a run that turned longer, slots of the last so many seconds are read: a day's are 100 MB."""
MOST = 40
"""So many looks that changed circuits are listed: the latest."""
_GAIN = {"turned": PHASE_COLOURS["up"], "skipped": figures.GREY, "failed": PHASE_COLOURS["fault"]}


def sections(c: Context, source: Source) -> None:
    """Add what there is of either to a report on one run."""
    run = source.record.id
    if run not in c.campaign.journals:
        return
    begin, end = source.record.started, source.record.ended or source.record.started + 10 * 365 * 86400
    cut = source.record.ended is not None and end - begin > LAST_S
    window = [(round(((end - LAST_S) if cut else begin - 1) * 1e9), round((end + 1) * 1e9))]
    for name in ("slot", "slot_host"):
        c.book.read_more(c.campaign.journals[run], name, window)
    _slots(c, run, cut)
    c.book.read_more(c.campaign.journals[run], "adapt", [(round((begin - 1) * 1e9), round((end + 1) * 1e9))])
    _adapt(c, run)


def _slots(c: Context, run: str, cut: bool) -> None:
    # What a device did in a turn stands beside what the slot before had, so that the latter is the slot of the row before.
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
    made = Section("slots", "Slots of the schedule")
    times = {
        "dark: command to new state, slowest device": (PHASE_COLOURS["dark"], _column(c, ends, "dark_ms")),
        "late: end of a slot after its time": (PHASE_COLOURS["pause"], _column(c, ends, "late_ms")),
        "dark: carriers of a host": (
            PHASE_COLOURS["link"],
            _column(c, f"SELECT * FROM slot_host WHERE run = {quoted(run)}", "dark_ms"),
        ),
    }
    drawn = figures.cdf({name: (hue, [max(0.0, ms) for ms in found]) for name, (hue, found) in times.items()}, "ms")
    c.draw(made, "slots-cdf", "darkness and lateness of slots", "Share of turns that took no longer.", drawn)
    heads = {"slot": "slot", "n": "turns", "dark_ms": "dark before it", "dark_p99_ms": "99 %", "lit_ms": "light of the slot before"}
    heads |= {"late_ms": "it ended late by", "late_p99_ms": "99 % ", "late_most_ms": "at most", "duty": "duty"}
    made.tables.append(table(answer, heads))
    if hosts:
        heads = {"host": "host", "n": "turns", "edge_ms": "edge, median", "edge_p99_ms": "99 % of its size"}
        made.tables.append(table(hosts, heads | {"dark_ms": "dark, median", "dark_p99_ms": "99 %"}))
    else:
        del c.book.answers["slot_hosts"]
    made.notes.append(
        "Dark: first command byte sent to new state reported, so that a host's own darkness, from carrier to carrier, is a little"
        " shorter. Edge: how much later than a host expected the slot ended by its own carriers."
        + (f" Of this run the last {LAST_S / 60:g} minutes were read." if cut else "")
    )
    c.sections.append(made)


def _column(c: Context, of: str, name: str) -> list[float]:
    return [ms for (ms,) in c.book.database.execute(f"SELECT {name} FROM ({of}) WHERE {name} IS NOT NULL")]


def _adapt(c: Context, run: str) -> None:
    answer = c.book.query(
        "adapt",
        "what came of every look at the job's traffic: turned, skipped and why, or failed; medians",
        "SELECT what, CASE WHEN what = 'turned' THEN '' ELSE why END AS reason, COUNT(*) AS n, median(gain) AS gain, MAX(gain) AS"
        " gain_most, median(skew) AS skew, median(turn_ms) AS turn_ms, median(dark_ms) AS dark_ms, median(exposed_ms) AS exposed_ms"
        f" FROM adapt WHERE run = {quoted(run)} GROUP BY what, reason ORDER BY n DESC",
    )
    if not answer:
        del c.book.answers["adapt"]
        return
    turned = c.book.query(
        "adapt_turns",
        f"the latest {MOST} turns of an adapter, with the predicted times of one exchange before and after",
        "SELECT iteration, gain, skew, now_ms, then_ms, moved, planned_ms, turn_ms, dark_ms, exposed_ms FROM (SELECT * FROM adapt"
        f" WHERE run = {quoted(run)} AND what = 'turned' ORDER BY time_ns DESC LIMIT {MOST}) ORDER BY time_ns",
    )
    made = Section("adapt", "Circuits that followed the job's traffic")
    looks = c.book.database.execute(
        f"SELECT what, iteration, gain FROM adapt WHERE run = {quoted(run)} AND gain IS NOT NULL ORDER BY time_ns"
    ).fetchall()
    words = (
        "Predicted time of an exchange over the circuits of then, divided by that over the proposed ones; 1 where the traffic was"
        " as at the last look. Predicted, not measured."
    )
    if (drawn := _gains(looks)) is not None:
        made.drawings.append(Drawing("adapt-gain", "predicted gain at each look", words, drawn))
    made.tables.append(_outcomes(answer))
    if turned:
        heads = {
            "iteration": "turned in iteration",
            "gain": "gain",
            "skew": "skew",
            "now_ms": "exchange before",
            "then_ms": "after",
        }
        heads |= {"moved": "settings", "planned_ms": "planned in", "turn_ms": "turn", "dark_ms": "dark", "exposed_ms": "exposed"}
        made.tables.append(table(turned, heads))
    else:
        del c.book.answers["adapt_turns"]
    made.notes.append(
        "The times of an exchange (one all-to-all; an iteration may have several) are predicted, all others measured. Planned in:"
        " circuits to settings and routes. Turn: the first host's drain to the last commit. Exposed: of the turn, what fell into"
        " the job's exchanges. Skew: bytes of the largest pair of hosts over the mean of all pairs."
    )
    c.sections.append(made)


def _outcomes(answer: Answer) -> Table:
    heads = {"what": "looks that", "n": "number", "gain": "gain, median", "gain_most": "largest", "skew": "skew"}
    heads |= {"turn_ms": "turn", "dark_ms": "dark", "exposed_ms": "exposed"}
    shown = table(answer, heads)
    rows = []
    for row, line in zip(shown.rows, answer.lines(), strict=True):
        why = str(line["reason"].value or "")
        rest = row[5:] if line["what"].value == "turned" else ["", "", ""]
        rows.append([row[0], WHY.get(why, why), *row[1:5], *rest])
    return Table([shown.heads[0], "why", *shown.heads[1:]], rows)


def _gains(looks: list[tuple[str, int, float]]) -> Figure | None:
    if len(looks) < 2:
        return None
    with one_figure(2.3) as (figure, axes):
        for what, colour in _GAIN.items():
            points = [(iteration, gain) for said, iteration, gain in looks if said == what]
            if points:
                axes.vlines([x for x, _ in points], 1.0, [y for _, y in points], color=colour, linewidth=0.8, alpha=0.6)
                axes.plot(*zip(*points, strict=True), "o", markersize=3, color=colour, label=f"{what} (n = {len(points)})")
        axes.axhline(1.0, color=INK, linewidth=0.6)
        axes.set_xlabel("iteration of the job")
        axes.set_ylabel("predicted gain")
        axes.grid(True)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)  # seen without scrolling
    return figure
