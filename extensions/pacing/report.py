"""What `testbed job phases` found: jobs, the links they share, and how they fit as they are turned
best. Frozen values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extensions.pacing.measure import Seen, shared
from extensions.pacing.phases import STRETCH, SharedLink, Shifts, align, shifts
from optics import Infeasible
from orchestrator.results import JsonReport

SLACK, MOST_SLACK = 0.02, 0.1
"""A paced period is longer than the iteration by its spread, and by these shares of it at least and
at most: the longest iteration ends in time, one that is longer by far is an exception, and who is
late comes back."""
FITS = 0.95
"""Jobs with a lower best score do not fit, and are left alone: they could not keep their
periods.
"""
FORCED = 2.0
"""With force periods are made longer, up to this many times, until the jobs fit."""


@dataclass(frozen=True, slots=True)
class JobPhases:
    """One job. Times in ms: period_ms of an iteration that has its links to itself, now_ms as it is
    now, paced_ms as it would be paced (0: not). bursts: begin, end, and Mb/s. source: records or
    samples. error: why no phases are known."""

    name: str
    period_ms: float = 0.0
    now_ms: float = 0.0
    paced_ms: float = 0.0
    shift_ms: float = 0.0
    bursts: tuple[tuple[float, float, float], ...] = ()
    confidence: float = 0.0
    source: str = ""
    takes_part: bool = True
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class LinkPhases:
    """One shared link. score: as the jobs are turned best; perimeter_ms: of the circle; rates: of
    jobs while they send (Mb/s).
    """

    name: str
    mbps: float
    score: float
    perimeter_ms: float
    rates: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PhasesReport(JsonReport):
    """The jobs of a lab. score: of the worst link; refused: why no shifts are known, empty if they
    are.
    """

    lab: str
    jobs: tuple[JobPhases, ...]
    links: tuple[LinkPhases, ...] = ()
    score: float = 1.0
    refused: str = ""
    hint: str = ""

    @property
    def fits(self) -> bool:
        """Whether the jobs share links, their phases are known, and they can be turned so that they
        do not collide.
        """
        return bool(self.links) and not self.refused and self.score >= FITS

    @property
    def message(self) -> str:
        """How they fit, in a line."""
        if self.refused:
            return self.refused
        if not self.links:
            return "no two jobs share a link: nothing to shift"
        worst = min(self.links, key=lambda link: link.score)
        found = f"score {self.score:.2f} on {worst.name}"
        return (
            found
            if self.fits
            else f"{found}, {FITS:g} is wanted: the jobs do not fit beside each other"
        )


def answer(
    lab: str, seen: Sequence[Seen], grid_ms: float = 1.0, *, force: bool = False
) -> PhasesReport:
    """The best shifts of these jobs over all links that they share."""
    links = shared(seen)
    among = [one for one in seen if any(one.tenant.name in link.jobs for link in links)]
    users = Counter(limit for one in seen if not one.ended for limit in one.tenant.use.over)
    unknown = [
        one
        for one in seen
        if one.phases is None
        and not one.ended
        and any(users[limit] > 1 for limit in one.tenant.use.over)
    ]
    jobs = {one.tenant.name: _job(one) for one in seen}
    if unknown:
        first = unknown[0]
        return PhasesReport(
            lab,
            tuple(jobs.values()),
            refused=f"{first.tenant.name}: {first.error}",
            hint=first.hint,
        )
    if not links:
        return PhasesReport(lab, tuple(jobs.values()))
    try:
        periods = {
            one.tenant.name: with_slack(one.phases.period_ms, one.spread_ms)
            for one in among
            if one.phases
        }
        found, paced = _best(links, periods, grid_ms, force=force)
    except Infeasible as error:
        return PhasesReport(lab, tuple(jobs.values()), refused=str(error), hint=error.hint)
    for one in among:
        name = one.tenant.name
        jobs[name] = _job(one, paced[name], found.shifts_ms.get(name, 0.0))
    shown = tuple(
        LinkPhases(
            link.name,
            link.mbps,
            round(found.scores[link.name], 4),
            found.perimeters_ms[link.name],
            {
                job: phases.bursts[0][2] if phases.bursts else 0.0
                for job, phases in link.jobs.items()
            },
        )
        for link in links
    )
    return PhasesReport(lab, tuple(jobs.values()), shown, round(found.score, 4))


def _best(
    links: Sequence[SharedLink], periods_ms: Mapping[str, float], grid_ms: float, *, force: bool
) -> tuple[Shifts, dict[str, float]]:
    """The shifts, and the paced period of each job (ms). Raises: as
    `extensions.pacing.phases.shifts`.
    """
    names, longer = list(periods_ms), 1.0
    while True:
        wanted = [periods_ms[name] * longer for name in names]
        paced = dict(zip(names, align(wanted, grid_ms, STRETCH), strict=True))
        rotated = [
            SharedLink(x.name, x.mbps, {job: one.paced(paced[job]) for job, one in x.jobs.items()})
            for x in links
        ]
        found = shifts(rotated, grid_ms)
        if found.score >= FITS or not force or longer > FORCED:
            return found, paced
        longer += STRETCH


def with_slack(period_ms: float, spread_ms: float) -> float:
    """The shortest period (ms) in which such iterations are paced."""
    return period_ms + min(max(spread_ms, SLACK * period_ms), MOST_SLACK * period_ms)


def _job(one: Seen, paced_ms: float = 0.0, shift_ms: float = 0.0) -> JobPhases:
    phases = one.phases
    if phases is None:
        return JobPhases(
            one.tenant.name,
            now_ms=one.now_ms,
            takes_part=one.tenant.paceable,
            error=one.error,
            hint=one.hint,
        )
    bursts = tuple((round(a, 2), round(b, 2), round(rate, 3)) for a, b, rate in phases.bursts)
    return JobPhases(
        one.tenant.name,
        round(phases.period_ms, 2),
        round(one.now_ms, 2),
        paced_ms,
        round(shift_ms, 3),
        bursts,
        round(phases.confidence, 3),
        one.source,
        one.tenant.paceable,
    )
