"""`testbed service run tend`: asks a proposer, has the guard try what it proposes, again and again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from extensions.tend import bandit
from extensions.tend.asking import proposed
from extensions.tend.budget import Budget, Spent
from extensions.tend.guard import FAILED, KEPT, REFUSED, Bench, Guard, Trial
from extensions.tend.lab import LabBench, candidates
from extensions.tend.service import KIND, TendOptions, TendReport, TendState
from optics import BadPlugin, Locked, TestbedError, Usage
from orchestrator.background.kind import StateFile
from orchestrator.background.work import Notify, Retries, emit, ready, serving
from orchestrator.results import Json
from orchestrator.session import Command

FIRST_S, LAST_S = 1.0, 60.0
"""Pauses (s) after a proposal that was refused, or without one; each is twice as long as the one
before.
"""
FAILURES = 3
"""So many trials in a row may fail; then the loop ends."""
MOST_TOLD = 400
"""A proposer is told so many trials, the latest ones."""
MOST_SAID = 400
"""Characters of a trial in the file of the service; the journal has all."""


async def tend(command: Command, *, notify: Notify, options: TendOptions) -> TendReport:
    """Try plans until cancelled. Raises: Usage - nobody proposes any. Missing - no plan is up, or
    its job does not run. Interlock - a change waits to be confirmed. NotVerified - trials failed
    several times in a row. Locked - another command changed the lab.
    """
    if not options.workload and not options.proposer:
        raise Usage(
            "service run tend: neither --workload nor --proposer is given",
            hint="testbed service start tend --workload examples/workloads/dlrm.yaml",
        )
    settings, bench = command.settings, LabBench(command, hosts=options.hosts)
    bench.check()
    file = KIND.file(settings, bench.key, KIND.own(settings, options))
    texts = file.before.spent if file.before is not None else ()
    file.state = replace(file.state, spent=texts)
    with serving(file):
        known: Sequence[Mapping[str, Any]] = ()
        if options.workload:
            known = await asyncio.to_thread(candidates, bench, Path(options.workload))
        spent = [Spent.of(each, file.path) for each in texts]
        loop = Loop(bench, file, notify, options, known, spent, bench.lab.name)
        try:
            await loop.work()
        except asyncio.CancelledError:
            loop.say("ended", "stopped on request")
        return loop.report()


@dataclass
class Loop:
    """candidates: as a proposer is told them: name, predicted_ms, watts, plan."""

    bench: Bench
    file: StateFile[TendState]
    notify: Notify
    options: TendOptions
    candidates: Sequence[Mapping[str, Any]]
    spent: list[Spent]
    lab: str = ""
    trials: list[Trial] = field(default_factory=list)
    first_ms: float | None = None
    now_ms: float | None = None
    """Median of the latest window of the plan that was up, and of the first."""

    def __post_init__(self) -> None:
        self.budget = Budget(self.options.moves, self.options.dark_ms, self.spent)
        self.guard = Guard(
            self.bench,
            self.budget,
            watts=self.options.watts,
            window=self.options.window,
            say=self.say,
            save=self.save,
        )
        self.sha, self.name, _ = self.bench.at()
        self.pauses, self.failures = Retries(FIRST_S, LAST_S), Retries(0.0, 0.0, FAILURES)

    def say(self, event: str, text: str, **fields: Json) -> None:
        emit(self.notify, event, text, **fields)

    def save(self, spent: Sequence[Spent]) -> None:
        self.file.now(spent=tuple(map(str, spent)))

    async def work(self) -> None:
        """Raises: as `tend`."""
        self.file.now(state="waiting", plan=self.name)
        ready()
        while not self.options.trials or len(self.trials) < self.options.trials:
            sha, _, content = self.bench.at()
            if sha != self.sha:
                text = "another command changed the plan that is up, so nothing more is tried"
                raise Locked(text, hint="testbed status; then: testbed service start tend ...")
            self.now_ms = median(await self.guard.before())
            self.first_ms = self.first_ms or self.now_ms
            try:
                found = await self.proposal(content)
            except BadPlugin as error:
                await self.took(Trial(len(self.trials) + 1, "", REFUSED, error.line))
                continue
            if found is None:
                await self.bench.rest(self.pauses.failed())
                continue
            name, text = found
            self.file.now(state="trying", last=name)
            self.say("proposed", name)
            await self.took(await self.guard.trial(len(self.trials) + 1, name, text))

    async def proposal(self, content: Mapping[str, Any]) -> tuple[str, str] | None:
        """Raises: BadPlugin."""
        view = self.view(content)
        if self.options.proposer:
            return await proposed(self.options.proposer, view)
        one = bandit.propose(view)
        return None if one is None else (one["name"], json.dumps(one["plan"]))

    def view(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """What a proposer knows: the plan that is up, its iteration now, candidates, the latest
        trials, and what is left of the budgets.
        """
        moves, dark_ms = self.budget.left(self.bench.now())
        return {
            "up": self.name,
            "plan": content,
            "now_ms": self.now_ms,
            "candidates": self.candidates,
            "trials": [one.to_json() for one in self.trials[-MOST_TOLD:]],
            "left": {"moves": moves, "dark_ms": dark_ms, "watts": self.options.watts},
        }

    async def took(self, trial: Trial) -> None:
        """Record a trial. Raises: NotVerified - too many failed in a row."""
        before_ms = self.now_ms if trial.before_ms is None else trial.before_ms
        trial = replace(trial, over=self.name, before_ms=before_ms)
        self.trials.append(trial)
        text = f"{trial.name or 'no plan'} {trial.ended}: {trial.why}"
        self.say("trial", text, **trial.to_json())
        if trial.ended == KEPT:
            self.sha, self.name = trial.sha, trial.name
        kept, back, refused = self.counts()
        self.file.now(
            state="waiting",
            trials=len(self.trials),
            stayed=kept,
            back=back,
            refused=refused,
            last=text[:MOST_SAID],
            plan=self.name,
        )
        if trial.ended == FAILED:
            self.failures.failed("trial", TestbedError(trial.why), hint="testbed doctor")
        elif trial.ended != REFUSED:
            self.failures.worked()
        if trial.ended == REFUSED:
            await self.bench.rest(self.pauses.failed())
        else:
            self.pauses.worked()

    def counts(self) -> tuple[int, int, int]:
        """How many trials were kept, taken back, refused."""
        ended = [one.ended for one in self.trials]
        kept, refused = ended.count(KEPT), ended.count(REFUSED)
        return kept, len(ended) - kept - refused, refused

    def report(self) -> TendReport:
        times = (self.first_ms, self.now_ms)
        return TendReport(self.lab, self.name, len(self.trials), *self.counts(), *times)
