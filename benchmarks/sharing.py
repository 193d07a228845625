"""Jobs that share links, judged from outside: a neighbour's cost, turns taken by shifts, turns
taken by congestion control.

    python benchmarks/sharing.py [neighbour] [shift] [incompatible] [three] [mltcp] Eight hosts with
an optical port and one at a packet switch whose first two racks, gpu01 and gpu02, gpu03 and gpu04,
share an uplink of 60 Mb/s each, with a queue of 128 kB; the others receive and have as much each as
a port. A job computes 0.45 s and sends 3 MB, which takes 0.4 s alone; so two fit beside each other.
Everything is measured by packets that leave the light path (share_rig.py), and each part's arms are
taken by turns in one run. Where jobs begin together, signals made them.

neighbour: a job beside another one with a third of its computing, on circuits of its own and over
the uplink, over the same alone: at most 1.03, and at least 1.3. shift:
`testbed service start pacing` over nobody's coordination, both under a fair queue for each job: at
most 1/1.3; incompatible: the same with jobs that send three quarters of their time: within a tenth,
and told. three: jobs of which one shares an uplink with each other one: at most 1/1.3 for the one
in the middle. mltcp: `congestion: mltcp` in one queue over reno under the fair queue, in the last
third of a run: at most 0.80; the gap between bursts reaches 0.95 of a burst in ten iterations, the
first three follow the equation of shifts within a quarter; alone: at most 1.03 of reno.

The figure is the number of bands that were missed.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import yaml

from optics.errors import first_line

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import TESTBED, BenchLab, write
from benchmarks.bursts import drifting, gaps, together, took
from benchmarks.harness import verdict
from benchmarks.job_rig import ratio
from benchmarks.share_rig import Load, Watched, running
from orchestrator.experiments.scenario.record import order

LIGHT, TREE, SEGMENT = 1, 2, "oversubscribed"
MBPS, KB, BYTES, COMPUTE_S = 60, 128, 3_000_000, 0.45
SHARING = (["gpu01", "gpu02"], ["gpu03", "gpu04"])
ROUNDS, COUNTED, WARM = 3, 12, 2
"""Rounds of a part's arms; iterations of a measurement, and those before that do not count."""
COORDINATE_S = 30.0
GAP_S, SLOPE, INTERCEPT, GAPS = 0.04, 1.75, 0.25, 10
"""mltcp: the gap to begin with (s), the line that windows grow by, and the iterations in which
bursts are to come apart.
"""

ONE = Load("one", (("gpu01", "gpu05", BYTES),), COMPUTE_S)
TWO = Load("two", (("gpu02", "gpu06", BYTES),), COMPUTE_S)

Figures = dict[str, tuple[float, float | None, float | None]]
"""By name: a figure, the least and the most that it should be."""


@contextmanager
def bench() -> Iterator[BenchLab]:
    """The lab, which is gone when the block ends. Raises: RuntimeError - it does not start."""
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as name:
        lab = BenchLab(Path(name))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        options = (
            "--rate-mbps",
            str(MBPS),
            "--electrical",
            f"{SEGMENT}:2@{MBPS}",
            "--rack",
            "2",
            "--queue",
            f"{KB}:job",
        )
        write(lab.inventory, lab.state, 8, 1, *options)
        page = lab.inventory / "fibres.yml"
        cables = yaml.safe_load(page.read_text())
        receiving = [[f"gpu0{n}"] for n in range(5, 9)]
        cables["segments"][0]["racks"] = [
            {"hosts": hosts, "uplink_mbps": MBPS} for hosts in (*SHARING, *receiving)
        ]
        page.write_text(yaml.safe_dump(cables))
        lab.call("lab", "start")
        try:
            yield lab
        finally:
            lab.call("lab", "stop", check=False)


def counted(
    watched: Watched, owner: str, count: int = COUNTED, since_s: float = 0.0
) -> list[float]:
    """How long each of a job's next iterations takes (s)."""
    return took(watched.running(owner, WARM + count + 1, since_s or time.time(), 60 + 4 * count))[
        WARM:
    ]


