"""Questions on ring changes: when a running job took over other rings, what it lost, and what slow
iterations overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.views import ringtext
from orchestrator.views.report.gather import ReportedRuns
from orchestrator.views.report.ledger import Answer, Ledger, quoted
from orchestrator.views.report.questions import Reconfiguration, mine

BEFORE_S = 60.0
"""Iterations of so long (s) before a run may be those that a slow one in it is compared with."""
MOST = 40
"""So many slow iterations are listed: those that lost most."""
_TILL = "time_ns + iter_ms * 1000000"


def ring_changes(book: Ledger, campaign: ReportedRuns) -> Answer | None:
    """Every ring change in order of time, None if there was none; at_ns: when the iteration ended
    after which the ranks changed rings.
    """
    launched = {s.record.id: s.now or s.was for s in campaign.sources}
    jobs = ", ".join(f"({quoted(run)}, {quoted(of)})" for run, of in launched.items())
    of_it = f"i.run = l.job_run AND i.job = t.job AND i.iter = t.after AND {_TILL} >= t.time_ns"
    at = f"SELECT MIN({_TILL}) FROM iteration i WHERE {of_it}"
    figures = ", ".join(
        f"{name}_ms"
        for name in (
            "paused",
            "dark",
            "commit",
            "boundary",
            "worst_rank",
            "before",
            "after",
            "prepare",
        )
    )
    answer = book.query(
        "ring_changes",
        "every ring change of a running job: what it lost beyond its usual iterations, and of what; at_ns: the end of iteration `after`",
        f"WITH launched(run, job_run) AS (VALUES {jobs}) SELECT t.run, COALESCE(reconfig_id, t.run) AS reconfig_id, t.time_ns,"
        f" job, mode, ok, move, after, {figures}, ({at}) AS at_ns FROM ring_change t JOIN launched l ON l.run = t.run"
        f" WHERE t.{mine(campaign)}"
        " ORDER BY t.time_ns",
    )
    if not answer:
        del book.answers["ring_changes"]
    return answer or None


def unlit(
    answer: Answer | None, moves: Sequence[Reconfiguration], campaign: ReportedRuns
) -> list[Reconfiguration]:
    """The ring changes for which no light moved, as moves that end with the iteration."""
    sources, known = {s.record.id: s for s in campaign.sources}, {move.id for move in moves}
    made = []
    for line in answer.lines() if answer is not None else ():
        name, run, begun = (line[column].value for column in ("reconfig_id", "run", "time_ns"))
        if name not in known and run in sources:
            end = max(begun, round(line["at_ns"].value or begun))
            made.append(Reconfiguration(name, sources[run], begun, end, end))
    return made


def ranks(book: Ledger, campaign: ReportedRuns) -> Answer:
    """What each rank reported of each ring change."""
    return book.query(
        "ring_change_ranks",
        "what each rank reported of a ring change: connecting its next rings, its pause, the longest time that it moved no byte",
        "SELECT run, move, CAST(rank AS INTEGER) AS rank, host, state, iteration, took_ms, held_ms, stall_ms FROM ring_change_rank"
        f" WHERE {mine(campaign)} ORDER BY time_ns, move, CAST(rank AS INTEGER)",
    )


def slow_iterations(book: Ledger, campaign: ReportedRuns) -> Answer | None:
    """The slow iterations during one run with what they overlap, those that lost most first; None
    where no job ran.

    The rules are those of `views.ringtext`, which live views apply to the same points.
    """
    source = campaign.sources[0]
    jobs = sorted({run for run in (source.was, source.now) if run})
    if not jobs:
        return None
    begun = round(source.record.started * 1e9)
    ended = round((source.record.ended or source.record.started) * 1e9)
    here = mine(campaign)
    within = "IFNULL((SELECT SUM(MAX(0, MIN(till, b) - MAX(since, a))) / 1e6 FROM disturbed WHERE cause = '{0}'), 0)"
    numbers = ", ".join(f"({n})" for n in range(1, ringtext.BEFORE + 1))
    cause = " || ".join(
        f"CASE WHEN {name}_in > 0 THEN '{', ' if n else ''}{name}' ELSE '' END"
        for n, name in enumerate(ringtext.CAUSES)
    )
    sql = f"""WITH step AS (
  SELECT run, job, iter, iter_ms, time_ns, {_TILL} AS till FROM iteration WHERE run IN ({", ".join(map(quoted, jobs))})
  AND iter_ms IS NOT NULL AND time_ns BETWEEN {begun - round(BEFORE_S * 1e9)} AND {ended}),
