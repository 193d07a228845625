"""The queries of a report, in SQL over the journals' tables (docs/reference/telemetry.md), valid
for the journals it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.telemetry.names import AFTER, BEFORE, PAUSE, USUAL
from orchestrator.views.report.gather import ReportedRuns, Source
from orchestrator.views.report.ledger import Answer, Ledger, quoted

READ = (
    "reconfig",
    "reconfig_device",
    "phase",
    "verify",
    "iteration",
    "ring_change",
    "ring_change_rank",
)
"""Measurements read for every run; `circuit` and `port` are read where they are drawn."""
PHASES = ("ack", "command", "dark", "power", "link", "route", "first_packet", "resume", "total")
NEAR = USUAL
FOREVER_NS = 2**63 - 1
WINDOW_S = 2.0
"""Length (s) of the intervals before and after a move for which throughput is computed."""


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One reconfiguration, wall ns: first command (`t0`), light, carriers and routes back (`back`),
    everything verified (`t1`).
    """

    id: str
    source: Source
    t0: int
    back: int
    t1: int


def mine(campaign: ReportedRuns) -> str:
    """The SQL condition that a point belongs to a run of the report, and not to one that is read
    only for its job.
    """
    runs = [source.record.id for source in campaign.sources]
    if len(runs) == 1:
        return f"run = {quoted(runs[0])}"
    others = [run for run in campaign.journals if run not in set(runs)]
    return f"run NOT IN ({', '.join(map(quoted, others))})" if others else "run <> ''"


def reconfigs(book: Ledger, campaign: ReportedRuns) -> Answer:
    """Every reconfiguration, in order of time."""
    durations = ", ".join(f"{name}_ms" for name in PHASES)
    return book.query(
        "reconfigs",
        "every reconfiguration: how long its parts took",
        f"SELECT run, COALESCE(reconfig_id, run) AS reconfig_id, time_ns, n_circuits, lost_bytes, {durations} FROM reconfig"
        f" WHERE {mine(campaign)} ORDER BY time_ns",
    )


def reconfigurations(found: Answer, parts: Answer, campaign: ReportedRuns) -> list[Reconfiguration]:
    """The reconfigurations with their runs; `parts`: as `device_times` answers."""
    sources = {source.record.id: source for source in campaign.sources}
    back: dict[Any, float] = {}
    for line in parts.lines():
        ends = (line[name].value for name in ("dark_end_ms", "link_up_ms", "route_ms"))
        key = line["reconfig_id"].value
        back[key] = max([back.get(key, 0.0), *(ms for ms in ends if ms is not None)])
    made = []
    for line in found.lines():
        run, name, t0, total = (
            line[column].value for column in ("run", "reconfig_id", "time_ns", "total_ms")
        )
        if run in sources:
            t1 = t0 + round((total or 0.0) * 1e6)
            made.append(
                Reconfiguration(
                    name, sources[run], t0, t0 + round(back[name] * 1e6) if name in back else t1, t1
                )
            )
    return made


def _spread(ms: str, least: str = "") -> str:
    """The columns of a distribution of times, after their number those in `least`; percentiles are
    nearest rank.
    """
    shares = f"percentile({ms}, 90) AS p90_ms, percentile({ms}, 99) AS p99_ms"
    return f"COUNT({ms}) AS n, {least}median({ms}) AS median_ms, {shares}, MAX({ms}) AS most_ms"


def percentiles(book: Ledger, campaign: ReportedRuns) -> Answer:
    """The spread of each part over all reconfigurations; parts that were never recorded are left
    out.
    """
    ask = "SELECT '{0}' AS part, {1} FROM reconfig WHERE {2} HAVING COUNT({0}_ms) > 0"
    sql = " UNION ALL ".join(
        ask.format(part, _spread(f"{part}_ms", f"MIN({part}_ms) AS least_ms, "), mine(campaign))
        for part in PHASES
    )
    return book.query(
        "percentiles", "how long each part took over all reconfigurations (nearest rank)", sql
    )