def neighbour(lab: BenchLab) -> Figures:
    """What a neighbour costs a job on circuits of its own, and over a shared uplink."""
    one, two = replace(ONE, compute_s=COMPUTE_S / 3), replace(TWO, compute_s=COMPUTE_S / 3)
    where = {"own": {"light": LIGHT}, "tree": {"segment": SEGMENT}}
    found: dict[str, list[list[float]]] = {
        f"{place}-{with_}": [] for place in where for with_ in ("alone", "shared")
    }
    for arm in order([*found], ROUNDS):
        place, with_ = arm.split("-")
        loads = [one, two] if with_ == "shared" else [one]
        plans = {load: load.plan(lab, arm, **where[place]) for load in loads}  # type: ignore[arg-type]
        with running(lab, plans, LIGHT if place == "own" else TREE) as watched:
            found[arm].append(counted(watched, "one"))
        for load in loads:
            lab.call("down", "--yes", "--as", load.owner)
        shown(arm, found[arm][-1])
    own, tree = (ratio(found[f"{place}-alone"], found[f"{place}-shared"])[0] for place in where)
    return {
        "neighbour, own circuits": (own, None, 1.03),
        "neighbour, shared tree": (tree, 1.3, None),
        "alone, tree over circuits": (
            ratio(found["own-alone"], found["tree-alone"])[0],
            0.95,
            1.05,
        ),
    }


