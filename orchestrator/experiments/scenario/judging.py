"""Whether a scenario is reproduced: each ratio with its interval, held against the band that was written before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.experiments.files.scenario.values import Compared
from orchestrator.experiments.scenario.interval import ArmComparison, Interval, compare_arms

LEAST_DIGITS, MOST_DIGITS = 3, 17
"""Of a ratio that is shown; seventeen tell any two floats apart."""
Samples = Mapping[tuple[str, str, str, int], Sequence[Sequence[float]]]
"""By arm, tenant, metric and its number of iterations: the values of each finished measurement."""


@dataclass(frozen=True, slots=True)
class JudgedComparison:
    """What was found for one comparison. found: the ratio, or the value where nothing is divided; None: there is no figure.

    holds: whether the whole interval is inside the band. why: the reason if it is not.
    """

    compared: Compared
    found: Interval | None
    holds: bool
    why: str = ""
    verdict: ArmComparison | None = None

    @property
    def words(self) -> str:
        """In words: `0.021 (95 % 0.019 to 0.024), band at most 0.03: holds`."""
        outcome = "holds" if self.holds else f"does not hold: {self.why}"
        if self.found is None:
            return f"no figure, band {self.compared.band}: {outcome}"
        value, *ends = figures(self.found, self.compared)
        interval = f" (95 % {ends[0]} to {ends[1]})" if ends else ""
        return f"{value}{interval}, band {self.compared.band}: {outcome}"


def figures(found: Interval, compared: Compared) -> tuple[str, ...]:
    """The value, and its interval if it has one, with as many digits as show on which side of the band each of them is."""
    numbers = [number for number in (found.value, found.low, found.high) if number is not None]

    def told(number: float, digits: int) -> bool:
        shown = float(f"{number:.{digits}g}")
        low, high = compared.low, compared.high
        return (low is None or (shown >= low) == (number >= low)) and (high is None or (shown <= high) == (number <= high))

    digits = next((n for n in range(LEAST_DIGITS, MOST_DIGITS) if all(told(number, n) for number in numbers)), MOST_DIGITS)
    return tuple(f"{number:.{digits}g}" for number in numbers)


def judge_comparison(compared: Compared, samples: Samples, states: Mapping[str, Sequence[str]]) -> JudgedComparison:
    """Hold one comparison against its band. states: of each arm's measurements.

    A stalled measurement has no figure, and with one stalled measurement in either arm the comparison does not hold.
    """
    if compared.metric == "stalled":
        seen = states.get(compared.of, ())
        share = sum(state == "stalled" for state in seen) / len(seen) if seen else 0.0
        return _in_band(compared, Interval(share, share, share), None)
    for arm in (compared.of, compared.over):
        seen = states.get(arm, ())
        if stalled := sum(state == "stalled" for state in seen):
            return JudgedComparison(compared, None, False, f"arm {arm} stalled in {stalled} of {len(seen)} measurements")
    of, over = (
        samples.get((arm, compared.tenant, compared.metric, compared.iterations), ()) for arm in (compared.of, compared.over)
    )
    found = compare_arms(over, of)
    if found is None:
        lacking = compared.of if not any(of) else compared.over
        return JudgedComparison(compared, None, False, f"{compared.metric} of arm {lacking} was not recorded")
    return _in_band(compared, found.ratio, found)


def _in_band(compared: Compared, found: Interval, verdict: ArmComparison | None) -> JudgedComparison:
    if found.low is None or found.high is None:
        return JudgedComparison(compared, found, False, "an interval needs at least two measurements of each arm", verdict)
    low_holds = compared.low is None or found.low >= compared.low
    high_holds = compared.high is None or found.high <= compared.high
    why = "" if low_holds and high_holds else "the interval is not inside the band"
    return JudgedComparison(compared, found, low_holds and high_holds, why, verdict)


def reproduced(findings: Sequence[JudgedComparison], complete: bool) -> bool:
    """Whether every comparison holds, controls and ablations too, and all measurements were made."""
    return complete and bool(findings) and all(finding.holds for finding in findings)


def compared_of(data: Mapping[str, Any]) -> list[Compared]:
    """The comparisons of a record's scenario (`Record.data`)."""
    return [Compared(**one) for one in data.get("scenario", {}).get("compared", ())]