def dark_times_by_model(book: Ledger, campaign: ReportedRuns) -> Answer:
    """Dark times by device model."""
    dark = "(t_dark_end_ns - t_dark_begin_ns) / 1e6"
    return book.query(
        "models",
        "dark time by model of device: removals acknowledged to new state reported",
        f"SELECT model, {_spread(dark)} FROM reconfig_device WHERE {mine(campaign)} GROUP BY model",
    )


def device_times(book: Ledger, campaign: ReportedRuns) -> Answer:
    """The parts of each device, times since the first command of its reconfiguration."""
    since = "(d.time_ns - r.time_ns) / 1e6"
    parts = ", ".join(
        f"{since} + d.{column} / 1e6 AS {name}_ms"
        for name, column in (
            ("send", "t_send_ns"),
            ("dark_begin", "t_dark_begin_ns"),
            ("ack", "t_ack_ns"),
            ("dark_end", "t_dark_end_ns"),
            ("power", "t_power_ns"),
            ("link_up", "t_link_up_ns"),
            ("route", "t_route_ns"),
        )
    )
    return book.query(
        "devices",
        "the parts of each device, since the first command",
        "SELECT d.reconfig_id, d.device, d.model, d.n_ports, d.writes, d.error,"
        f" (d.t_dark_end_ns - d.t_dark_begin_ns) / 1e6 AS dark_ms, {parts} FROM reconfig_device d"
        " JOIN reconfig r ON r.reconfig_id = d.reconfig_id AND r.run = d.run"
        f" WHERE d.{mine(campaign)} ORDER BY r.time_ns, d.device",
    )


def slowest_changes(book: Ledger, campaign: ReportedRuns) -> Answer:
    """The ten longest reconfigurations, with the device that was dark longest in each."""
    dark = "(d.t_dark_end_ns - d.t_dark_begin_ns)"
    return book.query(
        "slowest",
        "the longest reconfigurations",
        "SELECT reconfig_id, run, total_ms, dark_ms, link_ms, route_ms, n_circuits,"
        " (SELECT device FROM reconfig_device d WHERE d.run = reconfig.run AND d.reconfig_id = reconfig.reconfig_id"
        f" ORDER BY {dark} DESC LIMIT 1) AS device FROM reconfig WHERE {mine(campaign)}"
        f" ORDER BY total_ms DESC, time_ns LIMIT 10",
    )


def phases(book: Ledger, campaign: ReportedRuns) -> Answer:
    """The phases of a run and of the devices and hosts inside it."""
    return book.query(
        "phases",
        "phases of the run, of devices and of hosts, since its start",
        "SELECT kind, subject, phase, begin_ns / 1e6 AS begin_ms, duration_ms, ok, detail FROM phase"
        f" WHERE {mine(campaign)} AND begin_ns IS NOT NULL AND duration_ms IS NOT NULL ORDER BY begin_ns, duration_ns",
    )


def hosts(book: Ledger, campaign: ReportedRuns) -> Answer:
    """Times that hosts waited for light and took to commit."""
    return book.query(
        "hosts",
        "per host: first command to its last carrier (light), carrier to its routes committed (commit)",
        f"SELECT phase, {_spread('duration_ms')} FROM phase WHERE {mine(campaign)} AND kind = 'host'"
        " GROUP BY phase ORDER BY MIN(begin_ns)",
    )


def levels(book: Ledger, campaign: ReportedRuns, *, each: bool) -> Answer:
    """The verification: each level that was checked, or the counts by level."""
    if each:
        sql = f"SELECT level, ok, passed, total, duration_ms, detail FROM verify WHERE {mine(campaign)} ORDER BY time_ns"
    else:
        sql = (
            "SELECT level, COUNT(*) AS n, SUM(ok) AS passed_n, median(duration_ms) AS median_ms, MAX(duration_ms) AS most_ms"
            f" FROM verify WHERE {mine(campaign)} GROUP BY level ORDER BY MIN(time_ns)"
        )
    return book.query("verify", "the verification ladder", sql)