span AS MATERIALIZED (
  SELECT *, (till - since) / 1e6 AS took_ms FROM (
  SELECT *, CASE WHEN LAG(iter) OVER w = iter - 1 THEN MIN(time_ns, LAG(till) OVER w) ELSE time_ns END AS since
  FROM step WINDOW w AS (PARTITION BY run, job ORDER BY time_ns))),
light AS MATERIALIZED (
  SELECT reconfig_id AS id, MIN(time_ns + t_dark_begin_ns) AS a, MAX(time_ns + t_dark_end_ns) AS b, MAX(time_ns + t_route_ns) AS c
  FROM reconfig_device WHERE {here} GROUP BY reconfig_id),
ring AS MATERIALIZED (
  SELECT job, after + 1 AS first, time_ns AS at, (SELECT MAX(b, IFNULL(c, b)) FROM light WHERE id = reconfig_id) AS lit
  FROM ring_change WHERE {here} AND ok = '1' AND after IS NOT NULL),
disturbed AS MATERIALIZED (
  SELECT 'dark' AS cause, a, b FROM light
  UNION ALL SELECT 'commit', b, c FROM light WHERE c > b
  UNION ALL SELECT 'boundary', IFNULL(lit, at), (
  SELECT MIN(till) FROM span s WHERE s.job = ring.job AND s.iter = first AND till >= at) FROM ring),
back(n) AS (VALUES {numbers}),
candidate AS MATERIALIZED (
  SELECT *, IFNULL((SELECT MAX(first) FROM ring WHERE ring.job = x.job AND first < iter AND at < till), -1) AS ring FROM (
  SELECT *, MIN(took_ms) OVER (PARTITION BY run, job ORDER BY since ROWS BETWEEN {ringtext.BEFORE} PRECEDING AND 1 PRECEDING) AS least
  FROM span) x WHERE till >= {begun} AND took_ms > {ringtext.FACTOR} * least AND took_ms >= least + {ringtext.LEAST_MS}),
slow AS (
  SELECT *, took_ms - usual_ms AS over_ms, {", ".join(f"{within.format(name)} AS {name}_in" for name in ringtext.CAUSES)} FROM (
  SELECT c.*, COUNT(*) AS n, median(MAX(i.iter_ms, IFNULL((i.time_ns + i.iter_ms * 1000000
  - p.time_ns - p.iter_ms * 1000000) / 1e6, 0))) AS usual_ms FROM candidate c CROSS JOIN back
  CROSS JOIN iteration i ON i.run = c.run AND i.iter = c.iter - back.n AND i.job = c.job
  LEFT JOIN iteration p ON p.run = i.run AND p.iter = i.iter - 1 AND p.job = i.job
  WHERE c.iter - back.n > c.ring AND i.iter_ms IS NOT NULL GROUP BY c.run, c.job, c.iter)
  WHERE n >= {ringtext.ENOUGH} AND took_ms > {ringtext.FACTOR} * usual_ms AND took_ms >= usual_ms + {ringtext.LEAST_MS}),
shared AS (
  SELECT *, MIN(over_ms, dark_in) AS dark_ms, MIN(over_ms - MIN(over_ms, dark_in), commit_in) AS commit_ms FROM slow)
SELECT run, iter, since AS begin_ns, took_ms, usual_ms, over_ms, dark_ms, commit_ms,
  CASE WHEN boundary_in > 0 THEN over_ms - dark_ms - commit_ms ELSE 0 END AS boundary_ms,
  CASE WHEN boundary_in > 0 THEN 0 ELSE over_ms - dark_ms - commit_ms END AS other_ms,
  CASE WHEN dark_in + commit_in + boundary_in > 0 THEN LTRIM({cause}, ', ')
  WHEN iter_ms > {ringtext.FACTOR} * usual_ms AND iter_ms >= usual_ms + {ringtext.LEAST_MS} THEN '{ringtext.STRAGGLER}'
  ELSE '{ringtext.PAUSE}' END AS blame FROM shared ORDER BY over_ms DESC, begin_ns LIMIT {MOST}"""
    what = (
        f"iterations during the run that took more than {ringtext.FACTOR:g} x the median of the {ringtext.BEFORE} before"
        f" on the same rings, and at least {ringtext.LEAST_MS:g} ms more; the {MOST} that lost most"
    )
    return book.query("slow", what, sql)
