"""What a scenario shows: each comparison with its interval, held against the band that was written
before. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import geometric_mean, median
from typing import Any, Literal, get_args

from orchestrator.experiments.files.scenario.values import LEAST_ROUNDS, Compared
from orchestrator.experiments.scenario.paired import How, Interval, paired_ratio
from orchestrator.results import to_json

LEAST_DIGITS, MOST_DIGITS = 3, 17
"""Of a ratio that is shown; seventeen tell any two floats apart."""
Samples = Mapping[tuple[str, str, str, float], Mapping[int, Sequence[float]]]
"""By arm, tenant, metric and its iterations or seconds (`Compared.extent`): the values of each finished measurement, by
its place in the record.
"""
Outcome = Literal["holds", "not shown", "refuted", "starved"]
"""Of one comparison: its whole interval is inside the band; neither; outside; too few rounds count
for an interval.
"""
Result = Literal["claim holds", "claim holds, control does not", "not shown", "refuted", "starved"]
RESULTS: tuple[Result, ...] = get_args(Result)
STALLED = "stalled"
MADE = ("done", STALLED)
"""States of a measurement that counts; void ones do not."""


@dataclass(frozen=True, slots=True)
class RoundMedians:
    """What the ratio of one round is made of: the median of either arm."""

    round: int
    of: float
    over: float


@dataclass(frozen=True, slots=True)
class JudgedComparison:
    """What was found for one comparison. found: the ratio, or the value where nothing is divided;
    None: there is no figure.

    n: of how many rounds it is made, or measurements where nothing is divided; how: as
    `PairedRatio.how`; medians: of those rounds. why: the reason if it does not hold.
    """

    compared: Compared
    found: Interval | None
    outcome: Outcome
    n: int
    why: str = ""
    how: How = ""
    medians: tuple[RoundMedians, ...] = ()

    @property
    def sure(self) -> bool:
        """Whether there is an interval, and 1 is not in it."""
        found = self.found
        return found is not None and found.low is not None and not found.low <= 1.0 <= found.high  # type: ignore[operator]

    @property
    def middles(self) -> tuple[float, float]:
        """The geometric means of the rounds' medians of both arms: the ratio is their quotient."""
        medians = self.medians
        return geometric_mean(one.of for one in medians), geometric_mean(
            one.over for one in medians
        )

    @property
    def holds(self) -> bool:
        return self.outcome == "holds"

    @property
    def width(self) -> float:
        """Of its interval, relative to the larger one of ratio and band; infinite without an
        interval.
        """
        if self.found is None or self.found.low is None or self.found.high is None:
            return inf
        ends = [end for end in (self.compared.low, self.compared.high) if end is not None]
        return (self.found.high - self.found.low) / (max(self.found.value, *ends) or 1.0)

    @property
    def message(self) -> str:
        """In words: `0.021 (95 % 0.019 to 0.024; n = 5), band at most 0.03: holds`."""
        outcome = f"{self.outcome}: {self.why}" if self.why else self.outcome
        if self.found is None:
            return f"no figure, band {self.compared.band}: {outcome}"
        value, *ends = figures(self.found, self.compared)
        interval = f"95 % {ends[0]} to {ends[1]}; " if self.compared.over and ends else ""
        return f"{value} ({interval}n = {self.n}), band {self.compared.band}: {outcome}"

    def to_json(self) -> dict[str, Any]:
        found = self.found and {
            "value": self.found.value,
            "low": self.found.low,
            "high": self.found.high,
        }
        named = {
            "name": self.compared.name,
            "role": self.compared.role,
            "found": found,
            "n": self.n,
            "how": self.how,
            "medians": to_json(self.medians),
        }
        return named | {"outcome": self.outcome, "holds": self.holds, "why": self.why}


def figures(found: Interval, compared: Compared) -> tuple[str, ...]:
    """The value, and its interval if it has one, with as many digits as show on which side of the
    band each of them is.
    """
    numbers = [number for number in (found.value, found.low, found.high) if number is not None]

    def notified(number: float, digits: int) -> bool:
        shown = float(f"{number:.{digits}g}")
        low, high = compared.low, compared.high
        return (low is None or (shown >= low) == (number >= low)) and (
            high is None or (shown <= high) == (number <= high)
        )

    digits = next(
        (
            n
            for n in range(LEAST_DIGITS, MOST_DIGITS)
            if all(notified(number, n) for number in numbers)
        ),
        MOST_DIGITS,
    )
    return tuple(f"{number:.{digits}g}" for number in numbers)


