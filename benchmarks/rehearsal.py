"""How well a rehearsal foretells a change: dark time and total, predicted on the twin and then
measured, over families of devices.

Each lab's devices switch half as fast again as their data sheets say, which only the journals of
two earlier changes can tell. Then every change is rehearsed and made, in turn. No command that
could change a device of the lab may arrive while it is rehearsed. Both share this machine's
processors, and the twin runs beside an idle lab. It passes if each change is within both limits.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict

HOSTS = 4
SLOWER = 1.5
"""Of the switching time of the data sheet."""
EARLIER = 2
DARK, TOTAL = 0.15, 0.25
LABS: dict[str, tuple[int, tuple[str, ...]]] = {
    "mems": (4, ()),
    "robot": (2, ("--driver", "rome-cli")),
    "wss": (2, ("--driver", "lumentum-netconf")),
    "sonic": (2, ("--driver", "sonic-ocs")),
}
"""How many changes are made on each lab, and how it is generated."""
CYCLES = ((1, 2, 3, 4), (1, 3, 2, 4), (1, 2, 4, 3), (1, 4, 2, 3), (1, 3, 4, 2), (1, 4, 3, 2))


def ring(lab: BenchLab, number: int, ports: int) -> Path:
    """A plan of one-way rings: on port p the hosts follow each other in the order of cycle number +
    p.
    """
    links = []
    for port in range(1, ports + 1):
        cycle = CYCLES[(number + port) % len(CYCLES)]
        links += [
            (f"gpu{a:02d}:p{port}", f"gpu{b:02d}:p{port}")
            for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True)
        ]
    body = [{"a": a, "b": b, "kind": "simplex"} for a, b in links]
    path = lab.plan(f"ring-{number}", [], acceptance={"max_loss_db": 14.0})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"links": body}))
    return path


def one_lab(
    name: str, count: int, options: tuple[str, ...]
) -> tuple[list[float], list[float], int]:
    """The errors of dark time and total of each change (shares), and how many commands to devices
    the rehearsals caused.
    """
    dark, total, written = [], [], 0
    ports = 1 if options else 4
    with bench_lab(HOSTS, *options) as lab:
        for device, found in lab.ask("status")["devices"].items():
            lab.ask("settle", device=device, s=SLOWER * found["settle_s"])
        for number in range(EARLIER):
            lab.call("up", "--topology", ring(lab, number, ports))
        for number in range(EARLIER, EARLIER + count):
            plan = ring(lab, number, ports)
            before = lab.ask("writes")["writes"]
            seen = lab.call("plan", "--rehearse", "--topology", plan)
            written += sum(lab.ask("writes")["writes"].values()) - sum(before.values())
            made = lab.call("up", "--topology", plan)
            took_s = max(p["begin_s"] + p["seconds"] for p in made["phases"])
            dark.append(seen["dark_ms"] / made["dark_ms"] - 1)
            total.append(seen["total_s"] / took_s - 1)
            print(
                f"  {name:<6} dark {seen['dark_ms']:7.1f} foretold, {made['dark_ms']:7.1f} ms measured ({dark[-1]:+.0%});"
                f" total {seen['total_s']:5.2f}, {took_s:5.2f} s ({total[-1]:+.0%}); rehearsed in {seen['took_s']:.0f} s",
                flush=True,
            )
    return dark, total, written


def main() -> int:
    dark: list[float] = []
    total: list[float] = []
    written = 0
    for name, (count, options) in LABS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        found = one_lab(name, count, options)
        dark += map(abs, found[0])
        total += map(abs, found[1])
        written += found[2]
    within = sum(off <= DARK for off in dark), sum(off <= TOTAL for off in total)
    print(
        f"  of {len(dark)} changes {within[0]} within {DARK:.0%} of dark time, {within[1]} within {TOTAL:.0%} of the total",
        flush=True,
    )
    return verdict(
        "rehearsal",
        max(dark),
        "of dark, worst change",
        DARK,
        "at most",
        also=max(total) <= TOTAL and written == 0,
        worst_total=round(max(total), 3),
        total_limit=TOTAL,
        median_dark=round(statistics.median(dark), 3),
        median_total=round(statistics.median(total), 3),
        changes=len(dark),
        dark_within=within[0],
        total_within=within[1],
        writes=written,
    )


if __name__ == "__main__":
    sys.exit(main())
