"""Power and loss of circuits as a table with bars for the terminal, and as an SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from xml.sax.saxutils import escape

from orchestrator.cli.text import columns, paint
from orchestrator.verify.report import CircuitLight, LossChange, PowerReport

BAR = 24
"""Width of a terminal bar, characters."""
NOTABLE_DB = 1.0
"""A circuit that loses this much more than expected is marked: a dirty connector costs about as
much.
"""
_PLOT, _ROW, _TOP = 420, 22, 64
_LEAST_LABEL, _LETTER = 120, 7.2  # px; about the width of a sans-serif letter of 12 px
_LOST, _FINE, _MORE, _AXIS = "#b3261e", "#2f6f9f", "#d98200", "#666666"


def _number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def table(report: PowerReport, colour: bool, *, unicode: bool = True) -> list[str]:
    """One line per circuit: power in and out, measured and expected loss, and a bar of the measured
    loss with a mark at the expected one."""
    longest = max([1.0, *(max(c.loss_db or 0.0, c.expected_db) for c in report.circuits)])
    rows: list[Sequence[str]] = [
        (
            "circuit",
            "in dBm",
            "out dBm",
            "loss dB",
            "expected",
            "diff",
            "margin",
            f"0{longest:>{BAR - 1}.1f} dB",
        )
    ]
    for c in report.circuits:
        figures = (c.in_dbm, c.out_dbm, c.loss_db, c.expected_db)
        diff, margin = _number(c.difference_db, "+.1f"), _number(c.margin_db, "+.1f")
        rows.append((c.circuit, *map(_number, figures), diff, margin, _bar(c, longest, unicode)))
    lines = [f"  {line}" for line in columns(rows)]
    found = []
    for line, c in zip(lines[1:], report.circuits, strict=True):
        over = c.difference_db is not None and c.difference_db > NOTABLE_DB + c.meter_db
        found.append(paint(line, "red" if c.lost else "yellow", colour) if c.lost or over else line)
        if c.lost:
            found.append(f"    dark: {c.lost}")
    spectral = any(c.attenuation_db for c in report.circuits)
    note = ["  (both losses include attenuation that was set)"] if spectral else []
    return [*lines[:1], *found, *note] if report.circuits else []


def _bar(c: CircuitLight, longest: float, unicode: bool) -> str:
    if c.lost:
        return "dark"
    full, mark = ("█", "┃") if unicode else ("#", "|")
    cells = [
        full if c.loss_db is not None and (at + 0.5) / BAR * longest <= c.loss_db else " "
        for at in range(BAR)
    ]
    cells[min(BAR - 1, int(c.expected_db / longest * BAR))] = mark
    return "".join(cells)


def history(changes: Sequence[LossChange], colour: bool) -> list[str]:
    """One line per circuit and direction: the change of its loss since the first measurement."""
    rows: list[Sequence[str]] = [
        ("circuit", "readings", "since", "first dB", "latest", "change", "")
    ]
    for c in changes:
        since = datetime.fromtimestamp(c.since).strftime("%Y-%m-%d %H:%M")
        rows.append(
            (
                c.circuit,
                str(c.measurements),
                since,
                f"{c.first_db:.2f}",
                f"{c.latest_db:.2f}",
                f"{c.change_db:+.2f}",
                reported(c),
            )
        )
    lines = [f"  {line}" for line in columns(rows)]
    tones = [None, *("red" if c.certain else "yellow" if c.beyond else None for c in changes)]
    return (
        [
            paint(line, tone, colour) if tone else line
            for line, tone in zip(lines, tones, strict=True)
        ]
        if changes
        else []
    )


def reported(c: LossChange) -> str:
    """The assessment of a change of loss, in words."""
    if c.certain:
        return f"beyond repeatability (+-{c.repeatability_db:g} dB) and the meters (+-{c.meter_db:g} dB)"
    if c.beyond:
        return f"beyond repeatability (+-{c.repeatability_db:g} dB); the accuracy of the meters is +-{c.meter_db:g} dB"
    return ""


def svg(report: PowerReport) -> str:
    """The losses as a self-contained bar chart, with a tick at the expected loss, and `dark` for
    circuits without light.
    """
    rows = report.circuits
    longest = max([1.0, *(max(c.loss_db or 0.0, c.expected_db) for c in rows)]) * 1.05
    left = int(max([_LEAST_LABEL, *(_LETTER * len(c.circuit) + 26 for c in rows)]))
    width, height = left + _PLOT + 330, _TOP + _ROW * max(len(rows), 1) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="15">{escape(report.lab)}: loss of {len(rows)} circuits</text>',
        f'<text x="16" y="44" fill="{_AXIS}">bar: measured, amber if much more than expected; tick: expected</text>',
    ]
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50) if longest / s <= 10)
    bottom = _TOP + _ROW * len(rows)
    for k in range(int(longest / step) + 1):
        x = left + k * step / longest * _PLOT
        parts.append(
            f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" fill="{_AXIS}" text-anchor="middle">{k * step:g}</text>'
        )
    parts.append(f'<text x="{left + _PLOT + 12}" y="{bottom + 18}" fill="{_AXIS}">dB</text>')
    for index, c in enumerate(rows):
        y = _TOP + index * _ROW
        parts.append(
            f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{escape(c.circuit)}</text>'
        )
        if c.loss_db is not None:
            over = (c.difference_db or 0.0) > NOTABLE_DB + c.meter_db
            length = max(c.loss_db, 0.0) / longest * _PLOT
            parts.append(
                f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="14" fill="{_MORE if over else _FINE}"/>'
            )
        x = left + c.expected_db / longest * _PLOT
        parts.append(
            f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 20}" stroke="black" stroke-width="2"/>'
        )
        if c.lost:
            text, tone = "dark", _LOST
        elif c.out_dbm is None:
            text, tone = "no meter", _AXIS
        else:
            text, tone = f"{c.out_dbm:.1f} dBm, margin {_number(c.margin_db, '+.1f')} dB", "black"
            text += f", attenuated {c.attenuation_db:.1f} dB" if c.attenuation_db else ""
        parts.append(
            f'<text x="{left + _PLOT + 12}" y="{y + 14}" fill="{tone}">{escape(text)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
