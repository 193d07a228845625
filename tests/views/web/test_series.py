"""Rates and curves from counters."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.views.live.series import BUCKET_MS, GAP_MS, WINDOW_MS, Counter, Series, Traffic


def test_a_port_that_sends_evenly_has_its_rate_and_the_curve_is_flat() -> None:
    total, ports = Traffic(), {name: Counter() for name in "ab"}
    for n in range(40):
        for name, counter in ports.items():
            # 10 Mb/s: 125 kB each 100 ms
            counter.add(name, 1000.0 + 100 * n, 125_000 * n, 0, total)
    assert [c.mbps(5000.0) for c in ports.values()] == [(10.0, 0.0)] * 2
    curve = total.series.all(total.until)
    assert len(curve) > 10 and all(abs(value - 20.0) < 1e-6 for _, value in curve)


def test_no_rate_is_told_across_a_gap_nor_when_counters_begin_anew() -> None:
    total, counter = Traffic(), Counter()
    counter.add("a", 0.0, 10**9, 0, total)
    counter.add("a", 100.0, 0, 0, total)
    counter.add("a", 200.0 + GAP_MS, 10**9, 0, total)
    assert counter.mbps(200.0 + GAP_MS) is None and total.series.all() == []
    counter.add("a", 300.0 + GAP_MS, 10**9, 125_000, total)
    assert counter.mbps(300.0 + GAP_MS) == (0.0, 10.0)
    assert counter.mbps(400.0 + 2 * GAP_MS) is None, "nobody has looked since"


def collected_by_host(
    total: Traffic, ports: dict[str, Counter], begin: float, seconds: int
) -> None:
    """What hosts kept of a job, once a second, 10 Mb/s each: all of one host, then all of the
    next.
    """
    for k, (name, counter) in enumerate(ports.items()):
        for n in range(seconds + 1):
            at = begin + 83 * k + 1000 * n
            counter.add(name, at, round(1250 * (at - 1000)), 0, total)


def test_samples_that_come_home_host_by_host_add_up_as_those_that_come_together() -> None:
    total, ports = Traffic(), {f"h{n}": Counter() for n in range(12)}
    collected_by_host(total, ports, 1000.0, 51)
    inner = [value for at, value in total.series.all() if 3000 <= at < 50_000]
    assert len(inner) == 235 and all(abs(value - 120.0) < 1e-6 for value in inner)


def test_samples_from_before_a_view_was_opened_may_come_after_its_first_own_ones() -> None:
    total, ports = Traffic(), {f"h{n}": Counter() for n in range(12)}
    collected_by_host(total, ports, 1000.0, 20)
    for counter, name in zip(ports.values(), ports, strict=True):
        for n in range(20):
            at = 50_030.0 + 200 * n
            counter.add(name, at, round(1250 * (at - 1000)), 0, total)
    collected_by_host(total, ports, 1000.0, 51)
    curve = [(at, value) for at, value in total.series.all() if 3000 <= at < 53_000]
    times = [at for at, _ in curve]
    assert all(abs(value - 120.0) < 1e-6 for _, value in curve) and len(curve) >= 246, (
        "at most where they meet some are missing"
    )
    assert max(b - a for a, b in pairwise(times)) <= 1000, "no gap"


def test_the_curve_ends_where_every_port_that_is_sampled_has_come_to() -> None:
    total, counters = Traffic(), {name: Counter() for name in ("fast", "slow", "ended")}
    for n in range(60):
        for name, last in {"fast": 59, "slow": 50, "ended": 10}.items():
            if n <= last:
                counters[name].add(name, 1000.0 + 100 * n, 125_000 * n, 0, total)
    assert total.until == 6000.0 - BUCKET_MS
    assert all(value >= 20.0 - 1e-6 for _, value in total.series.all(total.until))


@given(st.lists(st.tuples(st.floats(1, 400), st.integers(0, 10**7)), min_size=1, max_size=60))
def test_the_curve_of_one_port_has_all_that_was_sent(steps: list[tuple[float, int]]) -> None:
    total, counter = Traffic(), Counter()
    at, sent = 10 * BUCKET_MS, 0
    counter.add("a", at, 0, 0, total)
    for step, size in steps:
        at, sent = at + step, sent + size
        counter.add("a", at, sent, 0, total)
    # A bucket that is covered in part tells the mean of that part: only the last one may be.
    curve = total.series.all()
    whole = sum(value for _, value in curve[:-1]) * BUCKET_MS
    part = curve[-1][1] * ((at - 1e-9) % BUCKET_MS)
    assert (
        abs(whole + part - sent * 8e-3)
        <= 1e-3 * max(1.0, sent * 8e-3) + len(curve) * BUCKET_MS * 6e-4
    )


def test_a_series_keeps_its_order_and_forgets_what_is_old() -> None:
    series = Series()
    for at in (3000.0, 1000.0, 2000.0, 2000.0):
        series.set(at, at)
    assert series.taken(2500.0) == [[1000.0, 1000.0], [2000.0, 2000.0]] and series.taken() == [
        [3000.0, 3000.0]
    ]
    for n in range(5000):
        series.set(5000.0 + n * 1000, n)
    assert len(series.at) <= 1.2 * WINDOW_MS / 1000 + 1 and series.at == sorted(series.at)
