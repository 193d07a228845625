"""What an opened lab can be asked: one coroutine each, of which `Lab` and `AsyncLab` make their
methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optical_testbed.opened import Opened
from optical_testbed.plans import Designed, PlanLike, source
from optical_testbed.telemetry import Rows

if TYPE_CHECKING:
    from optics.plan import Mode
    from orchestrator.change.report import ConfirmReport, DownReport, PrewireReport, UpReport
    from orchestrator.experiments.rehearsal.report import RehearsalReport
    from orchestrator.plan.report import PlanReport
    from orchestrator.store.records import RunRecord
    from orchestrator.verbs.report import DevicesReport, StatusReport
    from orchestrator.verify.report import VerifyReport
    from planner.workers import Workers


async def plan(
    lab: Opened,
    plan: PlanLike,
    *,
    avoid: Iterable[str] = (),
    relabel: bool = False,
    adopt: Iterable[str] = (),
    job: Mode | None = None,
) -> PlanReport:
    """Return what `up` would change, port by port; nothing is changed.

    avoid: host ports, device ports, fibres, trunks or devices not to use. relabel: interchangeable
    hosts may swap places. adopt: other owners' circuits to take over. job: as for `up`. Raises:
    BadFile, Infeasible, Interlock, Unreachable, TimedOut.
    """
    from orchestrator.store.options import UpOptions
    from orchestrator.verbs import change as verbs

    options = UpOptions(job=job, avoid=tuple(avoid), adopt=tuple(adopt), relabel=relabel)
    return await lab.work("plan", verbs.plan, source(plan), options)


async def up(
    lab: Opened,
    plan: PlanLike,
    *,
    job: Mode | None = None,
    launch_job: bool = True,
    dry_run: bool = False,
    avoid: Iterable[str] = (),
    relabel: bool = False,
    adopt: Iterable[str] = (),
    rollback: bool = True,
    confirm_within_s: float | None = None,
    spares: Iterable[str] = (),
) -> UpReport:
    """Bring a plan up: switch circuits, set routes, verify, launch its job. Repeating it changes
    nothing.

    job: what becomes of a running job: `live`, it takes over its rings while it runs, or nothing is
    changed; `restart`; `keep`; None: as `transition.live` of the plan says. launch_job: whether to
    launch the plan's job. rollback: a change that fails is rolled back. confirm_within_s: it is
    rolled back unless `confirm` is called within this time (s, 1 to 43200). spares: hosts that may
    take the place of one that fails. A stopped emulated lab is started. Raises: BadFile,
    Infeasible, Interlock, Locked, Unreachable - nothing was changed. RolledBack - it failed,
    everything is as before. HandsNeeded - it failed, and so did the rollback; `left` lists what is
    left. ChangeFailed - only without `rollback`.
    """
    from orchestrator.session import load_lab, load_plan
    from orchestrator.store.options import UpOptions
    from orchestrator.verbs import change as verbs
    from orchestrator.verbs.invoke import is_stopped_lab

    found = source(plan)
    _check_window(confirm_within_s)
    if is_stopped_lab(lab.settings.inventory):
        # its mistakes end the call before the lab is started
        load_plan(found, load_lab(lab.settings.inventory))
        await lab.start()
    options = UpOptions(
        launch_job=launch_job,
        job=job,
        avoid=tuple(avoid),
        adopt=tuple(adopt),
        relabel=relabel,
        spares=tuple(spares),
        rollback=rollback,
        confirm_s=confirm_within_s,
        dry_run=dry_run,
    )
    return await lab.work("up", verbs.up, found, options)


def _check_window(confirm_within_s: float | None) -> None:
    from optics.errors import BadFile
    from orchestrator.store.confirmations import LEAST_S, MOST_S

    if confirm_within_s is not None and not LEAST_S <= confirm_within_s <= MOST_S:
        raise BadFile(
            [f"confirm_within_s: wanted {LEAST_S:g} to {MOST_S:g} s, got {confirm_within_s!r}"]
        )


async def confirm(lab: Opened, run: str | None = None) -> ConfirmReport:
    """Keep a change that was made with `confirm_within_s`; None: the only one that waits.

    Raises: Missing - none waits. Interlock - it is too late. Unreachable, NotVerified - not all
    hosts run it; it still waits.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("confirm", verbs.confirm, run)


async def rehearse(
    lab: Opened,
    plan: PlanLike,
    *,
    job: Mode | None = None,
    launch_job: bool = True,
    avoid: Iterable[str] = (),
    adopt: Iterable[str] = (),
    devices_only: bool = False,
) -> RehearsalReport:
    """Make the change on an emulated twin of the lab, which is only read; options as of `up`.
    devices_only: without hosts.

    A change that fails on the twin is a result: `ok`, `failed`. Raises: as `plan`; Missing - this
    machine cannot run the twin, or a device that the change needs has no emulator.
    """
    from orchestrator.experiments.rehearsal import verb
    from orchestrator.store.options import UpOptions

    options = UpOptions(launch_job=launch_job, job=job, avoid=tuple(avoid), adopt=tuple(adopt))
    return await lab.work(
        "rehearse", verb.rehearse, source(plan), options, devices_only=devices_only
    )


