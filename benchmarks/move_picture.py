"""A moving picture of one move under twelve training ranks, drawn from a real run on the emulated lab: docs/move.svg.

All 48 cross-connects of `job_pause` move. A line is a link, drawn while both of its circuits have light by the emulated switches'
own record; above, the iterations of rank 0 as it recorded them. Of several moves the one with the median loss is drawn. Time in
the picture runs slower than it was, by the factor that it says.

    python -m benchmarks.move_picture [--moves N]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_lab import ROOT, bench_lab
from benchmarks.job_pause import AROUND, HOSTS, Bench, Record, ends

PICTURE = ROOT / "docs" / "move.svg"
BEFORE_MS, AFTER_MS, SLOWER = 600.0, 1000.0, 5.0
WIDTH, HEIGHT, LEFT, STRIP_TOP, STRIP = 880, 520, 24.0, 62.0, 34.0
CENTRE, RADIUS = (WIDTH / 2, 328.0), 158.0
Lit = Mapping[frozenset[str], tuple[float, float]]
"""Of each link, by its two ports, from when to when it had light (ms, from the first circuit that went dark)."""


@dataclass(frozen=True, slots=True)
class Filmed:
    """One move. iterations: begin and end of each (ms, from the first circuit that went dark); turned: the first on new rings."""

    lost_ms: float
    dark_ms: float
    lit: Lit
    iterations: Sequence[tuple[float, float]]
    turned: int


def ports(bench: Bench, side: int) -> dict[str, frozenset[str]]:
    """The link that each cross-connect of a plan carries, by `device:ingress->egress`."""
    rows = bench.lab.call("plan", "--topology", bench.plans["auto", side])["circuits"]
    return {row["path"][0]: frozenset(row["circuit"].split("->")) for row in rows if row["state"] != "break"}


def film(bench: Bench) -> Filmed:
    """Move to the other plan and return what was seen. Raises: NoFigure - as `Bench.judged`."""
    bench.until(lambda records: len(records) > AROUND)
    old, new = ports(bench, bench.side), ports(bench, 1 - bench.side)
    bench.skip()
    seen = dict(bench.seen)
    bench.side = 1 - bench.side
    report = bench.lab.call("up", "--topology", bench.plans["auto", bench.side], "--job", "live")
    events = {device: bench.lab.ask("history", device=device)["history"][seen[device] :] for device in bench.devices}
    move = bench.judged(report)
    zero = min(event[0] for found in events.values() for event in found if event[1] == "broken") * 1e3
    lit: dict[frozenset[str], tuple[float, float]] = {}
    for device, found in events.items():
        for at_s, what, ingress, egress in (event[:4] for event in found):
            name, at_ms = f"{device}:{ingress}->{egress}", at_s * 1e3 - zero
            if what == "broken" and name in old:
                lit[old[name]] = (-math.inf, min(at_ms, lit.get(old[name], (0.0, math.inf))[1]))
            elif what == "lit" and name in new:
                lit[new[name]] = (max(at_ms, lit.get(new[name], (-math.inf, 0.0))[0]), math.inf)
    turned = bench.turned(report["turn"]) + 1
    _, records = bench.records()
    return Filmed(move.lost, move.dark, lit, spans(records, zero + bench.wall_ms), turned - records[0]["iter"])


def spans(records: Sequence[Record], zero_ms: float) -> list[tuple[float, float]]:
    """Of each iteration, from the end of the one before to its own end (ms from `zero_ms`, of wall time)."""
    finished = [end - zero_ms for end in ends(records)]
    return list(zip([records[0]["t_wall_ns"] / 1e6 - zero_ms, *finished[:-1]], finished, strict=True))


def share(at_ms: float) -> float:
    """Where in the picture's time a moment is, in per cent."""
    return round(100 * (min(max(at_ms, -BEFORE_MS), AFTER_MS) + BEFORE_MS) / (BEFORE_MS + AFTER_MS), 3)


def across(at_ms: float) -> float:
    """Where in the strip of iterations a moment is."""
    return round(LEFT + (WIDTH - 2 * LEFT) * share(at_ms) / 100, 1)


def place(host: str) -> tuple[float, float]:
    angle = 2 * math.pi * HOSTS.index(host) / len(HOSTS) - math.pi / 2
    return round(CENTRE[0] + 1.9 * RADIUS * math.cos(angle), 1), round(CENTRE[1] + RADIUS * math.sin(angle), 1)


def links(lit: Lit) -> Iterator[str]:
    """Every link as a curve, with the times in which it is drawn."""
    for number, (link, (begin, end)) in enumerate(sorted(lit.items(), key=lambda item: sorted(item[0]))):
        (x1, y1), (x2, y2) = (place(port.partition(":")[0]) for port in sorted(link))
        # two links of one pair of hosts are bent apart
        bend = 0.06 * (1 if number % 2 else -1)
        cx = (x1 + x2) / 2 * 0.8 + CENTRE[0] * 0.2 + bend * (y2 - y1)
        cy = (y1 + y2) / 2 * 0.8 + CENTRE[1] * 0.2 - bend * (x2 - x1)
        on, off = share(begin), share(end)
        frames = (
            f"0%,{off}%{{opacity:1}}{off + 0.01}%,100%{{opacity:0}}"
            if begin < 0
            else f"0%,{on}%{{opacity:0}}{on + 0.01}%,100%{{opacity:1}}"
        )
        kind = "old" if begin < 0 else "new"
        yield f"<style>@keyframes l{number}{{{frames}}}</style>"
        path = f"M{x1} {y1}Q{cx:.1f} {cy:.1f} {x2} {y2}"
        yield f'<path class="link {kind}" style="animation-name:l{number}" d="{path}"/>'