@contextmanager
def coordinated(lab: BenchLab, argv: list[str]) -> Iterator[None]:
    """`testbed service start pacing` until the block ends, whether it returns or stays; what it
    says goes to `argv`.
    """
    with tempfile.TemporaryFile("w+") as reported:
        command = [str(TESTBED), "service", "start", "pacing", "--yes"]
        process = subprocess.Popen(
            command,
            env=lab.env,
            stdout=reported,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            with_out = time.monotonic() + COORDINATE_S
            while process.poll() is None and time.monotonic() < with_out:
                time.sleep(0.2)
            reported.seek(0)
            argv.append(reported.read())
            if process.returncode not in (0, None) and "score" not in argv[-1].lower():
                raise RuntimeError(f"pacing: exit {process.returncode}: {argv[-1]}")
            yield
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(20)
            lab.call("service", "stop", "pacing", check=False)


def steps(
    lab: BenchLab, loads: Sequence[Load], judged: str, argv: list[str]
) -> tuple[float, dict[str, float]]:
    """Iterations of a job with shifts over those without, all begun together under a fair queue;
    the share of its sending that another job's met, by arm."""
    found: dict[str, list[list[float]]] = {"off": [], "shift": []}
    met: dict[str, list[float]] = {"off": [], "shift": []}
    lab.ask("queue.share", share="job")
    for arm in order([*found], ROUNDS):
        plans = {load: load.plan(lab, arm, segment=SEGMENT) for load in loads}
        with running(lab, plans, TREE) as watched:
            for other in loads[1:]:
                watched.behind(loads[0].owner, other.owner, 0.0)
            if arm == "shift":
                with coordinated(lab, argv):
                    since = time.time()
                    found[arm].append(counted(watched, judged, since_s=since))
            else:
                since = time.time()
                found[arm].append(counted(watched, judged, since_s=since))
            others = [watched.bursts(load.owner, since) for load in loads if load.owner != judged]
            met[arm].append(max(together(watched.bursts(judged, since), other) for other in others))
        shown(arm, found[arm][-1], f"sends together with another {met[arm][-1]:.0%}")
    for load in loads:
        lab.call("down", "--yes", "--as", load.owner)
    return ratio(found["off"], found["shift"])[0], {
        arm: statistics.median(shares) for arm, shares in met.items()
    }


def shift(lab: BenchLab) -> Figures:
    found, met = steps(lab, (ONE, TWO), "one", [])
    print(f"  sent together: {met}")
    return {"shifted over unshifted": (found, None, 1 / 1.3)}


def incompatible(lab: BenchLab) -> Figures:
    """Two jobs that send three quarters of their time do not fit beside each other: left as they
    are, and told.
    """
    argv: list[str] = []
    loads = [replace(load, compute_s=COMPUTE_S / 3) for load in (ONE, TWO)]
    found, _ = steps(lab, loads, "one", argv)
    scores = [
        float(score)
        for reported in argv
        for score in re.findall(r"score\W*([01]?\.\d+|[01])\b", reported, re.IGNORECASE)
    ]
    return {
        "incompatible, coordinated over not": (found, 0.9, 1.1),
        "incompatible, score that is reported": (min(scores, default=1.0), None, 0.99),
    }


def three(lab: BenchLab) -> Figures:
    """Job two shares an uplink with job one, another with job three."""
    middle = Load("two", (("gpu02", "gpu06", BYTES), ("gpu03", "gpu07", BYTES)), COMPUTE_S)
    last = Load("three", (("gpu04", "gpu08", BYTES),), COMPUTE_S)
    found, met = steps(lab, (ONE, middle, last), "two", [])
    print(f"  sent together with the middle job: {met}")
    return {"three jobs, the middle one": (found, None, 1 / 1.3)}


def mltcp(lab: BenchLab) -> Figures:
    """Two jobs take turns by their windows, or share a fair queue; each alone."""
    arms: Mapping[str, tuple[str, str, tuple[Load, ...]]] = {
        "fair": ("job", "reno", (ONE, TWO)),
        "mltcp": ("fifo", "mltcp", (ONE, TWO)),
        "alone-reno": ("fifo", "reno", (ONE,)),
        "alone-mltcp": ("fifo", "mltcp", (ONE,)),
    }
    found: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    sends, apart = [], []
    for arm in order([*arms], ROUNDS):
        share, control, loads = arms[arm]
        lab.ask("queue.share", share=share)
        plans = {load: load.plan(lab, arm, segment=SEGMENT, congestion=control) for load in loads}
        with running(lab, plans, TREE) as watched:
            began = watched.behind("one", "two", GAP_S) if len(loads) == 2 else time.time()
            iterations = took(
                watched.running("one", 3 * COUNTED + 1, began - COMPUTE_S / 2, 60 + 12 * COUNTED)
            )
            found[arm].append(iterations[-COUNTED:] if len(loads) == 2 else iterations[WARM:])
            if arm == "alone-mltcp":
                sends += [burst.end_s - burst.begin_s for burst in watched.bursts("one")]
            elif arm == "mltcp":
                pair = (watched.bursts(owner, began - COMPUTE_S / 2) for owner in ("one", "two"))
                apart.append([abs(gap) for gap in gaps(*pair)])
        shown(
            arm,
            found[arm][-1],
            f"gaps {', '.join(f'{gap:.3f}' for gap in apart[-1][:12])} s" if arm == "mltcp" else "",
        )
    for load in (ONE, TWO):
        lab.call("down", "--yes", "--as", load.owner)
    burst_s = statistics.median(sends)
    reached = min(max(each[: GAPS + 1], default=0.0) / burst_s for each in apart)
    off = max((_off(each, burst_s) for each in apart), default=1.0)
    print(f"  a burst alone takes {burst_s:.3f} s; by the equation gaps are off {off:.2f} at most")
    return {
        "mltcp over fair queue, last third": (ratio(found["fair"], found["mltcp"])[0], None, 0.80),
        "gap of the burst in ten iterations": (reached, 0.95, None),
        "first three gaps off the equation": (off, None, 0.25),
        "mltcp alone over reno alone": (
            ratio(found["alone-reno"], found["alone-mltcp"])[0],
            None,
            1.03,
        ),
    }


def _off(seen: Sequence[float], burst_s: float) -> float:
    """By how much the three gaps after the first one are off the equation at most."""
    if len(seen) < 4:
        return 1.0
    expected = islice(drifting(seen[0], burst_s, SLOPE, INTERCEPT), 3)
    return max(abs(gap / wanted - 1) for gap, wanted in zip(seen[1:4], expected, strict=True))


def shown(arm: str, iterations: Sequence[float], more: str = "") -> None:
    print(
        f"  {arm:<12} {1e3 * statistics.median(iterations):7.1f} ms an iteration  {more}",
        flush=True,
    )


PARTS: Mapping[str, Callable[[BenchLab], Figures]] = {
    part.__name__: part for part in (neighbour, shift, incompatible, three, mltcp)
}


def main() -> int:
    """Measure and print; return the exit code."""
    parts = sys.argv[1:] or [*PARTS]
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"no part {unknown[0]}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    found: Figures = {}
    failed: dict[str, str] = {}
    with bench() as lab:
        for part in parts:
            print(f" {part}", flush=True)
            try:
                found |= PARTS[part](lab)
            except RuntimeError as error:
                failed[part] = first_line(error)
                print(f"  {part}: {error}", flush=True)
                for load in ("one", "two", "three"):
                    lab.call("job", "stop", "--as", load, check=False)
                    lab.call("down", "--yes", "--as", load, check=False)
    missed = 0
    for name, (value, least, most) in found.items():
        good = (least is None or value >= least) and (most is None or value <= most)
        missed += not good
        band = " to ".join(f"{end:.3g}" if end is not None else "any" for end in (least, most))
        print(f"  {name:<36} {value:.3f}  band {band}  {'ok' if good else 'MISSED'}")
    return verdict(
        "sharing",
        missed + len(failed),
        "bands missed",
        0,
        "at most",
        figures={name: round(value, 4) for name, (value, *_) in found.items()},
        failed=failed,
        load=round(os.getloadavg()[0], 1),
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
