"""A schedule on the emulated lab: what reaches the glass outside its circuit, duty, and how far
apart the hosts' clocks are.

    python benchmarks/slots.py [SLOTS [MBPS]] Four hosts, one port each, three slots in which each
meets each, MEMS switches of 50 ms, 450 ms of light. All hosts send to all by UDP, and each fills a
TCP connection to the next; none of these programs asks when it may. Every frame is captured at the
hosts' optical ports, where the light path begins, and held against the history of the emulated
switch: a frame is outside its circuit if it leaves or arrives while that has no light, arrives at
another host, or does not arrive. Duty is the switch's lit time over 100 slots, once more beside two
busy processes. The clock error is how far apart hosts expect the end of the same slot; the
monotonic clock of one of them is 10 s ahead where the kernel has time namespaces.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import random
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict
from benchmarks.rotor import STAMP, ahead_ns
from benchmarks.slot_rig import Span, address, flows, lit, overlap, pids, steps, within
from conformance.truth import NoTruth
from orchestrator.plan.schedule import REACTION_S

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
OFF_HOST, OFF_S = "gpu02", 10.0
SLOTS, DWELL_S, GUARD_S, SETTLE_S = 100, 0.45, 0.02, 0.05
RATE_MBPS = "250"
"""A connection fills the queue of its port, 512 KiB, 17 ms at this rate; at 100 Mb/s it is 42 ms,
longer than the guard.
"""
DUTY_PERCENT, CLOCK_MS = 3.0, 2.0
GAP_S = 0.002  # between rounds, in which each host sends each other a datagram
UDP = 17


@dataclass(slots=True)
class Frame:
    """One IPv4 frame at a host's optical port. at: monotonic (ns). number: of a datagram, else
    0.
    """

    host: str
    out: bool
    at: int
    source: str
    target: str
    number: int


@dataclass
class Seen:
    """What a recorder wrote down."""

    frames: list[Frame] = field(default_factory=list)
    # host, count, when it expects the end (ns, its own clock)
    ends: list[tuple[str, int, int]] = field(default_factory=list)
    lost: int = 0  # frames that the capture had no room for


def wire(pid: int) -> socket.socket:
    """A tap on the optical port of a host."""
    with within(pid):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        made.bind(("opt1", 3))
    made.setsockopt(socket.SOL_SOCKET, STAMP, 1)
    made.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    made.setblocking(False)
    return made


def watch(pid: int) -> socket.socket:
    """A connection to a host's agent, which says what slot it is in."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(f"/proc/{pid}/root/run/testbed/committer.sock")
    made.sendall(b'{"id": 1, "op": "watch"}\n')
    made.setblocking(False)
    return made


class Recorder:
    """A process that captures at all hosts, so that it is not in the way of who sends."""

    def __init__(self, lab: BenchLab) -> None:
        self.path = lab.folder / f"seen{time.monotonic_ns()}.jsonl"
        found = pids(lab)
        wires, agents = ({wire(found[h]): h for h in HOSTS}, {watch(found[h]): h for h in HOSTS})
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.pid = os.fork()
        if not self.pid:
            try:
                record_until_notified(self.path, wires, agents)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one in (*wires, *agents):
            one.close()

    def end(self) -> Seen:
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        rows = [json.loads(line) for line in self.path.read_text().splitlines()]
        seen = Seen(lost=sum(row[1] for row in rows if row[0] == "lost"))
        seen.frames = [Frame(*row[1:]) for row in rows if row[0] == "frame"]
        seen.ends = [tuple(row[1:]) for row in rows if row[0] == "end"]
        return seen


def record_until_notified(
    path: Path, wires: Mapping[socket.socket, str], agents: Mapping[socket.socket, str]
) -> None:
    rows: list[tuple[object, ...]] = []
    rest = dict.fromkeys(agents, b"")
    ahead = [ahead_ns()]
    while signal.SIGTERM not in signal.sigpending():
        time.sleep(0.01)
        for tap, host in wires.items():
            rows += ((host, *row) for row in frames(tap))
        for agent in select.select(list(agents), [], [], 0)[0]:
            data = agent.recv(1 << 18)
            *lines, rest[agent] = (rest[agent] + data).split(b"\n")
            for reply in map(json.loads, lines):
                if (
                    reply.get("event") == "slot"
                    and reply.get("why") == "light"
                    and isinstance(reply.get("ends_ns"), int)
                ):
                    rows.append(("end", agents[agent], reply["count"], reply["ends_ns"]))
    ahead.append(ahead_ns())
    for tap, host in wires.items():
        rows += ((host, *row) for row in frames(tap))
        # SOL_PACKET, PACKET_STATISTICS
        rows.append(("lost", struct.unpack("=II", tap.getsockopt(263, 6, 8))[1]))
    shift = sum(ahead) // 2
    with path.open("w") as file:
        for row in rows:
            if row[0] in ("end", "lost"):
                file.write(json.dumps(row) + "\n")
            else:
                frame_host, out, at, *more = row
                assert isinstance(at, int)
                file.write(json.dumps(["frame", frame_host, out, at - shift, *more]) + "\n")


