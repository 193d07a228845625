"""Whose the milliseconds of one dark window are: the lab's own record, the journal, and the
kernel's scheduler trace.

All three are on the monotonic clock. The window is cut where the lab says that light was broken,
made and due, and where the agents say that they saw carrier and committed; in the parts that are
not the devices' own time, the trace tells who ran and who waited for a core. Needs root and tracefs
(`mount -t tracefs nodev /sys/kernel/tracing`); without them only the cuts are reported.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bench_lab import BenchLab
from orchestrator.telemetry.reader import read_points

TRACEFS = Path("/sys/kernel/tracing")
EVENTS = ("sched_switch", "sched_wakeup", "sched_wakeup_new")
BUFFER_KB = 8192
KERNEL = ("kworker", "ksoftirqd", "rcu", "migration", "kdamond", "kswapd", "irq/")
Span = tuple[float, float]


@dataclass
class Trace:
    """Lines of the trace of the scheduler, and who was who when it ended: class by number of the
    thread.
    """

    lines: list[str] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)

    def shares(self, spans: Sequence[Span]) -> dict[str, tuple[float, float]]:
        """By class: time on a core (ms) within the spans (s), and the longest wait (ms) of one
        thread for a core there.
        """
        runs: dict[str, float] = defaultdict(float)
        waits: dict[str, float] = defaultdict(float)
        since: dict[int, float] = {}
        running: dict[int, float] = {}
        for line in self.lines:
            head, _, body = line.partition(": sched_")
            name, _, body = body.partition(": ")
            try:
                at = float(head.rsplit(None, 1)[1])
            except (IndexError, ValueError):
                continue
            if name != "switch":
                with suppress(ValueError):
                    since.setdefault(int(_value(body, "pid")), at)
                continue
            before, _, after = body.partition(" ==> ")
            out, into = int(_value(before, "prev_pid")), int(_value(after, "next_pid"))
            if out and out in running:
                kind = self.kind(out, _value(before, "prev_comm"))
                runs[kind] += _within(running.pop(out), at, spans)
            if _value(before, "prev_state").startswith("R"):
                since[out] = at
            else:
                since.pop(out, None)
            if into:
                running[into] = at
                if into in since:
                    kind = self.kind(into, _value(after, "next_comm"))
                    waits[kind] = max(waits[kind], _within(since.pop(into), at, spans))
        return {kind: (runs[kind] * 1e3, waits[kind] * 1e3) for kind in {*runs, *waits}}

    def kind(self, thread: int, name: str) -> str:
        """The class of a thread: one that has ended is known by its name alone."""
        return self.kinds.get(thread) or _kind("", name)


def _value(text: str, name: str) -> str:
    """The value after `name=`; a process's name may have spaces, so it ends where the next `word=`
    begins.
    """
    _, _, rest = text.partition(f"{name}=")
    before, equals, _ = rest.partition("=")
    return (before.rpartition(" ")[0] if equals else before).strip()


def _within(begin: float, end: float, spans: Iterable[Span]) -> float:
    return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in spans)


def _kind(command: str, name: str) -> str:
    """Who a process is, by its command line or else its name."""
    for word, kind in (
        ("agent/__main__", "agents"),
        ("prober.py", "prober"),
        ("emulators", "emulator"),
        ("testbed", "program"),
    ):
        if word in command:
            return kind
    if name.startswith(KERNEL):
        return "kernel"
    return "program" if name.startswith(("testbed", "hosts_", "host_")) else "others"


def _kinds() -> dict[int, str]:
    found: dict[int, str] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                command = (
                    (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                kind = _kind(command, (process / "comm").read_text().strip())
                found |= {int(thread.name): kind for thread in (process / "task").iterdir()}
    return found


@contextmanager
def traced() -> Iterator[Trace]:
    """Record the scheduler while the body runs. Nothing is recorded where this user may not, or the
    kernel has no tracefs.
    """
    trace, own = Trace(), TRACEFS / "instances" / "testbed-bench"
    try:
        own.mkdir()
        (own / "trace_clock").write_text("mono")
        (own / "buffer_size_kb").write_text(str(BUFFER_KB))
        for event in EVENTS:
            (own / "events" / "sched" / event / "enable").write_text("1")
    except OSError:
        own = Path()
    try:
        yield trace
    finally:
        if own != Path():
            (own / "tracing_on").write_text("0")
            trace.kinds = _kinds()
            with (own / "trace").open() as lines:
                trace.lines = [line for line in lines if ": sched_" in line]
            own.rmdir()


@dataclass(frozen=True)
class Cuts:
    """Where a dark window was cut, in seconds of the monotonic clock, and the median direction's
    outage in it.

    first, last: the outage. sent: commands of the program, first and last. broken: the first light
    that went. made: the last connection that began to settle. due: the last light that was due.
    carrier, committed: the last of the agents'.
    """

    first: float
    last: float
    sent: Span
    broken: float
    made: float
    due: float
    carrier: float
    committed: float

    @property
    def shares_ms(self) -> dict[str, float]:
        """The outage without the devices' own time, in ms. What probes add is up to a period at
        either end.
        """
        commands = self.made - self.broken
        program = min(max(0.0, self.sent[1] - self.sent[0]), max(0.0, commands))
        parts = {
            "program: commands to all devices": program,
            "emulator: from command to light": max(0.0, commands - program),
            "emulator: due light to carrier": self.carrier - self.due,
            "agents: carrier to commit": self.committed - self.carrier,
        }
        rest = (self.last - self.first) - (self.due - self.made) - sum(parts.values())
        return {name: part * 1e3 for name, part in (parts | {"probes, first packet": rest}).items()}

    @property
    def spans(self) -> tuple[Span, Span]:
        """The parts of the window that are not the devices' own time."""
        return (min(self.sent[0], self.broken), self.made), (
            self.due,
            max(self.last, self.committed),
        )


def cuts(lab: BenchLab, report: Mapping[str, Any], gap: tuple[int, int]) -> Cuts:
    """The cuts of the change that `up` reports. gap: the median direction's outage (monotonic
    ns).
    """
    anchor_ns = time.time_ns() - time.monotonic_ns()
    sent, carrier, committed = [], [], []
    for point in read_points(
        lab.folder / "runs" / "runs" / report["run"], only=("reconfig_device",)
    ):
        at = point.time_ns - anchor_ns
        sent.append(at / 1e9)
        carrier.append((at + int(point.fields["t_link_up_ns"])) / 1e9)
        committed.append((at + int(point.fields["t_route_ns"])) / 1e9)
    events: dict[str, list[float]] = defaultdict(list)
    for device in lab.ask("status")["devices"]:
        for at, what, *_ in lab.ask("history", device=device)["history"]:
            if at >= min(sent) - 0.001:
                events[what].append(at)
    first, last = gap[0] / 1e9, gap[1] / 1e9
    made, due = max(events["making"]), max(events["lit"])
    return Cuts(
        first,
        last,
        (min(sent), max(sent)),
        min(events["broken"]),
        made,
        due,
        max(carrier),
        max(committed),
    )


def medians(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each row over the moves; a row that a move lacks is 0 there."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: round(statistics.median(table.get(name, 0.0) for table in tables), 2)
        for name in names
    }