def run_durations(book: Ledger, campaign: ReportedRuns) -> Answer:
    """Each run of a campaign by its journal: its duration from the begin of the first phase to the
    end of the last.
    """
    return book.query(
        "runs",
        "each run by its journal: first phase's begin to last phase's end; its reconfiguration",
        "SELECT p.run, MAX(p.begin_ns + p.duration_ns) / 1e6 - MIN(p.begin_ns) / 1e6 AS took_ms, SUM(1 - p.ok) AS failed_phases,"
        " (SELECT SUM(value) FROM reconfig r WHERE r.run = p.run) AS moved,"
        " (SELECT MAX(dark_ms) FROM reconfig r WHERE r.run = p.run) AS dark_ms,"
        " (SELECT MAX(total_ms) FROM reconfig r WHERE r.run = p.run) AS total_ms"
        f" FROM phase p WHERE p.{mine(campaign)} AND p.kind = 'run' GROUP BY p.run",
    )


def links(book: Ledger, campaign: ReportedRuns, source: Source) -> Answer:
    """The circuits of its plan that were up after a run."""
    book.read_more(source.folder, "circuit")
    name = "circuits" if campaign.single else f"circuits of {source.record.id}"
    return book.query(
        name,
        "circuits that the run made or kept",
        "SELECT circuit, source, target, MIN(state) AS state, SUM(loss_db) / COUNT(*) AS loss_db FROM circuit"
        f" WHERE run = {quoted(source.record.id)} AND state IN ('made', 'up') AND circuit LIKE '%->%'"
        " GROUP BY circuit ORDER BY circuit",
    )


def _windows(
    found: Sequence[Reconfiguration], names: str, more: Callable[[Reconfiguration], str]
) -> str:
    rows = ", ".join(
        f"({quoted(m.id)}, {quoted(m.source.record.id)}, {m.t0}, {m.back}, {m.t1}, {more(m)})"
        for m in found
    )
    return f"WITH move(id, run, t0, back, t1, {names}) AS (VALUES {rows})"


def before_next(book: Ledger, source: Source, end: int) -> int:
    """The time `end` (wall ns), or when the next change began if the job went on beyond it: what it
    did then is not of this run.
    """
    if source.until * 1e9 >= end:
        return end
    until = round(source.until * 1e9)
    went_on = "SELECT 1 FROM iteration WHERE run = ? AND time_ns BETWEEN ? AND ? LIMIT 1"
    return until - 1 if book.database.execute(went_on, (source.now, until, end)).fetchall() else end