def frames(tap: socket.socket) -> Iterator[tuple[object, ...]]:
    """Yield what waits at a tap: outgoing or not, when (wall ns), from and to which host, number of
    a datagram.
    """
    while True:
        try:
            data, notes, _, source = tap.recvmsg(64, 64)
        except BlockingIOError:
            return
        if (
            len(data) < 34
            or data[12:14] != b"\x08\0"
            or data[26:29] != b"\x0a\xff\0"
            or data[30:33] != b"\x0a\xff\0"
        ):
            continue  # what is not between two hosts of the fabric
        seconds, nanoseconds = struct.unpack("=qq", notes[0][2])
        number = struct.unpack("!Q", data[42:50])[0] if data[23] == UDP and len(data) >= 50 else 0
        yield (
            source[2] == 4,
            seconds * 10**9 + nanoseconds,
            f"gpu{data[29]:02d}",
            f"gpu{data[33]:02d}",
            number,
        )


class Senders:
    """UDP from every host to every other."""

    def __init__(self, lab: BenchLab) -> None:
        found, self.sockets = pids(lab), {}
        for host in HOSTS:
            with within(found[host]):
                self.sockets[host] = made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((address(host), 7000))
            made.setblocking(False)
        self.number = itertools.count(1)
        self.offered = self.refused = 0

    def send(self, seconds: float) -> None:
        """Send for a while, in step with no slot."""
        chance, until = random.Random(1), time.monotonic() + seconds
        pairs = list(itertools.permutations(HOSTS, 2))
        while time.monotonic() < until:
            for source, target in pairs:
                self.offered += 1
                try:
                    self.sockets[source].sendto(
                        struct.pack("!Q", next(self.number)) + bytes(92), (address(target), 7000)
                    )
                except OSError:  # no route: its slot is not there
                    self.refused += 1
            time.sleep(chance.uniform(0.0, 2 * GAP_S))

    def close(self) -> None:
        for one in self.sockets.values():
            one.close()


@dataclass
class Judged:
    """Frames that reached the light path, and those of them outside their circuit, by kind."""

    frames: int = 0
    dark: int = 0
    elsewhere: int = 0
    vanished: int = 0
    worst_ms: float = 0.0
    when: dict[tuple[str, bool, str, float], list[float]] = field(default_factory=dict)
    """Of those in the dark: host, outgoing or not, to whom, when the light had ended (s), and how
    much later (ms) each was.
    """

    @property
    def outside(self) -> int:
        return self.dark + self.elsewhere + self.vanished


def judge(seen: Seen, spans: Mapping[tuple[str, str], list[Span]]) -> Judged:
    """Hold every frame against the light."""
    found = Judged()
    arrived = {f.number for f in seen.frames if not f.out and f.number}
    begins = {pair: [a for a, _ in some] for pair, some in spans.items()}
    latest = max((f.at for f in seen.frames), default=0)
    for frame in seen.frames:
        found.frames += 1
        pair, at_s = (frame.source, frame.target), frame.at / 1e9
        if not frame.out and frame.host != frame.target:
            found.elsewhere += 1
            continue
        at = bisect.bisect_right(begins.get(pair, []), at_s) - 1
        if at < 0 or at_s > spans[pair][at][1]:
            found.dark += 1
            late_s = at_s - spans[pair][at][1] if at >= 0 else float("inf")
            soon_s = (
                spans[pair][at + 1][0] - at_s if at + 1 < len(spans.get(pair, [])) else float("inf")
            )
            found.worst_ms = max(found.worst_ms, min(late_s, soon_s) * 1e3)
            ended_s = spans[pair][at][1] if at >= 0 else float("-inf")
            found.when.setdefault((frame.host, frame.out, "-".join(pair), ended_s), []).append(
                late_s * 1e3
            )
        elif (
            frame.out
            and frame.number
            and frame.number not in arrived
            and frame.at < latest - 500_000_000
        ):
            found.vanished += 1
    return found


def duty(spans: Mapping[tuple[str, str], list[Span]], begin: float, end: float) -> float:
    """The share of time in which the ports had light."""
    return sum(overlap(some, begin, end) for some in spans.values()) / (end - begin) / len(HOSTS)


