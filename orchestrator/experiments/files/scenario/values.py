"""The checked content of a scenario file. Frozen values."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from optics.plan import Mode
from orchestrator.background.options import ServiceOptions
from orchestrator.extensions import by_name

Metric: TypeAlias = Literal[
    "iteration_ms",
    "iteration_p99_ms",
    "comm_ms",
    "busbw_gbps",
    "wire_bytes",
    "asked_bytes",
    "ttft_p99_ms",
    "goodput",
    "loss",
    "lost_ms",
    "span_ms",
    "dark_ms",
    "circuits_moved",
    "stalled",
]
METRICS: Mapping[Metric, tuple[str, str]] = {
    "iteration_ms": ("ms", "median iteration after the warm-up"),
    "iteration_p99_ms": (
        "ms",
        "99th percentile of the iterations of a measurement after the warm-up",
    ),
    "comm_ms": ("ms", "communication in an iteration that computing did not hide, median"),
    "busbw_gbps": ("Gb/s", "bus bandwidth of the job's all-reduce as nccl-tests count it, median"),
    "wire_bytes": (
        "bytes",
        "sent by rank 0 in an iteration with an exchange, without headers of TCP, UDP and IP, median",
    ),
    "asked_bytes": ("bytes", "of values that ranks had to send each other in an iteration, median"),
    "ttft_p99_ms": (
        "ms",
        "from a request of `serve` to its first token, 99th percentile of an iteration, median",
    ),
    "goodput": ("", "share of an iteration's requests that met both targets of `serve`, median"),
    "loss": (
        "",
        "training loss of rank 0, median of the first `iterations` after the warm-up, or, with `seconds`, of those that"
        " ended in the last fifth of that time: one value of a measurement",
    ),
    "lost_ms": (
        "ms",
        "time that iterations around the change took beyond the usual, and of those repeated after a restart",
    ),
    "span_ms": (
        "ms",
        "time in which the job got `iterations` further, from the change on, or from the warm-up on where it stays",
    ),
    "dark_ms": ("ms", "longest darkness that a device reported of the change"),
    "circuits_moved": ("", "one-way circuits made or broken by the change"),
    "stalled": ("", "1 for a measurement that its watchdog ended, else 0; the mean counts"),
}
"""What can be compared: unit and meaning. All are computed by `views.report.samples` from the runs'
journals.
"""
OF_A_CHANGE: frozenset[Metric] = frozenset({"lost_ms", "dark_ms", "circuits_moved"})
"""Metrics that only an arm with a change has."""
Label: TypeAlias = Literal["native", "dilated", "analytic", "stand-in"]
LEAST_ROUNDS = 5
"""Rounds that an interval needs. Intervals over two measurements of an arm covered the truth in 75
to 94 % of simulated trials, and in 78 % where their width ended the measuring; they promise 95 %.
"""
WIDTH = 0.05
"""Measuring ends when all intervals are this narrow, relative to the ratio or to the end of its
band.
"""
BUDGET_S = 3600.0


@dataclass(frozen=True, slots=True)
class WantedLab:
    """The emulated lab that a scenario starts for itself. electrical, lines, driver, wavelengths,
    queue, ring: as `python -m emulators.generate --electrical`, `--line`, ... priority: of ranks
    over what else is on the machine, while they are measured. dilation: how many times slower it is
    than the other values say."""

    hosts: int = 12
    ports: int = 4
    rate_mbps: float = 250
    settle_ms: float = 50.0
    seed: int = 1
    electrical: tuple[str, ...] = ()
    rack: int = 4
    lines: tuple[str, ...] = ()
    driver: str = ""
    wavelengths: int = 0
    queue: str = ""
    ring: bool = False
    priority: bool = True
    storage_mbps: float = 0.0
    sites: int = 0
    dilation: float = 1.0


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """A plan file, or what a scenario makes of it: `text` is in the form of a plan file, `file`
    names it in error messages.
    """

    file: str
    text: str
    document: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(
        cls, file: str, text: str, document: Mapping[str, Any], made: Mapping[str, Any]
    ) -> PlanDocument:
        """The file as it is where nothing was added, so that errors have its lines; else the
        document that was made of it.
        """
        if made == document:
            return cls(file, text, document)
        return cls(
            f"{file}, with the fields added", json.dumps(made, indent=1, ensure_ascii=False), made
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """What one tenant does in one arm. then: the plan that it changes to during the measurement,
    None: it stays. mode: `up --job` of that change."""

    plan: PlanDocument
    then: PlanDocument | None = None
    mode: Mode | None = None


class ArmService(ABC):
    """When the service of an extension (`orchestrator/extensions.py`) runs beside the jobs of an
    arm, one kind a class. Pure.
    """

    key: ClassVar[str] = ""
    """Its key in an arm, and in `differs`; empty: an arm says nothing of it, as its plans do."""
    section: ClassVar[Any] = None
    """What may stand there, for pydantic; each is a value that can be compared, None: nothing
    stands there.
    """

    def wrong(self, how: Any, setups: Mapping[str, Setup | None]) -> Iterator[str]:
        """What is wrong with an arm that says this. setups: of the tenants that take part, None:
        with mistakes.
        """
        yield from ()

    @abstractmethod
    def begun(self, how: Any, setups: Mapping[str, Setup]) -> Mapping[str, Any]:
        """By which tenants it is begun in an arm, and how each of them does (for `options`)."""

    def options(self, how: Any) -> Iterable[ServiceOptions]:
        """With which it is started, one after the other."""
        return (ServiceOptions(),)


def arm_services() -> Mapping[str, ArmService]:
    """Every kind, by the name of its extension, in order."""
    return by_name("arm", "ARM")


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things compared. setups: of the tenants that take part. settle_ms: switching time
    of the emulated switches.

    share: how uplinks are shared, None as the lab has it. swept: the swept field and its value.
    asked: what the arm says of services of extensions, by their keys.
    """

    name: str
    setups: Mapping[str, Setup]
    settle_ms: float | None = None
    watchdog_s: float = 120.0
    swept: tuple[str, float] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    share: str | None = None

    @property
    def has_schedule(self) -> bool:
        """Whether some plan of this arm has a schedule: its slots may rest while a job is
        launched.
        """
        return any(setup.plan.document.get("schedule") for setup in self.setups.values())

    @property
    def shared(self) -> tuple[tuple[str, str, Any], ...]:
        """The extensions whose services run beside its jobs, in order, each with a tenant that
        begins it, and how.
        """
        return tuple(
            (name, tenant, how)
            for name, kind in arm_services().items()
            for tenant, how in kind.begun(self.asked.get(kind.key), self.setups).items()
        )

    @property
    def changes(self) -> bool:
        """Whether any tenant changes its plan during a measurement."""
        return any(setup.then is not None for setup in self.setups.values())


