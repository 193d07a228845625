"""A job with a shadow against the same job without, and with a checkpoint every iteration; what
kills of its ranks then cost.

    python benchmarks/shadow.py [time | kills] Five hosts, four of them with ranks that train a
perceptron of 399 370 parameters over one ring. Arms by turns in one run: none; tap (`job.shadow`);
sync, a checkpoint every iteration; async, the same in a thread, which is only reported. An
iteration is from the end of the one before to its own; ratios of medians with their intervals.
Links of 500 Mb/s, as in extensions/shadow/scenarios/checkmate: links here are dilated a hundredfold
and disks, which are memory, are not, so at the usual 250 Mb/s a checkpoint is a smaller part of an
iteration, whatever a shadow does. The ratios there are reported, too.

Equal: share of iterations that the shadow says it followed. That it is never different without
saying so is looked at here: the file that the shadow leaves is held, bit by bit, against the
checkpoint of the same iteration that the ranks wrote: at the end of each job with a tap, and after
each kill. To have one there, the ranks of the jobs that are killed write one every iteration.

Kills: SIGKILL to a random rank at a random moment, then `testbed job restore`. Lost are the
iterations that rank 0 had noted beyond the one it goes on from. Baseline: a job without a shadow,
with a checkpoint every 20 iterations, killed at moments drawn one from each twentieth of that
period, and `testbed up` again.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from benchmarks.job_rig import CHECKPOINTS, Trained, lines, newest, ratio, root, state_hash, trained
from benchmarks.slot_rig import pids
from orchestrator.experiments.scenario.record import order
from workloads.training.eager import import_torch

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
SHADOW = "gpu05"
ARMS: dict[str, dict[str, Any]] = {
    "none": {},
    "tap": {},
    "sync": {"checkpoint_every": 1},
    "async": {"checkpoint_every": 1, "checkpoint": "async"},
}
ROUNDS, ITERATIONS, WARM = 4, 120, 20
MBPS, USUAL_MBPS, USUAL_ROUNDS = "500", "250", 3
KILLS, EVERY = 20, 20
TAPPED, SYNC, EQUAL, HALF = (0.98, 1.02), 1.3, 0.99, 0.2
WITHIN_S = 60.0


def plan(lab: BenchLab, name: str, args: dict[str, Any], *, shadow: bool) -> Path:
    job: dict[str, Any] = {
        "name": name,
        "workload": "train",
        "ranks": HOSTS,
        "rings": [HOSTS],
        "args": args,
    }
    if shadow:
        job["shadow"] = {"host": SHADOW, "taps": "auto"}
    return lab.plan(name, ring_links(1, (1, 2), len(HOSTS)), job=job)


def newest_checkpoint(pid: int, iteration: int | None = None) -> Path | None:
    """The checkpoint that a host wrote last, of this iteration if one is given."""
    found = list(
        (root(pid) / CHECKPOINTS).rglob(
            f"checkpoint-*-{'*' if iteration is None else iteration}.pt"
        )
    )
    return max(found, key=lambda path: path.stat().st_mtime_ns) if found else None


def same_bits(lab: BenchLab, torch: Any) -> tuple[int, bool | None]:
    """The iteration of the shadow's file, and whether the ranks' checkpoints of it have the same
    bits; None: there are none.
    """
    hosts = pids(lab)
    kept = newest_checkpoint(hosts[SHADOW])
    if kept is None:
        return 0, None
    iteration = int(kept.stem.split("-")[2])
    own = [path for host in HOSTS if (path := newest_checkpoint(hosts[host], iteration))]
    return iteration, {state_hash(torch, path) for path in own} == {
        state_hash(torch, kept)
    } if own else None


class Followed:
    """What the shadows said of iterations, and what was found of it."""

    def __init__(self) -> None:
        self.equal = self.judged = self.compared = self.different = 0

    def add(self, lab: BenchLab, torch: Any, job: str) -> int:
        """Look at a shadow whose job has ended; return the iteration of its checkpoint."""
        pid = pids(lab)[SHADOW]
        folder = newest(pid, job)
        reports = lines(folder / "shadow.jsonl") if folder else []
        self.equal, self.judged = (
            self.equal + sum(one["equal"] for one in reports),
            self.judged + len(reports),
        )
        iteration, same = same_bits(lab, torch)
        self.compared, self.different = (
            self.compared + (same is not None),
            self.different + (same is False),
        )
        return iteration


def timed(
    lab: BenchLab, torch: Any, seen: Followed, arms: Sequence[str], rounds: int
) -> dict[str, Any]:
    """Run these arms by turns; the ratios of their medians to that of the first, with intervals."""
    found: dict[str, list[Trained]] = {arm: [] for arm in arms}
    for arm in order(arms, rounds):
        args = {
            "hidden": 512,
            "batch": 16,
            "iterations": ITERATIONS,
            "checkpoint_every": ITERATIONS,
        } | ARMS[arm]
        found[arm].append(
            one := trained(lab, plan(lab, "timed", args, shadow=arm == "tap"), "timed", HOSTS, 120)
        )
        text = ""
        if arm == "tap":
            time.sleep(1.0)
            text = f", its shadow kept {seen.add(lab, torch, 'timed')} of {ITERATIONS}"
        took = one.took_ms(WARM)
        print(
            f"  {arm:<6} {statistics.median(took):6.1f} ms, computing {computing(one):5.1f}{text}",
            flush=True,
        )
    lab.call("down", "--yes")
    figures: dict[str, Any] = {
        "rounds": rounds,
        "none_ms": round(
            statistics.median(v for one in found["none"] for v in one.took_ms(WARM)), 1
        ),
    }
    alone = [one.took_ms(WARM) for one in found[arms[0]]]
    figures |= {arm: ratio(alone, [one.took_ms(WARM) for one in found[arm]]) for arm in arms[1:]}
    return figures


def computing(one: Trained) -> float:
    """What of an iteration is no exchange (ms, median)."""
    return statistics.median(
        float(r["iter_ms"]) - float(r["comm_ms"]) for r in one.records if r["iter"] > WARM
    )


def ranks(pid: int) -> list[int]:
    """The processes of `train` on the host with this first process."""
    net, found = Path(f"/proc/{pid}/ns/net").readlink(), []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if (
                each.name.isdigit()
                and b"workloads.programs.train" in (each / "cmdline").read_bytes()
                and (each / "ns/net").readlink() == net
            ):
                found.append(int(each.name))
    return found


def made(lab: BenchLab, job: str) -> int:
    """The last iteration that rank 0's newest launch has noted."""
    folder = newest(pids(lab)[HOSTS[0]], job)
    records = lines(folder / "iterations.jsonl") if folder else []
    return int(records[-1]["iter"]) if records else 0


