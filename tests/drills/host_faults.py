"""Faults of hosts: real hosts and fibres fail at every kind of step of `up`; the lab and the
kernels are the judges.

What happens after the last look is no fault of a success; then `testbed verify` must tell of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from orchestrator.session import load_lab
from tests.drills.crash_points import HERE, OTHER, CrashPoints
from tests.drills.device_faults import BACK, HANDS, SUCCESS, UNCHANGED, WRONG
from tests.drills.truth import wrong
from tests.end_to_end.conftest import ROOT, Answer, Lab

FROM = [("gpu01:p1", "gpu02:p1"), ("gpu02:p3", "gpu03:p3"), ("gpu01:p4", "gpu03:p4")]
TO = [("gpu02:p1", "gpu03:p1"), ("gpu01:p3", "gpu02:p3"), ("gpu01:p4", "gpu03:p4")]
"""Four circuits move on a Polatis, four on a Calient; two stay, so traffic is drained onto them."""
OUTCOMES = {0: SUCCESS, 6: BACK, 7: HANDS}
Request = Mapping[str, object]
FAULTS: Mapping[str, tuple[Request, Request | None]] = {
    "host down": ({"op": "host.down", "host": "gpu02"}, None),
    "sshd gone": (
        {"op": "host.sshd", "host": "gpu02", "up": False},
        {"op": "host.sshd", "host": "gpu02", "up": True},
    ),
    "sshd slow": (
        {"op": "host.sshd", "host": "gpu02", "slow_s": 3.0},
        {"op": "host.sshd", "host": "gpu02", "slow_s": 0.0},
    ),
    "link that never comes up": (
        {"op": "link", "host": "gpu02", "port": 1, "up": False},
        {"op": "link", "host": "gpu02", "port": 1, "up": True},
    ),
    "fibre break": (
        {"op": "fibre", "name": "f-gpu02-p1", "cut": True},
        {"op": "fibre", "name": "f-gpu02-p1", "cut": False},
    ),
    "swapped fibres": (
        {"op": "fibre.swap", "a": "f-gpu02-p1", "b": "f-gpu01-p1"},
        {"op": "fibre.swap", "a": "f-gpu02-p1", "b": "f-gpu01-p1"},
    ),
}
"""What happens, and what puts it right; None: the lab is started again."""
POINTS = r"^before (gpu02 \w+|play \S+|ocs\d \S+) 1$"


class HostFaults(CrashPoints):
    """`here` is up between the cases."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab, FROM, TO)
        self.cells: dict[str, Counter[str]] = {}
        self.fibres = load_lab(lab.inventory).fibres

    def case(self, fault: str, point: str) -> tuple[str, list[str], str]:
        """Let it happen at the point; return the outcome, what is wrong with it, and what was
        said.
        """
        request, cure = FAULTS[fault]
        sock = str(self.lab.folder / "lab" / "control.sock")
        answer = self.deadly(DRILL_AT=point, DRILL_DO=json.dumps(request), DRILL_SOCKET=sock)
        outcome = OUTCOMES.get(answer.exit_code, UNCHANGED)
        text = str(answer.envelope.get("message", answer.stderr))
        found = self._judged(outcome, answer)
        self._cure(cure)
        if outcome == HANDS:
            if cure is not None:
                self.lab.testbed("rollback")
            found += [f"after the cure: {line}" for line in self._wrong(HERE)]
        if found:
            outcome = WRONG
        self.cells.setdefault(fault, Counter())[outcome] += 1
        if self._wrong(HERE):
            self.restore()
        return outcome, found, text

    def _wrong(self, name: str) -> list[str]:
        with self.store() as store:
            return wrong(self.lab, store, self.tenancy, self.states[name])

    def _judged(self, outcome: str, answer: Answer) -> list[str]:
        if outcome == SUCCESS:
            found = self._of_living(self._wrong(OTHER))
            dark = self._unlit(OTHER)
            if not dark and not self.ended():
                return found
            verified = self.lab.testbed("verify")
            output = verified.envelope["message"] + json.dumps(verified.envelope["data"])
            found = [line for line in found if self._receiver(line) not in dark]
            named = all(word in output for word in (*dark, *self.ended())) or self._swap_named(
                output
            )
            if verified.exit_code and named:
                return found
            return [
                *found,
                f"verify does not tell of {dark}, {self.ended()}: exit {verified.exit_code}: {output}",
            ]
        found = self._of_living(self._wrong(HERE))
        if outcome != HANDS:
            return [line for line in found if self._receiver(line) not in self._unlit(HERE)]
        listed = [
            line.partition(". ")[2]
            for line in answer.envelope["message"].splitlines()
            if re.match(r"\s+\d+\. ", line)
        ]
        named = {line.partition(": ")[0] for line in listed}
        where = [(line, {line.partition(": ")[0], self._receiver(line)}) for line in found]
        return [line for line, text in where if not text & named] or ([] if listed else ["no list"])

    def _swap_named(self, message: str) -> bool:
        """Whether the two ports are named whose fibres are in each other's sockets: that explains
        who else has no light.
        """
        swapped = re.search(r"([\w:]+) and ([\w:]+) are swapped at ", message)
        return swapped is not None and set(swapped.groups()) == {"gpu01:p1", "gpu02:p1"}

    def _unlit(self, name: str) -> set[str]:
        """Ports of a plan that do not get the light they should, whatever the switches do."""
        hosts, found = self.lab.ask("status")["hosts"], set()
        for a, b in self.links[name]:
            for one, other in ((a, b), (b, a)):
                host, _, port = one.partition(":p")
                at = hosts[host]["ports"][port]
                if at["light_from"] != other or not at["carrier"]:
                    found.add(one)
        return found

    def _receiver(self, line: str) -> str:
        """The host port that a missing circuit would reach."""
        found = re.match(r"(\S+): \S+->(\S+) is missing", line)
        return next(
            (
                str(p)
                for p, f in self.fibres.items()
                if found and (f.leaves.device, f.leaves.label) == found.groups()
            ),
            "",
        )

    def ended(self) -> set[str]:
        """Hosts that nobody can ask."""
        return {name for name, host in self.lab.ask("status")["hosts"].items() if not host["sshd"]}

    def _of_living(self, found: list[str]) -> list[str]:
        """A host whose power or door is gone by our own hand cannot be asked; it is asked after the
        cure.
        """
        return [line for line in found if line.partition(":")[0] not in self.ended()]

    def _cure(self, cure: Request | None) -> None:
        if cure is not None:
            texts = {name: value for name, value in cure.items() if name != "op"}
            self.lab.ask(str(cure["op"]), **texts)
            return
        self.lab.testbed("lab", "stop").must()
        self.lab.testbed("lab", "start").must()
        self.lab.testbed("restore")


