"""Two tenants on one WSS: beside each other on disjoint wavelengths, and by turns on wavelengths
that they share.

Six hosts at an emulated ROADM, all light over one trunk; gpu05 and gpu06 send on the wavelengths of
gpu01 and gpu02. A tenant is a pair of hosts with a TCP connection each way at full rate. Disjoint:
two owners bring up a plan each; judged is what gpu01 and gpu02 carry alone over what they carry
beside gpu03 and gpu04. Shared: a schedule gives gpu01 and gpu02 the wavelengths in one slot, gpu05
and gpu06 in the other; judged is what each pair carries, of what A carries alone, against its share
of time by the plan. Both at once must be refused: as a plan, and by the device when it gets the
command.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict
from benchmarks.slot_rig import Flow, flows
from drivers.session import routes
from optics import Change, Setting, TestbedError
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.session import load_lab, open_session

A, B, C = ("gpu01", "gpu02"), ("gpu03", "gpu04"), ("gpu05", "gpu06")
SOLO_RATIO, DUTY_SHARE = 1.03, 0.10
SETTLE_S, DWELL_S, GUARD_S, WINDOW_S, ROUNDS, CYCLES = 0.2, 1.5, 0.02, 5.0, 5, 12
LAB = (
    "--driver",
    "lumentum-netconf",
    "--ports",
    "1",
    "--wavelengths",
    "4",
    "--settle-s",
    str(SETTLE_S),
    "--rate-mbps",
    "50",
)


def both(pair: tuple[str, str]) -> list[tuple[str, str]]:
    return [pair, (pair[1], pair[0])]


def plan(lab: BenchLab, name: str, *pairs: tuple[str, str], **more: object) -> Path:
    return lab.plan(
        name, [(f"{a}:p1", f"{b}:p1") for a, b in pairs], acceptance={"max_loss_db": 14}, **more
    )


def carried(running: Sequence[Flow], seconds: float) -> tuple[float, float, float]:
    """Bytes a second of all these from now on, and from when to when (s)."""
    begin = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    time.sleep(0.2)
    return sum(flow.rate(begin, end) for flow in running), begin, end


def disjoint(lab: BenchLab) -> tuple[float, float]:
    """What A carries alone and beside B (bytes a second, medians of rounds by turns)."""
    for name, pair in (("a", A), ("b", B)):
        lab.call("up", "--topology", plan(lab, name, pair), "--as", name)
    alone, neighbours = [], []
    with flows(lab, both(A)) as mine:
        time.sleep(2)
        for number in range(ROUNDS):
            alone.append(carried(mine, WINDOW_S)[0])
            with flows(lab, both(B), 6000 + 10 * number):
                time.sleep(1)
                neighbours.append(carried(mine, WINDOW_S)[0])
    for name, rates in (("alone", alone), ("beside B", neighbours)):
        print(
            f"  disjoint wavelengths, A {name}: {', '.join(f'{r * 8e-6:.1f}' for r in rates)} Mb/s",
            flush=True,
        )
    return statistics.median(alone), statistics.median(neighbours)


def refused(lab: BenchLab) -> tuple[str, str]:
    """What the planner says to A and C at once, and the device to the light of C while A has it;
    empty where it takes it.
    """
    at_once, reported = plan(lab, "at-once", A, C), ""
    try:
        lab.call("plan", "--topology", at_once, "--as", "a")
    except RuntimeError as error:
        reported = next((line for line in str(error).splitlines() if "overlap" in line), "")
    inventory = load_lab(lab.inventory)
    wanted = plan(lab, "c", C)
    asked = read_plan(wanted.read_text(), str(wanted), inventory)
    goal = target(asked, inventory, dict.fromkeys(inventory.devices, frozenset()), ())
    return reported, asyncio.run(shown(lab, frozenset(itertools.chain(*goal.wanted.values()))))


async def shown(lab: BenchLab, settings: frozenset[Setting]) -> str:
    """Tell the device itself, past the planner and the driver's own check; what it answers, empty
    where it does so.
    """
    setattr(routes, "blocking", lambda route, state: "")  # noqa: B010
    async with open_session(load_lab(lab.inventory), lab.inventory, lab.folder) as session:
        (device,) = session.devices.values()
        try:
            outcome = await device.apply(Change(device.name, add=settings))
        except TestbedError as error:
            return str(error)
        return "; ".join(outcome.failed.values())


def shared(lab: BenchLab, alone: float) -> dict[str, float]:
    """What A and C carry by turns, of what A carries alone; the share that the plan gives each."""
    slots = [{"links": [{"a": f"{a}:p1", "b": f"{b}:p1"}]} for a, b in (A, C)]
    # only these must meet
    job = {"name": "none", "workload": "allreduce", "ranks": list(A), "rings": [list(A)]}
    alternating = plan(
        lab, "by-turns", schedule={"slots": slots, "dwell_s": DWELL_S, "guard_s": GUARD_S}, job=job
    )
    lab.call("up", "--topology", alternating, "--no-job")
    with flows(lab, both(A)) as one, flows(lab, both(C), 6000) as other:
        time.sleep(4 * DWELL_S)
        rate, begin, end = carried(one, 2 * CYCLES * (DWELL_S + SETTLE_S))
        rates = [rate, sum(flow.rate(begin, end) for flow in other)]
    (state,) = (lab.folder / "data" / "schedule").glob("*.json")
    duty = float(json.loads(state.read_text().partition("\n")[0])["planned_duty"]) / 2
    lab.call("service", "stop", "schedule")
    return {"duty": duty, "a": rates[0] / alone, "c": rates[1] / alone}


def main() -> int:
    with bench_lab(6, *LAB) as lab:
        alone, neighbour = disjoint(lab)
        planner, device = refused(lab)
        for name in ("a", "b"):
            lab.call("down", "--yes", "--as", name)
        found = shared(lab, alone)
        lab.call("down", "--yes")
    off = max(abs(found[who] / found["duty"] - 1) for who in ("a", "c"))
    print(
        f"  one wavelength at once: the planner says: {planner or 'NOTHING'}\n    the device says: {device or 'NOTHING'}"
    )
    print(
        f"  one wavelength by turns: A carries {found['a']:.3f} and C {found['c']:.3f} of what A carries alone; by the plan"
        f" {found['duty']:.3f}"
    )
    also = off <= DUTY_SHARE and bool(planner) and bool(device)
    figures = {name: round(value, 4) for name, value in found.items()}
    return verdict(
        "spectral",
        alone / neighbour,
        "x",
        SOLO_RATIO,
        "at most",
        also=also,
        duty_off=round(off, 4),
        **figures,
    )


if __name__ == "__main__":
    sys.exit(main())
