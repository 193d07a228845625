"""The figures of a report, drawn with matplotlib: the same drawing is used in the page (SVG) and in
a paper (PDF).
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optics.extras import need
from optics.plain import printable
from orchestrator.files.atomic import write_whole
from orchestrator.telemetry.palette import PHASE_COLOURS
from orchestrator.views.report.ledger import Answer
from orchestrator.views.report.svg import INK, inline
from orchestrator.views.report.topology import SWITCH, Link, Topology, host_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.4
"""Inches: two columns of a paper, and a page's width."""
LEAST_MS = 0.01
"""Shorter times (ms) are drawn at this value: it is the finest resolution of the measurements."""
GREY, KEPT, MADE, BROKEN = "#8E8E8E", "#8E8E8E", "#3274D9", "#E0752D"
_RC: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "testbed",
    "pdf.fonttype": 42,
    "path.simplify": True,
    "text.parse_math": False,  # a name may hold a $
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure of a report."""

    name: str
    title: str
    caption: str
    figure: Figure

    def svg(self) -> str:
        """As an element of a page."""
        return inline(self._drawn("svg", Date=None, Creator=None), self.name, self.title)

    def save(self, folder: Path) -> list[Path]:
        """As files for papers, PDF and SVG, each written atomically. Raises: OSError."""
        drawn = {"pdf": self._drawn("pdf", CreationDate=None), "svg": self._drawn("svg", Date=None)}
        made = {folder / f"{self.name}.{kind}": text for kind, text in drawn.items()}
        for path, text in made.items():
            write_whole(path, text)
        return list(made)

    def _drawn(self, kind: str, **metadata: None) -> bytes:
        out = io.BytesIO()
        with style():
            _lay_out(self.figure)
            self.figure.savefig(out, format=kind, metadata=metadata)
        return out.getvalue()


def _lay_out(figure: Figure) -> None:
    """Place the parts of a figure, once: `savefig` would draw all of it twice each time to do so."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    if (engine := figure.get_layout_engine()) is not None:
        FigureCanvasSVG(figure)  # measures text as a page does
        figure.set_dpi(FigureCanvasSVG.fixed_dpi)
        engine.execute(figure)
        figure.set_layout_engine(None)


def prepare(cache_dir: Path) -> None:
    """Make matplotlib store its font list with our caches; call before the first figure."""
    import logging

    need("report", "drawings", "matplotlib")
    os.environ.setdefault("MPLCONFIGDIR", str(cache_dir / "matplotlib"))
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


@contextmanager
def style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # A name in a script that matplotlib's own font lacks; a page uses the reader's fonts.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        yield


@contextmanager
def one_figure(
    height: float, columns: int = 1, rows: int = 1, **more: Any
) -> Iterator[tuple[Figure, Any]]:
    """An empty figure of a page's width (height in inches) and its axes, as `Figure.subplots`
    returns them.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, **more)


# --- topology
# -------------------------------------------------------------------------------------------------------------------


def draw_topology(found: Topology, after_title: str = "after") -> Figure:
    """Hosts on a circle, packet switches inside it, the links between them before and after."""
    hosts, switches = found.hosts, found.switches
    size = min(3.7, 2.4 + 0.08 * len(hosts))
    with one_figure(size + 0.35, 2) as (figure, (left, right)):
        _circle(
            left,
            hosts,
            switches,
            {BROKEN: found.broken, KEPT: found.before - found.broken},
            "before" if found.known else "before: not known",
        )
        if found.asked and not found.after:
            _circle(right, hosts, switches, {GREY: found.asked}, "requested, not reached")
        else:
            _circle(right, hosts, switches, {KEPT: found.kept, MADE: found.made}, after_title)
        _legend(
            figure,
            {
                f"{len(found.kept)} kept": KEPT,
                f"{len(found.made)} made": MADE,
                f"{len(found.broken)} broken": BROKEN,
            },
        )
    return figure


def topologies(plans: Sequence[tuple[str, frozenset[Link]]]) -> Figure:
    """Several topologies, each drawn once."""
    columns = min(3, max(2, len(plans)))
    lines = math.ceil(len(plans) / columns)
    with one_figure((2.35 if columns == 3 else 3.4) * lines, columns, lines, squeeze=False) as (
        figure,
        grid,
    ):
        for k in range(lines * columns):
            axes = grid[k // columns][k % columns]
            if k < len(plans):
                name, links = plans[k]
                one = Topology(after=links)
                _circle(axes, one.hosts, one.switches, {MADE: links}, name)
            else:
                axes.axis("off")
    return figure


def _circle(
    axes: Axes,
    hosts: Sequence[str],
    switches: Sequence[str],
    links: Mapping[str, frozenset[Link]],
    title: str,
) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    axes.text(-1.3, 1.36, printable(title), ha="left", va="top", fontweight="bold", fontsize=8.5)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_xlim(-1.32, 1.32)
    axes.set_ylim(-1.25, 1.38)
    angle = {
        host: math.pi / 2 - 2 * math.pi * k / max(1, len(hosts)) for k, host in enumerate(hosts)
    }
    at = {host: (math.cos(a), math.sin(a)) for host, a in angle.items()}
    inside = _inside(switches)
    drawn: Counter[tuple[str, str]] = Counter()
    for colour, some in links.items():
        for a, b in sorted(some):
            pair = tuple(sorted((host_of(a), host_of(b))))
            k = drawn[pair[0], pair[1]] = drawn[pair[0], pair[1]] + 1
            # the first of parallel links is straight, the others to its sides in turn
            bend = 0.12 * (k // 2) * (-1) ** k
            (x0, y0), (x1, y1) = ((at | inside)[end] for end in pair)
            middle = (
                (x0 + x1) / 2 * 0.9 - bend * (y1 - y0),
                (y0 + y1) / 2 * 0.9 + bend * (x1 - x0),
            )
            curve = Curve([(x0, y0), middle, (x1, y1)], [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3])
            dashes = (0, (4, 2)) if colour == BROKEN else "solid"
            axes.add_patch(
                PathPatch(
                    curve,
                    fill=False,
                    edgecolor=colour,
                    linewidth=1.5 if colour != KEPT else 1.1,
                    linestyle=dashes,
                )
            )
    if not any(links.values()):
        axes.text(0, 0, "no links", ha="center", va="center", alpha=0.6)
    linked = {host_of(end) for some in links.values() for link in some for end in link}
    for switch, (x, y) in inside.items():
        if switch in linked:
            axes.plot(x, y, "s", color=INK, markersize=6)
            axes.annotate(
                printable(switch.removeprefix(SWITCH)),
                (x, y),
                (0, -9),
                textcoords="offset points",
                ha="center",
                va="center",
            )
    size = 8 if len(hosts) <= 16 else 6 if len(hosts) <= 40 else 4
    for host, (x, y) in at.items():
        axes.plot(x, y, "o", color=INK, markersize=4.5 if len(hosts) <= 24 else 2.5)
        axes.text(
            x * 1.09,
            y * 1.1,
            printable(host),
            ha="left" if x > 0.1 else "right" if x < -0.1 else "center",
            va="center",
            fontsize=size,
        )


def _inside(switches: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Positions of packet switches: one in the middle, several around it."""
    radius, ring_change = (0.42 if len(switches) > 1 else 0.0), 2 * math.pi / max(1, len(switches))
    return {
        name: (radius * math.sin(ring_change * k), radius * math.cos(ring_change * k))
        for k, name in enumerate(switches)
    }


