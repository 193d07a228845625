"""Slices after failures: as text, as data, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from xml.sax.saxutils import escape

from optics.plain import counted
from orchestrator.cli.text import columns
from orchestrator.plan.design.slices import Fabric, SliceReport
from planner.operate.slices import times

FABRICS = ("reconfigurable", "static")
_CELL, _GAP, _TOP, _PLOT = 54, 40, 76, 240
_INK, _FAILED, _OUT, _IN, _FREE = "#222222", "#b3261e", "#f2c7c3", "#9cc3e6", "#ffffff"
_TONES = ("#2f6f9f", "#d98200")
"""The two curves."""


def data(report: SliceReport) -> dict[str, Any]:
    """The data of `--json`; probabilities as numbers and as exact fractions."""
    machine = report.form.machine
    both = {name: getattr(report, name) for name in FABRICS}
    return {
        "grid": list(machine.sides),
        "block": list(machine.block),
        "slice": list(report.form.sides),
        "failed": list(report.failed),
        **{name: {"hosts": list(one.hosts), "choices": one.choices} for name, one in both.items()},
        "probabilities": [
            {
                "failures": count,
                **{name: float(one) for name, one in zip(FABRICS, row, strict=True)},
            }
            | {f"{name}_exact": str(one) for name, one in zip(FABRICS, row, strict=True)}
            for count, row in enumerate(
                zip(*(one.probabilities for one in both.values()), strict=True)
            )
        ],
    }


def text(report: SliceReport) -> str:
    """Which hosts form the slice now, and how likely one is after failures."""
    form, machine = report.form, report.form.machine
    blocks = f", blocks of {times(machine.block)}" if max(machine.block) > 1 else ""
    neighbours = sorted(report.out - {*report.failed}, key=report.hosts.index)
    lines = [
        f"  grid            {times(machine.sides)}: {counted(machine.hosts, 'host')}{blocks}",
        f"  failed          {', '.join(report.failed) or 'none'}"
        + (f"; with them {', '.join(neighbours)}" if neighbours else ""),
        f"  reconfigurable  {_fabric(report.reconfigurable, 'choice', report)}",
        f"  static          {_fabric(report.static, 'place', report)}",
    ]
    rows: list[Sequence[str]] = [("failures", *FABRICS)]
    for count, row in enumerate(
        zip(report.reconfigurable.probabilities, report.static.probabilities, strict=True)
    ):
        rows.append((str(count), *map(_chance, row)))
    lines += [f"  {line}" for line in columns(rows)]
    lines.append(
        "  probability that a slice can be formed after so many failures of hosts, each set of them being as likely"
    )
    return "\n".join([*lines, f"Slice {times(form.sides)}: {_verdict(report)}"])


def _fabric(fabric: Fabric, word: str, report: SliceReport) -> str:
    if not fabric.hosts:
        if word == "choice":
            return "none: the hosts left are too few"
        return (
            "none: no place is whole"
            if report.form.places
            else f"none: {times(report.form.sides)} does not fit the grid"
        )
    return f"{','.join(fabric.hosts)} ({counted(fabric.choices, word)})"


def _chance(value: Fraction) -> str:
    return f"{float(value):.4f} ({value})" if value.denominator < 10_000 else f"{float(value):.4f}"


def _verdict(report: SliceReport) -> str:
    if report.static.hosts:
        return "can be formed, with fixed cables too"
    return (
        "can be formed by optical switches only"
        if report.reconfigurable.hosts
        else "cannot be formed"
    )


def svg(report: SliceReport) -> str:
    """The grid on both fabrics, and the probabilities. Rows are all sides but the last, one below
    the other.
    """
    across = report.form.machine.sides[-1]
    rows = len(report.hosts) // across
    wide, high = across * _CELL, rows * _CELL // 2
    width, height = 4 * _GAP + 2 * wide + _PLOT, _TOP + max(high, _PLOT * 2 // 3) + 60
    title = f"slice {times(report.form.sides)} of {times(report.form.machine.sides)} hosts, {counted(len(report.failed), 'failure')}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_GAP}" y="28" font-size="16">{escape(title)}</text>',
    ]
    for number, name in enumerate(FABRICS):
        left = _GAP + number * (wide + _GAP)
        inside = set(getattr(report, name).hosts)
        parts.append(f'<text x="{left}" y="{_TOP - 12}">{name}{"" if inside else ": none"}</text>')
        for at, host in enumerate(report.hosts):
            tone = (
                _FAILED
                if host in report.failed
                else _OUT
                if host in report.out
                else _IN
                if host in inside
                else _FREE
            )
            x, y = left + at % across * _CELL, _TOP + at // across * (_CELL // 2)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL // 2}" fill="{tone}" stroke="{_INK}"/>'
                f'<text x="{x + _CELL / 2}" y="{y + 18}" text-anchor="middle" font-size="10">{escape(host)}</text>'
            )
    return "\n".join([*parts, *_curves(report, 3 * _GAP + 2 * wide), "</svg>", ""])


def _curves(report: SliceReport, left: int) -> list[str]:
    """Probability over failures, a line for each fabric."""
    high, last = _PLOT * 2 // 3, max(len(report.static.probabilities) - 1, 1)
    parts = [
        f'<text x="{left}" y="{_TOP - 12}">probability of a slice</text>',
        f'<path d="M{left},{_TOP} V{_TOP + high} H{left + _PLOT}" fill="none" stroke="{_INK}"/>',
        f'<text x="{left - 6}" y="{_TOP + 4}" text-anchor="end">1</text>',
        f'<text x="{left - 6}" y="{_TOP + high}" text-anchor="end">0</text>',
        f'<text x="{left + _PLOT}" y="{_TOP + high + 18}" text-anchor="end">{last} failures</text>',
    ]
    for number, (name, tone) in enumerate(zip(FABRICS, _TONES, strict=True)):
        chances = getattr(report, name).probabilities
        points = " ".join(
            f"{left + _PLOT * k / last:.1f},{_TOP + high * (1 - float(p)):.1f}"
            for k, p in enumerate(chances)
        )
        dash = ' stroke-dasharray="6 4"' if number else ""
        y = _TOP + high + 18 + 16 * (number + 1)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{tone}" stroke-width="2.5"{dash}/>'
        )
        parts.append(
            f'<line x1="{left}" y1="{y - 4}" x2="{left + 22}" y2="{y - 4}" stroke="{tone}" stroke-width="2.5"{dash}/>'
        )
        parts.append(f'<text x="{left + 28}" y="{y}">{name}</text>')
    return parts
