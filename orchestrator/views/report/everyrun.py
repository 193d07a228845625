"""The sections every report has: request, traffic and jobs around moves, verification, environment,
sources of numbers.
"""

from __future__ import annotations

from markupsafe import Markup

from orchestrator.store.verbs import verb_of
from orchestrator.telemetry.names import PAUSE
from orchestrator.views.report import questions, ringsection, texts, traffic
from orchestrator.views.report.model import ReportContext, ReportSection, Table, result_table

MOVES_DRAWN = 9
"""Number of moves (the longest) around which throughput is drawn."""
AROUND_S = 60.0
"""Iterations are drawn from this long (s) before a move until this long after its verification."""


def request_section(c: ReportContext) -> None:
    campaign = c.campaign
    section = ReportSection("asked", "What was asked")
    if campaign.single:
        source = campaign.sources[0]
        reported, exact = texts.command_of_run(source)
        section.codes.append(
            (
                "the command as it was typed"
                if exact
                else "the command, as reconstructed from the store",
                reported,
            )
        )
        record = source.record
        about = str(source.plan.get("description", ""))
        section.tables.append(
            Table(
                ("", ""),
                [
                    ("plan", f"{record.plan_name or '-'}" + (f": {about}" if about else "")),
                    (
                        "SHA-256 of the plan's text",
                        record.plan_sha or "none: the verb takes no plan",
                    ),
                    (
                        "user and host",
                        f"{record.user} on {record.host}, for {record.owner or record.user}, lab {record.lab}",
                    ),
                    ("when", texts.when(record.started)),
                    ("ended", texts.ending(record)),
                ],
            )
        )
        if record.message:
            section.codes.append(("in its own words", record.message))
        if record.plan_text:
            section.codes.append(("plan.json", record.plan_text.strip()))
    else:
        counts: dict[str, int] = {}
        for source in campaign.sources:
            counts[source.record.status] = counts.get(source.record.status, 0) + 1
        section.intro = (
            f"{len(campaign.sources)} runs: "
            + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
            + "."
        )
        if len(labs := sorted({source.record.lab for source in campaign.sources})) > 1:
            section.intro += (
                f" They cover {len(labs)} labs, whose times are mixed below: {', '.join(labs)}."
            )
        commands: dict[tuple[str, bool], int] = {}
        for source in campaign.sources:
            commands[texts.command_of_run(source)] = (
                commands.get(texts.command_of_run(source), 0) + 1
            )
        listed = [
            f"{text}   ({n} x{'' if exact else ', as reconstructed from the store'})"
            for (text, exact), n in commands.items()
        ]
        section.codes.append(("the commands", "\n".join(listed)))
    c.sections.append(section)


def throughput_section(c: ReportContext) -> None:
    section = ReportSection("throughput", "Throughput around each move")
    chosen = c.longest(MOVES_DRAWN)
    for folder in dict.fromkeys(move.source.folder for move in chosen):
        near = [questions.near(move) for move in chosen if move.source.folder == folder]
        c.book.read_more(folder, "port", near)
    answer = questions.throughput_around_changes(c.book, chosen)
    if answer is None:
        section.notes.append(
            "No port counters were sampled around a move, so the throughput is not known."
        )
        c.sections.append(section)
        return
    if len(c.moves) > len(chosen):
        section.intro = f"The {len(chosen)} longest of {len(c.moves)} moves."
    drawn = traffic.throughput_charts(
        [(move, questions.port_counters_near(c.book, move)) for move in chosen]
    )
    caption = "Sent by all hosts together, even between two samples. Yellow: first command. Shaded: until routes were back."
    c.draw(
        section,
        "throughput",
        "throughput around moves",
        caption,
        drawn,
        "Fewer than two samples of each port: no rate can be computed.",
    )
    heads = {
        "reconfig_id": "move",
        "before_mbps": "before",
        "before_over_ms": "over",
        "across_mbps": "across the move",
    }
    section.tables.append(
        result_table(answer, heads | {"after_mbps": "after", "after_over_ms": "over"})
    )
    section.notes.append(
        f"{answer.what[0].upper()}{answer.what[1:]}. Not recorded if a port has fewer than two samples in that time."
    )
    c.sections.append(section)


_SHOWN, _NO_PAUSE = "as the ring change recorded", "none: no job ran before and after"