async def prewire(lab: Opened, plan: PlanLike, *, relabel: bool = False) -> PrewireReport:
    """Have robotic switches prepare a plan in the dark, so that its `up` is fast. Raises: as
    `up`.
    """
    from orchestrator.verbs import change as verbs

    found = source(plan)
    await lab.start()
    return await lab.work("prewire", verbs.prewire, found, relabel=relabel)


async def down(lab: Opened) -> DownReport:
    """Stop the job and the guard, take down the owner's circuits, restore the hosts; circuits of
    other owners stay.

    Raises: as `up`. HandsNeeded - something could not be restored; `left` lists it.
    """
    from orchestrator.services.guard.process import GUARD
    from orchestrator.session import load_lab
    from orchestrator.store.keys import tenancy_of
    from orchestrator.verbs import change as verbs

    if (lab.settings.data_dir / "guard").is_dir():
        GUARD.stop(lab.settings, tenancy_of(load_lab(lab.settings.inventory), lab.settings))
    return _restored(await lab.work("down", verbs.down))


def _restored(report: DownReport) -> DownReport:
    if report.left:
        from optics.errors import HandsNeeded

        raise HandsNeeded(
            f"{report.verb}: manual repair is needed",
            report.left,
            hint=f"once repaired: testbed resume {report.run}",
        )
    return report


async def rollback(lab: Opened, run: str | None = None) -> UpReport | DownReport:
    """Restore exactly the state before a run; None: before the owner's latest change. A DownReport
    if no plan was up then, or if there is nothing to undo, as the latest run died before it changed
    anything; its notes then name the change before.

    Raises: as `up`. Missing - there is no such run, or it changed nothing. HandsNeeded - something
    could not be restored.
    """
    from orchestrator.change.report import DownReport
    from orchestrator.verbs import change as verbs

    found = await lab.work("rollback", verbs.rollback, run)
    return _restored(found) if isinstance(found, DownReport) else found


async def resume(lab: Opened, run: str = "last") -> UpReport | DownReport | PrewireReport:
    """Continue an unfinished run from the present state: the same plan and options. Raises: as the
    verb it resumes; Missing.
    """
    from orchestrator.change.report import DownReport
    from orchestrator.verbs import change as verbs

    await lab.start()
    found = await lab.work("resume", verbs.resume, run)
    return _restored(found) if isinstance(found, DownReport) else found


async def restore(lab: Opened) -> UpReport:
    """Restore the plan that is up exactly as recorded, after devices or hosts lost it. Raises: as
    `up`.
    """
    from orchestrator.verbs import change as verbs

    await lab.start()
    return await lab.work("restore", verbs.restore)


async def status(lab: Opened) -> StatusReport:
    """Return the lab as its devices and hosts answer now; one that does not answer is reported with
    its error.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("status", verbs.status)


async def verify(
    lab: Opened,
    *,
    levels: Iterable[str] = (),
    qualify: bool = False,
    collective: bool = False,
    next_to_job: bool = False,
) -> VerifyReport:
    """Check the lab against the plan that is up; the report's `ok` is the answer.

    levels: only these; none: those that the plan asks for. qualify: load every link. collective:
    run a short all-reduce. next_to_job: both also while a job runs, which they slow down. Raises:
    Missing - no plan is up, or there is no such rung.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work(
        "verify",
        verbs.verify,
        levels=tuple(levels),
        qualify=qualify,
        collective=collective,
        next_to_job=next_to_job,
    )


async def devices(lab: Opened) -> DevicesReport:
    """Return identity, ports, optical power (dBm) and abilities of each device."""
    from orchestrator.verbs import change as verbs

    return await lab.work("devices", verbs.devices)