def effects_on_job(book: Ledger, found: Sequence[Reconfiguration]) -> Answer | None:
    """The effect of each move on the job: its iterations before, during and after, None if no job
    ran.

    Where the job changed rings, its usual times are those that the ring change recorded, as they
    were printed; where it was launched again, the pause is the one that the reconfiguration
    recorded. Otherwise they are computed here, by the same definitions.
    """
    found = [m for m in found if m.source.was or m.source.now]
    if not found:
        return None
    end = "time_ns + iter_ms * 1000000"
    begun = "iter > (SELECT MIN(iter) FROM iteration WHERE run = {0})"
    # One more than is needed: an iteration counts from the end of the one before.
    before = f"run = move.was AND {begun.format('move.was')} AND {end} <= t0 ORDER BY time_ns DESC LIMIT {NEAR + 1}"
    after = f"run = move.now AND {begun.format('move.now')} AND time_ns >= t1 AND {end} <= next ORDER BY time_ns LIMIT {NEAR}"

    def steps(some: str) -> str:
        pause = f"({end} - LAG({end}) OVER w) / 1e6"
        took = f"CASE WHEN LAG(iter) OVER w = iter - 1 THEN MAX(iter_ms, {pause}) ELSE iter_ms END"
        rows = f"SELECT iter, iter_ms, time_ns FROM iteration WHERE iter_ms IS NOT NULL AND {some}"
        return f"SELECT {took} AS took FROM ({rows}) WINDOW w AS (ORDER BY time_ns) ORDER BY time_ns DESC LIMIT {NEAR}"

    notice = "SELECT {0} FROM ring_change WHERE ring_change.run = move.run AND COALESCE(reconfig_id, ring_change.run) = id AND ok = '1'"

    def usual(name: str, some: str) -> str:
        known = notice.format(f"{name}_ms")
        return (
            f" (SELECT CASE WHEN ({known}) IS NULL THEN COUNT(*) END FROM ({steps(some)})) AS {name}_n,"
            f" COALESCE(({known}), (SELECT median(took) FROM ({steps(some)}))) AS {name}_ms,"
        )

    kept = (
        "SELECT iter_ms, time_ns FROM iteration WHERE was = now AND iteration.run = now AND time_ns"
    )
    during = (
        f"SELECT iter_ms FROM ({kept} < t0 ORDER BY time_ns DESC LIMIT 1) WHERE {end} > t0"
        f" UNION ALL SELECT iter_ms FROM ({kept} >= t0 AND time_ns < t1)"
    )
    # The end of the last iteration before the move, and of the first one after it: between them
    # lies the longest gap.
    since = f"SELECT time_ns FROM iteration WHERE run = was AND time_ns < t0 AND {end} <= t0 ORDER BY time_ns DESC LIMIT 1"
    until = f"SELECT {end} FROM iteration WHERE run = now AND {end} BETWEEN back AND next ORDER BY time_ns LIMIT 1"
    between = f"SELECT {end} AS e FROM iteration WHERE iteration.run IN (was, now) AND time_ns >= COALESCE(since, t0) AND {end} <= until"
    recorded = "SELECT pause_ms FROM reconfig r WHERE r.run = move.run AND COALESCE(r.reconfig_id, r.run) = id"
    gaps = f"SELECT MAX(gap) / 1e6 FROM (SELECT e, e - LAG(e) OVER (ORDER BY e) AS gap FROM ({between})) WHERE e > t0"

    def more(m: Reconfiguration) -> str:
        return f"{quoted(m.source.was)}, {quoted(m.source.now)}, {_next(book, m)}"

    sql = _windows(found, "was, now, next", more) + (
        f", around AS MATERIALIZED (SELECT *, ({since}) AS since, ({until}) AS until FROM move) "
        f"SELECT id AS reconfig_id, was, now,{usual('before', before)}{usual('after', after)}"
        f" (SELECT MAX(iter_ms) FROM ({during})) AS during_ms,"
        f" COALESCE(({recorded}), ({gaps})) AS pause_ms"
        " FROM around AS move ORDER BY t0"
    )
    return book.query("job", f"before: {BEFORE}; after: {AFTER}", sql)


def _next(book: Ledger, move: Reconfiguration) -> int:
    """When the next change began (wall ns), if iterations from then on would count as those after a
    move; else the end of time.
    """
    ask = (
        "SELECT time_ns + iter_ms * 1000000 AS e FROM iteration WHERE run = ? AND iter_ms IS NOT NULL AND e >= ?"
        f" ORDER BY time_ns LIMIT {NEAR + 2}"
    )
    until = move.source.until * 1e9
    found = book.database.execute(ask, (move.source.now, move.back)).fetchall()
    return round(until) if any(end >= until for (end,) in found) else FOREVER_NS


def pause_spread(book: Ledger, found: Answer) -> Answer:
    """The spread of the job's pauses; `found`: as `effects_on_job` answers."""
    sql = f"SELECT COUNT(pause_ms) AS n, median(pause_ms) AS median_ms, MAX(pause_ms) AS most_ms FROM ({found.sql})"
    return book.query("pauses", f"how long the job paused: {PAUSE}", sql)


