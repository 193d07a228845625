"""The phases of jobs as text, and as a picture: a circle for each shared link, a ring for each
job.
"""

from __future__ import annotations

from html import escape
from math import cos, pi, sin
from typing import TYPE_CHECKING

from orchestrator.cli.text import columns

if TYPE_CHECKING:
    from extensions.pacing.report import JobPhases, LinkPhases, PhasesReport

WIDTH = 60
"""Characters of a job's circle as text."""
_TONES = ("#1f6feb", "#d4751a", "#2e8b57", "#8250df", "#b3294a", "#5b6570")
_INK, _FAINT, _OVER = "#1f2328", "#d0d7de", "#b3294a"
_RADIUS, _RING, _SIDE, _TOP = 150, 26, 390, 74
_KEY, _NAME = 36, 44
"""Height of a job in the key; characters of its name."""
_MOST_ARCS = 400
"""A ring of more bursts than this is drawn as one that is sent on all around."""


def text(report: PhasesReport) -> str:
    """Jobs, links, and who sends when over the longest circle."""
    lines = ["Phases of the jobs, as if each had its links to itself:"]
    rows = [("  job", "iteration", "now", "sends", "rate", "sure", "by")]
    for job in report.jobs:
        if job.error:
            rows.append((f"  {job.name}", job.error, "", "", "", "", ""))
            continue
        sends = ", ".join(f"{a:g}-{b:g}" for a, b, _ in job.bursts[:4]) + (
            ", ..." if len(job.bursts) > 4 else ""
        )
        rate = f"{max((rate for *_, rate in job.bursts), default=0):.1f} Mb/s"
        now = f"{job.now_ms:.1f} ms"
        rows.append(
            (
                f"  {job.name}",
                f"{job.period_ms:.1f} ms",
                now,
                f"{sends or 'nothing'} ms",
                rate,
                f"{job.confidence:.2f}",
                job.source,
            )
        )
    lines += columns(rows)
    for link in report.links:
        names = ", ".join(link.rates)
        shares = f"{names} share {link.mbps:.1f} usable Mb/s"
        lines.append(
            f"{link.name}: {shares}; score {link.score:.3f} on a circle of {link.perimeter_ms:g} ms"
        )
    if shown := [job for job in report.jobs if job.paced_ms]:
        longest = max((link.perimeter_ms for link in report.links), default=0.0)
        lines.append(
            f"Who sends when, {longest:g} ms from left to right ('#' sends, '-' for less than half of the time, '.' computes):"
        )
        lines += columns(
            (f"  {job.name}", strip(job, longest), f"+{job.shift_ms:g} of {job.paced_ms:g} ms")
            for job in shown
        )
    lines.append(report.message)
    return "\n".join(lines)


def strip(job: JobPhases, perimeter_ms: float, width: int = WIDTH) -> str:
    """The circle of a job, cut open: `#` where it sends for half of the time or more, `-` for less,
    `.` where it computes.
    """
    step = perimeter_ms / width

    def sends(at: float) -> bool:
        here = (at - job.shift_ms) % job.paced_ms
        return any(a <= here < b for a, b, _ in job.bursts)

    parts = [sum(sends(step * (k + part / 8)) for part in range(8)) for k in range(width)]
    return "".join("#" if part >= 4 else "-" if part else "." for part in parts)