def judge_comparison(
    compared: Compared, samples: Samples, slots: Sequence[Mapping[str, Any]]
) -> JudgedComparison:
    """Hold one comparison against its band. slots: the record's measurements, of all arms, each
    with its round and its state.

    A void measurement is as if it had not been made. A stalled one has no figure, nor may one that
    is done: with one in either arm nothing is shown, as those that have one may be the good ones.
    """
    if compared.metric == STALLED:
        seen = [
            slot["state"] for slot in slots if slot["arm"] == compared.of and slot["state"] in MADE
        ]
        share = seen.count(STALLED) / len(seen) if seen else 0.0
        return _in_band(compared, Interval(share, share, share), len(seen))
    for arm in (compared.of, compared.over):
        seen = [slot["state"] for slot in slots if slot["arm"] == arm and slot["state"] in MADE]
        if stalled := seen.count(STALLED):
            why = f"arm {arm} stalled in {stalled} of {len(seen)} measurements"
            return JudgedComparison(compared, None, "not shown", 0, why)
    pairs = list(_pairs(compared, slots))
    of, over = (
        samples.get((arm, compared.tenant, compared.metric, compared.extent), {})
        for arm in (compared.of, compared.over)
    )
    # without a band nothing is at stake in a round without a figure
    if compared.low is None and compared.high is None:
        pairs = [pair for pair in pairs if of.get(pair[1]) and over.get(pair[2])]
    if not pairs:
        return JudgedComparison(compared, None, "starved", 0, _starved(0))
    for arm, missing in (
        (compared.of, sum(not of.get(one) for _, one, _ in pairs)),
        (compared.over, sum(not over.get(other) for _, _, other in pairs)),
    ):
        if missing:
            why = f"{compared.metric} of arm {arm} was not recorded in {missing} of {len(pairs)} rounds"
            return JudgedComparison(compared, None, "not shown", 0, why)
    values = [RoundMedians(at, median(of[one]), median(over[other])) for at, one, other in pairs]
    # no circuit and no circuit are alike; any other 0 says that nothing worked
    if any(not one.over and (one.of or compared.metric != "circuits_moved") for one in values):
        why = f"{compared.metric} of arm {compared.over} was 0 in a round"
        return JudgedComparison(compared, None, "not shown", 0, why)
    found = paired_ratio([one.of / one.over if one.over else 1.0 for one in values])
    return replace(_in_band(compared, found.found, found.n, found.how), medians=tuple(values))


def _pairs(
    compared: Compared, slots: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, int, int]]:
    """The number of each round in which both arms count, and the places of their measurements."""
    found: dict[int, dict[str, int]] = {}
    for number, slot in enumerate(slots):
        if slot["state"] == "done" and slot["arm"] in (compared.of, compared.over):
            found.setdefault(int(slot["round"]), {})[slot["arm"]] = number
    yield from (
        (number, both[compared.of], both[compared.over])
        for number, both in found.items()
        if len(both) == 2
    )


def _in_band(compared: Compared, found: Interval, n: int, how: How = "") -> JudgedComparison:
    if n < LEAST_ROUNDS:
        return JudgedComparison(compared, found, "starved", n, _starved(n), how)
    assert found.low is not None and found.high is not None
    low, high = (
        -inf if compared.low is None else compared.low,
        inf if compared.high is None else compared.high,
    )
    if low <= found.low and found.high <= high:
        return JudgedComparison(compared, found, "holds", n, "", how)
    if found.high < low or high < found.low:
        return JudgedComparison(
            compared, found, "refuted", n, "the whole interval is outside the band", how
        )
    return JudgedComparison(
        compared, found, "not shown", n, "an end of the band is inside the interval", how
    )


def _starved(n: int) -> str:
    return f"{n} of the {LEAST_ROUNDS} rounds that are the least count"


def narrow(findings: Sequence[JudgedComparison], width: float) -> bool:
    """Whether every interval is as narrow as wanted, wherever it is. What has stalled has none, and
    gets none by measuring on.
    """
    open_ = [one for one in findings if one.found is not None or one.outcome == "starved"]
    return all(one.n >= LEAST_ROUNDS and one.width <= width for one in open_)


def result_of(findings: Sequence[JudgedComparison]) -> Result:
    """What the scenario shows. Claims are judged first, then controls; what an ablation does
    changes nothing of the claim.
    """
    claims = {one.outcome for one in findings if one.compared.role == "claim"}
    controls = {one.outcome for one in findings if one.compared.role == "control"}
    if "refuted" in claims and controls <= {"holds"}:
        return "refuted"
    if "refuted" in claims:
        return "starved" if "starved" in controls else "not shown"
    if "starved" in claims or (claims == {"holds"} and "starved" in controls):
        return "starved"
    if claims != {"holds"}:
        return "not shown"
    return "claim holds" if controls <= {"holds"} else "claim holds, control does not"


def to_first(arms: Iterable[str]) -> list[Compared]:
    """The iterations of each later arm over those of the first, without a band."""
    first, *others = arms
    return [Compared(arm, "iteration_ms", arm, first, "", None, None) for arm in others]


def compared_of(data: Mapping[str, Any]) -> list[Compared]:
    """The comparisons of a record's scenario (`Record.data`); older ones of plans do not name them."""
    kept = data.get("scenario", {}).get("compared", ())
    return [Compared(**one) for one in kept] or to_first(data["arms"])
