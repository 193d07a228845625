"""Crash-point drill: `up` killed before and after everything it cannot take back, then resumed and,
separately, rolled back.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.session import load_lab
from orchestrator.settings import load
from orchestrator.store.keys import key_of, tenancy_key
from orchestrator.store.records import RunRecord
from orchestrator.store.store import Store
from tests.drills.truth import Wanted, routes, wanted_light, wrong
from tests.end_to_end.conftest import ROOT, Answer, Lab, ring

Links = Sequence[tuple[str, str]]

HERE, OTHER = "here", "there"
KEPT: Links = ring((5, 6))
FROM: Links = [*ring((1, 2)), *ring((3, 4), 5), *KEPT]
TO: Links = [*ring((1, 2), 5), *ring((3, 4)), *KEPT]
"""All 24 circuits of two rings move, those of a third stay: traffic is drained onto it."""


@dataclass
class Tally:
    """What came of the points."""

    killed: int = 0
    rolled_back: int = 0
    resumed: int = 0
    unreached: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


class CrashPoints:
    """Two plans on one running lab; `here` is up between the points."""

    def __init__(self, lab: Lab, here: Links, other: Links) -> None:
        self.lab = lab
        self.plans = {HERE: lab.plan(HERE, list(here)), OTHER: lab.plan(OTHER, list(other))}
        key = key_of(load_lab(lab.inventory))
        self.tenancy = tenancy_key(key, load(env={}).user)
        self.tally = Tally()
        self.links = {HERE: here, OTHER: other}
        self.states: dict[str, Wanted] = {}

    def store(self) -> Store:
        return Store(self.lab.folder / "data" / "testbed.sqlite3")

    def prepare(self) -> list[str]:
        """Bring both plans up once, keep what they look like, and count the points between them."""
        for name in (OTHER, HERE):
            self.lab.up(self.plans[name]).must()
            self.states[name] = Wanted(
                name, wanted_light(self.lab, self.links[name]), routes(self.lab)
            )
            with self.store() as store:
                assert not (found := wrong(self.lab, store, self.tenancy, self.states[name])), found
        file = self.lab.folder / "points"
        file.unlink(missing_ok=True)
        self.deadly(DRILL_POINTS=str(file)).must()
        self.lab.up(self.plans[HERE]).must()
        return file.read_text().splitlines()

    def deadly(self, **env: str) -> Answer:
        """`up` of the other plan, with something to happen on its way."""
        argv = [
            sys.executable,
            "-m",
            "tests.drills.deadly",
            "up",
            "--topology",
            str(self.plans[OTHER]),
            "--json",
        ]
        done = subprocess.run(
            argv,
            env=self.lab.env | env,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=110,
            check=False,
        )
        return Answer(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)

    def kill(self, point: str) -> RunRecord | bool | None:
        """Kill `up` at the point and see what the next command says; the run that died, None: none
        began, False: not reached.
        """
        with self.store() as store:
            before = store.get("last")
        answer = self.deadly(DRILL_AT=point)
        if answer.exit_code != -signal.SIGKILL:
            self.tally.unreached.append(point)
            return False
        self.tally.killed += 1
        status = self.lab.testbed("status").must()
        with self.store() as store:
            run = store.get("last")
        if run is not None and before is not None and run.id == before.id:
            run = None
        self.problems(point, "status", self.lies(status, run))
        return run

    def lies(self, status: dict[str, object], run: RunRecord | None) -> list[str]:
        """What `status` says that is not so, or does not say."""
        unfinished = status["unfinished"]
        assert isinstance(unfinished, list)
        if run is None or run.status == "ok":
            up = OTHER if run is not None else HERE
            found = [f"names a run nobody left: {unfinished}"] if unfinished else []
            return found + (
                []
                if status["plan"] == up and not status["drift"]
                else [f"{status['plan']}, {status['drift']}"]
            )
        if [u["run"] for u in unfinished] != [run.id] or run.status != "died":
            return [f"run {run.id} is {run.status}, and status names {unfinished}"]
        (report,) = unfinished
        if (
            report["resume"] != f"testbed resume {run.id}"
            or (report["undo"] == f"testbed rollback {run.id}") is not run.begun
        ):
            return [f"names {report['resume']!r} and {report['undo']!r}"]
        if not run.begun:
            return (
                [f"had not begun, and status says {report}"]
                if report["done"] or report["not_done"]
                else []
            )
        reply = {
            m[1]: tuple(map(int, m.groups()[1:]))
            for line in report["done"]
            if (m := _DONE.match(line))
        }
        light = self.lab.light()
        found = []
        for device, pairs in self.states[OTHER].light.items():
            was, now = self.states[HERE].light[device], light[device]
            make, remove = pairs - was, was - pairs
            true = (len(now & make), len(make), len(remove - now), len(remove))
            if make | remove and reply.get(device) != true:
                found.append(
                    f"{device}: says {reply.get(device)} made, of, removed, of; it is {true}"
                )
        return found

    def problems(self, point: str, what: str, found: Iterable[str]) -> None:
        self.tally.problems += [f"{point}: {what}: {line}" for line in found]

    def judge(self, point: str, what: str, name: str) -> bool:
        with self.store() as store:
            found = wrong(self.lab, store, self.tenancy, self.states[name])
            if left := [
                run.id
                for run in store.unfinished(
                    self.tenancy.partition("/")[0], self.tenancy.partition("/")[2]
                )
            ]:
                found.append(f"runs {left} still count as unfinished")
        self.problems(point, what, found)
        return not found

    def rolled_back(self, point: str) -> None:
        run = self.kill(point)
        if isinstance(run, RunRecord):
            answer = self.lab.testbed("rollback", run.id)
            nothing = not run.begun and "changed nothing" in answer.envelope["message"]
            if answer.exit_code and not nothing:
                self.problems(
                    point, "rollback", [f"exit {answer.exit_code}: {answer.envelope['message']}"]
                )
            if nothing:
                self.lab.up(self.plans[HERE]).must()  # whatever comes next supersedes it
        if run is not False and self.judge(point, "rollback", HERE):
            self.tally.rolled_back += 1
        else:
            self.restore()

    def resumed(self, point: str) -> None:
        run = self.kill(point)
        if isinstance(run, RunRecord) and run.status != "ok":
            answer = self.lab.testbed("resume", run.id)
            if answer.exit_code:
                self.problems(
                    point, "resume", [f"exit {answer.exit_code}: {answer.envelope['message']}"]
                )
        elif run is None:
            self.lab.up(self.plans[OTHER]).must()
        if run is not False:
            self.tally.resumed += self.judge(point, "resume", OTHER)

    def restore(self) -> None:
        """Between two points `here` is up, whatever went wrong at the last."""
        answer = self.lab.up(self.plans[HERE])
        if answer.exit_code:
            self.lab.testbed("down", "--yes")
            self.lab.up(self.plans[HERE]).must()

    def drill(self, points: Sequence[str], *, notified: bool = False) -> Tally:
        began = time.monotonic()
        for number, point in enumerate(points, 1):
            self.tally.kinds[kind(point)] += 1
            known = len(self.tally.problems)
            self.rolled_back(point)
            self.resumed(point)
            self.restore()
            if notified:
                bad = self.tally.problems[known:]
                print(
                    f"  {number:>3}/{len(points)} {time.monotonic() - began:6.0f} s  {point}{'  WRONG' if bad else ''}",
                    flush=True,
                )
                for line in bad:
                    print(f"        {line}", flush=True)
        return self.tally


_DONE = re.compile(r"(\S+): (\d+)/(\d+) made, (\d+)/(\d+) removed")


def kind(point: str) -> str:
    """What a point is about, for the table."""
    when, _, rest = point.partition(" ")
    subject = rest.partition(" ")[0]
    if subject in ("commit", "play"):
        return f"{when} a {'commit of the store' if subject == 'commit' else 'play'}"
    return f"{when} {'a write to a device' if subject.startswith('ocs') else 'a request to a host'}"


def table(tally: Tally) -> str:
    lines = [
        "| point | count |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(tally.kinds.items())),
    ]
    return "\n".join(lines)


def whole(folder: Path, only: str = "") -> int:
    """The drill on a lab of its own. only: a regular expression that chooses among the points."""
    lab = Lab(folder)
    generate = [
        sys.executable,
        "-m",
        "emulators.generate",
        "--hosts",
        "6",
        "--ports",
        "6",
        "--free-ports",
    ]
    where = ["--out", str(lab.inventory), "--state", str(lab.folder / "lab")]
    subprocess.run([*generate, *where], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    lab.testbed("lab", "start").must()
    try:
        drill = CrashPoints(lab, FROM, TO)
        points = drill.prepare()
        print(f"  {len(points)} points in one run that moves 24 circuits", flush=True)
        chosen = [point for point in points if re.search(only, point)]
        tally = drill.drill(chosen, notified=True)
    finally:
        lab.testbed("lab", "stop")
    reached = tally.killed
    print(table(tally))
    print(
        f"crash points: {len(chosen)} of {len(points)}; killed {reached} times; rolled back {tally.rolled_back}, "
        f"resumed {tally.resumed}, not reached {len(tally.unreached)}, wrong {len(tally.problems)}"
    )
    if tally.unreached:
        print("not reached:", *tally.unreached, sep="\n  ")
    return int(
        bool(tally.problems)
        or (not only and len(points) < 60)
        or len(tally.unreached) > len(chosen) // 10
    )


if __name__ == "__main__":
    import tempfile

    assert os.geteuid() == 0, "namespaces need root"
    with tempfile.TemporaryDirectory(prefix="testbed-drill-") as made:
        sys.exit(whole(Path(made), sys.argv[1] if len(sys.argv) > 1 else ""))