def prepared(folder: Path) -> tuple[HostFaults, list[str]]:
    """A lab of three hosts with `here` up, and the points of one change."""
    lab = Lab(folder)
    generate = [
        sys.executable,
        "-m",
        "emulators.generate",
        "--hosts",
        "3",
        "--ports",
        "4",
        "--free-ports",
    ]
    where = ["--out", str(lab.inventory), "--state", str(lab.folder / "lab")]
    subprocess.run([*generate, *where], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    lab.testbed("lab", "start").must()
    drill = HostFaults(lab)
    return drill, [point for point in drill.prepare() if re.search(POINTS, point)]


def counted(cell: Counter[str], every: bool = False) -> str:
    return ", ".join(
        f"{cell[what]} {what}"
        for what in (SUCCESS, BACK, UNCHANGED, HANDS, WRONG)
        if cell[what] or every
    )


def table(cells: Mapping[str, Counter[str]]) -> str:
    return "\n".join(
        [
            "| fault | hosts |",
            "|---|---|",
            *(f"| {fault} | {counted(cell)} |" for fault, cell in cells.items()),
        ]
    )


def whole(only: str = "", every: int = 1) -> int:
    began, wrongs = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="testbed-drill-") as made:
        drill, points = prepared(Path(made))
        chosen = [(f, p) for f in FAULTS for p in points if re.search(only, f"{f} {p}")][::every]
        try:
            for number, (fault, point) in enumerate(chosen, 1):
                outcome, found, text = drill.case(fault, point)
                at = f"{number:>3}/{len(chosen)} {time.monotonic() - began:5.0f} s"
                print(f"  {at}  {fault} {point}: {outcome}", flush=True)
                if found:
                    wrongs += 1
                    print(
                        "        "
                        + "\n        ".join([*found, *(f"| {line}" for line in text.splitlines())]),
                        flush=True,
                    )
        finally:
            drill.lab.testbed("lab", "stop")
    total: Counter[str] = sum(drill.cells.values(), Counter())
    print(table(drill.cells))
    print(f"faults of hosts and fibres: {sum(total.values())} cases: {counted(total, every=True)}")
    return int(bool(wrongs))


if __name__ == "__main__":
    sys.exit(whole(*(sys.argv[1:2]), *map(int, sys.argv[2:3])))