def captions(filmed: Filmed) -> Iterator[str]:
    """What happens, one line at a time."""
    at = filmed.iterations[filmed.turned][1]
    last = max(begin for begin, _ in filmed.lit.values() if begin > 0)
    said = [
        (-BEFORE_MS, "twelve ranks train over 24 optical links"),
        (0.0, "four switches move 48 cross-connects: dark"),
        (last, "light is back; the ranks finish their iteration, then use the new rings"),
        (at, f"the job lost {filmed.lost_ms:.0f} ms; nothing was restarted"),
    ]
    for number, (begin, text) in enumerate(said):
        end = said[number + 1][0] if number + 1 < len(said) else AFTER_MS
        on, off = share(begin), share(end)
        head = "0%" if on == 0 else f"0%,{on - 0.01:.3f}%{{opacity:0}}{on}%"
        tail = "100%{opacity:1}" if off == 100 else f"{off - 0.01:.3f}%{{opacity:1}}{off}%,100%{{opacity:0}}"
        yield f"<style>@keyframes c{number}{{{head},{tail}}}</style>"
        yield f'<text class="said" style="animation-name:c{number}" x="{WIDTH / 2}" y="132">{text}</text>'


def drawn(filmed: Filmed) -> str:
    """The picture."""
    seconds = (BEFORE_MS + AFTER_MS) * SLOWER / 1e3
    usual = statistics.median(end - begin for begin, end in filmed.iterations[: filmed.turned][-AROUND:])
    bars = "".join(
        f'<rect class="{"long" if end > 0 and number <= filmed.turned else "bar"}" x="{across(begin) + 1}" y="{STRIP_TOP}"'
        f' width="{max(across(end) - across(begin) - 2, 0):.1f}" height="{STRIP}"/>'
        for number, (begin, end) in enumerate(filmed.iterations)
        if end > -BEFORE_MS and begin < AFTER_MS
    )
    hosts = "".join(
        f'<circle cx="{place(host)[0]}" cy="{place(host)[1]}" r="17"/>'
        f'<text class="host" x="{place(host)[0]}" y="{place(host)[1] + 4}">{host[3:]}</text>'
        for host in HOSTS
    )
    at_ms = range(-400, int(AFTER_MS), 200)
    ticks = "".join(f'<text class="tick" x="{across(at)}" y="{STRIP_TOP + STRIP + 15}">{at} ms</text>' for at in at_ms)
    source = f"recorded on the emulated lab; played at 1/{SLOWER:g} of its speed"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"
 font-family="system-ui, sans-serif" font-size="13">
<title>One move under twelve training ranks: dark {filmed.dark_ms:.0f} ms, the job lost {filmed.lost_ms:.0f} ms</title>
<style>
.frame{{fill:#0d1117}}text{{fill:#c9d1d9}}.small,.tick{{fill:#8b949e;font-size:11px}}.tick,.host,.said{{text-anchor:middle}}
.said{{font-size:16px;font-weight:600}}.host{{font-size:11px}}circle{{fill:#161b22;stroke:#8b949e}}
.bar{{fill:#238636}}.long{{fill:#9e6a03}}.link{{fill:none;stroke-width:2.2}}.old{{stroke:#58a6ff}}.new{{stroke:#3fb950}}
.link,.said,.hand{{animation:{seconds:g}s linear infinite}}.hand{{animation-name:hand;stroke:#f0f6fc;stroke-width:1.5}}
@keyframes hand{{to{{transform:translateX({across(AFTER_MS) - across(-BEFORE_MS)}px)}}}}
</style>
<rect class="frame" width="{WIDTH}" height="{HEIGHT}" rx="10"/>
<text x="{LEFT}" y="34">iterations of rank 0, usually {usual:.0f} ms</text>
<text class="small" x="{WIDTH - LEFT}" y="34" text-anchor="end">{source}</text>
<text class="small" x="{LEFT}" y="52">time since the first circuit went dark</text>
{bars}{ticks}
<line class="hand" x1="{across(-BEFORE_MS)}" x2="{across(-BEFORE_MS)}" y1="{STRIP_TOP - 6}" y2="{STRIP_TOP + STRIP + 6}"/>
{"".join(captions(filmed))}
{"".join(links(filmed.lit))}
{hosts}
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=5, help="how many; the one with the median loss is drawn (odd)")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    with bench_lab(len(HOSTS)) as lab:
        lab.settle(0.05)
        bench = Bench(lab)
        lab.call("up", "--topology", bench.plans["auto", 0])
        moves = sorted((film(bench) for _ in range(given.moves)), key=lambda filmed: filmed.lost_ms)
    chosen = moves[len(moves) // 2]
    given.out.write_text(drawn(chosen))
    print(f"{given.out}: dark {chosen.dark_ms:.1f} ms, lost {', '.join(f'{move.lost_ms:.0f}' for move in moves)} ms")


if __name__ == "__main__":
    main()
