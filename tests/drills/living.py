"""Living jobs: whoever takes part in a turn is killed in each of its states; the job goes on or is resumed, no host keeps holding.

The states are those of a move: preparing, prepared, held, turned, confirmed. Judged by rank 0's own records, the processes of the
hosts, the glass, the kernels and the agents; the weights by a replay of the journalled turns on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.hosts import Hello
from orchestrator.session import load_lab, open_session
from tests.drills.crash_points import HERE, THERE, CrashPoints
from tests.drills.job_truth import HOSTS, Job
from tests.drills.truth import Wanted, hellos, routes, wanted_glass, wrong
from tests.end_to_end.conftest import ROOT, Answer, Lab

ACROSS = [HOSTS[k] for k in (0, 2, 4, 1, 5, 3)]


def cycle(order: Sequence[str], ports: tuple[int, int]) -> list[tuple[str, str]]:
    """The links of a ring in this order, its steps using two ports in turn."""
    return [(f"{a}:p{ports[k % 2]}", f"{order[(k + 1) % len(order)]}:p{ports[k % 2]}") for k, a in enumerate(order)]


FROM, TO = [*cycle(HOSTS, (1, 2)), *cycle(ACROSS, (3, 4))], [*cycle(ACROSS, (1, 2)), *cycle(HOSTS, (3, 4))]
"""All circuits move: the two orders have no step in common."""
RINGS = {HERE: [HOSTS, HOSTS[::-1], ACROSS], THERE: [ACROSS, HOSTS[::-1]]}
STATES: Mapping[str, tuple[str, str]] = {
    "preparing": ("never", r"^after gpu03 job\.prepare 1$"),
    "prepared": ("never", r"^before gpu\d+ arm 1$"),
    "held": ("always", r"^before ocs\d \S+ 1$"),
    "dark": ("always", r"^after ocs\d \S+ 1$"),
    "turned": ("never", r"^before gpu\d+ confirm 1$"),
    "confirmed": ("never", r"^after gpu06 confirm 1$"),
}
"""Each with the policy `hold` under which it is looked at, and the first point of the change that lies in it."""
ENDED = ("idle", "turned", "void", "cannot")
"""States of a rank in which it waits for nobody."""
REVERT_S, QUIET_S = 5.0, 60.0


@dataclass
class Case:
    """One thing that happens in one state, and what is asked for afterwards."""

    who: str
    state: str
    then: str = "rollback"

    def __str__(self) -> str:
        return f"{self.who} in state {self.state}, then {self.then}"


class LivingJobs(CrashPoints):
    """`here` is up between the cases, with the job running on its rings."""

    def __init__(self, lab: Lab, *, seed: int = 14) -> None:
        super().__init__(lab, FROM, TO)
        self.job = Job(lab)
        self.held: dict[tuple[str, str], Path] = {}
        self.points: dict[str, list[str]] = {}
        self.run = ""
        self.plan_for(seed)

    def plan_for(self, seed: int) -> None:
        """Write the plans with a training of its own: another seed is another one.

        Its model is large enough that the fabric, not computing, decides how long an iteration takes: a replay takes less.
        """
        self.args: dict[str, object] = {"hidden": 512, "batch": 8, "seed": seed, "checkpoint_every": 20}
        spec = {"name": "living", "workload": "train", "ranks": HOSTS, "args": {"iterations": 0, **self.args}}
        for side in (HERE, THERE):
            for hold in ("never", "always"):
                policy = {"hold": hold, "revert_after_s": REVERT_S}
                plan = self.lab.plan(side, list(self.links[side]), job={**spec, "rings": RINGS[side]}, transition=policy)
                self.held[side, hold] = plan.rename(self.lab.folder / f"{side}-{hold}.json")

    def choose(self, hold: str) -> None:
        self.plans = {side: self.held[side, hold] for side in (HERE, THERE)}

    def ready(self, *, points: Mapping[str, list[str]] | None = None) -> None:
        """Bring the job up, see what both plans look like, and count the points of a turn under each policy, unless given."""
        self.choose("never")
        for side in (THERE, HERE):
            self.lab.up(self.plans[side]).must()
            self.states[side] = Wanted(side, wanted_glass(self.lab, self.links[side]), routes(self.lab))
        self.points = dict(points or {})
        for hold in ("never", "always") if points is None else ():
            self.choose(hold)
            file = self.lab.folder / f"points-{hold}"
            file.unlink(missing_ok=True)
            self.deadly(DRILL_POINTS=str(file)).must()
            self.lab.up(self.plans[HERE]).must()
            self.points[hold] = file.read_text().splitlines()
        self.run = self.lab.testbed("job", "status").must()["run"]

    def point(self, state: str) -> str:
        """The point of the change that lies in a state. Raises: LookupError - no run passed one."""
        hold, pattern = STATES[state]
        self.choose(hold)
        found = [point for point in self.points[hold] if re.search(pattern, point)]
        if not found:
            raise LookupError(f"no point for {state}: {pattern}")
        return found[0]

    # -- judging

    def quiet(self, within_s: float = QUIET_S) -> list[str]:
        """What hosts still hold after `within_s`: commits to be reverted, ranks that wait for a word.

        An armed commit keeps nobody waiting; it expires, or the next run disarms it, which `stands` looks at.
        """
        give_up = time.monotonic() + within_s
        while (found := self._owed()) and time.monotonic() < give_up:
            time.sleep(0.3)
        return found

    def _owed(self) -> list[str]:
        down = {name for name, host in self.lab.ask("status")["hosts"].items() if not host["sshd"]}
        found = []
        for host, hello in hellos(self.lab).items():
            if host in down:
                continue
            if not isinstance(hello, Hello):
                found.append(f"{host}: {hello}")
            elif hello.pending_s is not None:
                found.append(f"{host}: generation {hello.active} is to be reverted in {hello.pending_s} s")
        states = asyncio.run(self._ranks([host for host in HOSTS if host not in down]))
        return found + [f"rank {rank} is {state}" for rank, state in states.items() if state not in ENDED]

    async def _ranks(self, hosts: Sequence[str]) -> dict[int, str]:
        async with open_session(load_lab(self.lab.inventory), self.lab.inventory, self.lab.folder / "look") as session:
            await session.hosts.connect(hosts)
            return {state.rank: state.state for state in await session.hosts.rank_states(self.job.folder().name, hosts)}

    def lives(self) -> list[str]:
        """Whether the job that ran goes on, the same processes."""
        found = [] if self.job.advances() else [f"the job stays at iteration {self.job.iteration()}"]
        status = self.lab.testbed("job", "status").envelope["data"]
        if (status["state"], status["run"]) != ("running", self.run):
            found.append(f"the job is {status['state']} of run {status['run']}, it was launched by {self.run}: {status['detail']}")
        return found

    def layout(self, side: str) -> list[str]:
        """Whether the rings in use are those of a plan."""
        now = self.job.rings()
        return [] if now == RINGS[side] else [f"the job runs on rings {now}, {side} has {RINGS[side]}"]

    def stands(self, side: str) -> list[str]:
        with self.store() as store:
            return wrong(self.lab, store, self.slice, self.states[side])

    # -- cases

    def happen(self, case: Case, host: str = "gpu04") -> str:
        """What `deadly` is to do at the point."""
        watchdog, daemon = self.job.agents(host)
        return {
            "operator": "kill",
            "interrupt": "interrupt",
            "agent": f"kill {daemon}",
            "watchdog": f"kill {watchdog} {daemon}",
            "rank": f"kill {' '.join(map(str, self.job.ranks(host)))}",
            "host": json.dumps({"op": "host.down", "host": host}),
        }[case.who]

    def case(self, case: Case) -> list[str]:
        """Let it happen, judge, and bring `here` back; what was wrong, in words."""
        point = self.point(case.state)
        answer = self.deadly(DRILL_AT=point, DRILL_DO=self.happen(case), DRILL_SOCKET=str(self.lab.folder / "lab" / "control.sock"))
        if case.who == "operator":
            found = self._operator(case, answer)
        elif case.who in ("rank", "host"):
            found = self._lost(case)
        else:
            found = self._survived(case, answer)
        if found:
            found.append(f"up said: exit {answer.exit_code}: {answer.envelope.get('message', answer.stderr)[-600:]}")
        back = self.lab.up(self.plans[HERE])
        if back.exit_code:
            found.append(f"up {HERE} afterwards: exit {back.exit_code}: {back.envelope['message']}")
        else:
            self.run = self.lab.testbed("job", "status").must()["run"]
            found += self.stands(HERE)
        return found

    def _operator(self, case: Case, answer: Answer) -> list[str]:
        if answer.exit_code != -signal.SIGKILL:
            return [f"the point was not reached: exit {answer.exit_code}"]
        found = self.lives() + self.quiet()
        status = self.lab.testbed("status").envelope["data"]
        left = [each for each in status["unfinished"] if each["status"] == "died"]
        if not left:
            return [*found, "status names no run that died"]
        answer = self.lab.testbed(case.then, left[0]["run"])
        side = THERE if case.then == "resume" else HERE
        nothing = "changed nothing" in answer.envelope["message"]
        if answer.exit_code and not nothing:
            return [*found, f"{case.then}: exit {answer.exit_code}: {answer.envelope['message']}"]
        if nothing:  # it had not begun, so `here` is up, and the next command supersedes it
            return found + self.lives()
        return found + self.lives() + self.stands(side) + self.layout(side)

    def _survived(self, case: Case, answer: Answer) -> list[str]:
        """An agent that is gone, or an interrupt: the change is made or as before, the job goes on."""
        found = self.lives() + self.quiet()
        if answer.exit_code in (0, 6, 130):
            side = THERE if answer.exit_code == 0 else HERE
            return found + self.stands(side) + self.layout(side)
        back = self.lab.testbed("rollback")
        return found if back.exit_code in (0, 2) else [*found, f"rollback: exit {back.exit_code}: {back.envelope['message']}"]

    def _lost(self, case: Case) -> list[str]:
        """A rank or a host is gone: so is the job, which is resumed by the next command; nobody is left holding meanwhile."""
        found = self.quiet()
        if case.who == "host":
            self.lab.testbed("lab", "stop").must()
            self.lab.testbed("lab", "start").must()
            self.lab.testbed("restore")
            return found
        kept = self.job.iteration() >= int(str(self.args["checkpoint_every"]))
        status = self.lab.testbed("status").envelope["data"]
        if status["job"]["state"] == "running" and not self.job.advances(within_s=20):
            found.append("status says that the job runs")
        answer = self.lab.up(self.plans[HERE])
        if answer.exit_code:
            return [*found, f"up {HERE}: exit {answer.exit_code}: {answer.envelope['message']}"]
        job = self.lab.testbed("job", "status").must()
        if job["state"] != "running" or (kept and not job["resumed_from"]):
            found.append(f"the job is {job['state']}, resumed from {job['resumed_from']}")
        return found if self.job.advances() else [*found, "the job launched again comes no further"]

    # -- what goes wrong without anybody dying

    def stuck(self) -> list[str]:
        """Light that never comes while all ranks are held: a mirror that does not move."""
        self.choose("always")
        number = self.lab.ask("faults.add", device="ocs1", kind="stuck-port", port=self._port("ocs1"))["number"]
        try:
            answer = self.lab.up(self.plans[THERE])
        finally:
            self.lab.ask("faults.remove", device="ocs1", number=number)
        found = [] if answer.exit_code in (6, 7) else [f"exit {answer.exit_code}: {answer.envelope['message']}"]
        if answer.exit_code == 7:
            self.lab.testbed("rollback")
        return found + self.lives() + self.quiet() + self.layout(HERE) + self.stands(HERE)

    def _port(self, device: str) -> str:
        return min(ingress for ingress, _ in self.states[THERE].glass[device] - self.states[HERE].glass[device])

    def failed(self) -> list[str]:
        """A change whose verification fails is taken back, and the job with it."""
        body = json.loads(self.held[THERE, "never"].read_text()) | {"acceptance": {"light_window_db": 0.0001}}
        bad = self.lab.folder / "bad.json"
        bad.write_text(json.dumps(body))
        answer = self.lab.up(bad)
        found = [] if answer.exit_code == 6 else [f"exit {answer.exit_code}: {answer.envelope['message']}"]
        return found + self.lives() + self.quiet() + self.layout(HERE) + self.stands(HERE)

    def in_a_row(self, count: int = 4) -> list[str]:
        """Moves without a pause between them: back and forth, the job turning each time."""
        self.choose("never")
        found: list[str] = []
        for number in range(count):
            side = (THERE, HERE)[number % 2]
            answer = self.lab.up(self.plans[side], "--job", "live")
            if answer.exit_code:
                return [*found, f"move {number + 1}: exit {answer.exit_code}: {answer.envelope['message']}"]
            found += self.layout(side)
        return found + self.lives() + self.quiet() + self.job.gapless()

    def cannot(self) -> list[str]:
        """One rank may open one descriptor more, which is too few for rings: nothing is changed, and its host is named.

        The rings are new ones: those of the last turn are still connected, so going back to them opens nothing.
        """
        body = json.loads(self.held[THERE, "never"].read_text())
        body["job"]["rings"] = [ACROSS[::-1], HOSTS]
        other = self.lab.folder / "other-rings.json"
        other.write_text(json.dumps(body))
        before, glass = self.lab.writes(), self.lab.glass()
        (rank,) = self.job.ranks("gpu03")
        used = {int(each.name) for each in Path(f"/proc/{rank}/fd").iterdir()}
        allowed = _open_files(rank, min(set(range(len(used) + 1)) - used) + 1)
        try:
            answer = self.lab.up(other, "--job", "live")
        finally:
            _open_files(rank, allowed)
        message = answer.envelope["message"]
        found = [] if answer.exit_code else ["up succeeded although a rank could not turn"]
        if "gpu03" not in message:
            found.append(f"gpu03 is not named: {message}")
        if (self.lab.writes(), self.lab.glass()) != (before, glass):
            found.append("light was moved")
        return found + self.lives() + self.quiet() + self.layout(HERE)

    def weights(self) -> list[str]:
        """Stop the job: its weights are those of a replay."""
        found = self.job.gapless()
        self.lab.testbed("job", "stop").must()
        said = self.job.summary()
        first = self.job.lines("iterations.jsonl")[0]["iter"]
        if not said["weights_identical"] or first != 1:
            found.append(f"identical on all ranks: {said['weights_identical']}, first iteration {first}")
        with tempfile.TemporaryDirectory(prefix="testbed-replay-") as made:
            replayed = self.job.replayed(Path(made), self.args, [[HOSTS[rank] for rank in one] for one in said["rings"]])
        if replayed != said["weights_sha256"]:
            found.append(f"after {said['iterations']} iterations the weights are {said['weights_sha256']}, replayed {replayed}")
        return found

    def weights_then_another(self) -> list[str]:
        """As `weights`; then begin another training."""
        found = self.weights()
        self.plan_for(int(str(self.args["seed"])) + 1)
        self.choose("never")
        self.run = self.lab.up(self.plans[HERE]).must()["job"]["run"]
        return found


def _open_files(pid: int, most: int) -> int:
    """Set how many files a process may have open, as the user that it runs as; return how many it might."""
    limits, owner = Path(f"/proc/{pid}/limits").read_text(), Path(f"/proc/{pid}").stat()
    as_it = ["setpriv", "--reuid", str(owner.st_uid), "--regid", str(owner.st_gid), "--clear-groups"]
    subprocess.run([*as_it, "prlimit", "--pid", str(pid), f"--nofile={most}:"], check=True)
    return int(re.findall(r"^Max open files\s+(\d+)", limits, re.MULTILINE)[0])


def cases() -> list[Case]:
    states = list(STATES)
    found = [Case("operator", state, then) for state in states for then in ("rollback", "resume")]
    found += [Case(who, state, "up") for who in ("agent", "watchdog", "interrupt", "rank", "host") for state in states]
    return found


def whole(only: str = "") -> int:
    """The drill on a lab of its own. only: a regular expression that chooses among the cases."""
    with tempfile.TemporaryDirectory(prefix="testbed-drill-") as made:
        lab = Lab(Path(made))
        generate = [sys.executable, "-m", "emulators.generate", "--hosts", "6", "--ports", "4", "--free-ports"]
        where = ["--out", str(lab.inventory), "--state", str(lab.folder / "lab")]
        subprocess.run([*generate, *where], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        lab.testbed("lab", "start").must()
        try:
            drill = LivingJobs(lab)
            drill.ready()
            named: dict[str, Callable[[], list[str]]] = {
                "moves in a row": drill.in_a_row,
                "light that never comes during a hold": drill.stuck,
                "verification fails": drill.failed,
                "one rank cannot": drill.cannot,
                "weights of a replay": drill.weights_then_another,
            }
            for each in cases():
                named[str(each)] = partial(drill.case, each)
                if (each.who, each.state) == ("interrupt", "confirmed"):
                    named["weights of a replay, again"] = drill.weights_then_another
            return judged({name: look for name, look in named.items() if re.search(only, name)})
        finally:
            lab.testbed("lab", "stop")


def judged(named: Mapping[str, Callable[[], list[str]]]) -> int:
    """Look at each, print what was found, and return the exit code."""
    began, wrongs = time.monotonic(), 0
    for number, (name, look) in enumerate(named.items(), 1):
        try:
            found = look()
        except (AssertionError, LookupError, OSError, subprocess.SubprocessError) as error:
            found = [f"{type(error).__name__}: {error}"]
        wrongs += bool(found)
        print(f"  {number:>3}/{len(named)} {time.monotonic() - began:6.0f} s  {name}{'  WRONG' if found else ''}", flush=True)
        for line in found:
            print(f"        {line}", flush=True)
    print(f"living jobs: {len(named)} cases, {wrongs} wrong")
    return int(bool(wrongs))


if __name__ == "__main__":
    assert os.geteuid() == 0, "namespaces need root"
    sys.exit(whole(*sys.argv[1:2]))
