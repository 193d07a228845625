"""Gives a fresh twin the state of its lab: circuits, port states, light, switching times, owners,
the plan and job that are up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drivers.api import PortControl
from optics import Change, DeviceName, Outcome, PortState, Setting
from optics.values import short, sort_key
from orchestrator.experiments.rehearsal.reading import LabReading
from orchestrator.experiments.rehearsal.switching import Switching, commands, moves_of
from orchestrator.experiments.rehearsal.twin import Twin
from orchestrator.fabric.lightpath import Held
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts.facts import facts
from orchestrator.inventory.lab import Lab
from orchestrator.session import Command, Session
from orchestrator.store.keys import key_of, tenancy_key
from orchestrator.store.store import Store
from orchestrator.verbs import change as verbs

CALIBRATIONS = 3
"""So often is a change made on the twin while its devices need no time, to learn what devices and
drivers need besides.
"""


async def seed_devices(
    session: Session,
    twin: Twin,
    read: LabReading,
    changes: Mapping[DeviceName, Change],
    times: Mapping[DeviceName, Switching],
) -> tuple[str, ...]:
    """Give the twin's devices what the lab's hold, and their switching times. Returns what they did
    not take, in words.

    A measured time includes what the device and its driver need besides switching. What they need
    here is measured too, with `changes` and devices that switch at once, and taken off. Raises: as
    the drivers.
    """
    missing = list(await _hold(session, read.settings))
    devices = session.devices
    for port, state in sorted(read.states.items()):
        if port.device not in devices:
            continue
        device = devices[port.device]
        if state is PortState.FAILED:
            twin.ask("faults.add", device=port.device, kind="failed-port", port=port.label)
        elif isinstance(device, PortControl):
            await device.set_ports([port], enabled=False)
    for port in sorted(read.dark):
        if port.device in devices:
            twin.ask("power", device=port.device, port=port.label, dbm=None)
    extra = await _extra(session, changes)
    for name, found in times.items():
        if name not in devices:
            continue
        seconds = found.seconds - extra.get(name, 0.0) if found.samples else found.seconds
        twin.ask("settle", device=name, s=max(0.0, seconds))
    return tuple(missing)


async def _hold(session: Session, settings: Held) -> Iterable[str]:
    asked = {
        name: Change(name, add=held)
        for name, held in settings.items()
        if held and name in session.devices
    }
    outcomes = await asyncio.gather(
        *(session.devices[name].apply(change) for name, change in asked.items())
    )
    return [
        f"{o.device}: {short(s)}: {why}"
        for o in outcomes
        for s, why in sorted(o.failed.items(), key=lambda x: sort_key(x[0]))
    ]


async def _extra(session: Session, changes: Mapping[DeviceName, Change]) -> dict[DeviceName, float]:
    """What each device that will change needs for a command besides switching (s): the least of a
    few tries, all at once.
    """
    least: dict[DeviceName, float] = {}
    back = {
        name: Change(name, change.add, change.remove, change.order[::-1])
        for name, change in changes.items()
    }
    for _ in range(CALIBRATIONS):
        for step in (changes, back):
            outcomes = await asyncio.gather(
                *(session.devices[name].apply(change) for name, change in step.items())
            )
            if step is back:
                continue
            for outcome in outcomes:
                count = commands(
                    moves_of(changes[outcome.device]), session.devices[outcome.device].traits
                )
                least[outcome.device] = min(
                    least.get(outcome.device, float("inf")), _dark_s(outcome) / count
                )
    return least


def _dark_s(outcome: Outcome) -> float:
    return (outcome.settled_ns - outcome.broken_ns) / 1e9


@dataclass(frozen=True, slots=True)
class StoredState:
    """What is up on the lab: owner of each circuit, and the owner's plan, with whether its job
    runs.
    """

    owners: Mapping[Setting, str]
    owner: str
    plan_name: str = ""
    plan_text: str = ""
    plan_sha: str = ""
    state: UpState = field(default_factory=UpState)
    job_runs: bool = False


def read_stored_state(store: Store, lab: Lab, owner: str) -> StoredState:
    """What the run store has of the lab."""
    key = tenancy_key(key_of(lab), owner)
    owners = {setting: whose.owner for setting, whose in store.owners(key_of(lab)).items()}
    current, job = store.current(key), store.latest_job(key)
    if current is None:
        return StoredState(owners, owner)
    runs = job is not None and job.ended is None and job.state in ("starting", "running", "paused")
    return StoredState(
        owners, owner, current.plan_name, current.plan_text, current.plan_sha, current.up, runs
    )


async def seed_hosts(session: Session, lab: Lab, read: LabReading) -> None:
    """Provision the twin's hosts whose counterparts are provisioned. Raises: as
    `Hosts.provision`.
    """
    done = [
        name
        for name, hello in read.hellos.items()
        if hello.provision == facts(lab.hosts[name])["sha"]
    ]
    if done:
        await session.hosts.channels.connect()
        await session.hosts.provision(sorted(done))


async def bring_up(command: Command, lab: Lab, found: StoredState) -> None:
    """Bring the plan that is up on the lab up on its twin, which has its circuits, and launch its
    job. Raises: as `restore`.
    """
    store, key = command.store, key_of(lab)
    run = store.new_run(
        "up", key, plan_name=found.plan_name, user=command.settings.user, owner=found.owner
    )
    for owner in sorted(set(found.owners.values())):
        store.own(
            tenancy_key(key, owner),
            run.id,
            [s for s, whose in found.owners.items() if whose == owner],
        )
    run.finish("ok")
    if not found.plan_text:
        return
    text = shaped(found.plan_text)[0]
    store.set_current(
        tenancy_key(key, found.owner),
        run.id,
        plan_name=found.plan_name,
        plan_sha=found.plan_sha,
        plan_text=text,
        up=found.state,
        generation=0,
    )
    await verbs.restore(command)
    if found.job_runs:
        await verbs.job_launch(command)


def shaped(text: str) -> tuple[str, str]:
    """A plan for the twin, and what its job then is not: a program of the lab's owner becomes
    traffic over the same rings.
    """
    plan = json.loads(text)
    job = plan.get("job") if isinstance(plan, dict) else None
    if not isinstance(job, dict):
        return text, ""
    message = ""
    if job.get("workload") == "program":
        message = (
            f"the program {job.get('program')}: its ranks all-reduce 1 MB again and again instead"
        )
        job = {k: v for k, v in job.items() if k in ("name", "ranks", "rings")}
        job |= {"workload": "allreduce", "args": {"loop": True, "minbytes": "1M", "check": 0}}
    elif job.get("backend") != "nccl":
        return text, ""
    plan["job"] = {**job, "backend": "gloo"}
    return json.dumps(plan, indent=1) + "\n", message