def _legend(figure: Figure, entries: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=c, linewidth=1.6, label=t, linestyle="--" if c == BROKEN else "-")
        for t, c in entries.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


# --- times
# -----------------------------------------------------------------------------------------------------------------------


def breakdown(percentiles: Answer) -> Figure | None:
    """Median of each part, on a line from the least to the 99th percentile; from the link's µs to
    the job's seconds.
    """
    rows = list(percentiles.lines())
    if not rows:
        return None
    found = [line[c].value or 0.0 for line in rows for c in ("least_ms", "median_ms", "p99_ms")]
    least = _least(found)
    with one_figure(0.6 + 0.25 * len(rows)) as (figure, axes):
        # the text is placed after the longest
        axes.set_xlim(least / 1.4, max(*found, 10 * least) ** 1.32 / least**0.32)
        for y, line in enumerate(rows):
            colour = PHASE_COLOURS.get(line["part"].value, GREY)
            first, middle, last = (
                max(line[c].value or 0.0, least) for c in ("least_ms", "median_ms", "p99_ms")
            )
            axes.plot(
                [first, max(middle, last)],
                [y, y],
                color=colour,
                linewidth=2.4,
                alpha=0.6,
                solid_capstyle="butt",
            )
            axes.plot([middle], [y], "o", color=colour, markersize=6, clip_on=False)
            text = f"{line['median_ms'].text()}, p99 {line['p99_ms'].text()}"
            axes.annotate(
                text,
                (max(middle, last), y),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axes.set_yticks(range(len(rows)), [line["part"].value.replace("_", " ") for line in rows])
        downwards(axes, "logarithmic")
        _by_decades(axes)
    return figure


def _least(found: Sequence[float]) -> float:
    """The lower limit of a logarithmic axis for these times (ms)."""
    return float(
        10.0 ** math.floor(math.log10(max(min((x for x in found if x > 0), default=1.0), LEAST_MS)))
    )


def _by_decades(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda ms, _: f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s")
    axes.xaxis.set_minor_formatter("")


def cdf(series: Mapping[str, tuple[str, Sequence[float]]]) -> Figure | None:
    """Shares of times (ms) that are not above x; `series`: colour and times by name."""
    shown = {
        name: (colour, sorted(values))
        for name, (colour, values) in series.items()
        if len(values) > 1
    }
    if not shown:
        return None
    every = [ms for _, values in shown.values() for ms in values]
    least = _least(every)
    wide = max(every) / least > 50
    with one_figure(2.5) as (figure, axes):
        for name, (colour, found) in shown.items():
            values = [max(ms, least) for ms in found] if wide else found
            shares = [(k + 1) / len(values) for k in range(len(values))]
            axes.step(
                [values[0], *values],
                [0.0, *shares],
                where="post",
                color=colour,
                linewidth=1.4,
                label=f"{name} (n = {len(values)})",
            )
        if wide:
            _by_decades(axes)
            axes.set_xlim(left=least / 1.4)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("logarithmic" if wide else "ms")
        axes.set_ylabel("share of all")
        axes.grid(True)
        axes.legend(loc="best")
    return figure


# --- shared
# ---------------------------------------------------------------------------------------------------------------------


def downwards(axes: Axes, label: str) -> None:
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def boxes(figure: Figure, entries: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=c, label=t) for t, c in entries.items()],
        loc="outside lower center",
        ncols=len(entries),
    )