def svg(report: PhasesReport, per_row: int = 1) -> str:
    """The circles of the shared links, at the shifts that were found. An arc is thick where the job
    sends. per_row: circles side by side; one fits a telephone's screen."""
    links = _distinct(report)
    rows = max(1, -(-len(links) // per_row))
    tones = {job.name: _TONES[k % len(_TONES)] for k, job in enumerate(report.jobs)}
    jobs = {job.name: job for job in report.jobs}
    most = max((len(link.rates) for link, _ in links), default=0)
    high = _TOP + 2 * _RADIUS + 24 + _KEY * most + 24
    width, height = _SIDE * min(per_row, max(1, len(links))), 44 + rows * high
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="100%" style="max-width:{2 * width}px" '
        f'font-family="sans-serif" font-size="13" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="16" y="28" font-size="16">{escape(report.lab)}: who sends when</text>',
    ]
    for number, (link, others) in enumerate(links):
        left, top = number % per_row * _SIDE, 44 + number // per_row * high
        x, y = left + _SIDE / 2, top + _TOP + _RADIUS - 20
        also = f" and {others} more" if others else ""
        tone = _INK if link.score >= 0.95 else _OVER
        parts.append(
            f'<text x="{x}" y="{top + 16}" text-anchor="middle">{escape(link.name)}{also}</text>'
        )
        parts.append(
            f'<text x="{x}" y="{y - 2}" text-anchor="middle">{link.perimeter_ms:g} ms</text>'
            f'<text x="{x}" y="{y + 16}" text-anchor="middle" fill="{tone}">score {link.score:.2f}</text>'
            f'<text x="{x}" y="{y - _RADIUS - 6}" text-anchor="middle" font-size="11">0</text>'
        )
        for ring, name in enumerate(link.rates):
            job, radius = jobs[name], _RADIUS - (ring + 0.5) * _RING
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="{radius}" fill="none" stroke="{_FAINT}" stroke-width="2"/>'
            )
            parts += _arcs(job, link.perimeter_ms, (x, y), radius, tones[name])
        for ring, name in enumerate(link.rates):
            job, line = jobs[name], y + _RADIUS + 24 + _KEY * ring
            parts.append(
                f'<rect x="{left + 24}" y="{line - 11}" width="14" height="12" fill="{tones[name]}"/>'
            )
            shown = name if len(name) <= _NAME else name[: _NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
            message = f"{job.paced_ms:g} ms, +{job.shift_ms:g} ms, {link.rates[name]:.0f} of {link.mbps:.0f} Mb/s"
            parts.append(f'<text x="{left + 46}" y="{line}">{escape(shown)}</text>')
            parts.append(f'<text x="{left + 46}" y="{line + 15}" font-size="11">{message}</text>')
    if not links:
        parts.append(f'<text x="16" y="60">{escape(report.message)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _distinct(report: PhasesReport) -> list[tuple[LinkPhases, int]]:
    """The worst link of each set of jobs, and how many others have the same."""
    found: dict[tuple[str, ...], list[LinkPhases]] = {}
    for link in sorted(report.links, key=lambda one: one.score):
        found.setdefault(tuple(link.rates), []).append(link)
    return [(links[0], len(links) - 1) for links in found.values()]


def _arcs(
    job: JobPhases, perimeter_ms: float, centre: tuple[float, float], radius: float, tone: str
) -> list[str]:
    times = round(perimeter_ms / job.paced_ms)
    if times * len(job.bursts) > _MOST_ARCS:
        return [
            f'<circle cx="{centre[0]}" cy="{centre[1]}" r="{radius}" fill="none" stroke="{tone}" stroke-width="8"/>'
        ]
    found = []
    for step in range(times):
        for begin, end, _ in job.bursts:
            at = (job.shift_ms + step * job.paced_ms + begin) / perimeter_ms
            part = min((end - begin) / perimeter_ms, 0.9999)
            (x, y), (to_x, to_y) = (_point(centre, radius, rotated) for rotated in (at, at + part))
            found.append(
                f'<path d="M{x:.2f},{y:.2f} A{radius},{radius} 0 {int(part > 0.5)} 1 {to_x:.2f},{to_y:.2f}" fill="none" '
                f'stroke="{tone}" stroke-width="{_RING - 8}"/>'
            )
    return found


def _point(centre: tuple[float, float], radius: float, rotated: float) -> tuple[float, float]:
    """A point of a circle; rotated: 0 at the top, 1 once around, clockwise."""
    return centre[0] + radius * sin(2 * pi * rotated), centre[1] - radius * cos(2 * pi * rotated)
