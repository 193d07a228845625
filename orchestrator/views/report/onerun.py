"""The sections of a report on one run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from markupsafe import Markup

from optics.plain import seconds_text
from orchestrator.experiments.rehearsal.report import load_comparison
from orchestrator.store.verbs import verb_of
from orchestrator.telemetry.palette import PHASE_COLOURS
from orchestrator.views.report import figures, manyruns, questions
from orchestrator.views.report.figures import Drawing
from orchestrator.views.report.gather import Source
from orchestrator.views.report.ledger import missing_mark
from orchestrator.views.report.model import (
    FEW,
    SPREAD,
    ReportContext,
    ReportSection,
    Shown,
    Table,
    result_table,
)
from orchestrator.views.report.networkpower import power_tiles
from orchestrator.views.report.texts import was_up
from orchestrator.views.report.topology import Topology, planned_switches, topology
from orchestrator.views.report.waterfalls import device_waterfall, run_waterfall
from orchestrator.views.ringtext import CAUSES


def one_run(c: ReportContext, source: Source) -> None:
    campaign, book = c.campaign, c.book
    circuits = questions.links(book, campaign, source)
    found = topology(source, circuits)
    _tiles(c, source)
    power_tiles(c, source)
    _topology(c, found, source)
    phases = questions.phases(book, campaign)
    section = ReportSection("time", "Where the time went")
    if not source.journalled:
        section.notes.append("This run left no journal: none of its times were recorded.")
    c.draw(
        section,
        "phases",
        "phases of the run",
        "Phases of the run.",
        run_waterfall(phases),
        "No phases were recorded.",
    )
    shown = c.longest(FEW)
    if len(shown) < len(c.moves):
        section.notes.append(
            f"Of {len(c.moves)} reconfigurations the {len(shown)} longest are drawn individually."
        )
    for k, move in enumerate(shown):
        name = "devices" if k == 0 else f"devices-{k + 1}"
        drawn = device_waterfall(c.devices, phases if len(c.moves) == 1 else None, move.id)
        c.draw(
            section,
            name,
            f"devices of {move.id}",
            "The parts of each device, and when the hosts had light and routes.",
            drawn,
        )
    if not c.moves:
        section.notes.append(
            "No reconfiguration was completed and recorded, so there is no breakdown."
        )
    section.tables += (
        [_parts_table(c), _device_table(c, source, [move.id for move in shown])] if c.moves else []
    )
    c.sections.append(section)
    _rehearsed(c, source)
    if len(c.moves) > 1:
        manyruns.durations(c)
    spread = ReportSection("spread", "Spread over hosts and devices")
    hosts = questions.hosts(book, campaign)
    light, commit = (
        [
            x["duration_ms"].value
            for x in phases.lines()
            if x["kind"].value == "host" and x["phase"].value == name
        ]
        for name in ("light", "commit")
    )
    series = {
        "host: first command to last carrier": (PHASE_COLOURS["link"], light),
        "host: carrier to routes committed": (PHASE_COLOURS["route"], commit),
        "device: dark": (PHASE_COLOURS["dark"], c.devices.values("dark_ms")),
    }
    c.draw(
        spread,
        "parts-cdf",
        "distribution over hosts and devices",
        "Share of hosts and devices that were done by then.",
        figures.cdf(series),
    )
    if hosts:
        spread.tables.append(result_table(hosts, {"phase": "hosts", **SPREAD}))
    spread.notes.append(
        "How times spread over runs: `testbed experiment report RUN RUN ...` or `testbed experiment report --since 7d`."
    )
    if spread.drawings or spread.tables:
        c.sections.append(spread)


def _rehearsed(c: ReportContext, source: Source) -> None:
    """What the rehearsal of this change had shown, beside what was measured."""
    if not (rows := load_comparison(source.folder)):
        return
    section = ReportSection("rehearsed", "Rehearsed and measured")
    section.intro = "The change was made on an emulated twin of the lab first. Figures of the twin beside those of the lab."
    shown = [
        (
            row.what,
            _ms(row.rehearsed_ms),
            _ms(row.measured_ms),
            "-" if row.off is None else f"{row.off:+.0%}",
        )
        for row in rows
    ]
    section.tables.append(Table(("what", "rehearsed", "measured", "off"), shown))
    c.sections.append(section)


def _ms(value: float | None) -> str:
    return "-" if value is None else seconds_text(value / 1e3)


def _tiles(c: ReportContext, source: Source) -> None:
    if not c.reconfigs:
        return
    line = next(c.reconfigs.lines())
    scale = c.scale_of(source, line["reconfig_id"].value)
    expected = c.expected(source).text(c.expected_scale(source, scale))
    text = f"expected {expected} by data sheet" if c.expected(source) else "expected: not recorded"
    c.tiles += [
        ("dark, measured", line["dark_ms"].show(scale), text),
        (
            "carrier after that",
            line["link_ms"].show(),
            "0: hosts saw light before the device reported it",
        ),
        ("routes after that", line["route_ms"].show(), "last carrier to last commit"),
        ("command to verified", line["total_ms"].show(), "everything verified"),
        ("one-way circuits", line["n_circuits"].show(), "made or broken"),
    ]
    ring_change = (
        next((line for line in c.ring_changes.lines() if line["paused_ms"]), None)
        if c.ring_changes is not None
        else None
    )
    if ring_change is not None:
        parts = [(ring_change[f"{cause}_ms"], cause) for cause in CAUSES]
        text = Markup(", ").join(
            Markup("{} {}").format(cell.show(), cause) for cell, cause in parts if cell
        )
        c.tiles.append(("job lost", ring_change["paused_ms"].show(), text))
    job = next(c.job.lines(), None) if c.job is not None else None
    if job is not None and job["pause_ms"]:
        c.tiles.append(
            (
                "pause of the job",
                job["pause_ms"].show(),
                "longest time between the ends of two iterations",
            )
        )
    if job is not None and (job["before_ms"] or job["after_ms"]):
        c.tiles.append(
            (
                "iteration before / after",
                Markup("{} / {}").format(job["before_ms"].show(), job["after_ms"].show()),
                "median",
            )
        )


def _topology(c: ReportContext, found: Topology, source: Source) -> None:
    section = ReportSection("topology", "Topology before and after")
    lasting = verb_of(source.record.verb).lasting
    if lasting and found.before:
        section = ReportSection("topology", "Topology before")
        text = "The links that were up when the run began. It changed circuits in every change; changes are listed below."
        section.drawings.append(
            Drawing(
                "topology", "topology before", text, figures.topologies([("before", found.before)])
            )
        )
    elif found.hosts:
        reached = found.after or was_up(source.record)
        drawn = figures.draw_topology(found, "after" if reached else "as far as it got")
        section.drawings.append(
            Drawing("topology", "topology before and after", _topology_text(found), drawn)
        )
    elif not planned_switches(source):
        section.notes.append(
            "No links were up before, and none were requested."
            if found.known
            else "The links were not recorded."
        )
    if names := planned_switches(source):
        shown = "squares in the figure" if found.switches else "their hosts were not recorded"
        section.notes.append(
            f"The plan goes over packet switches ({shown}): {', '.join(names)}. No light is moved for them."
        )
    if source.plan.get("links") and found.asked and not found.after and not lasting:
        section.notes.append(
            "The journal has no circuit made by this run: the right side shows the request, not the result."
        )
    c.sections.append(section)


def _parts_table(c: ReportContext) -> Table:
    names = [p for p in questions.PHASES if c.reconfigs.values(f"{p}_ms")]
    never = [p.replace("_", " ") for p in questions.PHASES if p not in names]
    rows: list[Sequence[Shown]] = [
        (line["reconfig_id"], *(line[f"{p}_ms"] for p in names)) for line in c.reconfigs.lines()
    ]
    heads = ("reconfiguration", *(p.replace("_", " ") for p in names))
    if c.reconfigs.values("lost_bytes"):
        rows = [
            (*row, line["lost_bytes"]) for row, line in zip(rows, c.reconfigs.lines(), strict=True)
        ]
        heads = (*heads, "dropped by ports")
    if never:
        rows = [(*row, missing_mark(f"not recorded: {', '.join(never)}")) for row in rows]
        heads = (*heads, "")
    return Table(heads, rows)


def _device_table(c: ReportContext, source: Source, shown: Collection[str]) -> Table:
    rows = []
    for line in c.devices.lines():
        if line["reconfig_id"].value not in shown:
            continue
        scale = (source.devices or {}).get(line["device"].value, 1.0)
        error = line["error"] if line["error"].value else ""
        rows.append(
            (
                line["device"],
                line["model"],
                line["n_ports"],
                line["writes"],
                line["dark_ms"].show(scale),
                line["link_up_ms"],
                line["route_ms"],
                error,
            )
        )
    return Table(
        ("device", "driver", "ports", "writes", "dark", "last carrier at", "routes at", "it said"),
        rows,
    )


def _topology_text(found: Topology) -> str:
    if found.asked and not found.after:
        return "Left: the links that were up. Right: those that were requested and not reached."
    by = "the circuits in the journal" + (
        " and, of packet switches, by the plan" if found.switches else ""
    )
    return f"Left: the links before; dashed ones were broken. Right: after, by {by}; blue ones were made."
