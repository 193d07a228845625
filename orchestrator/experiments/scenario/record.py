"""The record of a comparison or a scenario: its measurements in their order, saved after each of
them.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optics.errors import BadFile, Missing
from optics.plan import Plan
from orchestrator.experiments.files.scenario.values import Arm, PlanDocument, Scenario
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from orchestrator.results import to_json
from orchestrator.settings import Settings, campaigns, private_dir

SCHEMA = "testbed.campaign/1"
OPEN = ("waiting", "failed")
"""States of measurements that are still to be made; the others are done, stalled and void."""
_OF_A_JOB = ("workload", "program", "ranks", "args", "env", "backend")


def round_of(arms: Sequence[str], number: int) -> list[str]:
    """The arms in the order of this round, from 1: A B, B A, A B, ... (of three: A B C, C B A,
    ...), so that slow drift affects all equally."""
    return list(arms if number % 2 else arms[::-1])


def order(arms: Sequence[str], repeats: int) -> list[str]:
    """The arms of so many rounds, one after the other."""
    return [arm for number in range(1, repeats + 1) for arm in round_of(arms, number)]


@dataclass
class ComparisonRecord:
    """One comparison or scenario, and the directory it is kept in."""

    folder: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def slots(self) -> list[dict[str, Any]]:
        """The measurements in their order: arm, round, state (waiting, done, stalled, void,
        failed), runs, jobs, changes, seconds, error, slowed.

        jobs: of each tenant, the iterations that belong to it: run, and the numbers of the first
        and last one in that run, from 1. changes: of each tenant, the run of the change. skip:
        iterations not counted at the beginning. slowed: as `void.Slowed`.
        """
        return list(self.data["slots"])

    @property
    def rounds(self) -> int:
        """The number of the latest round, from 1; 0: none was begun."""
        return max((int(slot["round"]) for slot in self.slots), default=0)

    @property
    def whole_rounds(self) -> int:
        """How many rounds have every arm's measurement, of which none is void."""
        done = Counter(slot["round"] for slot in self.slots if slot["state"] == "done")
        return sum(count == len(self.data["arms"]) for count in done.values())

    @property
    def spent_s(self) -> float:
        """How long all measurements took."""
        return float(sum(slot.get("seconds", 0.0) for slot in self.slots))

    def add(self, arms: Iterable[str], number: int) -> None:
        """Measurements of these arms are to be made, in this round."""
        self.data["slots"] += [
            {"arm": arm, "round": number, "state": "waiting", "runs": []} for arm in arms
        ]

    def plan(self, arm: str, tenant: str = "", *, then: bool = False) -> Path:
        """The file with the plan of an arm, or the one that it changes to."""
        return self.folder / f"{'.'.join(filter(None, (arm, tenant, 'then' if then else '')))}.json"

    def save(self) -> None:
        """Save it atomically. Raises: Missing - it cannot be written."""
        fresh = self.folder / "campaign.new"
        try:
            fresh.write_text(json.dumps(self.data, indent=1, ensure_ascii=False), encoding="utf-8")
            fresh.replace(self.folder / "campaign.json")
        except OSError as error:
            raise Missing(
                f"{self.folder} cannot be written: {error.strerror or error}",
                hint="free some space, then continue it: --resume",
            ) from error


def read_record(path: Path) -> dict[str, Any]:
    """The file saved by `testbed experiment compare` or `testbed experiment reproduce`. Raises:
    BadFile - it is not such a file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile([f"{path}: {error.strerror or error}"]) from error
    except ValueError as error:
        raise BadFile(
            [f"{path}: {error}"],
            hint="`testbed experiment compare` writes campaigns: campaign.json",
        ) from error
    if (
        not isinstance(found, dict)
        or found.get("schema") != SCHEMA
        or not isinstance(found.get("slots"), list)
    ):
        raise BadFile(
            [f"{path}: this is not a campaign ({SCHEMA})"],
            hint="one is made by: testbed experiment compare A.json B.json",
        )
    found.setdefault("kind", "compare")
    arms = len(found.get("arms", ())) or 1
    for number, slot in enumerate(found["slots"]):
        slot.setdefault("round", number // arms + 1)  # of a record that is older than rounds
    return found


def record_file(settings: Settings, word: str) -> Path | None:
    """The file of the record that `word` names: its name, its directory or the file itself."""
    for path in (
        Path(word),
        Path(word) / "campaign.json",
        campaigns(settings) / word / "campaign.json",
    ):
        if path.is_file() and path.suffix == ".json":
            return path
    return None


def again(settings: Settings, word: str, kind: str = "compare") -> ComparisonRecord:
    """Read a saved record of this kind. Raises: BadFile, Missing - there is none."""
    path = record_file(settings, word)
    if path is None:
        existing = sorted(p.name for p in campaigns(settings).glob(f"{kind}-*"))[-5:]
        compared = kind == "compare"
        what = "comparison" if compared else "record"
        raise Missing(
            f"there is no {what} {word!r}"
            + (f"; the latest are {', '.join(existing)}" if existing else ""),
            hint="testbed experiment compare A.json B.json"
            if compared
            else "testbed experiment reproduce NAME",
        )
    return ComparisonRecord(path.parent, read_record(path))


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier records of a scenario tell: what the latest one that was judged has shown, when
    and on which commit, and how long (s) a measurement took. shipped: it was not made here, but
    came with the program (`SHIPPED`). dilation: of the lab it was measured on."""

    outcome: str = ""
    day: str = ""
    commit: str = ""
    each_s: float | None = None
    shipped: bool = False
    dilation: float = 1.0