async def design(
    lab: Opened,
    workload: str | PathLike[str] | Mapping[str, Any],
    method: str = "topoopt",
    *,
    name: str = "",
    hosts: Sequence[str] = (),
    ports: int | None = None,
    backend: str = "ring-groups",
    schedule: str = "",
    rules: str = "paper",
    seed: int = 1,
    simplex: bool = False,
    alpha_s: float = 0.0,
    scale: float | None = None,
    iterations: int = 20,
    domain: int = 2,
    search: int = 0,
    chains: int = 1,
    workers: Workers | None = None,
    segments: Sequence[str] = (),
    relay: str = "",
    twisted: bool = False,
    wavelengths: int = 0,
) -> Designed:
    """Design a topology for a workload (a file or its content) by a method of `testbed design`; the
    lab is not contacted.

    hosts: in the order of their ranks; none: the first of the lab. ports: to use of each host;
    None: all. backend: ability of the collective library: single-order, ring-groups, msccl.
    schedule: of all-reduce for msccl, by name; empty: breadth-first where it is faster than rings.
    alpha_s: fixed time of a step (s). scale: bytes of the job per byte of the workload. iterations:
    of the job, 0 until stopped. domain: hosts of a rail-only domain. search: strategies of
    parallelism to try. chains: searches with dice of their own. workers: an executor of
    concurrent.futures, or Dask's, for the pieces of a search (None: this process); the design does
    not depend on it. relay: over packet switches, ranks pass on what none carries: chunks, or whole
    messages. twisted: for torus. wavelengths: for ring-wavelengths, at most so many; 0: all.
    Raises: BadFile - the workload is wrong, or there is no such method or schedule. Infeasible -
    naming the condition that is not met. BadPlugin - a generator or schedule of another
    distribution failed.
    """
    from optics.errors import BadFile
    from orchestrator.plan.design.design import design as designed
    from orchestrator.plan.design.document import checked, document
    from orchestrator.plan.design.electrical import KINDS
    from orchestrator.session import load_lab
    from orchestrator.verbs.design_files import read_workload, workload_of
    from planner.topology.methods import Wanted

    if relay and method not in KINDS:
        raise BadFile([f"relay: applies to {', '.join(KINDS)}, not to {method}"])
    only = {"search": "topoopt", "twisted": "torus", "wavelengths": "ring-wavelengths"}
    for (option, its), given in zip(only.items(), (search, twisted, wavelengths), strict=True):
        if given and method != its:
            raise BadFile([f"{option}: applies to the method {its}, not to {method}"])
    if chains != 1 and not search:
        raise BadFile([f"chains: {chains} of a search, but search is 0"])
    here = load_lab(lab.settings.inventory)
    read = workload_of(workload) if isinstance(workload, Mapping) else read_workload(Path(workload))
    wanted = Wanted(
        method,
        rules=_one_of("rules", rules),  # type: ignore[arg-type]
        seed=seed,
        backend=_one_of("backend", backend),  # type: ignore[arg-type]
        schedule=schedule,
        hosts=tuple(hosts),
        ports=ports,
        simplex=simplex,
        alpha_s=alpha_s,
        scale=scale,
        iterations=iterations,
        domain=domain,
        search=search,
        chains=chains,
        workers=workers,
        segments=tuple(segments),
        relay=_one_of("relay", relay) if relay else "",  # type: ignore[arg-type]
        twisted=twisted,
        wavelengths=wavelengths,
    )
    found = designed(read, here, wanted)
    content = document(found, name)
    checked(found, content, f"design {content['name']}", here)
    return Designed(content, content["predicted"], found.found.why, found.others)


def _one_of(what: str, value: str) -> str:
    from optics.errors import BadFile
    from optics.plain import did_you_mean
    from planner.model.backend import BACKENDS
    from planner.topology.methods import RELAYS

    known = {"rules": ("paper", "artifact"), "backend": BACKENDS, "relay": RELAYS}[what]
    if value not in known:
        raise BadFile(
            [f"{what}: {value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}"]
        )
    return value


async def runs(lab: Opened, limit: int = 20, tag: str = "") -> tuple[RunRecord, ...]:
    """Return the latest runs, newest first: who changed what, when, with which result.

    limit: at most this many. tag: only runs with this tag (`testbed run note RUN --tag TAG`).
    """
    from orchestrator.store.notes import runs_with_tags
    from orchestrator.store.store import Store

    with Store(lab.settings.store_path, shared=lab.settings.store is not None) as store:
        if not tag:
            return tuple(store.history(limit=limit))
        those = runs_with_tags(store, [tag])
        return tuple(record for record in store.history(limit=0) if record.id in those)[:limit]


async def telemetry(lab: Opened, run: str = "last", measurement: str | Sequence[str] = ()) -> Rows:
    """Return the telemetry of a run: all of it, or one or several measurements.

    run: its ID, its last digits, or `last`. The measurements, their tags, fields and units are in
    docs/reference/telemetry.md. Raises: Missing - there is no such run, or no such measurement.
    """
    from optics.errors import Missing
    from optics.plain import did_you_mean
    from orchestrator.store.runs import named
    from orchestrator.store.store import Store
    from orchestrator.telemetry.names import MEASUREMENTS
    from orchestrator.telemetry.reader import read_points

    only = (measurement,) if isinstance(measurement, str) else tuple(measurement)
    for name in only:
        if name not in MEASUREMENTS:
            raise Missing(
                f"there is no measurement {name!r}{did_you_mean(name, MEASUREMENTS)}",
                hint=f"there are {', '.join(MEASUREMENTS)}",
            )
    with Store(lab.settings.store_path, shared=lab.settings.store is not None) as store:
        record = named(store, run)
    trouble: list[str] = []
    return Rows(
        record.id,
        tuple(read_points(lab.settings.run_dir(record.id), only, trouble)),
        tuple(trouble),
    )
