"""The sections of a report on a comparison or a scenario: what was measured, and what follows from
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from markupsafe import Markup

from orchestrator.experiments.files.scenario.values import METRICS
from orchestrator.experiments.scenario.compare import difference_text
from orchestrator.experiments.scenario.dilated import AtTwo, at_two
from orchestrator.experiments.scenario.judging import (
    MADE,
    JudgedComparison,
    Samples,
    compared_of,
    figures,
    judge_comparison,
    result_of,
)
from orchestrator.experiments.scenario.paired import (
    HOW_TEXT,
    LEVEL,
    How,
    Interval,
)
from orchestrator.experiments.scenario.record import dilation_of
from orchestrator.experiments.scenario.void import KNOWN_LEAST, VOID, WAIT_LIMIT
from orchestrator.views.report import traffic
from orchestrator.views.report.ledger import Answer, missing_mark
from orchestrator.views.report.model import ReportContext, ReportSection, Shown, Table
from orchestrator.views.report.samples import OF_ITERATIONS, by_arm, metric_samples


def findings(found: Samples, kept: Mapping[str, Any]) -> list[JudgedComparison]:
    """The record's comparisons, held against their bands."""
    return [judge_comparison(one, found, kept["slots"]) for one in compared_of(kept)]


def outcome_of(judged: Sequence[JudgedComparison], kept: Mapping[str, Any]) -> str:
    """What the scenario shows; that measuring has not ended, where it was interrupted. Older
    records do not say why it ended.
    """
    ended = (
        kept["ended"] if "ended" in kept else all(slot["state"] in MADE for slot in kept["slots"])
    )
    return result_of(judged) if ended else "not complete"


def comparison_sections(c: ReportContext, kept: Mapping[str, Any]) -> None:
    """Add the sections of a record, as `experiment compare` or `reproduce` keeps it."""
    for measurement in {
        OF_ITERATIONS[one.metric][-1] for one in compared_of(kept) if one.metric in OF_ITERATIONS
    }:
        for folder in c.campaign.journals.values():
            c.book.read_more(folder, measurement)
    found = metric_samples(c.book, kept)
    (_comparison if kept["kind"] == "compare" else _scenario)(c, kept, found)


def _comparison(c: ReportContext, kept: Mapping[str, Any], found: Samples) -> None:
    section, labels = ReportSection("comparison", "Comparison"), kept["arms"]
    judged = [one for one in findings(found, kept) if one.found is not None]
    first = next(iter(labels.values()))
    texts = [difference_text(one, first, labels[one.compared.of]) for one in judged]
    texts.append(f"Measured in rounds: {_rounds(kept)}")
    each = f"Each brought its plan up, relaunched the job and waited for {kept['iterations']} iterations."
    section.intro = f"{'. '.join(f'{text[0].upper()}{text[1:]}' for text in texts)}. {each}"
    c.sections.append(section)
    if not judged:
        section.notes.append(
            "In no round do measurements of two plans count, so nothing can be compared."
        )
    times = by_arm(found, kept)
    _values(c, section, kept, times, "iteration, ms", "comparison", "iteration times of the plans")
    answer = c.book.answers["verdict"] = _verdict_answer(judged)
    rows: list[Sequence[Shown]] = []
    for line in answer.lines():
        label = labels[line["of"].value]
        cells = (line[name].show() if line[name] else "" for name in answer.columns[1:])
        rows.append((label, *cells))
        c.tiles.append((f"{label} / {first}", line["ratio"].show(), "iteration"))
    heads = ("plan", "iteration", f"of {first}", "ratio", f"{LEVEL} % from", "to", "rounds")
    section.tables += [Table(heads, rows)] if rows else []
    section.notes.append("Iteration: geometric mean of the medians of the rounds of the ratio.")
    section.notes += _intervals(one.how for one in judged)
    _slowed(section, kept)
    if kept.get("left"):
        section.notes.append(f"The lab was left {kept['left']}.")