def job_section(c: ReportContext) -> None:
    section = ReportSection("job", "What it did to the job")
    answer = c.job
    known = answer is not None and any(
        line[x] for line in answer.lines() for x in ("before_ms", "after_ms", "during_ms")
    )
    if answer is None or not known:
        section.notes.append(
            "No job ran before or after a move, or its iterations were not collected (`testbed job status` does)."
        )
        ringsection.ring_change_tables(c, section)
        c.sections.append(section)
        return
    caption = (
        "Each dot is an iteration of the slowest rank. Grey: before the first command; shaded: until all was verified."
        " Lines: medians before and after, none while the job paused."
    )
    if c.ring_changes is not None:
        caption += " Line with a triangle: the ranks changed rings."
    if c.few:
        for k, move in enumerate(c.changes):
            line = next((x for x in answer.lines() if x["reconfig_id"].value == move.id), None)
            if line is None:
                continue
            points = questions.iterations_near(c.book, move, AROUND_S)
            marks = ringsection.marks(c, move)
            drawn = traffic.iteration_chart(
                move, points, line["before_ms"].value, line["after_ms"].value, marks
            )
            c.draw(
                section,
                "job" if k == 0 else f"job-{k + 1}",
                "iterations around the move",
                caption,
                drawn,
            )
    else:
        drawn = traffic.before_after(answer)
        c.draw(
            section,
            "job",
            "iteration time before and after moves",
            "Median iteration before and after each move (the latest 40).",
            drawn,
        )
    heads = {
        "reconfig_id": "move",
        "before_ms": "before",
        "before_n": "of",
        "during_ms": "slowest during",
        "pause_ms": "pause",
        "after_ms": "after",
        "after_n": "of",
    }
    section.tables.append(
        result_table(
            answer,
            heads,
            none={
                "before_n": _SHOWN,
                "after_n": _SHOWN,
                "during_ms": "no iteration spans it",
                "pause_ms": _NO_PAUSE,
            },
        )
    )
    section.notes.append(f"{answer.what[0].upper()}{answer.what[1:]}. Pause: {PAUSE}.")
    ringsection.ring_change_tables(c, section)
    c.sections.append(section)


def verification(c: ReportContext) -> None:
    # which climb again and again
    each = c.few and not any(verb_of(source.record.verb).lasting for source in c.campaign.sources)
    answer = questions.levels(c.book, c.campaign, each=each)
    section = ReportSection("verify", "Verification")
    if not answer:
        section.notes.append("No verification was recorded.")
    elif each:
        rows = [
            (
                c["level"],
                Markup('<data value="{}" data-from="{}">{}</data>').format(
                    c["ok"].value, c["ok"].place, "passed" if c["ok"].value else "FAILED"
                ),
                c["detail"],
                c["duration_ms"],
            )
            for c in answer.lines()
        ]
        section.tables.append(Table(("level", "", "", "took"), rows))
    else:
        section.tables.append(
            result_table(
                answer,
                {
                    "level": "level",
                    "passed_n": "passed",
                    "n": "of",
                    "median_ms": "median",
                    "most_ms": "longest",
                },
            )
        )
    c.sections.append(section)


def environment_section(c: ReportContext) -> None:
    section = ReportSection(
        "environment", "Environment and versions", f"{c.speed[0].upper()}{c.speed[1:]}."
    )
    rows = texts.machines(c.campaign.sources)
    if rows:
        section.tables.append(Table(("when it ran", ""), rows))
    drivers = {
        name: d.get("driver", "")
        for s in c.campaign.sources
        if s.environment
        for name, d in (s.environment.get("devices") or {}).items()
    }
    scales = {n: x for s in c.campaign.sources for n, x in (s.devices or {}).items()}
    if scales:
        listed = [
            (name, drivers.get(name, "not recorded"), f"x{scale:g}")
            for name, scale in sorted(scales.items())
        ]
        section.tables.append(Table(("device", "driver", "time scale"), listed))
    c.sections.append(section)


def data(c: ReportContext) -> None:
    section = ReportSection("data", "Where the numbers come from")
    runs = list(c.campaign.journals)
    section.intro = (
        "Every measured number above is a cell in the result of one of the queries below over the journals of "
        f"{len(runs)} runs. This page includes the queries and their results (the element #numbers, JSON)."
    )
    shown = runs if len(runs) <= 6 else [*runs[:3], "...", *runs[-2:]]
    section.codes.append(
        (
            "how to get the tables and repeat the queries",
            "\n".join(
                f"testbed telemetry export {run} --out {run}" for run in shown if run != "..."
            ),
        )
    )
    if c.book.trouble:
        section.codes.append(
            ("lines that could not be read and are not in any number", "\n".join(c.book.trouble))
        )
    absent = [source.record.id for source in c.campaign.sources if not source.journalled]
    if absent:
        section.notes.append(
            f"Without a journal, and not in any number: {', '.join(absent[:20])}{' and more' if len(absent) > 20 else ''}."
        )
    section.notes.append(
        "Expected times are those of the plan, from data sheets, as stored: `testbed run show RUN --json`, run.summary."
    )
    for answer in c.book.answers.values():
        section.codes.append((f"{answer.name}: {answer.what}", answer.sql))
    c.sections.append(section)
