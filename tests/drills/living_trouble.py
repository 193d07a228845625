"""What goes wrong with a running job's move without anybody dying, and what the weights say at the
end.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.drills.living_jobs import LivingJobs
from tests.end_to_end.conftest import Answer


class Trouble:
    """Each returns what was wrong, in words."""

    def __init__(self, drill: LivingJobs) -> None:
        self.drill, self.lab, self.job = drill, drill.lab, drill.job

    def stuck(self, state: str) -> list[str]:
        """Light that never comes, in this state of the job: a mirror that does not move."""
        drill = self.drill
        drill.choose("always" if state == "dark" else "never", fresh=True)
        port = min(
            ingress
            for ingress, _ in drill.states[drill.other].light["ocs1"]
            - drill.states[drill.at].light["ocs1"]
        )
        number = self.lab.ask("faults.add", device="ocs1", kind="stuck-port", port=port)["number"]
        try:
            answer, found = drill.reach(state, lambda _: None, "--job", "live")
        finally:
            self.lab.ask("faults.remove", device="ocs1", number=number)
        if answer.exit_code not in (6, 7):
            found.append(f"exit {answer.exit_code}: {answer.envelope['message']}")
        for each in drill.status()["unfinished"] if answer.exit_code == 7 else ():
            self.lab.testbed("rollback", each["run"]).must()
        return found + drill.ends(drill.at)

    def failed(self) -> list[str]:
        """A change whose verification fails, once the job has turned, is rolled back, and the job
        with it.
        """
        drill = self.drill
        plan = drill.choose("never", fresh=True)
        plan.write_text(
            json.dumps(json.loads(plan.read_text()) | {"acceptance": {"light_window_db": 0.0001}})
        )
        steps = len(self.job.lines("ring_changes.jsonl"))
        answer = self.lab.up(plan, "--job", "live")
        found = (
            []
            if answer.exit_code == 6
            else [f"exit {answer.exit_code}: {answer.envelope['message']}"]
        )
        if (count := len(self.job.lines("ring_changes.jsonl")) - steps) != 2:
            found.append(f"the job turned {count} times, not there and back")
        return found + drill.ends(drill.at)

    def in_a_row(self, count: int = 4) -> list[str]:
        """Moves without a pause between them: back and forth, the job turning each time."""
        drill = self.drill
        found: list[str] = []
        steps = len(self.job.lines("ring_changes.jsonl"))
        for number in range(count):
            answer = self.lab.up(drill.choose("never"), "--job", "live")
            if answer.exit_code:
                return [
                    *found,
                    f"move {number + 1}: exit {answer.exit_code}: {answer.envelope['message']}",
                ]
            drill.at = drill.other
            found += drill.layout(drill.at)
        if (changed := len(self.job.lines("ring_changes.jsonl")) - steps) != count:
            found.append(f"the job turned {changed} times in {count} moves")
        return found + drill.ends(drill.at)

    def cannot(self, live: bool = True) -> list[str]:
        """One rank may open one descriptor more, which is too few for rings: its host is named.

        live: nothing is changed; else, by the policy of the plan, the job is resumed from its
        newest checkpoint on its new rings.
        """
        drill = self.drill
        plan = drill.choose("never", fresh=True)
        before, light, launch = self.lab.writes(), self.lab.light(), self.job.folder()
        answer = self._up_with_few_files(plan, *(("--job", "live") if live else ()))
        message = answer.envelope["message"] + json.dumps(answer.envelope.get("data"))
        found = [] if "gpu03" in message else [f"gpu03 is not named: {message}"]
        if live:
            if not answer.exit_code or (self.lab.writes(), self.lab.light()) != (before, light):
                found.append(
                    f"exit {answer.exit_code}, light was moved: {light != self.lab.light()}"
                )
            return found + drill.ends(drill.at)
        if answer.exit_code:
            return [*found, f"exit {answer.exit_code}: {message}"]
        drill.run, drill.before = drill.launched_by(), self.job.lines("iterations.jsonl", launch)
        return found + drill.ends(drill.other) + drill.resumed(launch.name)

    def _up_with_few_files(self, plan: Path, *argv: str) -> Answer:
        (rank,) = self.job.ranks("gpu03")
        used = {int(each.name) for each in Path(f"/proc/{rank}/fd").iterdir()}
        allowed = _open_files(rank, min(set(range(len(used) + 1)) - used) + 1)
        try:
            return self.lab.up(plan, *argv)
        finally:
            if Path(f"/proc/{rank}").exists():
                _open_files(rank, allowed)

    def weights(self, *, resumed: bool = False) -> list[str]:
        """Stop the job: its weights are those of a replay of what its launches journalled. resumed:
        there may be several.
        """
        found = self.job.gapless()
        self.lab.testbed("job", "stop").must()
        reply: dict[str, Any] = self.job.summary()
        if not reply["weights_identical"]:
            found.append("the ranks have different weights")
        if len(self.job.launches()) > 1 and not resumed:
            found.append(f"the job was launched {len(self.job.launches())} times")
        with tempfile.TemporaryDirectory(prefix="testbed-replay-") as made:
            replayed = self.job.replayed(Path(made), self.drill.args, self.job.journalled())
        if replayed != reply["weights_sha256"]:
            found.append(
                f"after {reply['iterations']} iterations the weights are {reply['weights_sha256']}, replayed {replayed}"
            )
        return found

    def weights_then_another(self, *, resumed: bool = False) -> list[str]:
        """As `weights`; then begin another training."""
        drill = self.drill
        found = self.weights(resumed=resumed)
        drill.plan_for(int(str(drill.args["seed"])) + 1)
        self.lab.up(drill.choose("never")).must()
        drill.run = drill.launched_by()
        return found + drill.ends(drill.other)


def _open_files(pid: int, most: int) -> int:
    """Set how many files a process may have open, as the user that it runs as; return how many it
    might.
    """
    limits, owner = Path(f"/proc/{pid}/limits").read_text(), Path(f"/proc/{pid}").stat()
    as_it = [
        "setpriv",
        "--reuid",
        str(owner.st_uid),
        "--regid",
        str(owner.st_gid),
        "--clear-groups",
    ]
    subprocess.run([*as_it, "prlimit", "--pid", str(pid), f"--nofile={most}:"], check=True)
    return int(re.findall(r"^Max open files\s+(\d+)", limits, re.MULTILINE)[0])
