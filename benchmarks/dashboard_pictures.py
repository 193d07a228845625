"""Pictures of the Grafana dashboards, drawn by Grafana's own library from a real run on the emulated
lab: docs/how-to/grafana-NAME.webp.

Twelve training ranks pass through several moves of all 48 cross-connects of `job_pause`; the
journals go to an InfluxDB, and the dashboards' queries are asked of it. Only dashboards are drawn
that such a run fills. `--journals` draws other runs, without a lab. No Grafana draws here: see
tests/dashboards/drawing.py.

    python -m benchmarks.dashboard_pictures [--moves N] [--journals DIR...] [--out DIR]
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.bench_lab import ROOT, bench_lab
from benchmarks.job_pause import HOSTS, Bench
from benchmarks.move_picture import film
from orchestrator.telemetry.reader import read_points
from tests.dashboards.drawing import CHROMIUM, LIBRARY, browser, build, drawn
from tests.dashboards.grafana import DASHBOARDS
from tests.dashboards.server import Influx, binary, serving

FOLDER = ROOT / "docs" / "how-to"
FILLED = ("live", "reconfiguration", "fabric", "training")
QUALITY = 60
MARGIN_MS = 1500


def draw(influx: Influx, journals: Sequence[Path], folder: Path) -> None:
    """Write a picture of each dashboard that shows these runs."""
    folder.mkdir(parents=True, exist_ok=True)
    influx.make("real")
    times = []
    for journal in journals:
        influx.load("real", journal)
        times += [point.time_ns // 1_000_000 for point in read_points(journal)]
    begin, end = min(times) - MARGIN_MS, max(times) + MARGIN_MS
    with browser() as chromium:
        for name in FILLED:
            dashboard = DASHBOARDS[f"testbed-{name}"]
            with drawn(chromium, dashboard, begin, end, partial(influx.ask, "real")) as (page, _):
                height = page.locator("#dashboard").bounding_box()
                assert height is not None
                page.set_viewport_size({"width": 1600, "height": int(height["height"])})
                session = page.context.new_cdp_session(page)
                taken = session.send(
                    "Page.captureScreenshot", {"format": "webp", "quality": QUALITY}
                )
            path = folder / f"grafana-{name}.webp"
            path.write_bytes(base64.b64decode(taken["data"]))
            print(f"{path}: {path.stat().st_size // 1000} kB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=int, default=4, help="how many the ranks pass through")
    parser.add_argument("--journals", type=Path, nargs="+", help="directories of runs to draw")
    parser.add_argument("--out", type=Path, default=FOLDER)
    given = parser.parse_args()
    influxd = binary()
    if influxd is None or CHROMIUM is None or not LIBRARY.is_dir():
        sys.exit("no picture was drawn: scripts/install-deps influxdb chromium, then make drawing")
    build()
    with tempfile.TemporaryDirectory() as folder, serving(influxd, Path(folder)) as influx:
        if given.journals:
            draw(influx, given.journals, given.out)
            return
        with bench_lab(len(HOSTS)) as lab:
            lab.settle(0.05)
            bench = Bench(lab)
            lab.call("up", "--topology", bench.plans["auto", 0])
            for _ in range(given.moves):
                film(bench)
            draw(
                influx,
                sorted({path.parent for path in (lab.folder / "runs").rglob("telemetry")}),
                given.out,
            )


if __name__ == "__main__":
    main()
