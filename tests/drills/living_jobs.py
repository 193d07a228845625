"""A running job on a lab whose circuits all move: in a state of the move a process is killed,
stopped or interrupted.

The change is stopped at a point, the state (moments.py) is looked for, and only when it is there
something happens. Judged by rank 0's own records, the processes of the hosts, the glass, the
kernels and the agents.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.hosts import Hello
from tests.drills.crash_points import HERE, OTHER, CrashPoints
from tests.drills.job_truth import HOSTS, Job
from tests.drills.moments import ENDED, STATES, WAITING, now
from tests.drills.truth import Wanted, routes, wanted_light, wrong
from tests.end_to_end.conftest import ROOT, Answer, Lab

ACROSS = [HOSTS[k] for k in (0, 2, 4, 1, 5, 3)]


def cycle(order: Sequence[str], ports: tuple[int, int]) -> list[tuple[str, str]]:
    """The links of a ring in this order, its steps using two ports in turn."""
    return [
        (f"{a}:p{ports[k % 2]}", f"{order[(k + 1) % len(order)]}:p{ports[k % 2]}")
        for k, a in enumerate(order)
    ]


FROM, TO = (
    [*cycle(HOSTS, (1, 2)), *cycle(ACROSS, (3, 4))],
    [*cycle(ACROSS, (1, 2)), *cycle(HOSTS, (3, 4))],
)
"""All circuits move: the two orders have no step in common."""
RINGS = {HERE: [HOSTS, HOSTS[::-1], ACROSS], OTHER: [ACROSS, HOSTS[::-1]]}
EVERY, SLACK = 20, 3
"""A checkpoint is written each so many iterations; so many may end between a look at the records
and the death of a rank.
"""
REVERT_S, QUIET_S, REACHED_S, COMMAND_S = 5.0, 60.0, 15.0, 240.0
LONGEST_QUIET_S = 100.0
"""Ranks wait 60 s for a peer that is silent."""
APART = ("dark", "riding", "changed")
"""States in which light and routes do not fit each other once hosts have reverted what nobody
confirmed: until the next command the job may wait for its peers."""

MAY_END: Mapping[str, tuple[int, ...]] = {"interrupt": (130,), "second": (0, 6)}
"""The exit codes of a change that was interrupted, or stood still while another one tried: its
devices may be too late by then.
"""


@dataclass(frozen=True)
class Case:
    """One thing that happens in one state; `then`: the command that follows the death of an
    operator.
    """

    who: str
    state: str
    then: str = ""
    host: str = "gpu04"

    def __str__(self) -> str:
        where = f" of {self.host}" if self.who in ("agent", "watchdog", "rank", "host") else ""
        return f"{self.who}{where} in state {self.state}" + (
            f", then {self.then}" if self.then else ""
        )

    @property
    def lost(self) -> bool:
        """Whether the job cannot live on."""
        return self.who in ("rank", "host")


class LivingJobs(CrashPoints):
    """Two plans on one running lab. `at` is up between the cases, with the job running on its
    rings; a case goes to the `other`.

    rings: of both plans; those of the plan that a case goes to are written again, so that the ranks
    have something to connect.
    """

    def __init__(self, lab: Lab, *, seed: int = 14) -> None:
        super().__init__(lab, FROM, TO)
        self.job = Job(lab)
        self.held: dict[tuple[str, str], Path] = {}
        self.rings = dict(RINGS)
        self.at, self.run, self.number = HERE, "", 0
        self.disks = lab.folder / "disks"
        # the iterations of rank 0 when a rank or a host was killed
        self.before: list[dict[str, Any]] = []
        self.plan_for(seed)

    def plan_for(self, seed: int) -> None:
        """Write the plans with a training of its own: another seed is another one.

        Its model is large enough that the fabric, not computing, decides how long an iteration
        takes: a replay takes less.
        """
        self.args: dict[str, object] = {
            "hidden": 512,
            "batch": 8,
            "seed": seed,
            "checkpoint_every": EVERY,
        }
        spec = {
            "name": "living",
            "workload": "train",
            "ranks": HOSTS,
            "args": {"iterations": 0, **self.args},
        }
        for side in (HERE, OTHER):
            for hold in ("never", "always"):
                policy = {"hold": hold, "revert_after_s": REVERT_S}
                plan = self.lab.plan(
                    side,
                    list(self.links[side]),
                    job={**spec, "rings": RINGS[side]},
                    transition=policy,
                )
                self.held[side, hold] = plan.rename(self.lab.folder / f"{side}-{hold}.json")

    @property
    def other(self) -> str:
        return OTHER if self.at == HERE else HERE

    def choose(self, hold: str, *, fresh: bool = False) -> Path:
        """Return the plan of the other side with this policy.

        fresh: its rings begin at other hosts than before, so no kept set serves them; its routes
        are the same all the same, as they depend on the steps of the rings.
        """
        side = self.other
        self.plans[side], self.rings[side] = self.held[side, hold], RINGS[side]
        if fresh:
            self.number += 1
            first = self.number % len(HOSTS)
            self.rings[side] = [one[first:] + one[:first] for one in RINGS[side]]
            body = json.loads(self.plans[side].read_text())
            body["job"]["rings"] = self.rings[side]
            self.plans[side] = self.lab.folder / f"{side}-{self.number}.json"
            self.plans[side].write_text(json.dumps(body))
        return self.plans[side]

    def ready(self) -> None:
        """Bring the job up, and see what both plans look like."""
        for self.at in (HERE, OTHER):
            self.lab.up(self.choose("never")).must()
            self.states[self.other] = Wanted(
                self.other, wanted_light(self.lab, self.links[self.other]), routes(self.lab)
            )
        self.at, self.run = HERE, self.launched_by()

    # -- judging

    def launched_by(self) -> str:
        """The run that launched the job."""
        return str(self.lab.testbed("job", "status").must()["run"])

    def quiet(self, within_s: float = QUIET_S, *, dropped: bool = True) -> list[str]:
        """What hosts still owe after `within_s`: commits to be reverted, ranks that wait for a
        request.

        dropped: nothing that was prepared is kept, either. An armed commit keeps nobody waiting; it
        expires, or the next run disarms it, which `waiting_ranks` looks at.
        """
        give_up = time.monotonic() + within_s
        while (found := self._owed(dropped)) and time.monotonic() < give_up:
            time.sleep(0.3)
        return found

    def _owed(self, dropped: bool) -> list[str]:
        seen, found = now(self.lab, self.job), []
        reported = {str(state.host) for state in seen.ranks}
        for host, hello in seen.hellos.items():
            if not isinstance(hello, Hello):
                found.append(f"{host}: {hello}")
                continue
            if hello.pending_s is not None:
                found.append(
                    f"{host}: generation {hello.active} is to be reverted in {hello.pending_s} s"
                )
            if host not in reported and self.job.ranks(host):
                found.append(f"{host}: a rank runs, and its agent has not heard of it")
        return found + [
            f"rank {s.rank} is {s.state}"
            for s in seen.ranks
            if s.state in WAITING or (dropped and s.state not in ENDED)
        ]

    def trains(self) -> list[str]:
        """Whether the newest launch goes on, its iterations numbered without gap or repeat."""
        found = (
            [] if self.job.advances() else [f"the job stays at iteration {self.job.iteration()}"]
        )
        return found + self.job.gapless()

    def lives(self, status: Mapping[str, Any] | None = None) -> list[str]:
        """Whether the job that ran goes on, the same processes. status: what `status` says now."""
        found, job = self.trains(), (status or self.status())["job"]
        if not job:
            return [*found, "status knows no job"]
        if (job["state"], job["run"]) != ("running", self.run):
            found.append(
                f"the job is {job['state']} of run {job['run']}, it was launched by {self.run}: {job['detail']}"
            )
        return found

    def layout(self, side: str) -> list[str]:
        """Whether the rings in use are those of a plan."""
        used = self.job.rings()
        return (
            []
            if used == self.rings[side]
            else [f"the job runs on rings {used}, {side} has {self.rings[side]}"]
        )

    def waits(self, side: str) -> list[str]:
        with self.store() as store:
            return wrong(self.lab, store, self.tenancy, self.states[side])

    def status(self) -> dict[str, Any]:
        return dict(self.lab.testbed("status").envelope["data"])

    def ends(self, side: str) -> list[str]:
        """Whether all is as after a change to `side` that went well: job, glass, hosts, store,
        locks, nothing unfinished.
        """
        found, status = self.quiet(), self.status()
        found += self.lives(status) + self.waits(side) + self.layout(side)
        found += [f"run {each['run']} counts as unfinished" for each in status["unfinished"]]
        found += [
            f"{host}: {len(ranks)} ranks run"
            for host in HOSTS
            if len(ranks := self.job.ranks(host)) != 1
        ]
        self.at = side
        return found + ([f"locked by {status['locked_by']}"] if status["locked_by"] else [])

    # -- cases

    def reach(
        self, state: str, act: Callable[[subprocess.Popen[str]], None], *argv: str
    ) -> tuple[Answer, list[str]]:
        """Run `up` of the other plan into a state, let `act` happen there, and let it go on.

        Return the answer, and in words what was not as the state has to be. Nothing happens where
        the state is not there.
        """
        mark, wanted = self.lab.folder / "moment", STATES[state]
        mark.unlink(missing_ok=True)
        env = {"DRILL_LIKE": wanted.like, "DRILL_NTH": str(wanted.nth), "DRILL_DO": f"wait {mark}"}
        command = [
            sys.executable,
            "-m",
            "tests.drills.deadly",
            "up",
            "--topology",
            str(self.plans[self.other]),
            *argv,
            "--json",
        ]
        process = subprocess.Popen(
            command,
            env=self.lab.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        give_up, missing = time.monotonic() + COMMAND_S, f"the point {wanted.like} was not reached"
        try:
            while not mark.exists() and process.poll() is None and time.monotonic() < give_up:
                time.sleep(0.02)
            if mark.exists():
                missing = self._missing(state)
            if not missing:
                act(process)
        finally:
            mark.unlink(missing_ok=True)
            try:
                out, err = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        answer = Answer(process.returncode, json.loads(out) if out else {}, err)
        return answer, [f"state {state}: {missing}"] if missing else []

    def _missing(self, state: str) -> str:
        give_up, here, other = (
            time.monotonic() + REACHED_S,
            self.states[self.at].light,
            self.states[self.other].light,
        )
        while missing := STATES[state].missing(now(self.lab, self.job), here, other):
            if time.monotonic() > give_up:
                break
            time.sleep(0.05)
        return missing

    def happen(self, case: Case, process: subprocess.Popen[str]) -> None:
        """What happens. Raises: AssertionError - there was nobody to be killed, or a second command
        was let in.
        """
        match case.who:
            case "operator":
                process.kill()
                process.wait()
            case "interrupt":
                process.send_signal(signal.SIGINT)
            case "agent" | "watchdog":
                watchdog, daemon = self.job.agents(case.host)
                assert daemon, f"no agent runs on {case.host}"
                for pid in (watchdog, daemon) if case.who == "watchdog" else (daemon,):
                    os.kill(pid, signal.SIGKILL)
            case "rank":
                self.before = self.job.lines("iterations.jsonl")
                ranks = self.job.ranks(case.host)
                assert ranks, f"no rank runs on {case.host}"
                for pid in ranks:
                    os.kill(pid, signal.SIGKILL)
            case "host":
                self.before = self.job.lines("iterations.jsonl")
                self.job.keep_disks(self.disks)
                self.lab.ask("host.down", host=case.host)
            case "frozen":  # the operator does nothing until every lease has ended
                late = self.quiet(dropped=False)
                assert not late, late
            case "second":
                second = self.lab.up(self.plans[self.at])
                assert second.exit_code == 4 and "locked" in second.envelope["message"], second
                pause = self.lab.testbed("job", "pause")
                assert pause.exit_code == 4 and "locked" in pause.envelope["message"], pause

    def case(self, case: Case) -> list[str]:
        """Let it happen, and judge; what was wrong, in words."""
        self.choose(STATES[case.state].hold, fresh=True)
        self.job.begun_with()
        launch, argv = self.job.launch(), () if case.lost else ("--job", "live")
        agents = self.job.agents(case.host)
        answer, found = self.reach(case.state, partial(self.happen, case), *argv)
        if found:
            pass
        elif case.who == "operator":
            found = self._operator(case, answer)
        elif case.lost:
            found = self._lost(case, answer) + self.resumed(launch)
        else:
            found = self._survived(case, answer)
            if (
                case.who in ("agent", "watchdog")
                and (again := self.job.agents(case.host))[1] == agents[1]
            ):
                found.append(f"the agent of {case.host} is the one that was killed: {again}")
        lines = answer.envelope.get("message", answer.stderr)
        return [*found, f"up answered: exit {answer.exit_code}: {lines[-600:]}"] if found else []

    def recover(self) -> list[str]:
        """Bring one plan up, whatever went wrong at the last case; return what it then is not."""
        plan = self.choose("never")
        if self.lab.up(plan).exit_code:
            self.lab.testbed("down", "--yes")
            self.lab.up(plan).must()
        self.at, self.run = self.other, self.launched_by()
        return self.ends(self.at)

    def _operator(self, case: Case, answer: Answer) -> list[str]:
        if answer.exit_code != -signal.SIGKILL:
            return ["the operator was not killed"]
        found, status = self.quiet(dropped=False), self.status()
        found += [] if case.state in APART else self.lives(status)
        if status["locked_by"]:
            found.append(f"locked by {status['locked_by']}")
        left = [each for each in status["unfinished"] if each["status"] == "died"]
        if not left:
            return [*found, "status names no run that died"]
        answer = self.lab.testbed(case.then, left[0]["run"])
        if answer.exit_code:
            return [*found, f"{case.then}: exit {answer.exit_code}: {answer.envelope['message']}"]
        return found + self.ends(self.other if case.then == "resume" else self.at)

    def _survived(self, case: Case, answer: Answer) -> list[str]:
        """An agent that is gone, an interrupt, a late operator: the change is made, or all is as
        before; the job goes on.
        """
        found, wanted = [], MAY_END.get(case.who, (answer.exit_code,))
        if answer.exit_code not in wanted:
            found.append(f"exit {answer.exit_code} instead of {' or '.join(map(str, wanted))}")
        side = (
            self.other
            if answer.exit_code == 0 or "stays up" in answer.envelope["message"]
            else self.at
        )
        for each in self.status()["unfinished"] if answer.exit_code == 7 else ():
            back = self.lab.testbed("rollback", each["run"])
            if back.exit_code:
                found.append(f"rollback: exit {back.exit_code}: {back.envelope['message']}")
        if case.who == "watchdog" and not any(self.job.agents(case.host)):
            # the lab has no systemd, which starts a watchdog: the next change does
            again = self.lab.up(self.plans[side])
            if again.exit_code or again.envelope["data"]["job"]["run"] != self.run:
                found.append(f"up {side}: exit {again.exit_code}: {again.envelope}")
        return found + self.ends(side)

    def _lost(self, case: Case, answer: Answer) -> list[str]:
        """A rank or a host is gone: so is the job, which is launched again; nobody is left holding.
        A host comes with the lab.
        """
        found, side = self.quiet(LONGEST_QUIET_S), self.other if answer.exit_code == 0 else self.at
        if case.who == "host":
            if answer.exit_code and case.host not in answer.envelope["message"]:
                found.append(f"{case.host} is not named")
            found += self._rebooted()
        elif answer.exit_code in (0, 6):
            found += self.waits(side)
        job = self.status()["job"]
        if job and job["state"] == "running":
            found += self.trains()
        if answer.exit_code or not job or job["state"] != "running":
            again = self.lab.up(self.plans[side])
            if again.exit_code:
                return [*found, f"up {side}: exit {again.exit_code}: {again.envelope['message']}"]
        self.run = self.launched_by()
        return found + self.ends(side)

    def _rebooted(self) -> list[str]:
        """The lab comes back after a power cut, its hosts with their disks."""
        self.job.keep_disks(self.disks)
        self.lab.testbed("lab", "stop").must()
        self.lab.testbed("lab", "start").must()
        self.job.put_disks_back(self.disks)
        answer = self.lab.testbed("restore")
        return (
            []
            if answer.exit_code == 0
            else [f"restore: exit {answer.exit_code}: {answer.envelope['message']}"]
        )

    def resumed(self, launch: str) -> list[str]:
        """Whether the launch after `launch`, in which a rank or a host was killed, began where the
        newest checkpoint was.
        """
        died, at_ns = int(self.before[-1]["iter"]), int(self.before[-1]["t_wall_ns"])
        later = [
            lines
            for name, lines in self.job.records().items()
            if name != launch and int(lines[0]["t_wall_ns"]) > at_ns
        ]
        first = min((int(lines[0]["iter"]) for lines in later), default=0)
        if died - EVERY < first <= died + SLACK:
            return []
        return [
            f"it died after iteration {died}, and was resumed at {first}"
            if first
            else "the job was not launched again"
        ]
