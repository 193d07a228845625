"""Where the milliseconds of a run went, drawn in the terminal from its journal. Values in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from orchestrator.reports import Json
from orchestrator.telemetry.lineprotocol import Point

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LABEL = 12
_NUMBER = 11
_LEAST = 20
"""A picture narrower than this many characters shows nothing."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: `begin_ms` counts from the start of the run. `kind`: run, device or host."""

    kind: str
    subject: str
    phase: str
    begin_ms: float
    ms: float
    ok: bool = True
    detail: str = ""

    @property
    def end_ms(self) -> float:
        return self.begin_ms + self.ms


@dataclass(frozen=True, slots=True)
class Iterations:
    """What a job's iterations took, ms; `busbw_gbps` is the median bus bandwidth."""

    job: str
    what: str
    count: int
    median_ms: float
    p99_ms: float
    max_ms: float
    busbw_gbps: float | None = None


def bars(points: Iterable[Point]) -> list[Bar]:
    """The `phase` points of a journal in order of their begin."""
    found = [
        Bar(
            p.tags["kind"],
            p.tags["subject"],
            p.tags["phase"],
            float(p.fields["begin_ns"]) / 1e6,
            float(p.fields["duration_ns"]) / 1e6,
            bool(p.fields.get("ok", 1)),
            str(p.fields.get("detail", "")),
        )
        for p in points
        if p.measurement == "phase"
    ]
    return sorted(found, key=lambda b: (b.begin_ms, b.kind != "run"))


