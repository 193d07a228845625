"""Designs, predictions and their comparison as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from optics.plain import counted, seconds_text
from orchestrator.cli.text import columns, ms_text
from orchestrator.plan.design.design import Design
from orchestrator.plan.design.prices import Clusters, Fabrics
from orchestrator.plan.design.replan import Degraded, Rewiring
from orchestrator.results import to_json
from orchestrator.verbs.profile import Profile, Versus
from planner.predict.iteration import Prediction


def data(found: Design) -> dict[str, Any]:
    """The data that `--json` adds to the plan."""
    return {
        "why": list(found.found.why),
        "scale": found.scale,
        "raised_to_4_bytes": list(found.raised),
        "time_scale": found.time_scale,
        "here": _prediction(found.here),
        "home": _prediction(found.own) | {"rate_gbps": found.read.workload.rate_gbps},
        "diameter": found.shape.diameter,
        "mean_hops": round(found.shape.mean_hops(), 4),
        "orders": to_json(found.orders),
    }


def _prediction(given: Prediction) -> dict[str, float]:
    seconds = {"iteration": given.iteration_s, "compute": given.compute_s}
    seconds |= {"transfers": given.transfers_s, "allreduce": given.allreduce_s}
    return {f"{name}_ms": round(s * 1e3, 3) for name, s in seconds.items()} | {
        "busbw_mbps": round(given.busbw / 1e6, 3)
    }


def text(
    found: Design,
    name: str,
    *,
    routing: Sequence[str],
    predict: bool,
    ports_mbps: Sequence[float] = (),
) -> str:
    """The design; `routing`: the lines that explain it; `predict`: with each part of an iteration.

    ports_mbps: rates of this lab's packet switch ports, if the design uses any.
    """
    shape, workload = found.shape, found.read.workload
    tax = f", {found.here.hops:.2f} hops per byte of transfers" if found.transfers else ""
    names = ", ".join(name for name, _ in found.found.segments)
    what = f"packet switches {names} for" if names else f"{counted(len(shape.cables), 'link')} on"
    lines = [
        f"  topology   {what} {counted(shape.n, 'host')}, {counted(shape.degree, 'port')} each: "
        f"diameter {shape.diameter}, mean {shape.mean_hops():.2f} hops{tax}"
    ]
    for group in found.read.demand.groups[:8]:
        orders = found.orders[group.id]
        lines.append(
            f"  group      {group.id}: {_bytes(group.bytes)} over {counted(len(orders), 'order')} of {len(group.members)} hosts"
        )
    if len(found.read.demand.groups) > 8:
        lines.append(f"             and {len(found.read.demand.groups) - 8} more groups")
    if routing:
        lines += [f"  why        {line}" for line in (*found.found.why, *routing)]
        others = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in found.others)
        lines += [f"  considered {others}"] if others else []
    joined, rates = ("ports", sorted({*ports_mbps})) if ports_mbps else ("links", [found.link_mbps])
    rate = f"{_range(mbps / found.link_mbps * workload.rate_gbps for mbps in rates)} Gb/s"
    here = f"{_range(rates)} Mb/s"
    lines.append(
        f"  predicted  iteration {seconds_text(found.own.iteration_s)} on {joined} of {rate}"
    )
    if found.time_scale != 1:
        lines.append(
            f"             iteration {seconds_text(found.here.iteration_s)} on this lab's {joined} of {here}, "
            f"with {found.scale:g} of the bytes: multiply times here by {1 / found.time_scale:.3g} for those at {rate}"
        )
    if found.raised:
        few = ", ".join(found.raised[:4]) + (", ..." if len(found.raised) > 4 else "")
        lines.append(
            f"             {counted(len(found.raised), 'group')} would reduce less than one number here, raised to 4 bytes: {few}"
        )
    if predict:
        parts: list[tuple[str, ...]] = [
            ("  ", "compute", "transfers", "all-reduce", "iteration", "busbw")
        ]
        for where, given in ((rate, found.own), (here, found.here)):
            seconds = (given.compute_s, given.transfers_s, given.allreduce_s, given.iteration_s)
            parts.append(
                (f"  {where}", *(seconds_text(s) for s in seconds), f"{given.busbw / 1e6:.1f} MB/s")
            )
        lines += columns(parts)
    return "\n".join(
        [
            *lines,
            f"Designed: {name}, {found.wanted.method} for {workload.name}, back-end {found.wanted.backend}",
        ]
    )


def _range(rates: Iterable[float]) -> str:
    argv = [f"{rate:g}" for rate in rates]
    return argv[0] if len(argv) == 1 else f"{argv[0]} to {argv[-1]}"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def versus(report: Versus) -> str:
    """Prediction and measurement."""
    rows: list[tuple[str, ...]] = [("figure", "predicted", "measured", "off")]
    for one in report.figures:
        cells = (
            _figure(one.predicted, one.unit),
            _figure(one.measured, one.unit),
            "" if one.off is None else f"{one.off:+.1%}",
        )
        rows.append((one.figure, *cells))
    lines = [f"  {line}" for line in columns(rows)]
    if report.limit:
        lines.append(f"  {report.limit}")
    if report.time_scale != 1:
        lines.append(
            f"  multiply times here by {1 / report.time_scale:.3g} for those on the workload's own links"
        )
    return "\n".join(
        [
            *lines,
            f"Compared: {report.plan}, job {report.job}, {counted(report.iterations, 'iteration')}, run {report.run}",
        ]
    )


def _figure(value: float | None, unit: str) -> str:
    return (
        "-" if value is None else ms_text(value) if unit == "ms" else f"{value:.4g} {unit}".rstrip()
    )


def profile(report: Profile) -> str:
    """Traffic on each link."""
    rows: list[tuple[str, ...]] = [("link", "bytes per iteration")]
    rows += [
        (f"{link.src}:p{link.port} -> {link.dst}", _bytes(link.bytes)) for link in report.links
    ]
    lines = [f"  {line}" for line in columns(rows)]
    total = sum(link.bytes for link in report.links)
    tax = "" if report.tax is None else f", {report.tax:.2f} bytes on links per byte sent"
    took = "" if report.iteration_ms is None else f", iteration {ms_text(report.iteration_ms)}"
    message = f"{report.job}, {counted(report.iterations, 'iteration')}{took}: {_bytes(total)} per iteration{tax}"
    return "\n".join([*lines, f"Measured: {message}   run {report.run}"])


def rewire(report: Rewiring) -> str:
    """Dark time against gain."""
    settings = f"{counted(report.removed, 'setting')} broken, {report.made} made"
    faster = f"{report.after_s / report.before_s - 1:+.1%}"
    lines = [
        f"  change     {report.up} -> {report.plan}: {settings}, dark {seconds_text(report.dark_s)}",
        f"  delayed    {_bytes(report.stalled_bytes)} that would be sent in that time",
        f"  iteration  {seconds_text(report.before_s)} -> {seconds_text(report.after_s)} predicted ({faster})",
    ]
    if report.iterations is None or report.break_even_s is None:
        return "\n".join([*lines, "Does not pay off: an iteration is no faster after the change"])
    return "\n".join(
        [
            *lines,
            f"Pays off after {report.iterations:.3g} iterations: break-even {seconds_text(report.break_even_s)} after the change",
        ]
    )


def replan(found: Degraded) -> str:
    """Both options with their costs."""
    options = found.options
    lines = [f"  before     iteration {seconds_text(options.before_s)}"]
    for one in (options.reroute, options.rewire, *options.others):
        if one is not None:
            moves = (
                f", dark {seconds_text(one.dark_s)} for {counted(one.moves, 'link')}"
                if one.moves or one.dark_s
                else ", nothing goes dark"
            )
            slower = f" ({one.iteration_s / options.before_s - 1:+.1%})"
            lines.append(f"  {one.name}: iteration {seconds_text(one.iteration_s)}{slower}{moves}")
    if options.why_not:
        lines.append(f"  note       {options.why_not}")
    even = options.break_even_iterations
    if options.rewire is None:
        word = "Reroute: no rewired topology is possible"
    elif options.reroute is None:
        word = "Rewire: there is no other route"
    else:
        word = (
            "Reroute: rewiring gains nothing"
            if even == float("inf")
            else f"{options.rewire.name.capitalize()} if at least {even:.3g} iterations remain"
        )
    return "\n".join([*lines, f"{word}   {found.plan} without {', '.join(found.failed)}"])


def cost(found: Fabrics) -> str:
    """One line per fabric, with the note on the prices."""
    rows: list[tuple[str, ...]] = [
        ("fabric", "links", "Gb/s per host", f"{found.currency} per host", "relative", "W per host")
    ]
    for one in found.rows:
        rows.append(
            (
                one.fabric,
                str(one.links),
                f"{one.gbps:.4g}",
                f"{one.price:.0f}",
                f"x {one.price_ratio:.2f}",
                f"{one.watts:.1f}",
            )
        )
    return "\n".join([*(f"  {line}" for line in columns(rows)), f"({found.mark})"])


def clusters(found: Clusters) -> str:
    """One line per network, with what no table of prices changes, and the note on the prices."""
    rows: list[tuple[str, ...]] = [
        (
            "network",
            "tiers",
            "switches",
            "transceivers",
            f"{found.currency} per GPU",
            "saved",
            "W per GPU",
            "saved",
        )
    ]
    rows += [
        (
            one.network,
            str(one.tiers),
            str(one.switches),
            str(one.transceivers),
            f"{one.price / found.gpus:.0f}",
            f"{one.price_saved:.0%}",
            f"{one.watts / found.gpus:.1f}",
            f"{one.watts_saved:.0%}",
        )
        for one in found.rows
    ]
    head = (
        f"{found.gpus} GPUs in domains of {found.domain}, switches of {found.radix} ports,"
        f" {found.gbps:g} Gb/s"
    )
    bounds = (
        f"Whatever the prices, a network for each rail saves {found.least:.0%} to {found.most:.0%}"
    )
    return "\n".join([head, *(f"  {line}" for line in columns(rows)), bounds, f"({found.mark})"])