@dataclass(frozen=True, slots=True)
class Compared:
    """A metric of arm `of`, divided by that of arm `over` (empty: not divided), and the band [low,
    high] that counts as reproduced (None: open; both None: there is none). iterations: of `span_ms`. seconds: of `loss`, 0: it
    is of iterations."""

    name: str
    metric: Metric
    of: str
    over: str
    tenant: str
    low: float | None
    high: float | None
    role: Literal["claim", "control", "ablation"] = "claim"
    iterations: int = 0
    seconds: float = 0.0

    @property
    def extent(self) -> float:
        """Its iterations or its seconds, which tell two comparisons of one metric apart."""
        return self.iterations or self.seconds

    @property
    def extent_text(self) -> str:
        """The same in words: ` of 20 iterations`, ` after 30 s`; empty without either."""
        if self.seconds:
            return f" after {self.seconds:g} s"
        return f" of {self.iterations} iterations" if self.iterations else ""

    @property
    def band(self) -> str:
        """The band in words: `at most 0.03`, `0.9 to 1.1`, `none`."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is None and self.high is None:
            return "none"
        return f"at most {self.high:g}" if self.high is not None else f"at least {self.low:g}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario. lab: None for the lab that is chosen on the command line. iterations:
    counted in each measurement; warm_up: before them. repeats: rounds at least. width: of the
    intervals at which measuring ends, relative; budget_s: time (s) of measurements after which no
    round begins. sha256: of the scenario file."""

    name: str
    title: str
    source: tuple[str, ...]
    claim: str
    label: Label
    lab: WantedLab | None
    tenants: tuple[str, ...]
    arms: Mapping[str, Arm]
    compared: tuple[Compared, ...]
    repeats: int
    iterations: int
    warm_up: int
    description: str = ""
    differs: tuple[str, ...] = ()
    width: float = WIDTH
    budget_s: float = BUDGET_S
    sha256: str = field(default="", compare=False)

    @property
    def dilation(self) -> float:
        """How many times slower its lab is than its file says; 1: as it says, or none of its
        own.
        """
        return self.lab.dilation if self.lab is not None else 1.0

    @property
    def lasts_s(self) -> float:
        """How long (s) a measurement lasts at least after its warm-up, for what is compared after so
        many seconds.
        """
        return self.dilation * max((one.seconds for one in self.compared), default=0.0)

    @property
    def least_rounds(self) -> int:
        """How many rounds are measured at least, if the budget allows."""
        return max(LEAST_ROUNDS, self.repeats)

    @property
    def changes(self) -> bool:
        """Whether any arm changes its plan while its job runs."""
        return any(arm.changes for arm in self.arms.values())
