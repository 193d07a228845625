"""How often and how soon `testbed job diagnose` names the right component, for faults of devices,
fibres, hosts and links.

Twelve hosts train over a ring with six chords; four of them are also joined by a packet switch.
Each trial brings one fault about by `testbed lab fault` or `lab fibre`, on another host and port
each time, and asks for a diagnosis again and again until a fault is named: that first name counts,
right or wrong. No name within GIVE_UP_S is a miss. What is true is read from the lab's own log
(`lab fault list`), which no other command asks.

The time counts from the effect to the end of the command that names the right component, in
heartbeats of HEARTBEAT_S. The effect is the fault itself where something goes dark or ends; where
iterations only grow longer, it is when one had first lasted SLOW times the median before, by rank
0's records, and the fault itself if none had.

A fault of light counts only if the lab's own carriers show that a port went dark, and a missed one
that slows down only if an iteration was longer; trials without effect are reported apart, and are
neither right nor wrong. A wrong clock is no kind of these: the wall clock of one emulated host
cannot be set, and running programs keep theirs (docs/how-to/inject-faults.md).

The control arm has no fault: heavy verification runs beside the job, and every fault that is named
is false.

`--trials`, `--control` (s) and `--budget` (s; begin no trial that would not end within it) shorten
a run; `--kinds` chooses.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import TESTBED, BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from benchmarks.recovery import iterations
from emulators.lab.feeds import LASER_DBM
from emulators.optics.light import LOS_DBM
from orchestrator.verify.pace import BEFORE, RECENT, SLOW

HOSTS, LIMIT, BEATS, HEARTBEAT_S = 12, 0.9, 3.0, 1.0
"""A host's heartbeats are read once a second (`agent`)."""
GIVE_UP_S, TRIAL_S, LAST_S = 60.0, 30.0, 50.0
"""Longest search for a name; what a trial may take for `--budget`, and one of LAST, which needs a
new lab or job.
"""
NAMES = [f"gpu{n:02d}" for n in range(1, HOSTS + 1)]
PLUGGED, CABLE = ("gpu01", "gpu04", "gpu07", "gpu10"), 5
"""Hosts whose links over the packet switch are planned, no neighbours in the ring, and their port
there.
"""
LINKS = ring_links(1, (1, 2), HOSTS) + [
    (f"gpu{n:02d}:p3", f"gpu{n + HOSTS // 2:02d}:p3") for n in range(1, HOSTS // 2 + 1)
]
DARK_DB = LASER_DBM - LOS_DBM + 5.0
"""Loss (dB) that leaves no path of the lab enough light, whatever else it loses."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. message: of `testbed lab`; place: what the verdict must name; verdicts: of
    which kind it should be.

    In words `{host}`, `{port}`, `{device}`, `{enters}`, `{leaves}` and `{fibre}` stand for one
    place, `{other}` for a fibre of the same device that is no neighbour's, `{plugged}` for a host
    at the packet switch. slows: its effect is that iterations grow longer; dark: that ports have no
    carrier.
    """

    message: str
    place: str
    verdicts: tuple[str, ...]
    slows: bool = False
    dark: bool = False


KINDS: Mapping[str, Kind] = {
    "slow-link": Kind(
        "fault add {host} slow-link --port {port} --mbps 50", "link", ("slow-link",), slows=True
    ),
    "loss": Kind(
        "fault add {host} loss --port {port} --percent 1",
        "link",
        ("lossy-link", "slow-link"),
        slows=True,
    ),
    "link-down": Kind(
        "fault add {host} link-down --port {port}", "circuit", ("dark-circuit",), dark=True
    ),
    "hang-rank": Kind("fault add {host} hang-rank", "rank", ("hung-rank",)),
    "fibre-cut": Kind("fibre cut {fibre}", "circuit", ("dark-circuit",), dark=True),
    "dark-port": Kind(
        "fault add {device} dark-port --port {enters}", "circuit", ("dark-circuit",), dark=True
    ),
    "extra-loss": Kind(
        "fault add {device} extra-loss --port {enters} --db {dark_db}",
        "circuit",
        ("dark-circuit",),
        dark=True,
    ),
    "failed-port": Kind(
        "fault add {device} failed-port --port {leaves}", "circuit", ("dark-circuit",), dark=True
    ),
    "reboot-lose": Kind("fault add {device} reboot-lose", "device", ("dark-circuit",), dark=True),
    "tor": Kind("fault add {plugged} tor", "segment", ("dead-segment",), dark=True),
    "cable": Kind(
        f"fault add {{plugged}} link-down --port {CABLE}", "cable", ("dark-circuit",), dark=True
    ),
    "swap": Kind("fibre swap {fibre} {other}", "fibres", ("crossed-fibres",)),
    "kill-rank": Kind("fault add {host} kill-rank", "rank", ("dead-rank",)),
    "cpu-hog": Kind("fault add {host} cpu-hog --threads 4", "host", ("busy-host",), slows=True),
    "host-down": Kind("fault add {host} host-down", "host", ("dead-host",)),
}
LAST = ("cpu-hog", "host-down")
"""A job that mostly computes, and hosts that stay off until the lab is started again."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one fault led to. component, reported: the first fault named, empty if none. seconds:
    from the effect to that answer.
    """

    kind: str
    right: bool
    right_kind: bool
    component: str
    reported: str
    seconds: float
    looks: int
    effect: bool


def fits(component: str, place: str, entry: Mapping[str, Any], fibre: Mapping[str, Any]) -> bool:
    """Whether a verdict names the place of a fault that the lab logged as `entry`. fibre: that of
    its host's port.

    >>> plug = {"host": "gpu05", "port": 1, "device": "ocs1", "enters": "5", "leaves": "21"}
    >>> fits("circuit ocs1:6->21", "circuit", {}, plug), fits("circuit ocs1:6->22", "circuit", {}, plug)
    (True, False)
    >>> fits("link gpu05:p1 - gpu06:p1", "link", {}, plug), fits("link gpu05:p2 - gpu04:p2", "link", {}, plug)
    (True, False)
    """
    what, _, name = component.partition(" ")
    port = f"{fibre['host']}:p{fibre['port']}"
    ends = name.split(" - ") if what == "link" else []
    if place == "link":
        return port in ends
    if place == "circuit":
        device, _, pair = name.partition(":")
        crossed = pair.split("->")
        through = what == "circuit" and device == fibre["device"]
        return (
            through and (crossed[0] == fibre["enters"] or crossed[-1] == fibre["leaves"])
        ) or port in ends
    if place == "device":
        return what == "circuit" and name.startswith(f"{entry['device']}:")
    if place == "segment":
        return bool(component == entry["switch"])
    if place == "cable":
        return what == "cable" and name.startswith(f"{entry['host']}:p{entry['port']} ")
    if place == "fibres":
        both = {
            f"{cable.removeprefix('f-').rpartition('-')[0]}:{cable.rpartition('-')[2]}"
            for cable in (entry["a"], entry["b"])
        }
        return what == "links" and both <= set(re.findall(r"\S+:p\d+", name))
    if place == "rank":
        return what == "rank" and name in (entry["host"], f"{entry['host']}/{entry.get('rank', 0)}")
    return component == f"host {entry['host']}"


def named(verdict: Mapping[str, Any]) -> bool:
    """Whether a diagnosis names a fault."""
    return verdict["kind"] not in ("none", "unknown")


def median_beats(trials: Iterable[Trial]) -> float:
    """The median time to the right name, in heartbeats; endless if there was none."""
    return statistics.median([t.seconds for t in trials if t.right] or [math.inf]) / HEARTBEAT_S


def wilson(right: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927).

    >>> [round(x, 3) for x in wilson(9, 10)]
    [0.596, 0.982]
    """
    share, width = right / of, z * z / of
    middle, half = share + width / 2, z * math.sqrt(share * (1 - share) / of + width / of / 4)
    return (middle - half) / (1 + width), (middle + half) / (1 + width)


class Arm:
    """The lab under trial, with a job on it."""

    def __init__(self, lab: BenchLab) -> None:
        self.lab = lab
        self.plan, self.void = Path(), 0
        self.entry: dict[str, Any] = {}  # of the lab's log, on the latest fault
        self.fibres = [f for f in lab.ask("status")["fibres"] if f["port"] in (1, 2)]

    def train(self, name: str, **args: object) -> None:
        """Bring the plan up with this job, and wait until its usual pace is known."""
        job = {
            "name": name,
            "workload": "train",
            "ranks": NAMES,
            "rings": [NAMES],
            "args": {"iterations": 0, **args},
        }
        self.plan = self.lab.plan(
            name, LINKS, segments=[{"name": "ideal", "hosts": PLUGGED}], job=job
        )
        self.lab.call("up", "--topology", self.plan)
        self.settle(BEFORE + 2 * RECENT)

    def settle(self, count: int = 2 * RECENT) -> None:
        """Wait for `count` further iterations; a job that died is launched again. Raises:
        RuntimeError - they do not come.
        """
        give_up, first = time.monotonic() + 150.0, -1
        while time.monotonic() < give_up:
            now = self.lab.call("job", "status", check=False)
            if now.get("state") not in ("running", "starting"):
                self.lab.call("up", "--topology", self.plan)
                first, count = -1, max(count, BEFORE + 2 * RECENT)
            elif first < 0:
                first = now["iterations"]
            elif now["iterations"] >= first + count:
                return
            time.sleep(0.5)
        raise RuntimeError(f"the job made no {count} iterations in 150 s")

    def look(self) -> dict[str, Any]:
        """The verdict of one diagnosis; of kind `unknown` if there was none."""
        found: dict[str, Any] = self.lab.call("job", "diagnose", check=False).get("verdict", {})
        return found or {"kind": "unknown", "component": "", "evidence": ["the command failed"]}

    def trial(self, name: str, argv: list[str], fibre: Mapping[str, Any]) -> Trial:
        """One fault of kind `name`, made by these words of `testbed lab`."""
        kind = KINDS[name]
        self.lab.call("lab", *argv)
        entry = self.entry = self.logged(argv)
        seen: dict[str, Any] = {"kind": "none"}
        looks, ended, began = 0, 0.0, time.monotonic()
        while time.monotonic() < began + GIVE_UP_S:
            seen, ended, looks = self.look(), time.time(), looks + 1
            if named(seen):
                break
        effect = self.effect(entry["t_wall_ns"] / 1e9, ended, kind.slows)
        right = named(seen) and fits(seen["component"], kind.place, entry, fibre)
        mattered = (
            self.dark()
            if kind.dark
            else right or not kind.slows or name == "loss" or effect > entry["t_wall_ns"] / 1e9
        )
        done = Trial(
            kind=name,
            right=right,
            right_kind=right and seen["kind"] in kind.verdicts,
            component=seen["component"],
            reported=seen["kind"],
            seconds=ended - effect,
            looks=looks,
            effect=mattered,
        )
        output = "no effect" if not mattered else "right" if right else "MISS "
        where = " ".join(word for word in argv if not word.startswith("--"))
        print(
            f"  {where:<32} {output} {done.seconds:5.1f} s {looks} looks  {done.component} ({done.reported})",
            flush=True,
        )
        if not right:
            print("".join(f"      {line}\n" for line in seen["evidence"]), end="", flush=True)
        return done

    def logged(self, argv: Sequence[str]) -> dict[str, Any]:
        """What the lab's log says of the fault just made by these words of `testbed lab`."""
        log: list[dict[str, Any]] = self.lab.call("lab", "fault", "list")["log"]
        begun = log[-2:][0]  # of hosts: when it began, and what more is known
        return (
            begun
            if begun["event"] == "begin" and begun.get("number") == log[-1].get("number")
            else log[-1]
        )

    def dark(self) -> bool:
        """Whether a planned port has no carrier, by the lab itself."""
        hosts = self.lab.ask("status")["hosts"]
        ports = {tuple(end.split(":p")) for link in LINKS for end in link} | {
            (host, str(CABLE)) for host in PLUGGED
        }
        return any(
            not at["carrier"]
            for name, facts in hosts.items()
            for n, at in facts["ports"].items()
            if (name, n) in ports
        )

    def tried(self, name: str, step: int) -> list[Trial]:
        """A trial, from healthy to healthy; nothing if the lab refuses the fault."""
        fibre = self.fibres[(7 * step + 5 * list(KINDS).index(name) + 2) % len(self.fibres)]
        far = f"gpu{(int(fibre['host'][3:]) + 4) % HOSTS + 1:02d}"
        other = next(
            f["name"] for f in self.fibres if (f["host"], f["port"]) == (far, fibre["port"])
        )
        plugged, done = PLUGGED[step % len(PLUGGED)], list[Trial]()
        tokens = (
            KINDS[name]
            .message.format(
                **fibre, fibre=fibre["name"], other=other, plugged=plugged, dark_db=DARK_DB
            )
            .split()
        )
        try:
            done.append(self.trial(name, tokens, fibre))
            self.undo(name, tokens)
        except RuntimeError as problem:
            self.void += not done
            print(f"  {name}: {problem}", flush=True)
        return done

    def effect(self, fault: float, until: float, slows: bool) -> float:
        """When a fault (wall s) had its effect (wall s), if not after `until`."""
        if not slows:
            return fault
        ends = [at for _, at in iterations(self.lab)]
        spans = [(at, at - before) for before, at in pairwise(ends)]
        long_s = SLOW * statistics.median([span for at, span in spans if at < fault][-20:])
        # an iteration that had begun counts once it is too long, ended or not
        due = [
            at + long_s
            for at, after in pairwise([*ends, math.inf])
            if at + long_s < min(after, until)
        ]
        return next((at for at in due if at > fault), fault)

    def undo(self, name: str, argv: Sequence[str]) -> None:
        """Make the lab whole again, and wait for the job; hosts that are down stay so."""
        if name == "host-down":
            return
        if argv[1] == "swap":
            self.lab.call("lab", *argv)
        elif argv[0] == "fibre":
            self.lab.call("lab", "fibre", "splice", argv[2])
        elif name == "reboot-lose":
            give_up = time.monotonic() + 60
            while (
                self.lab.call("restore", "--yes", check=False) == {} and time.monotonic() < give_up
            ):
                time.sleep(1.0)
        elif name != "kill-rank":
            self.lab.call("lab", "fault", "remove", argv[2], str(self.entry["number"]))
        self.settle()

    def control(self, seconds: float) -> tuple[int, int, int]:
        """Diagnoses of a healthy job beside heavy verification: how many named a fault, of how
        many, and how often was verified.
        """
        false, looks, rounds, over = 0, 0, 0, threading.Event()

        def verify() -> None:
            nonlocal rounds
            while not over.is_set():
                argv = [str(TESTBED), "verify", "--qualify", "--beside-job", "--json"]
                subprocess.run(argv, env=self.lab.env, check=False, capture_output=True)
                rounds += 1

        neighbour, end = threading.Thread(target=verify), time.monotonic() + seconds
        neighbour.start()
        try:
            while time.monotonic() < end:
                seen, looks = self.look(), looks + 1
                if named(seen):
                    false += 1
                    print(
                        f"  control: FALSE {seen['component']} ({seen['kind']}): {'; '.join(seen['evidence'])}",
                        flush=True,
                    )
        finally:
            over.set()
            neighbour.join()
        return false, looks, rounds


def again(arm: Arm) -> None:
    """A new lab of the same inventory, with the same plan and job."""
    arm.lab.call("lab", "stop")
    arm.lab.call("lab", "start")
    arm.settle(BEFORE + 2 * RECENT)


def table(trials: Sequence[Trial]) -> None:
    print("  fault         right   of  right kind   heartbeats (median)   looks")
    for name in KINDS:
        tried = [trial for trial in trials if trial.kind == name]
        mine = [trial for trial in tried if trial.effect]
        if not mine:
            if tried:
                print(f"  {name:<12} {len(tried)} without effect")
            continue
        right, right_kind = sum(t.right for t in mine), sum(t.right_kind for t in mine)
        beats = median_beats(mine)
        heartbeats = f"{beats:.1f}" if beats < math.inf else "-"
        looks = statistics.median(t.looks for t in mine)
        late = f"  over {BEATS:g} heartbeats" if BEATS < beats < math.inf else ""
        lost = f"  {len(tried) - len(mine)} without effect" if len(tried) > len(mine) else ""
        print(
            f"  {name:<12} {right:6} {len(mine):4} {right_kind:11} {heartbeats:>16} {looks:7g}{late}{lost}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--control", type=float, default=1800.0)
    parser.add_argument("--budget", type=float, default=math.inf)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    kinds, until = options.kinds.split(","), time.monotonic() + options.budget
    trials: list[Trial] = []
    false = looks = rounds = 0
    last = [name for name in LAST if name in kinds]
    with bench_lab(HOSTS, "--electrical", "ideal") as lab:
        arm = Arm(lab)
        kept_s = LAST_S * options.trials * len(last)
        if first := [name for name in kinds if name not in LAST]:
            arm.train("talks")
            if options.control:
                false, looks, rounds = arm.control(options.control)
                print(
                    f"  control: {false} of {looks} diagnoses named a fault, {rounds} verifications beside",
                    flush=True,
                )
                arm.settle()
        for step in range(options.trials):
            for name in first:
                if time.monotonic() + TRIAL_S + kept_s < until:
                    trials += arm.tried(name, step)
        if last:
            arm.train("computes", hidden=512, batch=4096)
        for name in last:
            for step in range(options.trials):
                if time.monotonic() + LAST_S > until:
                    continue
                if step and name == "host-down":
                    again(arm)
                trials += arm.tried(name, step)
    table(trials)
    tried, trials = len(trials), [trial for trial in trials if trial.effect]
    slow = sorted(
        name
        for name in KINDS
        if BEATS < median_beats(t for t in trials if t.kind == name) < math.inf
    )
    right = sum(trial.right for trial in trials)
    low, high = wilson(right, len(trials))
    heartbeats = median_beats(trials)
    where = f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(
        f"  All of it emulated on one machine ({where}): these shares and times are not those of hardware."
    )
    return verdict(
        "diagnosis",
        right / len(trials),
        "right",
        LIMIT,
        "at least",
        also=heartbeats <= BEATS and not false,
        low=round(low, 3),
        high=round(high, 3),
        trials=len(trials),
        kinds=len({trial.kind for trial in trials}),
        right_kind=sum(trial.right_kind for trial in trials),
        beats_median=round(heartbeats, 1),
        beats_limit=BEATS,
        false=false,
        control_looks=looks,
        verifications=rounds,
        void=arm.void,
        no_effect=tried - len(trials),
        over_beats=slow,
    )


if __name__ == "__main__":
    sys.exit(main())