def _scenario(c: ReportContext, kept: Mapping[str, Any], found: Samples) -> None:
    facts, judged = kept["scenario"], findings(found, kept)
    outcome = outcome_of(judged, kept)
    section = ReportSection("scenario", "Scenario")
    section.intro = f"{outcome[0].upper()}{outcome[1:]}. Claim: {facts['claim']}"
    section.notes += [f"Source: {source}" for source in facts["source"]]
    section.notes.append(
        f"Label: {facts['label']} ({LABEL_TEXTS[facts['label']]}). Only ratios between arms of this run count, no absolute value."
    )
    section.notes.append(
        f"Measured in rounds: {_rounds(kept)}. Arms differ in {', '.join(facts['differs'])}."
    )
    c.sections.append(section)
    c.tiles.append(
        (
            "scenario",
            Markup("{}").format(outcome),
            f"{sum(f.holds for f in judged)} of {len(judged)} comparisons hold",
        )
    )
    if ended := ENDED_TEXT.get(kept.get("ended", "")):
        section.notes.append(ended.format(width=kept["width"], minutes=kept["budget_s"] / 60))
    section.notes += _dilation(kept)
    answer = c.book.answers["findings"] = _findings_answer(judged)
    shown = [
        (f.compared.name, _ends(f.found), (f.compared.low, f.compared.high), f.holds)
        for f in judged
        if f.found is not None and f.compared.over
    ]
    caption = "Diamonds: ratio with its interval, inside the band; crosses: not inside."
    c.draw(section, "ratios", "ratios and their bands", caption, traffic.ratios(shown))
    rows: list[Sequence[Shown]] = []
    for line, finding in zip(answer.lines(), judged, strict=True):
        one = finding.compared
        shown_as = figures(finding.found, one) if finding.found is not None else ()
        cells = (
            line[name].show(message=text) if line[name] else missing_mark("none")
            for name, text in zip_longest(("value", "low", "high"), shown_as, fillvalue="")
        )
        rows.append(
            (finding.outcome, f"{one.name} ({one.role})", *cells, line["n"].show(), one.band)
        )
    section.tables.append(
        Table(
            ("outcome", "compared", "ratio", "95 % from", "to", "n", "band, written before"), rows
        )
    )
    for outcome, why in dict.fromkeys((f.outcome, f.why) for f in judged if f.why):
        names = "; ".join(f.compared.name for f in judged if (f.outcome, f.why) == (outcome, why))
        section.notes.append(f"{outcome[0].upper()}{outcome[1:]}, {why}: {names}.")
    section.notes.append(
        "A comparison holds if its whole interval is inside the band, and is refuted if all of it is outside; n: rounds in which"
        " both of its arms were measured, each of which gives one ratio of medians."
    )
    section.notes += _intervals(f.how for f in judged)
    _at_other_dilations(section, kept, judged)
    _sweeps(c, section, kept, judged)
    _each_metric(c, kept, found, judged)
    _environment(c, kept)


def _dilation(kept: Mapping[str, Any]) -> list[str]:
    """What the page's times are, of a lab that was slower than its scenario says."""
    k = dilation_of(kept)
    if k == 1:
        return []
    return [
        f"The lab was {k:g} times slower (dilation): rates divided by {k:g}; switching, delays, guards, least time-outs of TCP and"
        f" modelled computing {k:g} times as long. The measurements of this page are divided by {k:g}; the record, and sections of"
        " single runs, have real time. This program, the kernel's other timers and computing that is not modelled are not slower."
    ]


def _at_other_dilations(
    section: ReportSection, kept: Mapping[str, Any], judged: Sequence[JudgedComparison]
) -> None:
    """The ratios beside those of records at another k, and whether they depend on this machine."""
    found = [
        one for other in kept.get("other_dilations", ()) for one in at_two(judged, kept, other)
    ]
    if not found:
        return

    def ratio(interval: Interval | None) -> str:
        if interval is None:
            return "none"
        return (
            f"{interval.value:.3g}"
            if interval.low is None
            else f"{interval.value:.3g} ({interval.low:.3g} to {interval.high:.3g})"
        )

    rows: list[Sequence[Shown]] = [
        (
            one.compared.name,
            f"{one.lower_k:g}",
            ratio(one.lower),
            f"{one.upper_k:g}",
            ratio(one.upper),
            _percent(one),
            one.moving,
            one.record,
        )
        for one in found
    ]
    section.tables.append(
        Table(
            (
                "compared",
                "k",
                "ratio",
                "larger k",
                "ratio there",
                "larger by",
                "found",
                "other record",
            ),
            rows,
        )
    )
    section.notes += [f"{one.compared.name}: {one.message}." for one in found]


