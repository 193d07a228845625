"""The queue's decisions: first come, first served; nobody behind delays the first; no host idle
while a job that fits waits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import inf

import pytest

from orchestrator.plan.queue import Decision, Running, Waiting, decide_queue, place

HOSTS = tuple(f"gpu{number:02d}" for number in range(1, 13))


def waiting(number: int, count: int, left_s: float = 100.0, **more: bool) -> Waiting:
    return Waiting(number, count, HOSTS, left_s, **more)


def running(number: int, first: int, last: int, ends_s: float = 50.0, **more: bool) -> Running:
    return Running(number, frozenset(HOSTS[first - 1 : last]), ends_s, **more)


def go(
    waits: list[Waiting],
    runs: list[Running],
    out: dict[str, str] | None = None,
    turnover_s: float = 0.0,
) -> Decision:
    free = set(HOSTS) - set(out or {}) - {host for job in runs for host in job.hosts}
    return decide_queue(waits, runs, free, out, turnover_s=turnover_s)


def test_jobs_start_in_the_order_in_which_they_came_on_hosts_of_their_own() -> None:
    found = go([waiting(2, 4), waiting(1, 6)], [])
    assert found.starts == {1: HOSTS[:6], 2: HOSTS[6:10]} and not found.stops and not found.why


def test_who_is_behind_starts_if_it_ends_before_the_first_can_or_leaves_its_hosts_alone() -> None:
    runs = [running(1, 1, 8, ends_s=50)]
    found = go([waiting(2, 10), waiting(3, 4, left_s=40), waiting(4, 2)], runs)
    assert (
        found.starts == {3: HOSTS[8:]}
        and "enough in 50.0 s at the latest" in found.why[2]
        and "comes after 2" in found.why[4]
    )
    found = go([waiting(2, 10), waiting(3, 4, left_s=60), waiting(4, 2, left_s=60)], runs)
    assert found.starts == {4: HOSTS[10:]}
    assert (
        found.why[3]
        == "would delay 2, which gets some of the free hosts in 50.0 s; this one may run for 1 min 00 s"
    )
    assert go([waiting(2, 10), waiting(3, 4, left_s=40)], runs, turnover_s=30).starts == {}, (
        "it would not be gone in time"
    )


def test_the_first_has_the_fewest_and_latest_of_those_stopped_that_may_be_and_waits_for_them() -> (
    None
):
    runs = [running(n, 3 * n - 2, 3 * n, preemptible=n > 1) for n in (1, 2, 3, 4)]
    found = go([waiting(5, 5), waiting(6, 1)], runs)
    assert (
        found.stops == {4: 5, 3: 5}
        and not found.starts
        and "starts when 3, 4 have stopped" in found.why[5]
    )
    stopping = [replace(job, stopping=job.number > 2) for job in runs]
    again = go([waiting(5, 5), waiting(6, 1)], stopping)
    assert not again.stops and "starts when 3, 4 have stopped" in again.why[5], (
        "they are not counted twice"
    )
    assert not go([waiting(5, 10)], runs).stops, "which would not be enough"
    assert not go([waiting(5, 5, preemptible=True)], runs).stops, "it may be stopped itself"


def test_one_that_may_be_stopped_uses_what_the_first_cannot_use_yet_unless_its_turn_comes_at_once() -> (
    None
):
    runs = [running(1, 1, 8, ends_s=50)]
    waits = [waiting(2, 12), waiting(3, 4, left_s=1000, preemptible=True)]
    assert go(waits, runs, turnover_s=30).starts == {3: HOSTS[8:]}
    assert go(waits, [running(1, 1, 8, ends_s=20)], turnover_s=30).starts == {}
    assert go([waiting(3, 4, preemptible=True), waiting(4, 4)], [running(1, 1, 6)]).starts == {
        4: HOSTS[6:10]
    }


def test_a_first_whose_hosts_nobody_will_free_holds_nobody_up_and_is_told_who_has_them() -> None:
    out = dict.fromkeys(HOSTS[:2], "held by bob (ring-12)")
    found = go([waiting(1, 12), waiting(2, 6)], [], out)
    assert found.begins_s == inf and found.starts == {2: HOSTS[2:8]}
    assert found.why[1] == (
        "needs 12 hosts of 12, 10 are free (gpu03, gpu04, gpu05, gpu06 ...); it is not known when more will be"
        " (gpu01: held by bob (ring-12); gpu02: held by bob (ring-12))"
    )


def test_a_set_of_hosts_that_cannot_hold_a_job_is_not_taken_again() -> None:
    job = replace(waiting(1, 3), able=HOSTS[:4], refused=frozenset({frozenset(HOSTS[:3])}))
    assert place(job, HOSTS) == HOSTS[1:4]
    every = frozenset(frozenset(set(HOSTS[:4]) - {host}) for host in HOSTS[:4])
    assert place(replace(job, refused=every), HOSTS) == ()


# --- whole queues, simulated


@dataclass
class Job:
    """One job of a simulated queue; times in whole seconds. takes: how long it really runs, `left`
    at most.
    """

    number: int
    comes: int
    count: int
    left: int
    takes: int
    preemptible: bool
    hosts: frozenset[str] = frozenset()
    since: int = 0
    done: bool = False
    begun: int = 0

    def waiting(self) -> Waiting:
        return Waiting(self.number, self.count, HOSTS, self.left, self.preemptible)

    def running(self, now: int) -> Running:
        return Running(self.number, self.hosts, self.since + self.left - now, self.preemptible)


def fits(job: Job, waits: list[Job], runs: list[Job], now: int) -> bool:
    """Whether a waiting job could begin now without delaying the first in line, by counting alone:
    all hosts are alike.
    """
    free = len(HOSTS) - sum(len(other.hosts) for other in runs)
    line = sorted(waits, key=lambda one: (one.preemptible, one.number))
    if job.count > free:
        return False
    first = line[0]
    if job is first:
        return True
    ends = sorted(
        (other.since + other.left, other.count)
        for other in runs
        if first.preemptible or not other.preemptible
    )
    later = len(HOSTS) - sum(count for _, count in ends)
    at = now
    for end, count in ends:
        later, at = later + count, end
        if later >= first.count:
            break
    over = now + job.left <= at
    return over or later - job.count >= first.count or (job.preemptible and not first.preemptible)


@pytest.mark.parametrize("seed", range(40))
def test_of_twenty_random_jobs_none_that_fits_waits_none_is_lost_and_the_first_is_never_put_off(
    seed: int,
) -> None:
    chance = random.Random(seed)
    jobs = []
    for number in range(1, 21):
        left = chance.randint(5, 60)
        preemptible = chance.random() < 0.4
        comes = chance.randint(0, 100)
        jobs.append(
            Job(
                number,
                comes,
                chance.choice([2, 3, 4, 6, 8, 12]),
                left,
                chance.randint(1, left),
                preemptible,
            )
        )
    promised: dict[int, float] = {}
    stopped = 0
    for now in range(5000):
        for job in jobs:
            if job.hosts and now >= job.since + job.takes:
                job.hosts, job.done = frozenset(), True
        while True:  # what is stopped has stopped at once here
            waits = [job for job in jobs if job.comes <= now and not job.done and not job.hosts]
            runs = [job for job in jobs if job.hosts]
            free = set(HOSTS) - {host for job in runs for host in job.hosts}
            found = decide_queue(
                [j.waiting() for j in waits], [j.running(now) for j in runs], free, turnover_s=0
            )
            assert (
                {j.number for j in waits} == found.starts.keys() | found.why.keys()
                and not found.starts.keys() & found.why.keys()
            )
            for number, hosts in found.starts.items():
                job = jobs[number - 1]
                assert len(hosts) == len(set(hosts)) == job.count and free >= set(hosts)
                free -= set(hosts)
                job.hosts, job.since, job.begun = frozenset(hosts), now, job.begun + 1
                assert now <= promised.pop(number, inf), "the first was put off"
            for number, by in found.stops.items():
                job = jobs[number - 1]
                assert job.preemptible and not jobs[by - 1].preemptible and job.hosts
                job.left, job.takes = job.left - (now - job.since), job.takes - (now - job.since)
                job.hosts = frozenset()
                stopped += 1
            if not (found.starts or found.stops):
                break
        if waits and found.begins_s is not None:
            first = min(waits, key=lambda one: (one.preemptible, one.number))
            # one that comes later and may not be stopped goes before some
            if not any(j.comes > now for j in jobs):
                promised[first.number] = min(now + found.begins_s, promised.get(first.number, inf))
        runs = [job for job in jobs if job.hosts]
        assert not [job.number for job in waits if fits(job, waits, runs, now)], f"at {now} s"
        if all(job.done for job in jobs):
            break
    assert all(job.done and job.begun >= 1 for job in jobs)
    assert seed or stopped, "a seed in which jobs are stopped for others"


def test_a_host_that_is_used_in_slices_is_not_used_whole_beside_and_the_reverse() -> None:
    hosts = ("gpu01", "gpu01/a", "gpu01/b", "gpu02", "gpu02/a", "gpu02/b")
    whole, left, right = (tuple(f"gpu0{n}{part}" for n in (1, 2)) for part in ("", "/a", "/b"))
    waits = [Waiting(1, 2, left, 100.0), Waiting(2, 2, whole, 100.0), Waiting(3, 2, right, 100.0)]
    found = decide_queue(waits, [], set(hosts))
    assert found.starts == {1: left, 3: right} and "needs 2 hosts of 2, 0 are free" in found.why[2]
    assert decide_queue([waits[1], waits[0]], [], set(hosts)).starts == {1: left}
    first = decide_queue([replace(waits[1], number=0), waits[0]], [], set(hosts))
    assert first.starts == {0: whole} and 1 in first.why
    later = decide_queue(
        [Waiting(4, 2, whole, 10.0), Waiting(5, 1, ("gpu02/b",), 500.0)],
        [Running(3, frozenset({"gpu01"}), 50.0)],
        hosts[3:],
    )
    assert not later.starts and "would delay 4" in later.why[5]


def test_a_job_that_meets_a_date_leaves_its_hosts_to_those_that_do_not() -> None:
    def date(number: int, count: int, left_s: float = 100.0, until_s: float = 60.0) -> Waiting:
        return replace(waiting(number, count, left_s), later=dict.fromkeys(HOSTS[:4], until_s))

    assert go([date(1, 8)], []).starts == {1: HOSTS[4:]}
    found = go([date(1, 10), waiting(2, 6, left_s=50)], [])
    assert found.starts == {2: HOSTS[:6]}, "it is over before the first can begin"
    assert found.begins_s == 60.0 and "8 are free" in found.why[1]
    found = go([date(1, 10), waiting(2, 6, left_s=500)], [])
    assert found.starts == {}, "it would delay the first"
    found = go([date(1, 10)], [running(9, 5, 6, ends_s=70.0)])
    assert found.begins_s == 60.0, "of the ten that are free by then"
