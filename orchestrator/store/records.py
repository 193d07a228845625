"""Rows of the run store: runs, steps, current plans, jobs, measured light, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from orchestrator.fabric.up_state import UpState
from orchestrator.files.fields import of_fields, stored
from orchestrator.results import Json, to_json
from orchestrator.store.job_spec import JobSpec, Pause
from orchestrator.store.options import NO_OPTIONS, RunOptions


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One row of the history. `status`: running, ok, failed, rolled-back, hands-needed,
    interrupted, died (process gone).

    owner: the owner of the tenancy it changes. token: its fencing token, a number that only grows
    per lab. options: the verb's, so that it can be resumed. seconds: its duration, by the monotonic
    clock. begun: the state it found was journalled, so it may have changed something. resolved_by:
    the run that resumed, undid or superseded it.
    """

    id: str
    verb: str
    lab: str
    plan_name: str
    plan_sha: str
    plan_text: str = field(repr=False)
    inventory: str
    user: str
    host: str
    pid: int
    started: float
    ended: float | None
    status: str
    exit_code: int | None
    message: str
    summary: Mapping[str, Json]
    owner: str = ""
    token: int = 0
    options: RunOptions = NO_OPTIONS
    seconds: float | None = None
    resolved_by: str = ""
    begun: bool = False

    def __repr__(self) -> str:
        return f"<run {self.id}: {self.what}, {self.status}, by {self.user}>"

    @property
    def what(self) -> str:
        """Its verb and plan."""
        return f"{self.verb} {self.plan_name}".rstrip()

    def to_json(self) -> dict[str, Json]:
        """All of it but the plan's text."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "plan_text"}
        return {
            name: to_json(value)
            for name, value in (values | {"options": self.options.to_json()}).items()
        }

    @property
    def avoid(self) -> tuple[str, ...]:
        """The words of its `--avoid`."""
        return self.options.asked.avoid

    @property
    def may_have_begun(self) -> bool:
        """It changed something, or it died and may have; false if it was refused or interrupted
        before.
        """
        return self.begun or self.status in ("died", "running")

    @property
    def unfinished(self) -> bool:
        """It stopped half way and has not been repaired since."""
        stopped = self.status == "died" or (
            self.status in ("failed", "hands-needed", "interrupted") and self.begun
        )
        return stopped and not self.resolved_by


@dataclass(frozen=True, slots=True)
class Belonging:
    """An owner, with the run and plan that created the owned object; printed as
    `alice (ring-6, run 2026-11-21-0007)`.
    """

    owner: str
    run: str
    plan_name: str = ""

    def __str__(self) -> str:
        return f"{self.owner} ({', '.join(filter(None, (self.plan_name, f'run {self.run}')))})"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One journalled effect. `state`: planned, doing (may or may not have happened), done, failed.
    Durations in seconds.
    """

    run: str
    seq: int
    kind: str
    subject: str
    what: str
    intent: Json
    inverse: Json
    state: str
    planned: float
    began: float | None
    ended: float | None
    seconds: float | None
    result: Json
    error: str


@dataclass(frozen=True, slots=True)
class CurrentPlan:
    """The plan last brought up on a tenancy of a lab, and what is up of it; `since` wall
    seconds.
    """

    run: str
    plan_name: str
    plan_sha: str
    plan_text: str = field(repr=False)
    up: UpState
    generation: int
    since: float

    def to_json(self) -> dict[str, Json]:
        """As a run keeps the plan that was up before it."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"up": self.up.to_json()}

    @classmethod
    @stored
    def of_json(cls, data: Mapping[str, Any]) -> CurrentPlan:
        """Read what `to_json` wrote. Raises: StoreFailed - it is not what this version writes."""
        return of_fields(cls, {**data, "up": UpState.of_json(data["up"])})


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One launched job; `lab` is the key of its tenancy."""

    id: int
    lab: str
    run: str
    name: str
    spec: JobSpec
    state: str
    started: float
    ended: float | None
    detail: str

    @property
    def pause(self) -> Pause | None:
        """The latest pause that nothing is known to have ended."""
        return self.spec.pause if self.ended is None else None

    @property
    def unlaunched(self) -> str:
        """Why none of its ranks was begun; empty if they were."""
        return self.detail if self.spec.unlaunched else ""


@dataclass(frozen=True, slots=True)
class StallPoint:
    """How long traffic of one link's hosts stood while the link was dark, once (`at`, wall s); all
    times in ms.

    devices: that broke its circuits. mode: `drained`, `kept_sending` or `held`. asked_ms: 0 for as
    short as the devices can. dark_ms: first carrier lost to last carrier back. lost_ms: the longest
    time in which a host received nothing. usual_ms: the same in the traffic before.
    """

    at: float
    run: str
    link: str
    devices: str
    mode: str
    asked_ms: float
    dark_ms: float
    lost_ms: float
    usual_ms: float


@dataclass(frozen=True, slots=True)
class LightPoint:
    """The measured power of one circuit at one time (`at`, wall s), over the settings of `path`;
    None without a reading.

    loss_db: between the meters, without attenuation that was set on purpose. run: empty for a
    measurement outside any run.
    """

    circuit: str
    path: str
    at: float
    in_dbm: float | None
    out_dbm: float | None
    loss_db: float | None
    run: str = ""
