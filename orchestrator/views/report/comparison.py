"""`testbed compare`: two plans measured alternately with the same job; saved after every measurement, so that it can be resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from optics.errors import BadFile, Missing, NotVerified
from optics.plain import reason
from optics.plan import Job
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import read_json
from orchestrator.plan.reader import read_plan
from orchestrator.reading import text_of
from orchestrator.results import DownReport, JobStatus, UpReport, to_json
from orchestrator.settings import Settings, campaigns, private_dir
from orchestrator.views.report.gather import read_campaign

SCHEMA = "testbed.campaign/1"
LEAST = 3
"""Least number of iterations of a measurement."""


class Verbs(Protocol):
    """The operations on the lab that a comparison uses; each may raise an error of `optics.errors`."""

    def up(self, plan: Path) -> UpReport: ...
    def launch(self) -> JobStatus: ...
    def status(self) -> JobStatus: ...
    def stop(self) -> JobStatus: ...
    def rollback(self, run: str) -> UpReport | DownReport: ...
    def down(self) -> DownReport: ...


def order(repeats: int) -> list[str]:
    """A B B A A B B A ...: pairs whose first plan alternates, so that slow drift of the lab affects both plans equally."""
    return [arm for n in range(repeats) for arm in ("ab" if n % 2 == 0 else "ba")]


@dataclass
class Comparison:
    """One comparison and the file it is kept in."""

    folder: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def slots(self) -> list[dict[str, Any]]:
        """The measurements in their order: arm, state (waiting, done, failed), runs, job_run, iterations, seconds, error."""
        return list(self.data["slots"])

    @property
    def waiting(self) -> list[dict[str, Any]]:
        return [slot for slot in self.slots if slot["state"] != "done"]

    def plan(self, arm: str) -> Path:
        return self.folder / f"{arm}.json"

    def save(self) -> None:
        """Save it atomically. Raises: Missing - it cannot be written."""
        fresh = self.folder / "campaign.new"
        try:
            fresh.write_text(json.dumps(self.data, indent=1, ensure_ascii=False), encoding="utf-8")
            fresh.replace(self.folder / "campaign.json")
        except OSError as error:
            raise Missing(
                f"{self.folder} cannot be written: {error.strerror or error}", hint="free some space, then continue it: --resume"
            ) from error


def begin(
    settings: Settings, lab: Lab, paths: Mapping[str, Path], *, job: Path | None, repeats: int, iterations: int, leave: str
) -> Comparison:
    """Check both plans and their job, and save the list of measurements. The lab is not touched.

    Raises: BadFile - a plan or job is wrong, or the plans' jobs differ, which would compare two things at once.
    """
    given = _job_of(job)
    texts = {arm: _with_job(path, given) for arm, path in paths.items()}
    plans = {arm: read_plan(text, str(paths[arm]), lab) for arm, text in texts.items()}
    jobs: dict[str, Job] = {}
    for arm, plan in plans.items():
        if plan.job is None:
            raise BadFile(
                [f"{paths[arm]}: the plan has no job, so nothing can be measured"],
                hint="add a job, or use one for both: --job FILE",
            )
        jobs[arm] = plan.job
    if different := _differences(jobs["a"], jobs["b"]):
        raise BadFile(
            [f"{paths['a']} and {paths['b']}: the jobs differ in {', '.join(different)}: two things would be compared at once"],
            hint="use the same job for both: --job FILE",
        )
    most = jobs["a"].args.get("iterations")
    if isinstance(most, int) and not isinstance(most, bool) and 0 < most <= iterations:  # 0: endless
        raise BadFile(
            [f"{paths['a']}: the job ends after {most} iterations, but {iterations} and one for warm-up are needed"],
            hint="--iterations N, or a longer job",
        )
    place = private_dir(campaigns(settings))
    day, number = time.strftime("%Y-%m-%d"), 1
    while True:
        folder = place / f"compare-{day}-{number:04d}"
        try:
            folder.mkdir(mode=0o700)
            break
        except FileExistsError:
            number += 1
        except OSError as error:
            raise Missing(f"{folder} cannot be made: {error.strerror or error}", hint="check the setting state_dir") from error
    labels = {arm: f"{arm.upper()}: {plan.name}" for arm, plan in plans.items()}
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "name": folder.name,
        "title": f"Comparison of {plans['a'].name} and {plans['b'].name}",
        "lab": lab.name,
        "arms": labels,
        "plans": {arm: str(path) for arm, path in paths.items()},
        "sha256": {arm: plan.sha256 for arm, plan in plans.items()},
        "job": to_json(replace(jobs["a"], rings=())),
        "repeats": repeats,
        "iterations": iterations,
        "leave": leave,
        "first_change": "",
        "slots": [{"arm": arm, "state": "waiting", "runs": []} for arm in order(repeats)],
        "left": "",
    }
    made = Comparison(folder, data)
    for arm, text in texts.items():
        made.plan(arm).write_text(text, encoding="utf-8")
    made.save()
    return made


def again(settings: Settings, word: str) -> Comparison:
    """Read a saved comparison. Raises: BadFile, Missing - there is none."""
    from orchestrator.views.report.gather import campaign_file

    path = campaign_file(settings, word)
    if path is None:
        there = sorted(p.name for p in campaigns(settings).glob("compare-*"))[-5:]
        raise Missing(
            f"there is no comparison {word!r}" + (f"; the latest are {', '.join(there)}" if there else ""),
            hint="testbed compare A.json B.json",
        )
    return Comparison(path.parent, read_campaign(path))


def measure(
    comparison: Comparison,
    verbs: Verbs,
    say: Callable[[str], None],
    *,
    patience_s: float,
    within_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Make the missing measurements; false if `within_s` ended it before the last.

    patience_s: longest time (s) for the iterations of one measurement. Raises: as the verbs; finished measurements are kept.
    """
    began = clock()
    slots = comparison.slots
    for number, slot in enumerate(slots):
        if slot["state"] == "done":
            continue
        if within_s is not None and number % 2 == 0 and clock() - began >= within_s:
            return False
        took = [s["seconds"] for s in slots if s["state"] == "done"]
        left = sum(s["state"] != "done" for s in slots)
        eta = f", about {left * sum(took) / len(took) / 60:.1f} min left" if took else ""
        say(f"measurement {number + 1} of {len(slots)}: {comparison.data['arms'][slot['arm']]}{eta}")
        slot.update(state="failed", runs=[], error="")
        at = clock()
        try:
            _one(comparison, slot, verbs, patience_s, sleep, clock)
        except BaseException as error:
            slot["error"] = (str(error).splitlines() or [type(error).__name__])[0]
            raise
        finally:
            slot["seconds"] = clock() - at
            comparison.save()
    return True


