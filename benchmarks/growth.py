"""How `up`, `up` again, a change of all circuits and `verify` grow with the lab: 12 to 192 emulated
hosts of four ports.

    python benchmarks/growth.py [--hosts 12,24] [--runs K] [--record FILE] [--figure FILE] Every run
has a lab of its own, whose hosts nothing was installed on. Of each command: the phases as its own
report names them, the processor time of the program, the emulated switches and the hosts apart
(here all share the cores; on hardware each host has its own; `others` are the kernel's threads and
whatever else runs here), and memory: of the program's largest process at its peak. Before the
change a null `up` (`floors.py`) plays `true` on the same hosts. Reckoned before its first run: at
192 hosts it takes 12 s on two quiet cores (115 ms of processors a host, with its sshd, and a second
of start), and the limit of 30 s is 2.5 of that. The slope of a phase is that of a straight line
through the logarithms of time and hosts, over all sizes and over the largest three: fixed costs
hide growth in the small ones. The worse one is judged. Phases that treat all pairs of hosts may be
quadratic, and are marked. `--record` keeps the figures; sizes that it has already are not measured
again. Needs root, and control groups of version 2.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import gcd, isqrt, log
from pathlib import Path
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import TESTBED, BenchLab, bench_lab, ring_links
from benchmarks.floors import modules, null_s
from benchmarks.harness import verdict

SIZES = (12, 24, 48, 96, 192)
LIMIT_S, LIMIT_AT = 30.0, 192
"""What a change of that many hosts may take."""
LIMIT_X = 2.5
"""And in times of the null `up`."""
LINEAR, QUADRATIC = 1.15, 2.15
"""The largest slopes of phases that treat hosts, and of those that treat all pairs of them; what is
above 1 and 2 is for noise.
"""
ALL_PAIRS = {
    "plan": "the next hops of all pairs are computed",
    "stage": "every host gets its routes to every other host",
    "forwarding": "every pair of hosts is asked for its hops",
    "verify": "its last rung is `forwarding`",
}
"""Phases that treat all pairs of hosts, and why."""
FLOOR_S, JUDGED_S = 0.01, 0.2
"""Shorter times count as the first; a phase that takes less than the second at the largest size is
not judged.
"""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Figures: TypeAlias = dict[str, Any]
"""Of one command: `phases` (s by name), `cpu_s` by whom, `memory_mb` by whom, `routes`, `pairs`."""


class Groups:
    """Control groups (version 2, no controller needed) for the `program`, the lab's `switches` with
    its fibres, and its `hosts`.
    """

    def __init__(self) -> None:
        mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
        self.parent = next(Path(argv[1]) for argv in mounts if argv[2] == "cgroup2")
        self.of = {
            whose: self.parent / f"growth-{os.getpid()}-{whose}"
            for whose in ("program", "switches", "hosts")
        }

    def __enter__(self) -> Groups:
        for group in self.of.values():
            group.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for group in self.of.values():
            # SSH connections that wait to be used again
            self.put(self.parent, *self.members(group))
            group.rmdir()

    def members(self, group: Path) -> list[int]:
        return list(map(int, (group / "cgroup.procs").read_text().split()))

    def put(self, group: Path, *pids: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))

    def take(self, lab: BenchLab) -> None:
        """Put the lab's processes into their groups; those that they start are there, too."""
        status = lab.ask("status")
        hosts = {int(host["pid"]) for host in status["hosts"].values()}
        tree = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(status["pid"])],
            capture_output=True,
            text=True,
            check=True,
        )
        self.put(
            self.of["switches"], int(status["pid"]), *({*map(int, tree.stdout.split())} - hosts)
        )
        self.put(self.of["hosts"], *hosts)

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far (s), of those that ended, too."""
        return {
            whose: int((group / "cpu.stat").read_text().split()[1]) / 1e6
            for whose, group in self.of.items()
        }

    def memory_mb(self) -> dict[str, float]:
        """Memory of what runs now as the kernel shares it out (proportional set size, MB), but for
        the program, which has ended.
        """
        found = {"switches": 0.0, "hosts": 0.0}
        for whose in found:
            for pid in self.members(self.of[whose]):
                with suppress(OSError):  # it ended
                    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                    found[whose] += (
                        sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
                        / 1000
                    )
        return found


def machine_s() -> float:
    """Processor time of everything on this machine so far (s)."""
    tokens = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    return (sum(map(int, tokens)) - int(tokens[3]) - int(tokens[4])) * TICK_S


def timed(lab: BenchLab, groups: Groups, *argv: str | Path) -> Figures:
    """Run `testbed WORDS --json` in a process of its own. Raises: RuntimeError - it failed; its
    message.
    """
    answer, group = lab.folder / "answer.json", groups.of["program"] / "cgroup.procs"
    before, machine, began = groups.cpu_s(), machine_s(), time.perf_counter()
    command = ["/bin/sh", "-c", f'echo $$ > {group} && exec "$@"', "sh", TESTBED, *argv, "--json"]
    with answer.open("w") as out:
        child = subprocess.Popen(command, env=lab.env, stdout=out)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:  # whoever ends a benchmark ends its command
            child.terminate()
            raise
    child.returncode = os.waitstatus_to_exitcode(status)
    whole, busy = time.perf_counter() - began, machine_s() - machine
    print(f"    {argv[0]}: {whole:.1f} s", flush=True)
    cpu = {whose: seconds - before[whose] for whose, seconds in groups.cpu_s().items()}
    cpu["others"] = max(0.0, busy - sum(cpu.values()))
    reply = json.loads(answer.read_text() or "{}")
    if not reply.get("ok"):
        raise RuntimeError(f"testbed {argv[0]}: exit {child.returncode}: {reply.get('message')}")
    data = reply["data"]
    phases: dict[str, float] = {"whole": whole}
    for phase in data.get("phases") or data["levels"]:
        phases[phase["name"]] = phases.get(phase["name"], 0.0) + phase["seconds"]
    phases["rest"] = whole - sum(phases.values()) + whole
    staged = " ".join(
        phase["detail"] for phase in data.get("phases", ()) if phase["name"] == "stage"
    )
    routes = re.search(r"(\d+) routes", staged)
    forwarding = " ".join(
        level["detail"] for level in data.get("levels", ()) if level["name"] == "forwarding"
    )
    pairs = re.search(r"pairs (\d+)/", forwarding)
    return {
        "phases": phases,
        "cpu_s": cpu,
        "memory_mb": {"program": usage.ru_maxrss / 1000, **groups.memory_mb()},
        "routes": int(routes[1]) if routes else 0,
        "pairs": data["pairs_ok"] if "pairs_ok" in data else int(pairs[1]) if pairs else 0,
    }


def stride(hosts: int) -> int:
    """The step of the second ring: near the square root, for few hops, and without a divisor in
    common with the number of hosts.
    """
    return next(s for s in range(isqrt(hosts) + 1, hosts) if gcd(s, hosts) == 1)


def one(hosts: int) -> Figures:
    """All commands on one new lab."""
    began = time.perf_counter()
    with Groups() as groups, bench_lab(hosts) as lab:
        ready_s = time.perf_counter() - began
        groups.take(lab)
        skip = stride(hosts)
        plans = [
            lab.plan("here", ring_links(1, (1, 2), hosts) + ring_links(skip, (3, 4), hosts)),
            lab.plan("there", ring_links(skip, (1, 2), hosts) + ring_links(1, (3, 4), hosts)),
        ]
        return {
            "lab_s": ready_s,
            "first": timed(lab, groups, "up", "--topology", plans[0], "--no-job"),
            "again": timed(lab, groups, "up", "--topology", plans[0], "--no-job"),
            "null_s": null_s(
                lab, modules(lab, "up", "--topology", plans[0], "--no-job"), play=True
            ),
            "change": timed(lab, groups, "up", "--topology", plans[1], "--no-job"),
            "verify": timed(lab, groups, "verify"),
        }


def middle(found: Sequence[Any]) -> Any:
    """The medians of figures, whatever their depth; phases that not all runs have count as 0 where
    they are missing.
    """
    if isinstance(found[0], Mapping):
        names = dict.fromkeys(name for each in found for name in each)
        return {name: middle([each.get(name, 0.0) for each in found]) for name in names}
    return statistics.median(found)


def fitted(points: Mapping[int, float]) -> float:
    """The slope of the least-squares line through the logarithms of hosts and seconds; 0 for a
    single size.
    """
    x = [log(hosts) for hosts in points]
    y = [log(max(seconds, FLOOR_S)) for seconds in points.values()]
    return statistics.linear_regression(x, y).slope if len(points) > 1 else 0.0


def slopes(points: Mapping[int, float]) -> tuple[float, float]:
    """The slopes over all sizes and over the largest three."""
    return fitted(points), fitted(dict(sorted(points.items())[-3:]))


COMMANDS = {"first": "first up", "again": "up again", "change": "change", "verify": "verify"}


def by_phase(sizes: Mapping[int, Figures], command: str) -> dict[str, dict[int, float]]:
    """The seconds of each phase by size, in the order of the largest lab's; the rest and the whole
    last.
    """
    names = list(
        dict.fromkeys(
            name
            for hosts in sorted(sizes, reverse=True)
            for name in sizes[hosts][command]["phases"]
        )
    )
    names.sort(
        key=lambda name: ("rest", "whole").index(name) + 1 if name in ("rest", "whole") else 0
    )
    return {
        name: {hosts: sizes[hosts][command]["phases"].get(name, 0.0) for hosts in sorted(sizes)}
        for name in names
    }


def limit_of(command: str, phase: str) -> float:
    """The slope that a phase may have; the whole of a command is as its phases are."""
    return QUADRATIC if phase == "whole" or phase in ALL_PAIRS else LINEAR


def row(name: str, values: Mapping[int, float], digits: int = 2, note: str = "") -> None:
    """Print one line, with both slopes where there are several sizes."""
    both = "   {:5.2f}  {:5.2f}".format(*slopes(values)) if digits and len(values) > 1 else ""
    print(
        f"{name:<28}" + "".join(f"{value:10.{digits}f}" for value in values.values()) + both + note
    )


def table(sizes: Mapping[int, Figures]) -> list[str]:
    """Print everything; return a line for each phase that grows faster than it may."""
    columns, wrong = sorted(sizes), []
    print(
        f"{'hosts':<28}" + "".join(f"{hosts:>10}" for hosts in columns) + "   slope  largest three"
    )
    row("lab ready, s", {hosts: sizes[hosts]["lab_s"] for hosts in columns})
    row("null up, s", {hosts: sizes[hosts]["null_s"] for hosts in columns})
    for command, text in COMMANDS.items():
        print(f"{text}, s")
        for name, points in by_phase(sizes, command).items():
            steepest, most = max(slopes(points)), limit_of(command, name)
            judged = points[columns[-1]] >= JUDGED_S
            note = "  all pairs" if name in ALL_PAIRS else ""
            if judged and steepest > most:
                note += "  ABOVE LINEAR" if most == LINEAR else "  ABOVE QUADRATIC"
                wrong.append(f"{text}: {name} {steepest:.2f}")
            row(f"  {name}", points, 3, note if judged else "  short: not judged")
        for kind, unit in (("cpu_s", "processor s"), ("memory_mb", "MB")):
            for whose in ("program", "switches", "hosts", "others"):
                if whose in sizes[columns[0]][command][kind]:
                    row(
                        f"    {unit}, {whose}",
                        {hosts: sizes[hosts][command][kind][whose] for hosts in columns},
                    )
        for count in ("routes", "pairs"):
            if any(sizes[hosts][command][count] for hosts in columns):
                row(f"    {count}", {hosts: sizes[hosts][command][count] for hosts in columns}, 0)
    for name, why in ALL_PAIRS.items():
        print(f"all pairs: {name}: {why}")
    return wrong


def picture(sizes: Mapping[int, Figures], path: Path) -> None:
    """Draw the phases of each command over the number of hosts, both axes logarithmic; dotted:
    linear.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(
        {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "growth", "axes.spines.top": False}
    ):
        drawing = Figure(figsize=(10.5, 6.5), layout="constrained")
        panels = drawing.subplots(2, 2, sharex=True, sharey=True)
        columns = sorted(sizes)
        for axes, (command, text) in zip(panels.flat, COMMANDS.items(), strict=True):
            for name, points in by_phase(sizes, command).items():
                if points[columns[-1]] >= JUDGED_S:
                    label = f"{name} {slopes(points)[1]:.2f}" + (
                        ", all pairs" if name in ALL_PAIRS else ""
                    )
                    line = (
                        {"color": "black", "linewidth": 2.0}
                        if name == "whole"
                        else {"linewidth": 1.2}
                    )
                    axes.plot(
                        columns,
                        [points[hosts] for hosts in columns],
                        marker="o",
                        markersize=3,
                        label=label,
                        **line,
                    )
            start = by_phase(sizes, command)["whole"][columns[0]]
            axes.plot(
                columns,
                [start * hosts / columns[0] for hosts in columns],
                ":",
                color="grey",
                linewidth=0.8,
            )
            axes.set(
                xscale="log",
                yscale="log",
                title=text,
                xticks=columns,
                xticklabels=list(map(str, columns)),
            )
            axes.minorticks_off()
            axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
            axes.grid(visible=True, linewidth=0.3)
        drawing.supxlabel("hosts of four ports")
        drawing.supylabel(
            "seconds; beside each phase its slope over the largest three sizes; dotted: linear"
        )
        drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    """Measure what is missing in the record, print the table, and judge."""
    parser = argparse.ArgumentParser(description="How commands grow with the lab.")
    parser.add_argument(
        "--hosts",
        default=",".join(map(str, SIZES)),
        help="numbers of hosts, even (default %(default)s)",
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="labs of each size; medians are shown (default 1)"
    )
    parser.add_argument("--record", type=Path, help="where figures are kept (JSON)")
    parser.add_argument("--figure", type=Path, help="draw the phases (.svg, .png)")
    options = parser.parse_args()
    sizes: dict[int, Figures] = {}
    if options.record and options.record.exists():
        sizes = {
            int(hosts): found
            for hosts, found in json.loads(options.record.read_text())["sizes"].items()
        }
    for hosts in sorted({*map(int, options.hosts.split(","))} - {*sizes}):
        sizes[hosts] = middle([one(hosts) for _ in range(options.runs)]) | {"runs": options.runs}
        took = ", ".join(
            f"{text} {sizes[hosts][name]['phases']['whole']:.1f} s"
            for name, text in COMMANDS.items()
        )
        print(f"{hosts} hosts: {took}", flush=True)
        if options.record:
            about = {
                "machine": platform.machine(),
                "cores": os.cpu_count(),
                "kernel": platform.release(),
            }
            options.record.write_text(
                json.dumps({"schema": "testbed.growth/1", **about, "sizes": sizes}, indent=1) + "\n"
            )
    wrong = table(sizes)
    if options.figure:
        picture(sizes, options.figure)
    largest = max(sizes)
    over = sizes[largest]["change"]["phases"]["whole"] / sizes[largest]["null_s"]
    return verdict(
        "growth",
        sizes[largest]["change"]["phases"]["whole"],
        "s",
        LIMIT_S if largest == LIMIT_AT else None,
        "at most",
        also=not wrong and (over <= LIMIT_X or largest != LIMIT_AT),
        hosts=largest,
        above=wrong,
        null_s=round(sizes[largest]["null_s"], 2),
        over_null=round(over, 3),
        over_null_limit=LIMIT_X if largest == LIMIT_AT else None,
        again_s=round(sizes[largest]["again"]["phases"]["whole"], 2),
        first_s=round(sizes[largest]["first"]["phases"]["whole"], 2),
        verify_s=round(sizes[largest]["verify"]["phases"]["whole"], 2),
    )


if __name__ == "__main__":
    sys.exit(main())