def _percent(one: AtTwo) -> str:
    return "none" if one.moved is None else f"{one.moved:+.1%}"


def _sweeps(
    c: ReportContext,
    section: ReportSection,
    kept: Mapping[str, Any],
    judged: Sequence[JudgedComparison],
) -> None:
    """Draw the comparisons of arms that a sweep made, over the parameter that it changed."""
    swept = {name: arm["swept"] for name, arm in kept["scenario"]["arms"].items() if arm["swept"]}
    lines: dict[str, list[tuple[float, tuple[float, float, float]]]] = {}
    for f in judged:
        one = f.compared
        if one.of in swept and f.found is not None:
            line = f"{one.metric}{one.extent_text}, over {one.over}"
            lines.setdefault(line, []).append((swept[one.of][1], _ends(f.found)))
    field = next((value[0] for value in swept.values()), "")
    caption = "Ratio over the swept parameter, with intervals; below 1 the swept arm takes less."
    c.draw(
        section,
        "sweep",
        "ratio over the swept parameter",
        caption,
        traffic.sweep(lines, field.replace("_", " ")),
    )


def _ends(found: Interval) -> tuple[float, float, float]:
    """The lower end, the middle and the upper end; all the same where there is no interval."""
    known = found.low is not None and found.high is not None
    return (found.low, found.value, found.high) if known else (found.value,) * 3  # type: ignore[return-value]


def _each_metric(
    c: ReportContext, kept: Mapping[str, Any], found: Samples, judged: Sequence[JudgedComparison]
) -> None:
    """A figure of the values of each metric that is compared."""
    section, k = ReportSection("measurements", "Measurements"), dilation_of(kept)
    for metric, extent, of in dict.fromkeys(
        (f.compared.metric, f.compared.extent, f.compared.extent_text) for f in judged
    ):
        unit, what = METRICS[metric]
        times = {
            arm: lists for arm, lists in by_arm(found, kept, metric, extent).items() if any(lists)
        }
        if unit in ("ms", "Gb/s"):
            factor = 1 / k if unit == "ms" else k
            times = {
                arm: [[value * factor for value in values] for values in lists]
                for arm, lists in times.items()
            }
        name = f"{metric.removesuffix('_ms').replace('_', ' ')}{of}"
        _values(
            c,
            section,
            kept,
            times,
            f"{name}{f', {unit}' if unit else ''}{' as at k = 1' if k != 1 else ''}",
            f"{metric}{f'{extent:g}' if extent else ''}",
            what,
        )
    _slowed(section, kept)
    bad = [(n + 1, slot) for n, slot in enumerate(kept["slots"]) if slot.get("error")]
    section.notes += [
        f"Measurement {n}, {slot['arm']}, {slot['state']}: {slot['error']}" for n, slot in bad
    ]
    if kept.get("left"):
        section.notes.append(f"The lab was left {kept['left']}.")
    c.sections.append(section)


def _values(
    c: ReportContext,
    section: ReportSection,
    kept: Mapping[str, Any],
    times: Mapping[str, Sequence[Sequence[float]]],
    axis: str,
    name: str,
    title: str,
) -> None:
    """Draw all values of one metric."""
    labels = kept["arms"]
    caption = "Each dot is a value, each column a measurement with its median."
    figure = traffic.measurements({labels[a]: v for a, v in times.items()}, axis)
    c.draw(section, name, title, caption, figure)


