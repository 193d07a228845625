"""What kills of its ranks cost a job with a shadow, and whether the shadow's states are the job's.

Five hosts, four of them with ranks that train a perceptron over one ring; 20 times SIGKILL to a
random rank at a random moment, then `testbed job restore`. Lost are the iterations that rank 0 had
noted beyond the one it goes on from.

Equal: share of iterations that the shadow says it followed. That it is never different without
saying so is looked at here: the file that the shadow leaves after a kill is held, bit by bit,
against the checkpoint of the same iteration that the ranks wrote; to have one there, they write one
every iteration. What a shadow costs the job is the scenario extensions/shadow/scenarios/checkmate.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from benchmarks.job_rig import CHECKPOINTS, lines, newest, root, state_hash
from benchmarks.slot_rig import pids
from workloads.training.eager import import_torch

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
SHADOW = "gpu05"
JOB = "kills"
KILLS, LOST, EQUAL = 20, 1, 0.99
WITHIN_S = 60.0


def plan(lab: BenchLab) -> Path:
    job = {
        "name": JOB,
        "workload": "train",
        "ranks": HOSTS,
        "rings": [HOSTS],
        "args": {"iterations": 0, "hidden": 256, "checkpoint_every": 1},
        "shadow": {"host": SHADOW, "taps": "auto"},
    }
    return lab.plan(JOB, ring_links(1, (1, 2), len(HOSTS)), job=job)


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

    def add(self, lab: BenchLab, torch: Any) -> int:
        """Look at a shadow whose job has ended; return the iteration of its checkpoint."""
        folder = newest(pids(lab)[SHADOW], JOB)
        reports = lines(folder / "shadow.jsonl") if folder else []
        self.equal += sum(one["equal"] for one in reports)
        self.judged += len(reports)
        iteration, same = same_bits(lab, torch)
        self.compared += same is not None
        self.different += same is False
        return iteration


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


def made(lab: BenchLab) -> int:
    """The last iteration that rank 0's newest launch has noted."""
    folder = newest(pids(lab)[HOSTS[0]], JOB)
    records = lines(folder / "iterations.jsonl") if folder else []
    return int(records[-1]["iter"]) if records else 0


def until(what: Callable[[], bool], text: str, every_s: float = 0.02) -> None:
    """Wait. Raises: RuntimeError - in vain."""
    give_up = time.monotonic() + WITHIN_S
    while not what():
        if time.monotonic() > give_up:
            raise RuntimeError(f"in vain: {text}")
        time.sleep(every_s)


def kill(lab: BenchLab, host: str) -> int:
    """Kill a rank; the iterations that the job had made, once it has ended."""
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
    return made(lab)


def killed(lab: BenchLab, torch: Any, seen: Followed) -> list[int]:
    """Kill ranks of a job with a shadow; the iterations lost each time."""
    path, chance, losses = plan(lab), random.Random(18), []
    lab.call("up", "--topology", path)
    begun = 0
    for number in range(1, KILLS + 1):
        until(lambda begun=begun: made(lab) > begun + 3, "the job trains")  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 1.5))
        host = chance.choice(HOSTS)
        last = kill(lab, host)
        kept = seen.add(lab, torch)
        try:
            begun = int(lab.call("job", "restore")["resumed_from"])
        except RuntimeError as error:
            print(f"  kill {number} of {host}: not restored: {error}", flush=True)
            losses.append(last)
            lab.call("up", "--topology", path)
            begun = made(lab)
            continue
        losses.append(last - begun)
        print(
            f"  kill {number} of {host} after iteration {last}: kept {kept}, goes on from {begun}",
            flush=True,
        )
    lab.call("down", "--yes")
    return losses


def main() -> int:
    """Measure and print; return the exit code."""
    torch, seen = import_torch(), Followed()
    size = ["--ports", "2", "--settle-s", "0.02", "--rate-mbps", "250"]
    with bench_lab(len(HOSTS) + 1, *size) as lab:
        losses = killed(lab, torch, seen)
    share = seen.equal / max(1, seen.judged)
    print(
        f"  iterations lost: {losses}; {seen.equal} of {seen.judged} states had the job's hash,"
        f" {seen.different} of {seen.compared} files differ; load {os.getloadavg()[0]:.1f}"
    )
    return verdict(
        "shadow",
        max(losses),
        "iterations",
        LOST,
        "at most",
        also=share >= EQUAL and seen.different == 0 and seen.compared > 0,
        kills=len(losses),
        losses=losses,
        equal=[seen.equal, seen.judged, round(share, 4)],
        different=seen.different,
        compared=seen.compared,
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