def until(what: Callable[[], bool], text: str, every_s: float = 0.02) -> None:
    """Wait. Raises: RuntimeError - in vain."""
    give_up = time.monotonic() + WITHIN_S
    while not what():
        if time.monotonic() > give_up:
            raise RuntimeError(f"in vain: {text}")
        time.sleep(every_s)


def kill(lab: BenchLab, job: str, host: str) -> tuple[int, dict[str, Any]]:
    """Kill a rank; once the job has ended: the iterations that it had made, and its state."""
    for pid in ranks(pids(lab)[host]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    status: dict[str, Any] = {}

    def ended() -> bool:
        status.update(lab.call("job", "status", check=False))
        shadows = status["attached"].get("shadow", ())
        alive = [
            status["state"] in ("starting", "running"),
            *(each["state"] == "running" for each in shadows),
        ]
        return not any(alive)

    until(ended, f"the job ends whose rank on {host} was killed", 0.2)
    return made(lab, job), status


def shadowed(lab: BenchLab, torch: Any, chance: random.Random, seen: Followed) -> list[int]:
    """Kill ranks of a job with a shadow; the iterations lost each time."""
    path, losses = (
        plan(lab, "kills", {"iterations": 0, "hidden": 256, "checkpoint_every": 1}, shadow=True),
        [],
    )
    lab.call("up", "--topology", path)
    begun = 0
    for number in range(1, KILLS + 1):
        until(lambda begun=begun: made(lab, "kills") > begun + 3, "the job trains")  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 1.5))
        host = chance.choice(HOSTS)
        last, _ = kill(lab, "kills", host)
        kept = seen.add(lab, torch, "kills")
        try:
            begun = int(lab.call("job", "restore")["resumed_from"])
        except RuntimeError as error:
            print(f"  kill {number} of {host}: not restored: {error}", flush=True)
            losses.append(last)
            lab.call("up", "--topology", path)
            begun = made(lab, "kills")
            continue
        losses.append(last - begun)
        print(
            f"  kill {number} of {host} after iteration {last}: kept {kept}, goes on from {begun}",
            flush=True,
        )
    lab.call("down", "--yes")
    return losses


