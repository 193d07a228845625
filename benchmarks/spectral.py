"""Two tenants on one WSS: beside each other on disjoint wavelengths, and by turns on a wavelength that they share.

Four hosts at an emulated ROADM, all light over one trunk; tenant A has gpu01 and gpu02, tenant B gpu03 and gpu04, each a TCP
connection each way at full rate. Disjoint: two owners bring up a plan each; judged is what A carries alone over what it carries
beside B. Shared: the transmitters of B get the wavelengths of A, and a schedule lets each tenant have them in turn; judged is
what A carries, of what it carries alone, against the share of time that the plan gives it. Both at once must be refused as a plan.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict
from benchmarks.slot_rig import Flow, flows, lit, overlap

A, B = ("gpu01", "gpu02"), ("gpu03", "gpu04")
SOLO_RATIO, DUTY_SHARE = 1.03, 0.10
SETTLE_S, DWELL_S, GUARD_S, WINDOW_S, ROUNDS, CYCLES = 0.2, 1.5, 0.02, 5.0, 3, 12
WAVES = {"gpu03": ("-248", "-280"), "gpu04": ("-232", "-264")}


def carried(running: Sequence[Flow], seconds: float) -> tuple[float, float, float]:
    """Bytes a second of all these from now on, and from when to when (s)."""
    begin = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    time.sleep(0.2)
    return sum(flow.rate(begin, end) for flow in running), begin, end


def both(pair: tuple[str, str]) -> list[tuple[str, str]]:
    return [pair, (pair[1], pair[0])]


def link(pair: tuple[str, str]) -> tuple[str, str]:
    return f"{pair[0]}:p1", f"{pair[1]}:p1"


def disjoint(lab: BenchLab) -> tuple[float, float]:
    """What A carries alone and beside B (bytes a second, medians of rounds by turns)."""
    plans = {name: lab.plan(name, [link(pair)]) for name, pair in (("a", A), ("b", B))}
    for name in ("a", "b"):
        lab.call("up", "--topology", plans[name], "--as", name)
    alone, beside = [], []
    with flows(lab, both(A)) as mine:
        time.sleep(2)
        for number in range(ROUNDS):
            alone.append(carried(mine, WINDOW_S)[0])
            with flows(lab, both(B), 6000 + 10 * number):
                time.sleep(1)
                beside.append(carried(mine, WINDOW_S)[0])
    for name in ("a", "b"):
        lab.call("down", "--yes", "--as", name)
    words = "; ".join(
        f"{what} {', '.join(f'{r * 8e-6:.1f}' for r in rates)}" for what, rates in (("A alone", alone), ("beside B", beside))
    )
    print(f"  disjoint wavelengths: {words} Mb/s", flush=True)
    return statistics.median(alone), statistics.median(beside)


def shared(lab: BenchLab, alone: float) -> dict[str, float | bool]:
    """A's share of what it carries alone, by turns with B on its wavelengths; the plan's, and the light's at the glass."""
    file = lab.inventory / "fibres.yml"
    lines = file.read_text().splitlines(keepends=True)
    for host, (own, others) in WAVES.items():
        lines = [x.replace(f"n: {own},", f"n: {others},") if f"host: {host}," in x else x for x in lines]
    file.write_text("".join(lines))
    lab.call("lab", "stop")
    lab.call("lab", "start")
    try:
        lab.call("plan", "--topology", lab.plan("at-once", [link(A), link(B)]))
        refused = False
    except RuntimeError as error:
        refused = "overlap" in str(error)
        print(f"  both at once: {str(error).splitlines()[0]}")
    slots = [{"links": [dict(zip("ab", link(pair), strict=True))]} for pair in (A, B)]
    job = {"name": "none", "workload": "allreduce", "ranks": list(A), "rings": [list(A)]}
    schedule = {"slots": slots, "dwell_s": DWELL_S, "guard_s": GUARD_S}
    lab.call("up", "--topology", lab.plan("by-turns", [], schedule=schedule, job=job), "--no-job")
    with flows(lab, both(A)) as mine, flows(lab, both(B), 6000):
        time.sleep(4 * DWELL_S)
        rate, begin, end = carried(mine, 2 * CYCLES * (DWELL_S + SETTLE_S))
    spans = lit(lab)
    light = [overlap(spans.get(pair, []), begin, end) / (end - begin) for pair in (A, B)]
    (state,) = (lab.folder / "data" / "turn").glob("*.json")
    duty = float(json.loads(state.read_text().partition("\n")[0])["planned_duty"]) / 2
    lab.call("turn", "--stop")
    lab.call("down", "--yes")
    print(
        f"  one wavelength by turns: A carries {rate / alone:.3f} of what it carries alone; by the plan {duty:.3f}; light at the"
        f" glass {light[0]:.3f} of the time, of B {light[1]:.3f}; refused at once: {refused}"
    )
    return {"share": rate / alone, "duty": duty, "light": light[0], "light_b": light[1], "refused": refused}


def main() -> int:
    with bench_lab(4, "--driver", "lumentum-netconf", "--ports", "1", "--settle-s", str(SETTLE_S), "--rate-mbps", "50") as lab:
        alone, beside = disjoint(lab)
        found = shared(lab, alone)
    off = abs(found["share"] / found["duty"] - 1)
    also = off <= DUTY_SHARE and bool(found["refused"])
    figures = {name: value if isinstance(value, bool) else round(value, 4) for name, value in found.items()}
    return verdict("spectral", alone / beside, "x", SOLO_RATIO, "at most", also=also, duty_off=round(off, 4), **figures)


if __name__ == "__main__":
    sys.exit(main())
