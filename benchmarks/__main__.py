"""Run the benchmarks: `python -m benchmarks [all | NAME...]`; each prints its figures and ends with
one JSON line.

Some measure another checkout in turn with this one: `python -m benchmarks NAME --against PATH`.
`--record` keeps the figures in `benchmarks/records/` and on the page docs/reference/benchmarks.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import figures

HERE = Path(__file__).parent
NAMES = (
    "cli_start",
    "lab_boot",
    "rotor",
    "slots",
    "slot_holds",
    "gated",
    "adapt",
    "fabric_rate",
    "up_total",
    "journal_cost",
    "dark_window",
    "move_cost",
    "hold_flush",
    "job_pause",
    "allreduce",
    "backend",
    "heartbeats",
    "tl1_parse",
    "reader_growth",
    "driver_overhead",
    "emulator_scale",
    "growth",
    "large_lab",
    "reroute",
    "recovery",
    "storm",
    "influx_sink",
    "planner",
    "prediction",
    "match",
    "tend",
    "second_opinion",
    "sweep",
    "slices",
    "wavelengths",
    "influx_hole",
    "sampling",
    "report",
    "ui_latency",
    "rehearsal",
    "diagnosis",
    "count_action",
    "compression",
    "aggregation",
    "shadow",
    "xdp",
)
AGAINST = ("cli_start", "up_total", "dark_window")


def main() -> int:
    """Run what was asked, one after the other, and close with a table of value, limit and
    verdict.
    """
    argv = [word for word in sys.argv[1:] if word != "--record"]
    kept = len(argv) < len(sys.argv) - 1
    at = argv.index("--against") if "--against" in argv else len(argv)
    wanted, other = (
        argv[:at] or ["all"],
        [str(Path(word).resolve()) if number else word for number, word in enumerate(argv[at:])],
    )
    names = list(NAMES) if wanted == ["all"] else wanted
    if unknown := [n for n in names if n not in NAMES]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if other and (bad := [n for n in names if n not in AGAINST]):
        print(f"--against is for {', '.join(AGAINST)}, not for {', '.join(bad)}", file=sys.stderr)
        return 2
    results: list[dict[str, object]] = []
    for name in names:
        print(f"== {name}", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), *other]
        about, last = figures.here(), ""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent
        ) as running:
            for last in running.stdout or ():
                print(last, end="", flush=True)
        try:
            results.append(json.loads(last))
        except ValueError:
            results.append(
                {
                    "name": name,
                    "value": None,
                    "unit": "",
                    "limit": None,
                    "ratio": None,
                    "pass": False,
                }
            )
            continue
        if kept and "skipped" not in results[-1]:
            figures.record(name, results[-1], about)
    if len(results) > 1:
        print("== summary")
        for r in results:
            verdict = "skipped" if "skipped" in r else "ok" if r.get("pass") else "NOT MET"
            print(
                f"{r['name']!s:<14} {r['value']!s:>12} {r['unit']!s:<8} limit {r['limit']!s:<8} ratio {r['ratio']!s:<8} {verdict}"
            )
    return 0 if all(r.get("pass") for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
