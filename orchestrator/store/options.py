"""What a run was asked to do, as the store keeps it: to show, to resume and to undo it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from optics import HostName
from optics.plan import Mode
from orchestrator.fabric.up_state import SlotsMade
from orchestrator.files.fields import of_fields, stored
from orchestrator.results import Json, to_json


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `up` may be asked beside its plan; `plan` takes those that concern it.

    launch_job: launch the plan's job. job: what becomes of a running one, None for
    `transition.live` of the plan. avoid: host ports, device ports, fibres, trunks or devices not to
    use. adopt: other owners' circuits to take over. relabel: interchangeable hosts may swap places.
    spares: instead of the plan's own. rollback: of a change that fails or is interrupted.
    confirm_s: the change is rolled back unless `confirm` comes within this time (s). expected: the
    fingerprint of a saved plan, which must still match when the lab is locked. dry_run: only show
    what would change.
    """

    launch_job: bool = True
    job: Mode | None = None
    avoid: tuple[str, ...] = ()
    adopt: tuple[str, ...] = ()
    relabel: bool = False
    spares: tuple[HostName, ...] = ()
    rollback: bool = True
    confirm_s: float | None = None
    expected: str = ""
    dry_run: bool = False


PLAIN = UpOptions()
"""`up` without options."""
_NOT_KEPT = ("expected", "dry_run")
"""Options of `up` that concern the command alone, not one that resumes it."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run was asked, and what it was based on.

    up: of `up`. resumes: the unfinished run that it resumes. of: the run that it undoes or
    confirms. unconfirmed: the run that was not confirmed in time, of a rollback for that reason.
    plan_run: the run of the plan that it works on. why: for the history.

    Of an `up` that moves a plan off hosts: evict: each to its spare, or (empty) to nobody. lost:
    hosts that need not answer, those that the plan that is up uses and the new one does not, and
    those of attachments. left_out: as `Launch.left_out`. broken: why the job that is recorded as
    running cannot make an iteration any more.

    joins: of an `up` with one more host, this one, whose ranks join the job that runs: no job is
    launched.

    slots: of an `up` that makes one slot of a schedule. relaunches: the number of the job that
    `job restart` launches again. around: links that a guard reroutes around. hz: of `sample`.
    dark_s: of a stall curve (s).
    """

    up: UpOptions | None = None
    resumes: str = ""
    of: str = ""
    unconfirmed: str = ""
    plan_run: str = ""
    why: str = ""
    evict: Mapping[HostName, HostName] = field(default_factory=dict)
    lost: tuple[HostName, ...] = ()
    left_out: bool = False
    broken: str = ""
    joins: HostName = ""
    slots: SlotsMade | None = None
    relaunches: int = 0
    around: tuple[str, ...] = ()
    hz: float = 0.0
    dark_s: tuple[float, ...] = ()

    @property
    def asked(self) -> UpOptions:
        """The options of `up`; of another verb, the defaults."""
        return self.up or PLAIN

    def to_json(self) -> dict[str, Json]:
        """One flat object: the options of `up`, if it is one, and what else has a value."""
        up = (
            {}
            if self.up is None
            else {
                f.name: getattr(self.up, f.name)
                for f in fields(UpOptions)
                if f.name not in _NOT_KEPT
            }
        )
        more = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "up"}
        kept = {name: value for name, value in up.items() if value is not None} | {
            n: v for n, v in more.items() if v
        }
        return {name: to_json(value) for name, value in kept.items()}

    @classmethod
    @stored
    def of_json(cls, data: Mapping[str, Json]) -> RunOptions:
        """Read what `to_json` wrote. Raises: StoreFailed - it is not what this version writes."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        up = {f.name: values.pop(f.name) for f in fields(UpOptions) if f.name in values}
        if (slots := values.get("slots")) is not None:
            values["slots"] = SlotsMade.of_json(slots)
        return of_fields(cls, {**values, "up": of_fields(UpOptions, up) if up else None})


NO_OPTIONS = RunOptions()
"""Of a run that was asked nothing."""