def _one(
    comparison: Comparison,
    slot: dict[str, Any],
    verbs: Verbs,
    patience_s: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    """Bring the plan up, relaunch its job, wait for its iterations, stop it."""
    up = verbs.up(comparison.plan(slot["arm"]))
    slot["runs"].append(up.run)
    if not comparison.data["first_change"] and not up.nothing_to_do:
        comparison.data["first_change"] = up.run
        comparison.save()
    job = verbs.launch()
    slot["job_run"] = job.run
    slot["runs"].append(job.run)
    wanted, until = comparison.data["iterations"] + 1, clock() + patience_s
    try:
        # Polling costs the hosts time, so they are polled when the iterations should be finished, not all the time.
        while job.iterations < wanted and job.state in ("starting", "running"):
            remaining = until - clock()
            if remaining <= 0:
                raise NotVerified(
                    f"{job.name} made {job.iterations} of {wanted} iterations in {patience_s:.0f} s",
                    hint="allow more: --timeout 10m",
                )
            sleep(min(remaining, max(1.0, (wanted - job.iterations) * (job.iteration_ms or 1000.0) / 1e3 * 1.05)))
            job = verbs.status()
    finally:
        if job.state in ("starting", "running"):
            verbs.stop()
    if job.state == "failed":
        raise NotVerified(f"job {job.name} failed: {job.detail}", hint="testbed job logs")
    if job.iterations - 1 < LEAST:
        raise NotVerified(f"job {job.name} made {job.iterations} iterations, {LEAST + 1} are the least", hint="a longer job")
    slot.update(state="done", iterations=job.iterations)


def leave(comparison: Comparison, verbs: Verbs) -> str:
    """Bring the lab to the promised state; return that state in words."""
    wanted, arms = comparison.data["leave"], comparison.data["arms"]
    match wanted:
        case "a" | "b":
            verbs.up(comparison.plan(wanted))
            words = f"{arms[wanted]} is up, its job does not run"
        case "down":
            verbs.down()
            words = "nothing is up"
        case _:
            words = "as it was before: nothing was moved"
            if run := comparison.data["first_change"]:
                report = verbs.rollback(run)
                words = (
                    f"as it was before: {report.plan} is up" if isinstance(report, UpReport) else "as it was before: nothing is up"
                )
                comparison.data["first_change"] = ""
    comparison.data["left"] = words
    comparison.save()
    return words


def _job_of(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    found = _json(path)
    if "job" in found and isinstance(found["job"], dict):  # a plan: its job
        found = found["job"]
    return {key: value for key, value in found.items() if key != "rings"}


def _with_job(path: Path, job: Mapping[str, Any]) -> str:
    """The text of a plan with this job instead of its own; the rings, which follow the plan's links, are kept."""
    if not job:
        try:
            return text_of(path)
        except (OSError, UnicodeDecodeError) as error:
            raise BadFile([f"{path}: {reason(error)}"], hint="see examples/ for plans to start from") from error
    plan = _json(path)
    own = plan.get("job")
    rings = {"rings": own["rings"]} if isinstance(own, dict) and "rings" in own else {}
    return json.dumps({**plan, "job": {**job, **rings}}, indent=1, ensure_ascii=False)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(text_of(path), str(path)).value
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile([f"{path}: {reason(error)}"]) from error
    if not isinstance(found, dict):
        raise BadFile([f"{path}: wanted a JSON object"])
    return found


def _differences(a: Job, b: Job) -> list[str]:
    """The fields in which two jobs differ, except their names and their rings, which follow the links."""
    return [name for name in ("workload", "ranks", "args", "env", "backend") if getattr(a, name) != getattr(b, name)]