def every(lab: BenchLab, chance: random.Random) -> list[int]:
    """Kill ranks of a job with a checkpoint every so many iterations; the iterations lost each
    time.
    """
    args = {"iterations": 0, "hidden": 256, "checkpoint_every": EVERY}
    path, losses, begun = plan(lab, "every", args, shadow=False), [], 0
    lab.call("up", "--topology", path)
    for number in chance.sample(range(KILLS), KILLS):
        phase = (number + chance.random()) * EVERY / KILLS
        until(lambda begun=begun: made(lab, "every") >= begun + EVERY, "the job trains")  # type: ignore[misc]
        until(lambda phase=phase: made(lab, "every") % EVERY == int(phase), "that moment", 0.002)  # type: ignore[misc]
        last, _ = kill(lab, "every", chance.choice(HOSTS))
        lab.call("up", "--topology", path)
        folder: list[dict[str, Any]] = []

        def again(last: int = last, folder: list[dict[str, Any]] = folder) -> bool:
            place = newest(pids(lab)[HOSTS[0]], "every")
            folder[:] = lines(place / "iterations.jsonl") if place else []
            return bool(folder) and folder[-1]["iter"] <= last + 10 * EVERY

        until(again, "the job goes on")
        begun = int(folder[0]["iter"]) - 1
        losses.append(last - begun)
        print(f"  kill after iteration {last}: goes on from {begun}", flush=True)
    lab.call("down", "--yes")
    return losses


def main() -> int:
    """Measure and print; return the exit code."""
    parts = sys.argv[1:] or ["time", "kills"]
    torch, chance, seen = import_torch(), random.Random(18), Followed()
    figures: dict[str, Any] = {}
    value, good = 0.0, True
    size = ["--ports", "2", "--settle-s", "0.02", "--rate-mbps"]
    if "time" in parts:
        with bench_lab(len(HOSTS) + 1, *size, MBPS) as lab:
            figures |= timed(lab, torch, seen, list(ARMS), ROUNDS)
        value = figures["tap"][0]
        good &= TAPPED[0] <= value <= TAPPED[1] and figures["sync"][0] >= SYNC
        with bench_lab(len(HOSTS) + 1, *size, USUAL_MBPS) as lab:
            figures[f"at {USUAL_MBPS} Mb/s"] = timed(lab, torch, seen, list(ARMS)[:3], USUAL_ROUNDS)
    if "kills" in parts:
        with bench_lab(len(HOSTS) + 1, *size, USUAL_MBPS) as lab:
            losses, usual = shadowed(lab, torch, chance, seen), every(lab, chance)
        half = statistics.fmean(usual) / (EVERY / 2)
        figures |= {
            "kills": len(losses),
            "most_lost": max(losses),
            "losses": losses,
            "every": usual,
            "every_of_half": round(half, 3),
        }
        good &= len(losses) >= KILLS and max(losses) <= 1 and abs(half - 1) <= HALF
    share = seen.equal / max(1, seen.judged)
    figures["equal"] = [seen.equal, seen.judged, round(share, 4)]
    figures["compared"] = f"{seen.different} of {seen.compared} differ"
    print(f"  {figures}; load {os.getloadavg()[0]:.1f}")
    good &= share >= EQUAL and seen.different == 0 and seen.compared > 0
    return verdict(
        "shadow",
        value,
        "of none",
        TAPPED[1] if "time" in parts else None,
        "at most",
        also=good,
        **figures,
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
