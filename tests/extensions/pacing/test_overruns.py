"""Two paced jobs on one fair link, in virtual time, whose iterations overrun their periods: what
that costs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.pacing.report import with_slack
from workloads.host.pace import LATE, Pace

COMPUTE_MS, BURST_MS, PERIOD_MS = 480.0, 421.0, 919.0
"""Of the jobs of the scenario cassini-pair: 901 ms alone, and 2 % of slack."""
SPARE_MS = PERIOD_MS - COMPUTE_MS - BURST_MS


def ns(ms: float) -> int:
    return round(ms * 1e6)


@dataclass
class Running:
    """A job. extra: how much longer (ms) it computes in each iteration. begins: of its iterations
    (ms).
    """

    extra: list[float]
    pace: Pace = field(default_factory=Pace)
    begins: list[float] = field(default_factory=list)
    computes_until: float | None = None
    left_ms: float = 0.0
    waits_until: float | None = None

    def boundary(self, now: float) -> None:
        """Wait, or begin the next iteration."""
        if self.waits_until is None and (left := self.pace.left_ns(ns(now))):
            self.waits_until = now + left / 1e6
            return
        self.waits_until = None
        self.pace.begins(ns(now))
        self.computes_until = now + COMPUTE_MS + self.extra[len(self.begins)]
        self.begins.append(now)

    def applied(self, first_ms: float, period_ms: float = PERIOD_MS) -> None:
        message = {
            "do": "pace",
            "epoch_ns": ns(first_ms),
            "period_ns": ns(period_ms),
            "shift_ns": 0,
            "lease_s": 3600.0,
        }
        assert self.pace.receive(message)
        assert self.pace._now is not None
        object.__setattr__(self.pace._now, "until_ns", 1 << 62)


def run(jobs: list[Running], iterations: int) -> None:
    """Until the first has begun so many iterations. What sends shares the link."""
    now = 0.0
    for job in jobs:
        job.boundary(now)
    while len(jobs[0].begins) < iterations and all(
        len(job.begins) < len(job.extra) for job in jobs
    ):
        sending = [job for job in jobs if job.left_ms > 0]
        soon = [t for job in jobs for t in (job.computes_until, job.waits_until) if t is not None]
        soon += [now + job.left_ms * len(sending) for job in sending]
        passed, now = min(soon) - now, min(soon)
        for job in sending:
            job.left_ms -= passed / len(sending)
        for job in jobs:
            if job.computes_until is not None and job.computes_until <= now:
                job.computes_until, job.left_ms = None, BURST_MS
            elif (job in sending and job.left_ms <= 1e-6) or (
                job.waits_until is not None and job.waits_until <= now
            ):
                job.left_ms = 0.0
                job.boundary(now)


def lost(job: Running, period_ms: float = PERIOD_MS) -> float:
    """Time (ms) beyond one period for each iteration, from the first beginning on that was
    told."""
    return job.begins[-1] - job.begins[1] - period_ms * (len(job.begins) - 2)


def longest(job: Running) -> float:
    return max(b - a for a, b in zip(job.begins[1:], job.begins[2:], strict=False))


@given(st.lists(st.floats(3.0, 13.0), min_size=30, max_size=100))
def test_a_job_loses_what_its_iterations_overrun_and_never_a_period(overruns: list[float]) -> None:
    job = Running([0.0, *(SPARE_MS + over for over in overruns)])
    job.applied(PERIOD_MS)
    run([job], len(job.extra))
    assert lost(job) <= sum(overruns) + 1e-3
    assert longest(job) <= PERIOD_MS + 13.0 + 1e-3


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.02, 0.1, 0.2, 0.5, 0.8, 1.0]))
def test_two_jobs_paced_by_the_spread_that_was_observed_lose_what_they_overrun_and_never_a_period(
    seed: int, share: float
) -> None:
    draw = random.Random(seed)
    extra = [
        [SPARE_MS + draw.uniform(3.0, 13.0) if draw.random() < share else 0.0 for _ in range(120)]
        for _ in range(2)
    ]
    alone = [[COMPUTE_MS + BURST_MS + ms for ms in each] for each in extra]
    seen = [(median(each[100:]), max(each[100:])) for each in alone]
    period_ms = max(with_slack(usual, most - usual) for usual, most in seen)
    one, two = jobs = [Running([0.0, *each]) for each in extra]
    one.applied(period_ms, period_ms)
    two.applied(1.5 * period_ms, period_ms)
    run(jobs, 100)
    over = sum(max(0.0, ms - period_ms) for each in alone for ms in each)
    for job in jobs:
        assert lost(job, period_ms) <= over + 1e-3
        assert longest(job) <= period_ms + over + 1e-3
        assert longest(job) <= (1 + LATE) * period_ms


def test_a_job_that_is_seen_to_vary_is_paced_by_its_longest_iteration_unless_that_is_an_exception() -> (
    None
):
    assert with_slack(901.0, 0.0) == with_slack(901.0, 18.0) == 901.0 * 1.02
    assert with_slack(901.0, 31.0) == 932.0
    assert with_slack(900.0, 500.0) == 990.0


def test_a_longer_period_from_the_next_beginning_on_makes_a_job_that_is_late_wait_for_no_beginning() -> (
    None
):
    job = Running([0.0, *[SPARE_MS + 10.0] * 30])
    job.applied(PERIOD_MS)
    run([job], 25)
    now = job.begins[-1]
    assert (now - PERIOD_MS) % PERIOD_MS > LATE * PERIOD_MS, (
        "it is late by more than would make another one wait"
    )
    job.applied(PERIOD_MS * -(-now // PERIOD_MS), PERIOD_MS + 30.0)
    for _ in range(20):
        now += PERIOD_MS + 10.0
        left = job.pace.left_ns(ns(now)) / 1e6
        assert left <= 20.0
        now += left
        job.pace.begins(ns(now))
    assert left == 20.0, "it has come back"


def test_who_is_shifted_anew_or_stood_still_for_long_waits_for_a_beginning() -> None:
    job = Running([])
    job.applied(0.0)
    job.pace.begins(0)
    assert job.pace.left_ns(ns(905.0)) == ns(14.0)
    assert job.pace.left_ns(ns(930.0)) == 0
    assert job.pace.left_ns(ns(1200.0)) == ns(2 * PERIOD_MS - 1200.0), "longer than an overrun"
    job.applied(460.0)
    assert job.pace.left_ns(ns(905.0)) == ns(PERIOD_MS + 460.0 - 905.0), "other beginnings"