def throughput_around_changes(book: Ledger, found: Sequence[Reconfiguration]) -> Answer | None:
    """The traffic of the hosts around each move, None if nothing was sampled."""
    if not found:
        return None
    window = f"{WINDOW_S:g} * 1000000000"

    every = "SELECT COUNT(DISTINCT host || ':' || port) FROM port WHERE port.run = move.run AND layer = 'nic'"

    def over(inner: str, what: str, when: str) -> str:
        ports = f"SELECT {inner} AS x FROM port WHERE port.run = move.run AND layer = 'nic'{when} GROUP BY host, port"
        # all ports or none
        return f"(SELECT CASE WHEN COUNT(x) = ({every}) THEN {what} END FROM ({ports}))"

    span = "NULLIF(MAX(time_ns) - MIN(time_ns), 0)"
    whole = f"(MAX(tx_bytes) - MIN(tx_bytes)) * 8000.0 / {span}"
    first, last = (
        "MIN(CASE WHEN time_ns >= back THEN {} END)",
        "MAX(CASE WHEN time_ns < t0 THEN {} END)",
    )
    sent, took = (f"({first.format(x)} - {last.format(x)})" for x in ("tx_bytes", "time_ns"))
    before, after = (
        f" AND time_ns < t0 AND time_ns >= t0 - {window}",
        f" AND time_ns >= back AND time_ns <= back + {window}",
    )
    around = f" AND time_ns >= t0 - {window} AND time_ns <= back + {window}"
    sql = _windows(found, "was", lambda m: quoted(m.source.was)) + (
        " SELECT id AS reconfig_id,"
        f" {over(whole, 'SUM(x)', before)} AS before_mbps, {over(span, 'MAX(x) / 1e6', before)} AS before_over_ms,"
        f" {over(f'{sent} * 8000.0 / NULLIF({took}, 0)', 'SUM(x)', around)} AS across_mbps,"
        f" {over(whole, 'SUM(x)', after)} AS after_mbps, {over(span, 'MAX(x) / 1e6', after)} AS after_over_ms"
        " FROM move ORDER BY t0"
    )
    what = (
        f"sent by all hosts together: in at most {WINDOW_S:g} s before the first command, from the last sample before it to the"
        f" first one with light and routes back, and in at most {WINDOW_S:g} s from then on; over: the sampled part of that time"
    )
    answer = book.query("throughput", what, sql)
    if any(value is not None for row in answer.rows for value in row[1:]):
        return answer
    del book.answers["throughput"]
    return None


def port_counters_near(book: Ledger, move: Reconfiguration) -> list[tuple[str, int, int]]:
    """The counters of each port near a move: port, wall ns, bytes sent; for drawing."""
    begin, end = near(move)
    return book.database.execute(
        "SELECT host || ':' || port, time_ns, tx_bytes FROM port WHERE run = ? AND layer = 'nic' AND tx_bytes IS NOT NULL"
        " AND time_ns BETWEEN ? AND ? ORDER BY time_ns",
        (move.source.record.id, begin, end),
    ).fetchall()


def near(move: Reconfiguration) -> tuple[int, int]:
    """The time around a move whose port counters are of interest, wall ns."""
    more = round(5 * WINDOW_S * 1e9)
    return move.t0 - more, move.t1 + more


def iterations_near(
    book: Ledger, move: Reconfiguration, around_s: float
) -> list[tuple[int, float, str]]:
    """The iterations near a move: wall ns of the begin, ms, the run that launched the job; for
    drawing.
    """
    more = round(around_s * 1e9)
    end = min(move.t1 + more, move.source.until * 1e9)
    return book.database.execute(
        "SELECT time_ns, iter_ms, run FROM iteration WHERE run IN (?, ?) AND iter_ms IS NOT NULL"
        " AND time_ns BETWEEN ? AND ? ORDER BY time_ns",
        (move.source.was, move.source.now, move.t0 - more, end),
    ).fetchall()