def iterations(points: Iterable[Point]) -> list[Iterations]:
    """Per job and operation, what the `iteration` and `collective` points say."""
    times: dict[tuple[str, str], list[float]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    for p in points:
        if p.measurement in ("iteration", "collective") and "iter_ms" in p.fields:
            key = (p.tags["job"], p.tags["workload"] if p.measurement == "iteration" else p.tags["op"])
            times.setdefault(key, []).append(float(p.fields["iter_ms"]))
            if "busbw_gbps" in p.fields:
                rates.setdefault(key, []).append(float(p.fields["busbw_gbps"]))
    return [
        Iterations(
            job,
            what,
            len(ms),
            median(ms),
            quantiles(ms, n=100, method="inclusive")[98] if len(ms) > 1 else ms[0],
            max(ms),
            median(rates[job, what]) if (job, what) in rates else None,
        )
        for (job, what), ms in sorted(times.items())
    ]


def draw(all_bars: Sequence[Bar], width: int, *, unicode: bool = True) -> list[str]:
    """Draw the phases of the run, then, on its own axis, what each device and the hosts did inside them."""
    phases = [b for b in all_bars if b.kind == "run"]
    parts = [b for b in all_bars if b.kind != "run"]
    if not all_bars:
        return ["  no phases were recorded"]
    lines = _chart("phase", [(b.phase, b) for b in phases], width, unicode)
    if parts:
        rows = [(f"{b.subject} {b.phase}", b) for b in parts if b.kind != "host"]
        rows += _host_rows([b for b in parts if b.kind == "host"])
        # Hosts' and devices' milliseconds would vanish beside Ansible's seconds: they get an axis of their own.
        lines += ["", *_chart("part", rows, width, unicode)]
    return lines


def reconfig_lines(points: Iterable[Point]) -> list[str]:
    """One line per reconfiguration with the parts of its dark window, in the order they happen."""
    order = ("ack", "command", "dark", "power", "link", "route", "first_packet", "resume", "total")
    lines = []
    for p in points:
        if p.measurement != "reconfig":
            continue
        found = [f"{name.replace('_', ' ')} {float(p.fields[f'{name}_ms']):.1f}" for name in order if f"{name}_ms" in p.fields]
        lines.append(
            f"  reconfiguration {p.fields.get('seq', 1)}: {p.fields.get('n_circuits', '?')} circuits, ms: {', '.join(found)}"
        )
    return lines


def iteration_lines(found: Iterable[Iterations]) -> list[str]:
    """One line per job and operation."""
    return [
        f"  job {i.job} ({i.what}): {i.count} iterations, median {i.median_ms:.1f} ms, p99 {i.p99_ms:.1f} ms, max {i.max_ms:.1f} ms"
        + (f", busbw {i.busbw_gbps:.3f} Gb/s" if i.busbw_gbps is not None else "")
        for i in found
    ]


def bar_json(bar: Bar) -> dict[str, Json]:
    """A bar for `--json`."""
    return {
        "kind": bar.kind,
        "subject": bar.subject,
        "phase": bar.phase,
        "begin_ms": bar.begin_ms,
        "ms": bar.ms,
        "ok": bar.ok,
        "detail": bar.detail,
    }


def _host_rows(bars_of_hosts: Sequence[Bar]) -> list[tuple[str, Bar]]:
    """All hosts of one phase as one bar from the first begin to the last end; its detail names the slowest."""
    groups: dict[str, list[Bar]] = {}
    for bar in bars_of_hosts:
        groups.setdefault(bar.phase, []).append(bar)
    rows = []
    for phase, group in groups.items():
        begin, end = min(b.begin_ms for b in group), max(b.end_ms for b in group)
        slow = max(group, key=lambda b: b.end_ms)
        middle = median(b.ms for b in group)
        detail = f"{len(group)} hosts, median {middle:.1f}, last {slow.subject}"
        rows.append((f"hosts {phase}", Bar("host", "", phase, begin, end - begin, all(b.ok for b in group), detail)))
    return sorted(rows, key=lambda row: row[1].begin_ms)


def _chart(title: str, rows: Sequence[tuple[str, Bar]], width: int, unicode: bool) -> list[str]:
    if not rows:
        return []
    begin = min(bar.begin_ms for _, bar in rows)
    end = max(bar.end_ms for _, bar in rows)
    label = max(_LABEL, *(len(name) for name, _ in rows)) + 1
    said = {bar: _remark(bar) for _, bar in rows}
    room = max(_LEAST, width - label - _NUMBER - 3 - max(map(len, said.values())))
    axis = _axis(begin, end, room)
    lines = [f"  {title:<{label}}{'ms':>{_NUMBER - 1}}  {axis}"]
    draw_bar: Callable[[float, float, int], str] = _blocks if unicode else _hashes
    span = (end - begin) or 1.0
    for name, bar in rows:
        picture = draw_bar((bar.begin_ms - begin) / span, (bar.end_ms - begin) / span, room)
        lines.append(f"  {name:<{label}}{bar.ms:>{_NUMBER - 1}.1f}  {picture:<{room}}{said[bar]}".rstrip())
    return lines


def _remark(bar: Bar) -> str:
    return ("  FAILED" if not bar.ok else "") + (f"  {bar.detail}" if bar.detail and bar.kind == "host" else "")


def _axis(begin: float, end: float, room: int) -> str:
    left, right = f"{begin:.0f}", f"{end:.0f}"
    return left + right.rjust(room - len(left))


def _blocks(begin: float, end: float, room: int) -> str:
    """A bar to an eighth of a character at its right end; never thinner than an eighth."""
    first = min(int(begin * room), room - 1)
    eighths = max(1, round((end * room - first) * 8))
    full, rest = divmod(min(eighths, (room - first) * 8), 8)
    return " " * first + "█" * full + _EIGHTHS[rest].strip()


def _hashes(begin: float, end: float, room: int) -> str:
    first = min(int(begin * room), room - 1)
    length = min(round(end * room) - first, room - first)
    return " " * first + ("#" * length if length > 0 else "|")


def phase_totals(all_bars: Iterable[Bar]) -> Mapping[str, float]:
    """Milliseconds per phase of the run."""
    totals: dict[str, float] = {}
    for bar in all_bars:
        if bar.kind == "run":
            totals[bar.phase] = totals.get(bar.phase, 0.0) + bar.ms
    return totals
