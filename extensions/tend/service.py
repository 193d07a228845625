"""The service that tries plans for the job of an owner's plan: its options, what its file says of it,
and what it reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.background.kind import Kind
from orchestrator.background.options import ServiceOptions, option
from orchestrator.background.state import ServiceState
from orchestrator.background.work import ServiceReport


@dataclass(frozen=True, slots=True)
class TendOptions(ServiceOptions):
    """What may be tried, and what that may cost. watts 0: any."""

    workload: str = option(
        "",
        "--workload",
        "Workload file of the job; candidates are those of design match.",
        metavar="FILE",
    )
    moves: int = option(
        200,
        "--moves",
        "Circuits made or broken in an hour, ways back included.",
        metavar="N",
        least=0,
    )
    dark_ms: float = option(
        5000.0,
        "--dark-ms",
        "Darkness of all changes in an hour, ways back included.",
        metavar="MS",
        least=0.0,
    )
    watts: float = option(
        0.0, "--watts", "Power of a plan's network; 0: any.", metavar="W", least=0.0
    )
    window: int = option(
        20,
        "--window",
        "Iterations that are measured before a change and after it.",
        metavar="N",
        least=5,
        most=10_000,
    )
    proposer: str = option(
        "",
        "--proposer",
        "A function that proposes plans, in place of successive elimination.",
        metavar="MODULE:NAME",
    )
    hosts: bool = option(
        False,
        "--rehearse-hosts",
        "Rehearse with hosts and job, which takes several times as long as devices alone.",
    )
    trials: int = option(
        0, "--trials", "End after N trials; 0: when it is stopped.", metavar="N", least=0
    )

    def __post_init__(self) -> None:
        # the guard starts it again from another folder
        if self.workload:
            object.__setattr__(self, "workload", str(Path(self.workload).absolute()))


@dataclass(frozen=True, slots=True)
class TendState(ServiceState):
    """What it reports of itself. state: starting, waiting, trying. spent: what trials cost within an
    hour, as `Spent`. last: the latest trial in words.
    """

    trials: int = 0
    stayed: int = 0
    back: int = 0
    refused: int = 0
    spent: tuple[str, ...] = ()
    last: str = ""

    def text(self) -> str:
        did = f"{self.trials} trials: {self.stayed} kept, {self.back} taken back, {self.refused} refused"
        return f"{self.state}, {self.where}; {did}" + (f"; {self.last}" if self.last else "")

    @property
    def leaves(self) -> str:
        return f" after {self.trials} trials, {self.stayed} kept"


KIND = Kind(
    "tend",
    TendState,
    "Try plans while the job runs; keep those that make it faster, take back the others.",
    "extensions.tend.loop:tend",
    TendOptions,
    """
testbed service start tend --workload dlrm.yaml              candidates of design match, usual budgets
testbed service start tend --workload dlrm.yaml --moves 40   fewer moves an hour
testbed service run tend --workload dlrm.yaml --trials 3     three trials, in this process
testbed service start tend --proposer mine:propose           plans of a function of yours
testbed service stop tend                                    a trial under way is taken back
""",
    """
A trial is rehearsed, then brought up to be confirmed; a window of iterations decides. Whatever kills this process, the lab goes
back by itself. The proposer can be exchanged, the budgets and the measurement cannot. docs/how-to/tend.md
""",
    halts=True,
    stop_s=180.0,
)


@dataclass(frozen=True, slots=True)
class TendReport(ServiceReport):
    """What it did. first_ms, last_ms: an iteration of the plan that was up at the begin, and at the
    end.
    """

    lab: str
    plan: str
    trials: int = 0
    kept: int = 0
    back: int = 0
    refused: int = 0
    first_ms: float | None = None
    last_ms: float | None = None

    def text(self) -> str:
        text = f"Tended {self.lab}: {self.trials} trials, {self.kept} kept, {self.back} taken back, {self.refused} refused"
        if self.first_ms is not None and self.last_ms is not None:
            text += f"; iterations {self.first_ms:.4g} ms at first, {self.last_ms:.4g} ms now on {self.plan}"
        return text
