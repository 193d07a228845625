"""How long a TCP flow of a foreign program pauses while the only circuit of its two hosts is moved:
three arms, interleaved.

never: the plan forbids holds. hold: the plan asks for them. hold without flush: the hosts hold;
sockets that waited are not pushed (`HostRoutes.hold` is called with flush=False in the process that
runs `up`; the program has no such option). Both hosts send to each other at full rate all the time.
The figure is the longest time in which a receiver got nothing, of the direction for which it was
longer. Switching times are those the emulated switches were given.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict

EVENTS = 9
DARK_S = (0.05, 0.2, 1.0)
ARMS = ("never", "hold", "hold without flush")
RATIO, SLACK_MS = 0.80, 30.0
PORT = 5000

FLOW = """
import socket, sys, time
kind, own, other, port = sys.argv[1:]
s = socket.socket()
if kind == "send":
    s.bind((own, 0))
    s.connect((other, int(port)))
    piece = b"x" * 65536
    while True:
        s.sendall(piece)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((own, int(port)))
s.listen(1)
print("ready", flush=True)
s, _ = s.accept()
last = time.monotonic_ns()
try:
    while s.recv(1 << 18):
        now = time.monotonic_ns()
        if now - last > 5_000_000:
            print(last, now, flush=True)
        last = now
except ConnectionResetError:
    pass  # the benchmark is over
"""


class Flows:
    """A flow in each direction between two hosts; the receivers write down every pause of more than
    5 ms.
    """

    def __init__(self, lab: BenchLab) -> None:
        self.log = [lab.folder / f"pauses{n}" for n in (0, 1)]
        self.pids = [int(lab.ask("status")["hosts"][f"gpu{n:02d}"]["pid"]) for n in (1, 2)]
        self.programs: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        address = [f"10.255.0.{n}" for n in (1, 2)]
        for here in (0, 1):
            self._run(here, "receive", address[here], "-", str(PORT + here), log=self.log[here])
        for here in (0, 1):
            deadline = time.monotonic() + 10
            while not self.log[here].read_text().startswith("ready"):
                if time.monotonic() > deadline:
                    raise RuntimeError("a receiver does not start")
                time.sleep(0.05)
        for here in (0, 1):
            self._run(here, "send", address[here], address[1 - here], str(PORT + 1 - here))

    def _run(self, here: int, *argv: str, log: Path | None = None) -> None:
        namespaces = ["nsenter", "-t", str(self.pids[here]), "-n", "-m", "-p"]
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--",
            sys.executable,
            "-S",
            "-E",
            "-c",
            FLOW,
            *argv,
        ]
        with (log or Path("/dev/null")).open("wb") as out:
            self.programs.append(subprocess.Popen([*namespaces, *command], stdout=out))

    def longest_ms(self, begin_ns: int) -> float:
        """The longest pause of either receiver since `begin_ns`."""
        rows = [
            tuple(map(int, line.split()))
            for log in self.log
            for line in log.read_text().splitlines()[1:]
            if " " in line
        ]
        return max((end - begin for begin, end in rows if end > begin_ns), default=0) / 1e6

    def stop(self) -> None:
        for program in self.programs:
            program.kill()
            program.wait()


@contextmanager
def flows(lab: BenchLab) -> Iterator[Flows]:
    made = Flows(lab)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def pause_ms(lab: BenchLab, flow: Flows, plan: Path, arm: str, dark_s: float) -> float:
    """Move the circuit as `plan` has it; return the longest pause (ms)."""
    time.sleep(0.7)
    command = [
        sys.executable,
        __file__,
        "testbed",
        arm,
        "up",
        "--topology",
        str(plan),
        "--no-job",
        "--json",
    ]
    done = subprocess.run(
        command, env=lab.env, capture_output=True, text=True, check=False, timeout=120
    )
    answer = json.loads(done.stdout)
    if not answer["ok"]:
        raise RuntimeError(answer["message"])
    time.sleep(1.0 + dark_s)  # a backed-off timer may expire only now
    report = answer["data"]
    held = [p for p in report["phases"] if p["name"] == "hold"]
    if bool(held) is (arm == "never"):
        raise RuntimeError(
            f"{arm}: the phases of the run are {[p['name'] for p in report['phases']]}"
        )
    start = json.loads((Path(report["journal"]) / "anchor.json").read_text())["start_ns"]
    (begin,) = (p["begin_s"] for p in report["phases"] if p["name"] == "switch")
    return flow.longest_ms(int(start + begin * 1e9))


def testbed(arm: str, argv: list[str]) -> None:
    """Be `testbed`, whose holds do not flush where the arm is without."""
    from optical_testbed_command import main as program
    from orchestrator.hosts.routes import HostRoutes

    if arm == "hold without flush":
        HostRoutes.hold = partialmethod(HostRoutes.hold, flush=False)  # type: ignore[method-assign, assignment]
    sys.argv = ["testbed", *argv]
    program()


def main() -> int:
    found: dict[tuple[float, str], list[float]] = {}
    with bench_lab(2) as lab:
        plans = {
            (side, arm): lab.plan(
                f"side{side}-{arm.replace(' ', '-')}",
                [(f"gpu01:p{port}", f"gpu02:p{port}")],
                transition={"hold": "never" if arm == "never" else "always"},
            )
            for side, port in enumerate((1, 3))
            for arm in ARMS
        }
        side = 0
        lab.call("up", "--topology", plans[side, "never"], "--no-job")
        with flows(lab) as flow:
            for dark_s in DARK_S:
                lab.settle(dark_s)
                for event in range(EVENTS):
                    for arm in ARMS[event % 3 :] + ARMS[: event % 3]:
                        side = 1 - side
                        found.setdefault((dark_s, arm), []).append(
                            pause_ms(lab, flow, plans[side, arm], arm, dark_s)
                        )
                        print(
                            f"  dark {dark_s * 1e3:4.0f} ms, {arm:17}: pause {found[dark_s, arm][-1]:7.1f} ms",
                            flush=True,
                        )
    middle = {key: statistics.median(values) for key, values in found.items()}
    ratio = {dark_s: middle[dark_s, "hold"] / middle[dark_s, "never"] for dark_s in DARK_S}
    for dark_s in DARK_S:
        text = ", ".join(
            f"{arm} {middle[dark_s, arm]:.0f} ms (worst {max(found[dark_s, arm]):.0f})"
            for arm in ARMS
        )
        print(f"  dark {dark_s * 1e3:.0f} ms: {text}; hold / never {ratio[dark_s]:.2f}")
    worst = max(found[0.05, "hold"])
    return verdict(
        "hold_flush",
        ratio[0.2],
        "x",
        RATIO,
        "at most",
        also=ratio[1.0] <= RATIO and worst <= 50 + SLACK_MS,
        at_1s=round(ratio[1.0], 3),
        at_50ms=round(ratio[0.05], 3),
        worst_50ms=round(worst, 1),
        limit_50ms=50 + SLACK_MS,
        medians_ms={
            f"{dark_s * 1e3:g} {arm}": round(value, 1) for (dark_s, arm), value in middle.items()
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["testbed"]:
        testbed(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