def _slowed(section: ReportSection, kept: Mapping[str, Any]) -> None:
    """What slowed the ranks of each measurement down, and which are void for that."""
    rows: list[Sequence[Shown]] = []
    for number, slot in enumerate(kept["slots"], 1):
        if (found := slot.get("slowed")) is not None:
            waited = (
                "not known" if found["share"] is None else f"{found['share']:.1%}, {found['rank']}"
            )
            if found["share"] is not None and found.get("known", 1.0) < KNOWN_LEAST:
                waited += f", known of {found['known']:.0%} of the iterations"
            counts = (
                f"{found['rwnd_limited_ms'] / dilation_of(kept):.0f} ms",
                str(found["retransmitted"]),
                str(found["refused"]),
            )
            rows.append(
                (str(number), str(slot["round"]), slot["arm"], slot["state"], waited, *counts)
            )
    if not rows:
        return
    heads = (
        "measurement",
        "round",
        "arm",
        "state",
        "waited for processors",
        "no receiver's window",
        "sent again",
        "refused",
    )
    section.tables.append(Table(heads, rows))
    void = sum(slot["state"] == VOID for slot in kept["slots"])
    section.notes.append(
        f"{void} of {len(rows)} measurements are void: in one of them the threads of a rank waited for processors for more than"
        f" {WAIT_LIMIT:.0%} of an iteration (median of its iterations, worst rank; where it is not known of at least"
        f" {KNOWN_LEAST:.0%} of them, void ones may be missed). Void ones count nowhere, whatever was measured."
        " No receiver's window, TCP segments sent again, datagrams that a host refused: of all ranks and iterations, and no reason."
    )


def _environment(c: ReportContext, kept: Mapping[str, Any]) -> None:
    """The environment in which the scenario was measured, as the record has it."""
    facts = kept.get("environment")
    if not facts:
        return
    section = ReportSection("scenario-environment", "Environment of the measurements")
    rows: list[Sequence[Shown]] = [
        (name.replace("_", " "), _flat(value)) for name, value in facts.items()
    ]
    section.tables.append(Table(("what", "value"), rows))
    c.sections.append(section)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_flat(part)}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _rounds(kept: Mapping[str, Any]) -> str:
    """The arms of each round, in order, with states other than done."""
    rounds: dict[int, list[str]] = {}
    for slot in kept["slots"]:
        rounds.setdefault(slot["round"], []).append(
            slot["arm"] if slot["state"] == "done" else f"{slot['arm']} ({slot['state']})"
        )
    return "; ".join(", ".join(arms) for arms in rounds.values())


def _intervals(hows: Iterable[How]) -> list[str]:
    """How the intervals were made, each way once."""
    return [f"Intervals: {HOW_TEXT[how]}." for how in dict.fromkeys(hows) if how]


def _verdict_answer(judged: Sequence[JudgedComparison]) -> Answer:
    """A comparison's figures as a result; instead of SQL it has the recipe that derives them from
    result `compared`.
    """
    rows = tuple(
        (one.compared.of, *one.middles, one.found.value, one.found.low, one.found.high, one.n)
        for one in judged
        if one.found is not None
    )
    columns = ("of", "of_ms", "over_ms", "ratio", "low", "high", "n")
    return Answer("verdict", f"follows from result compared by {_BY}", "", columns, rows)


def _findings_answer(judged: Sequence[JudgedComparison]) -> Answer:
    """A scenario's ratios as a result, derived from results `compared`, `training`, `changes`,
    `busbw` and `wire`.
    """
    what = f"follows from results compared, training, changes, busbw and wire by {_BY}"
    none = Interval(0.0, None, None)
    rows = tuple(
        (f.compared.name, *((x.value if f.found else None), x.low, x.high), f.holds, f.n, f.outcome)
        for f in judged
        for x in (f.found or none,)
    )
    return Answer(
        "findings", what, "", ("compared", "value", "low", "high", "holds", "n", "outcome"), rows
    )


_BY = "orchestrator.views.report.samples and orchestrator.experiments.scenario.judging.judge_comparison"
ENDED_TEXT: Mapping[str, str] = {
    "width": "Measuring ended when the interval of every ratio was at most {width:.0%} of the ratio, or of its band, wide.",
    "budget": "Measuring ended with the budget: no round began after {minutes:.0f} min, whatever the intervals were by then.",
}
"""Why measuring ended; never by what was found."""


LABEL_TEXTS: Mapping[str, str] = {
    "native": "real time, and the effect itself",
    "dilated": "all times are scaled",
    "analytic": "computed, not measured",
    "stand-in": "no public specification: a reading of it",
}
"""What each honesty label means."""
