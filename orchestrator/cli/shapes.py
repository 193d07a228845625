"""What each verb puts into `data` of `--json`: a report, or fields with their types. A name that
ends in `?` may be absent, names of one type may stand in one string; `[X]` is a list of X,
`{str: X}` has an X by name, `(X, None)` is an X or null.

Only `testbed examples schema` and tests import this module, and with it every report.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import WithJsonSchema

from orchestrator.background.registry import ServiceStatus, by_path, kinds
from orchestrator.change.report import (
    ConfirmReport,
    DownReport,
    PrewireReport,
    UpReport,
    WatchReport,
)
from orchestrator.cli.design import SHORT
from orchestrator.experiments.rehearsal.report import ComparedFigure, RehearsalReport
from orchestrator.experiments.scenario.paired import Interval
from orchestrator.extensions import extension_parts
from orchestrator.hosts.by_hand import ByHand
from orchestrator.jobs.report import JobLogs, JobStatus
from orchestrator.plan.design.capabilities import Capabilities
from orchestrator.plan.design.prices import Fabrics
from orchestrator.plan.design.replan import Rewiring
from orchestrator.plan.report import PlanReport
from orchestrator.queue.process import QueueState
from orchestrator.queue.verb import QueueView
from orchestrator.store.audit import AuditRecord
from orchestrator.store.lock_queue import Lock
from orchestrator.store.notes import Note
from orchestrator.store.records import RunRecord, StepRecord
from orchestrator.store.tagouts import Tagout
from orchestrator.telemetry.process import SinkState
from orchestrator.telemetry.retention import Old
from orchestrator.verbs.fencing import TakenReport
from orchestrator.verbs.hosts import ProvisionReport
from orchestrator.verbs.power import HostPower
from orchestrator.verbs.profile import Figure, Profile, Versus
from orchestrator.verbs.report import DevicesReport, StatusReport
from orchestrator.verbs.sample import SampleReport
from orchestrator.verify.probe import Probe
from orchestrator.verify.report import PowerReport, StallReport, VerifyReport
from orchestrator.verify.signals import DiagnosisReport
from orchestrator.verify.trace import TraceReport
from orchestrator.views.sweep import Row
from orchestrator.views.waterfall import Bar, IterationSummary
from planner.operate.repair import Replan

Shape: TypeAlias = Any
Shapes: TypeAlias = "Sequence[Shape]"


def fields(report: Any, *without: str, **more: Any) -> dict[str, Any]:
    """The fields that a report's `to_json` writes, the derived ones included, without some and with
    `more`.
    """
    hints = typing.get_type_hints(report, localns={"Json": Any})  # else it refers to itself
    found = {name: hints[name] for name in report.__dataclass_fields__ if name not in without}
    for name in getattr(report, "derived", ()):
        found[name] = typing.get_type_hints(getattr(report, name).fget)["return"]
    return found | more


PLAN_FILE = {"title": "plan-file"}
"""Stands for the schema of plan files until all schemas are put together."""
PlanFile: TypeAlias = Annotated[dict[str, Any], WithJsonSchema(PLAN_FILE)]
"""The content of a plan file, which has a schema of its own."""
Anything: TypeAlias = dict[str, Any]
"""What another program, a file of measurements or the emulated lab says; passed on as it is."""
MS = {"iteration_ms compute_ms transfers_ms allreduce_ms busbw_mbps": float}
DESIGN: dict[str, Any] = {
    "plan": PlanFile,
    "why": list[str],
    "scale": float,
    "raised_to_4_bytes": list[str],
    "time_scale": float,
    "here": MS,
    "home": MS | {"rate_gbps": float},
    "diameter mean_hops": float,
    "orders": Any,
    "routing?": list[str],
    "shared?": list[dict[str, str]],
    "svg?": str,
    "exported? not_exported?": list[str],
}
UP: dict[str, Any] = fields(UpReport) | {
    "rehearsed?": fields(RehearsalReport),
    "beside?": list[ComparedFigure],
}
SCOPE = {
    "everything": bool,
    "hosts devices": list[str],
    "ports": list[tuple[str, str]],
    "owners": list[str],
}
LOCK = fields(Lock, "process", "seq", "asked", "ended", scope=SCOPE, message=str)
STEP = fields(StepRecord)
RUN = fields(RunRecord, "plan_text", options=dict[str, Any], tags=list[str], notes=list[Note])
RESULTS: dict[str, Any] = {"name folder parquet database": str}
FIGURE = fields(Figure, off=float | None)
PROBABILITY = {
    "failures": int,
    "static": float,
    "static_exact": str,
    "reconfigurable": float,
    "reconfigurable_exact": str,
}
ANSWER = {"what sql": str, "columns": list[str], "rows": list[list[Any]]}
MEDIANS = {"round": int, "of over": float}
VERDICT = {
    "ratio": Interval,
    "n": int,
    "how": str,
    "sure": bool,
    "of_ms over_ms": float,
    "medians": [MEDIANS],
}
SCENARIO = {
    "name title label claim": str,
    "source arms": list[str],
    "hosts": int | None,
    "dilation seconds": float,
    "measured": bool,
    "outcome day commit": str,
    "shipped": bool,
}
FINDING = {
    "name role": str,
    "found": ({"value": float, "low high": float | None}, None),
    "n": int,
    "how": str,
    "medians": [MEDIANS],
    "outcome": str,
    "holds": bool,
    "why": str,
}
PREDICTED = {"name role band why": str, "of over ratio": float | None}
OTHER = {"pid": int, "inventory": str}
WATCHED = (
    "lab plan reserved run circuits devices job move marks ring_changes trouble ranks slots "
    "services carried ports iterations throughput log"
)
CABLE = {"label from to back panels": str, "length_m loss_db": float}
FABRIC: dict[str, Any] = {"hosts": list[str], "choices": int}
METHOD = {"name distribution object problem": str}
DRIVER = {"driver": str, "schemes abilities": list[str], "devices": str}
CHECK = {"name sentence capability verdict message": str, "seconds": float}
CONFORM = {
    "driver device identity": str,
    "emulated ok": bool,
    "capabilities": dict[str, str],
    "checks": [CHECK],
    "matrix_row": list[str],
}
CHANGED: dict[str, Any] = {"page": str, "changed": bool}
MEASURED: dict[str, Any] = {
    "name": str,
    "slots": list[dict[str, Any]],
    "left report file": str,
}
SERVICE: dict[str, Any] = {"service": str, "details": dict[str, Any]}
EXAMPLE = {"group name shows see": str, "seconds": int, "run end": list[str]}
STORED: dict[str, Any] = {"runs bytes": int, "url": str}

DATA: dict[str, Shapes] = {
    "up": (UP,),
    "plan": (PlanReport, PrewireReport, RehearsalReport),
    "down": (DownReport,),
    "rollback": (UpReport, DownReport),
    "resume": (UpReport, DownReport, PrewireReport),
    "confirm": (ConfirmReport, WatchReport),
    "restore": (UpReport,),
    "status": (StatusReport,),
    "verify": (VerifyReport, StallReport),
    "lock list": ({"locks": [LOCK]},),
    "lock calendar": ({"locks": [LOCK | {"ended": float | None}]},),
    "lock audit": ({"audit": list[AuditRecord], "older": bool},),
    "lock reserve": ({"lock": LOCK, "behind": [LOCK]},),
    "lock release": ({"lock": LOCK, "stolen": bool}, TakenReport),
    "tagout": (
        {"tagouts": list[Tagout]},
        {"tagout": Tagout, "busy": [LOCK]},
        {"removed": list[Tagout]},
    ),
    "devices list": (DevicesReport,),
    "devices power": (PowerReport,),
    "devices trace": (TraceReport,),
    "devices cables": ({"cables": [CABLE]},),
    "devices losses": ({"device": str, "file": str, "paths": int},),
    "devices driver list": (
        {"drivers": [DRIVER]},
        {"tables": dict[str, str]},
        CHANGED,
    ),
    "devices driver conform": (CONFORM,),
    "devices driver matrix": (
        {"matrix": str, "drivers": [CONFORM], "page?": str, "changed?": bool},
    ),
    "devices driver new": ({"files": list[str]},),
    "devices driver record": ({"file": str, "questions": int, "asked": list[str]},),
    "devices driver replay": ({"asked": list[str]},),
    **dict.fromkeys((f"design {method}" for method in SHORT), (DESIGN,)),
    "design periodic": (
        {
            "plan": PlanFile,
            "slots": int,
            "duty cycle_ms dark_ms": float,
            "iteration_ms": {"static": float, "periodic": float},
        },
    ),
    "design match": (
        {
            "plan": PlanFile,
            "candidates": [
                {
                    "method schedule transport function": str,
                    "iteration_ms watts": float | None,
                    "refused": str,
                    "unmet": dict[str, str],
                    "why": list[str],
                }
            ],
            "unmet": dict[str, str],
            "prices": str,
            "capabilities": Capabilities,
            "tried?": {
                "comparison": str,
                "candidates": list[str],
                "predicted_ms": list[float],
                "measured_ms ratios": list[float | None],
                "regret": float | None,
            },
        },
        {"capabilities": Capabilities},
    ),
    "design compare": (fields(Versus, figures=[FIGURE], limit=str),),
    "design rewire": (Rewiring,),
    "design replan": (
        {
            "plan": str,
            "failed": list[str],
            **{f"{name}?": kind for name, kind in fields(Replan).items()},
            "break_even_iterations?": float | None,
            "out?": str,
            "repaired? avoid?": list[str],
        },
    ),
    "design slices": (
        {
            "grid block slice": list[int],
            "failed": list[str],
            "reconfigurable static": FABRIC,
            "probabilities": [PROBABILITY],
            "svg?": str,
        },
    ),
    "design methods": ({"topologies schedules": [METHOD]},),
    "design cost": (Fabrics,),
    "design import": (
        {
            "plan": PlanFile,
            "format": Literal["graphml", "containerlab"],
            "hosts segments": dict[str, str],
            "ports_named": int,
            "out": str | None,
        },
    ),
    "design export": ({"plan file": str, "hosts segments left_out": list[str]},),
    **dict.fromkeys(
        (f"job {word}" for word in ("launch", "restore", "status", "pause", "resume", "stop")),
        (JobStatus,),
    ),
    "job diagnose": (DiagnosisReport,),
    "job logs": (JobLogs,),
    "job env": (fields(ByHand) | {"lines?": list[str]},),
    "job evict": (UpReport,),
    "job join": (UpReport,),
    "job profile": (Profile,),
    "job queue list": (QueueView,),
    "job queue add": (
        {
            "number": int,
            "name tenancy": str,
            "count": int,
            "for_s": float,
            "process?": QueueState | None,
        },
    ),
    "job queue drop": ({"number": int, "state": str, "process?": QueueState | None},),
    "host exec": ({"host": str, "command": list[str], "exit_code": int, "stdout stderr": str},),
    "host provision": (ProvisionReport,),
    "host variables": ({"hosts": dict[str, Any], "archive_digest programs_digest archive?": str},),
    "host power": (HostPower,),
    "host shell": ({"host": str, "exit_code": int},),
    "run list": ({"runs": [RUN]}, {"removed": list[str], "stay": dict[str, str], "mb": float}),
    "run show": (
        {
            "run": RUN,
            "phases parts": list[Bar],
            "reconfigs": list[dict[str, Any]],
            "jobs": list[IterationSummary],
            "comparison": list[ComparedFigure],
            "steps": [STEP],
            "journal": str,
            "trouble": list[str],
        },
    ),
    "run note": (
        {"tags": dict[str, int]},
        {"runs": [{"run": str, "tags": list[str], "notes": list[Note]}]},
    ),
    "watch": ({WATCHED: Any},),
    "ui": ({"ended": Literal[True]},),
    "service stop": (SERVICE | {"stopped": bool, "state": dict[str, Any] | None},),
    "service status": ({"services": list[ServiceStatus]},),
    "experiment report": (
        {
            "file title": str,
            "runs journals figures data": list[str],
            "answers": {str: ANSWER},
            "trouble": list[str],
        },
    ),
    "experiment compare": (
        MEASURED
        | {
            "arms": dict[str, str],
            "verdict": (VERDICT, None),
            "verdicts": {str: VERDICT},
            "iteration_ms": dict[str, list[list[float]]],
            "complete": bool,
        },
    ),
    "experiment reproduce": (
        MEASURED
        | {
            "record outcome label": str,
            "dilation": float,
            "findings": [FINDING],
            "ended": str,
            "environment": Any,
        },
        {"scenarios": [SCENARIO]},
        {"name": str, "arms": list[str], "compared": [PREDICTED]},
    ),
    "experiment sweep run": (
        {"name": str, "kinds": dict[str, int], "trials": int, "parameters": list[str]},
        RESULTS | {"done failed total": int},
    ),
    "experiment sweep show": (
        RESULTS | {"done failed waiting": int, "rows": list[Row], "figure?": str},
    ),
    "telemetry status": (
        STORED,
        STORED
        | {
            "server version live_url db": str,
            "sink": bool,
            "sent behind refused": int,
            "trouble": str,
            "state": SinkState,
        },
    ),
    "telemetry replay": ({"points runs refused": int, "url db": str},),
    "telemetry sample": (SampleReport,),
    "telemetry query": (
        {"columns": list[str], "rows": list[dict[str, Any]], "trouble": list[str]},
    ),
    "telemetry export": ({"files": dict[str, int], "trouble": list[str]},),
    "telemetry prune": ({"runs": list[str], "stay": list[Old], "mb": float},),
    "telemetry grafana provision": ({"files": list[str]},),
    "telemetry grafana push": (
        {
            "grafana": str,
            "dashboards": dict[str, str],
            "data_source data_source_answer": str,
        },
    ),
    "telemetry grafana note": ({"id": int, "time_ms": int, "end_ms": int | None},),
    "lab start": (
        {
            "pid": int,
            "seconds": float,
            "already": bool,
            "state_dir inventory plan?": str,
        },
    ),
    "lab stop": ({"stopped": bool},),
    "lab import netbox": (
        {
            "out": str,
            "written": list[str],
            "hosts devices fibres trunks": int,
            "differences": [
                {
                    "what": Literal["host", "device", "fibre", "trunk"],
                    "name": str,
                    "how": Literal["added", "removed", "changed"],
                    "details": list[str],
                }
            ],
            "left_out": list[str],
            "light": list[str] | None,
            "cables_written": int | None,
        },
    ),
    "lab status": (
        {"running": Literal[False], "emulated": bool, "others?": [OTHER]},
        {
            "running emulated": Literal[True],
            "others?": [OTHER],
            "lab": Anything,
            "light": Any,
        },
    ),
    "lab fault add": ({"device kind": str, "number": int},),
    "lab fault list": ({"faults": dict[str, list[Anything]], "log": list[Anything]},),
    "lab fault remove": ({"device": str, "number": int},),
    "lab fibre cut": ({"name": str, "cut": list[str]},),
    "lab fibre splice": ({"name": str, "cut": list[str]},),
    "lab fibre swap": ({"plugged": dict[str, dict[str, str]]},),
    "doctor": ({"checks": list[Probe], "failed": int},),
    "examples list": ({"folder": str, "examples": [EXAMPLE], "more": [{"file shows": str}]},),
    "examples copy": ({"folder": str, "files": list[str]},),
    "examples schema": (Anything,),
    "version": (dict[str, str],),
}


def data() -> dict[str, Shapes]:
    """The data of every verb, those of services and of extensions last."""
    found: dict[str, Shapes] = dict(DATA)
    for each in kinds():
        found[f"service start {each.name}"] = (
            SERVICE | {"started": bool, "state": each.state | None},
        )
        found[f"service run {each.name}"] = (
            typing.get_type_hints(by_path(each.work), localns={"Json": Any})["return"],
        )
    return found | {
        verb: shapes for more in extension_parts("shapes", "DATA") for verb, shapes in more.items()
    }