def apart_ms(ends: list[tuple[str, int, int]], off_s: float, *, off: bool) -> tuple[float, int]:
    """Median (ms) and number of how far apart two hosts expect the end of the same slot; off: one
    of them is `OFF_HOST`.
    """
    expected: dict[int, dict[str, float]] = {}
    for host, count, ends_ns in ends:
        expected.setdefault(count, {})[host] = ends_ns / 1e6 - (
            off_s * 1e3 if host == OFF_HOST else 0.0
        )
    found = [
        abs(hosts[a] - hosts[b])
        for hosts in expected.values()
        for a, b in itertools.combinations(sorted(hosts), 2)
        if (OFF_HOST in (a, b)) is off
    ]
    return (statistics.median(found), len(found)) if found else (float("nan"), 0)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Have processes that do nothing but compute."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def window(
    lab: BenchLab, slots: int, period_s: float
) -> tuple[Seen, dict[tuple[str, str], list[Span]], Span, Senders]:
    """Send and record for so many slots; also the light, and the time from the first of these slots
    to the end of the last.
    """
    before = len(steps(lit(lab)))
    recorder, senders = Recorder(lab), Senders(lab)
    ring = [(HOSTS[k], HOSTS[(k + 1) % len(HOSTS)]) for k in range(len(HOSTS))]
    give_up = time.monotonic() + 3 * slots * period_s
    with flows(lab, ring):
        senders.send((slots + 2) * period_s)
        while len(at := steps(lit(lab))) < before + slots + 1 and time.monotonic() < give_up:
            senders.send(2 * period_s)
    seen = recorder.end()
    senders.close()
    if len(at) < before + slots + 1:
        raise RuntimeError(f"{len(at) - before} slots of {slots} came")
    return seen, lit(lab), (at[before], at[before + slots]), senders


def run(lab: BenchLab, slots: int) -> tuple[dict[str, Any], bool]:
    off_s = 0.0
    try:
        lab.ask("faults.add", host=OFF_HOST, kind="clock-drift", offset_s=OFF_S)
        off_s = OFF_S
    except NoTruth as error:
        print(f"  all clocks agree: {error}")
    schedule = {
        "pattern": "round-robin",
        "ports": ["p1"],
        "hosts": HOSTS,
        "dwell_s": DWELL_S,
        "guard_s": GUARD_S,
    }
    lab.call("up", "--topology", lab.plan("ring_changes", [], schedule=schedule))
    figures: dict[str, Any] = {"outside": 0}
    met = True
    ends: list[tuple[str, int, int]] = []
    for name, spinning in (("", 0), ("busy_", 2)):
        (file,) = (lab.folder / "data" / "schedule").glob("*.json")
        planned = float(json.loads(file.read_text().partition("\n")[0])["planned_duty"])
        with busy(spinning):
            seen, spans, (begin, end), senders = window(lab, slots, DWELL_S + SETTLE_S + REACTION_S)
        late = int(json.loads(file.read_text().partition("\n")[0])["late"])
        judged, share = judge(seen, spans), duty(spans, begin, end)
        off = 100 * abs(share / planned - 1)
        shares = [overlap(some, begin, end) / (end - begin) for some in spans.values()]
        where = f"{judged.dark} in the dark ({judged.worst_ms:.1f} ms from light at worst), {judged.elsewhere} elsewhere"
        print(
            f"  {name or 'quiet'}: {judged.outside} of {judged.frames} frames outside their circuit: {where},"
            f" {judged.vanished} vanished; {seen.lost} not captured"
        )
        for (host, out, pair, ended_s), late_ms in list(judged.when.items())[:20]:
            text = f"{'leave' if out else 'arrive at'} {host}, {min(late_ms):.1f} to {max(late_ms):.1f} ms after the light of {pair}"
            print(
                f"    {len(late_ms)} frames {text} ended, {ended_s - begin:.3f} s after the first slot"
            )
        print(
            f"    datagrams: {senders.offered} offered, {senders.refused} refused to the program; duty {share:.4f} of"
            f" {planned:.4f}, off by {off:.2f} %; of pairs {min(shares):.4f} to {max(shares):.4f};"
            f" {slots} slots in {end - begin:.1f} s, {late} late so far"
        )
        figures |= {
            f"{name}outside": judged.outside,
            f"{name}frames": judged.frames,
            f"{name}dark": judged.dark,
        }
        figures |= {
            f"{name}elsewhere": judged.elsewhere,
            f"{name}vanished": judged.vanished,
            f"{name}duty_off_percent": round(off, 2),
        }
        figures |= {f"{name}late": late, f"{name}worst_ms": round(judged.worst_ms, 2)}
        met &= judged.outside == 0 and off <= DUTY_PERCENT and judged.frames > 1000
        ends += seen.ends
        for which in (False, True):
            middle, number = apart_ms(seen.ends, off_s, off=which)
            text = f"with {OFF_HOST}, {off_s:g} s ahead" if which else "of equal clocks"
            print(f"    clocks {text}: ends expected {middle:.3f} ms apart, median of {number}")
            figures[f"{name}clock{'_off' if which else ''}_ms"] = round(middle, 3)
            met &= middle < CLOCK_MS
    lab.call("service", "stop", "schedule")
    lab.call("down", "--yes")
    return {"planned_duty": planned, "off_s": off_s, **figures}, met


def main() -> int:
    slots = int(sys.argv[1]) if len(sys.argv) > 1 else SLOTS
    rate = sys.argv[2] if len(sys.argv) > 2 else RATE_MBPS
    with bench_lab(len(HOSTS), "--settle-s", str(SETTLE_S), "--rate-mbps", rate) as lab:
        figures, met = run(lab, slots)
    return verdict(
        "slots",
        figures["outside"] + figures["busy_outside"],
        "frames",
        0.0,
        "at most",
        also=met,
        **figures,
    )


if __name__ == "__main__":
    sys.exit(main())