SHIPPED = "found.json"
"""Beside a scenario that comes with the program: what `Known` has of the measurement that its page
shows. Every judged record has one, to be copied there."""


def shipped(path: Path, scenario: Scenario) -> Known:
    """What was found before the program was shipped, with the scenario of this file; nothing where
    that was not kept, or was found with other plans, bands or numbers than it has now.
    """
    try:
        found = json.loads((path.parent / SHIPPED).read_text(encoding="utf-8"))
        if found["sha256"] != scenario.sha256:
            return Known()
        each_s = None if found["each_s"] is None else float(found["each_s"])
        return Known(
            str(found["outcome"]),
            str(found["day"] or ""),
            str(found["commit"] or ""),
            each_s,
            shipped=True,
            dilation=float(found["dilation"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Known()


def keep_outcome(record: ComparisonRecord, outcome: str, findings: list[dict[str, Any]]) -> None:
    """Save what a scenario has shown, and when, in the record and in the file that ships with it.
    Raises: Missing.
    """
    made = [slot["seconds"] for slot in record.slots if slot["state"] not in OPEN]
    day, each_s = time.strftime("%Y-%m-%d"), round(sum(made) / len(made), 1) if made else None
    record.data |= {"outcome": outcome, "findings": findings, "day": day}
    record.save()
    found = {
        "outcome": outcome,
        "day": day,
        "commit": record.data["environment"]["commit"],
        "each_s": each_s,
        "dilation": dilation_of(record.data),
        "sha256": record.data["scenario"]["sha256"],
    }
    (record.folder / SHIPPED).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read_records(settings: Settings, scenario: str) -> Iterator[dict[str, Any]]:
    """The records made here with a scenario of this name, oldest first; of older ones without a
    day, with it.
    """
    for path in sorted(
        campaigns(settings).glob("reproduce-*/campaign.json"), key=lambda path: path.stat().st_mtime
    ):
        try:
            data = read_record(path)
        except BadFile:
            continue
        if (data.get("scenario") or {}).get("name") == scenario:
            data.setdefault("day", time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime)))
            yield data


def dilation_of(data: Mapping[str, Any]) -> float:
    """How many times slower the lab of a record (`Record.data`) was than its scenario says; 1: as
    it says, or none of its own.
    """
    return float(((data.get("scenario") or {}).get("lab") or {}).get("dilation", 1))


def known(settings: Settings, scenario: Scenario) -> Known:
    """What was found here before with this scenario, at the same dilation; of another version of
    its file only how long it took.
    """
    found = Known()
    for data in read_records(settings, scenario.name):
        kept = data["scenario"]
        if dilation_of(data) != scenario.dilation:
            continue
        took = [
            slot["seconds"]
            for slot in data["slots"]
            if slot.get("state") not in OPEN and "seconds" in slot
        ]
        each_s = sum(took) / len(took) if took else found.each_s
        if kept.get("sha256") == scenario.sha256 and data.get("outcome"):
            found = Known(
                str(data["outcome"]),
                str(data["day"]),
                str((data.get("environment") or {}).get("commit") or ""),
            )
        found = replace(found, each_s=each_s)
    return found


def expected_duration_s(scenario: Scenario, before: Known) -> float:
    """How long the fewest rounds will take (s): as long as earlier measurements took, else what
    their watchdogs allow, but no longer than the budget."""
    each_s = [
        arm.watchdog_s if before.each_s is None else before.each_s for arm in scenario.arms.values()
    ]
    return min(sum(each_s) * scenario.least_rounds, scenario.budget_s)


def minutes(seconds: float) -> str:
    """A duration that nobody needs to the second."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def begin_comparison(
    settings: Settings,
    lab: Lab,
    scenario: Scenario,
    *,
    kind: str,
    leave: str,
    same_job: bool = True,
) -> ComparisonRecord:
    """Check every plan of every arm against the lab, and save the list of measurements. The lab is
    not touched.

    kind: the first word of its name, `compare` or `reproduce`; arms of a comparison must have the
    same job, unless what differs is to be compared (`same_job`). Raises: BadFile - a plan or job is wrong.
    """
    plans = check_arms(lab, scenario)
    labels = {name: name for name in plans}
    if kind == "compare":
        if same_job:
            _same_job(scenario, plans)
        labels = {name: f"{name.upper()}: {read[0].name}" for name, read in plans.items()}
    folder = _folder(private_dir(campaigns(settings)), kind)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": kind,
        "name": folder.name,
        "title": scenario.title,
        "lab": lab.name,
        "arms": labels,
        "tenants": [*scenario.tenants],
        "plans": {
            name: plan.file for name, arm in scenario.arms.items() for plan in _texts(arm)[:1]
        },
        "sha256": {name: read[0].sha256 for name, read in plans.items()},
        "repeats": scenario.repeats,
        "least": scenario.least_rounds,
        "width": scenario.width,
        "budget_s": scenario.budget_s,
        "ended": "",
        "iterations": scenario.iterations,
        "warm_up": scenario.warm_up,
        "leave": leave,
        "first_change": {},
        "slots": [],
        "left": "",
        "scenario": _facts(scenario),
    }
    made = ComparisonRecord(folder, data)
    for name, arm in scenario.arms.items():
        for tenant, setup in arm.setups.items():
            made.plan(name, tenant).write_text(setup.plan.text, encoding="utf-8")
            if setup.then is not None:
                made.plan(name, tenant, then=True).write_text(setup.then.text, encoding="utf-8")
    made.save()
    return made


def check_arms(lab: Lab, scenario: Scenario) -> dict[str, list[Plan]]:
    """The plans of each arm. Raises: BadFile - one of them is wrong, or its job ends too early."""
    return {name: _plans(arm, lab, scenario) for name, arm in scenario.arms.items()}


def _facts(scenario: Scenario) -> Any:
    """What the record and its page say about the scenario."""
    names = (
        "name",
        "title",
        "source",
        "claim",
        "label",
        "lab",
        "description",
        "differs",
        "compared",
        "sha256",
    )
    arms = {
        a.name: {"settle_ms": a.settle_ms, "watchdog_s": a.watchdog_s, "swept": a.swept}
        for a in scenario.arms.values()
    }
    return to_json({name: getattr(scenario, name) for name in names} | {"arms": arms})


def _same_job(scenario: Scenario, plans: Mapping[str, list[Plan]]) -> None:
    """Raises: BadFile - the jobs differ in more than names, rings and traffic, which follow the
    links.
    """
    first, *others = plans
    one = plans[first][0].job
    for name in others:
        other = plans[name][0].job
        if different := [
            field for field in _OF_A_JOB if getattr(one, field) != getattr(other, field)
        ]:
            a, b = (_texts(scenario.arms[arm])[0].file for arm in (first, name))
            raise BadFile(
                [
                    f"{a} and {b}: the jobs differ in {', '.join(different)}: two things would be compared at once"
                ],
                hint="use the same job for all: --job FILE",
            )


def _texts(arm: Arm) -> list[PlanDocument]:
    return [
        plan
        for setup in arm.setups.values()
        for plan in (setup.plan, setup.then)
        if plan is not None
    ]


def _plans(arm: Arm, lab: Lab, scenario: Scenario) -> list[Plan]:
    """The arm's plans, checked. Raises: BadFile - as `read_plan`, or the job ends too early."""
    found = []
    wanted = scenario.warm_up + scenario.iterations
    for text in _texts(arm):
        plan = read_plan(text.text, text.file, lab)
        if plan.job is None:
            raise BadFile(
                [f"{text.file}: the plan has no job, so nothing can be measured"],
                hint="add a job, or use one for all: --job FILE",
            )
        given = plan.job.args.get("iterations")
        most = given if isinstance(given, int) and not isinstance(given, bool) else 0  # 0: endless
        if most and arm.changes:
            raise BadFile(
                [
                    f"{text.file}: the job ends after {most} iterations, but it must run through every change"
                ],
                hint="job.args.iterations: 0 is a job without an end",
            )
        if 0 < most < wanted:
            raise BadFile(
                [f"{text.file}: the job ends after {most} iterations, but {scenario.iterations} and"
                 f" {'one' if scenario.warm_up == 1 else scenario.warm_up} for warm-up are needed"],
                hint="--iterations N, or a longer job",
            )  # fmt: skip
        found.append(plan)
    return found


def _folder(place: Path, kind: str) -> Path:
    """Make the next directory of today. Raises: Missing."""
    day, number = time.strftime("%Y-%m-%d"), 1
    while True:
        folder = place / f"{kind}-{day}-{number:04d}"
        try:
            folder.mkdir(mode=0o700)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise Missing(
                f"{folder} cannot be made: {error.strerror or error}",
                hint="check the setting state_dir",
            ) from error
