"""Trials on labs: a change of emulated devices without hosts, and a change or a scenario on a whole
lab.

A whole lab is used by the commands that an operator would type, as processes of their own: a worker
is a thread of another program, and a command that hangs is ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optical_testbed_home
from conformance.lab import running
from optics.errors import Missing, NotVerified, TestbedError, TimedOut
from orchestrator import emulated
from orchestrator.experiments.files.scenario.values import WantedLab
from orchestrator.experiments.scenario import lab as generated
from orchestrator.experiments.scenario.judging import RESULTS
from orchestrator.files.trust import SHARED
from orchestrator.processes import file_lock
from orchestrator.session import PlanText, load_lab, load_plan, open_driver
from orchestrator.settings import load, private_dir, variable

if TYPE_CHECKING:
    from optics import Change, Setting
    from orchestrator.inventory.lab import Lab
    from orchestrator.settings import Settings

Values = dict[str, float]
"""What a trial measured, by name, finite; the unit is the end of the name."""
_WITH_WORKER = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
"""Before a command: it reverts its step and ends when the worker dies (util-linux)."""
SLOTS = 256
"""Trials of one machine that need a folder at the same time, at most: as many as `--workers`
takes.
"""
DOWN_S = 120.0
END_S = 30.0
"""How long a command may take to revert its step after SIGTERM."""
_NOT_REPRODUCED = 8


def wanted_of(lab: Mapping[str, Any]) -> WantedLab:
    """A lab that travelled as JSON."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in lab.items()
    }
    return WantedLab(**fields)


def change_of_devices(task: Mapping[str, Any]) -> Values:
    """Make a plan's circuits on emulated devices without hosts, and measure the change to it, or to
    the plan after it.
    """
    with generated_lab(task["lab"]["wanted"], hosts=False) as inventory:
        return asyncio.run(asyncio.wait_for(_changed(task, inventory), task["watchdog_s"]))


async def _changed(task: Mapping[str, Any], inventory: Path) -> Values:
    lab = load_lab(inventory)
    devices = {name: open_driver(lab, name) for name in lab.devices}
    try:
        plans = [task["files"][name] for name in ("plan", "then") if name in task["files"]]
        values: Values = {}
        for at, plan in enumerate(plans):
            if at == len(plans) - 1:
                faults(inventory, task["parameters"].get("faults", ()))
            values = await _one_change(lab, devices, plan)
        return values
    finally:
        await asyncio.gather(
            *(device.close() for device in devices.values()), return_exceptions=True
        )


async def _one_change(lab: Lab, devices: Mapping[str, Any], plan: Mapping[str, Any]) -> Values:
    """Bring the devices to a plan, all at once, as a change does. Raises: NotVerified - a device
    holds something else then.
    """
    from orchestrator.fabric.lightpath import without_attenuation
    from orchestrator.plan.target import target

    wanted, _ = load_plan(PlanText(plan["text"], plan["name"]), lab)
    began = time.monotonic()
    held: dict[str, frozenset[Setting]] = dict(
        zip(
            devices,
            await asyncio.gather(*(device.read() for device in devices.values())),
            strict=True,
        )
    )
    observed = time.monotonic()
    goal = target(wanted, lab, held, [each for settings in held.values() for each in settings])
    moves: Mapping[str, Change] = goal.change.changes
    together = asyncio.Barrier(len(moves)) if moves else None

    async def ready() -> None:
        if together is not None:
            await together.wait()

    planned = time.monotonic()
    outcomes = await asyncio.gather(
        *(devices[name].apply(change, ready) for name, change in moves.items())
    )
    ended = time.monotonic()
    for outcome in outcomes:
        missing = {*map(without_attenuation, goal.wanted[outcome.device])} - {
            *map(without_attenuation, outcome.observed)
        }
        if outcome.failed or missing:
            text = "; ".join([*outcome.failed.values()][:3]) or f"{len(missing)} are missing"
            raise NotVerified(
                f"{outcome.device} does not hold the circuits of {plan['name']}: {text}"
            )
    return {
        "observe_ms": (observed - began) * 1e3,
        "plan_ms": (planned - observed) * 1e3,
        "switch_ms": (ended - planned) * 1e3,
        "dark_ms": max(
            ((each.settled_ns - each.broken_ns) / 1e6 for each in outcomes), default=0.0
        ),
        "circuits_made": float(sum(len(made) for made in goal.change.made.values())),
        "circuits_broken": float(sum(len(ended) for ended in goal.change.removed.values())),
        "circuits_kept": float(sum(len(kept) for kept in goal.change.kept.values())),
    }


def faults(inventory: Path, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Add faults to the running lab. Raises: Missing - the lab has no such place or fault."""
    if not wanted:
        return
    about = emulated.ask(inventory, "status")
    for fault in wanted:
        options = {name: value for name, value in fault.items() if name not in ("at", "kind")}
        place = "device" if fault["at"] in about["devices"] else "host"
        emulated.ask(inventory, "faults.add", **{place: fault["at"]}, kind=fault["kind"], **options)


def on_lab(task: Mapping[str, Any]) -> Values:
    """Bring a plan up on a whole lab, change to the next one, and take it down; or run a scenario.

    Raises: NotVerified - a command failed, with its message. TimedOut - it took longer than the
    campaign allows.
    """
    until = time.monotonic() + task["watchdog_s"]
    if "scenario" in task["files"]:
        return _scenario(task, until)
    if "inventory" in task["lab"]:
        inventory = Path(task["lab"]["inventory"]).expanduser()
        if not inventory.is_dir():
            raise Missing(
                f"{inventory} is not on this worker's machine",
                hint="start the worker with the resource on the lab's machine",
            )
        # another command may use the lab, for example of a trial whose worker was killed
        with own_folder() as place:
            return _plans(
                task, inventory, place, {variable("wait"): f"{task['watchdog_s']}s"}, until
            )
    with generated_lab(task["lab"]["wanted"], hosts=True) as inventory:
        return _plans(task, inventory, inventory.parent, _own(inventory.parent), until)


def _plans(
    task: Mapping[str, Any], inventory: Path, folder: Path, own: Mapping[str, str], until: float
) -> Values:
    given, files = task["parameters"], task["files"]
    job = [] if given.get("job", True) else ["--no-job"]
    names = [name for name in ("plan", "then") if name in files]
    found: dict[str, Any] = {}
    try:
        for at, name in enumerate(names):
            if at == len(names) - 1:
                faults(inventory, given.get("faults", ()))
            path = folder / f"{name}.json"
            path.write_text(files[name]["text"], encoding="utf-8")
            mode = ["--job", given["mode"]] if name == "then" and "mode" in given else []
            found = run_testbed(["up", "--topology", str(path), *job, *mode], inventory, own, until)
    except BaseException:
        with suppress(TestbedError):
            _down(inventory, own)
        raise
    _down(inventory, own)
    return report_values(found)


def _down(inventory: Path, own: Mapping[str, str]) -> None:
    """Leave nothing up for the next trial. Raises: NotVerified, TimedOut - something is."""
    run_testbed(["down", "--yes"], inventory, own, time.monotonic() + DOWN_S)


def _scenario(task: Mapping[str, Any], until: float) -> Values:
    with own_folder() as place:
        page = task["files"]["scenario"]
        for name, text in page["files"].items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        path = place / "scenario.yaml"
        path.write_text(page["text"], encoding="utf-8")
        repeats = task["parameters"].get("repeats")
        tokens = [
            "experiment",
            "reproduce",
            str(path),
            "--yes",
            *(["--repeats", str(repeats)] if repeats else []),
        ]
        found = run_testbed(tokens, None, _own(place), until, (0, _NOT_REPRODUCED))
    values: Values = {"reproduced": float(found["outcome"] == RESULTS[0])}
    for each in found["findings"]:
        values |= {
            f"{each['name']}{'' if name == 'value' else f' {name}'}": value
            for name, value in (each["found"] or {}).items()
            if value is not None
        }
    return values


def _own(folder: Path) -> dict[str, str]:
    """Settings of a trial on a generated lab: a store and journals of its own."""
    return {
        "TESTBED_STATE_DIR": str(folder / "journals"),
        "TESTBED_DATA_DIR": str(folder / "store"),
        "TESTBED_INFLUX_URL": "none",
    }


def run_testbed(
    tokens: Sequence[str],
    inventory: Path | None,
    own: Mapping[str, str],
    until: float,
    good: Sequence[int] = (0,),
) -> dict[str, Any]:
    """Run `testbed WORDS --json` and return its data. until: monotonic time (s) at which it is
    ended.

    Raises: NotVerified - it failed, with its code and message; TimedOut.
    """
    at = ["--inventory", str(inventory)] if inventory is not None else []
    verb = " ".join(takewhile(str.isalpha, tokens))
    process = subprocess.Popen(
        [
            *_WITH_WORKER,
            sys.executable,
            "-P",
            "-m",
            "orchestrator.cli.main",
            *tokens,
            *at,
            "--json",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**optical_testbed_home.environment(), **own},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=max(until - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        _end(process)
        raise TimedOut(f"testbed {verb}: longer than the campaign's watchdog_s") from None
    except BaseException:
        _end(process)
        raise
    try:
        found = json.loads(out)
    except ValueError:
        raise NotVerified(
            f"testbed {verb} ended with {process.returncode}: {err.strip()[-500:]}"
        ) from None
    if process.returncode not in good:
        raise NotVerified(f"testbed {verb}: {found['code']} {found['message']}")
    data: dict[str, Any] = found["data"]
    return data


def _end(process: subprocess.Popen[str]) -> None:
    """Have a command revert its step and end; kill it if it does not."""
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def report_values(found: Mapping[str, Any]) -> Values:
    """The figures of the report of `up`: its own, those of the job's ring change and of the job,
    and the phases' times (s).
    """
    values: Values = {}
    for place, part in (
        ("", found),
        ("turn.", found.get("ring_change") or {}),
        ("job.", found.get("job") or {}),
    ):
        values |= {
            f"{place}{name}": float(value)
            for name, value in part.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    values |= {
        f"{phase['name']}_s": phase["seconds"]
        for phase in found.get("phases") or ()
        if phase.get("seconds") is not None
    }
    if "turn.paused_ms" in values:
        values["lost_ms"] = values["turn.paused_ms"]
    return values


@contextmanager
def lab_lock(lab: Mapping[str, Any]) -> Iterator[None]:
    """Wait for other trials on the same lab, or on any emulated one with hosts of this machine, of
    any worker and any campaign.

    Root, who alone may start labs with hosts on most machines, has one lock for all; other users
    have one each.
    """
    exists = str(Path(lab["inventory"]).expanduser().resolve()) if "inventory" in lab else ""
    name = f"testbed-sweep-{hashlib.sha256(exists.encode()).hexdigest()[:16] if exists else 'labs'}.lock"
    folder = SHARED.parent if os.access(SHARED.parent, os.W_OK) else private_dir(_labs(load()))
    fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def own_folder() -> Iterator[Path]:
    """An empty folder that no other trial of this machine uses, removed at the end."""
    place = private_dir(_labs(load()))
    for number in range(SLOTS):
        with file_lock(place / f"{number}.lock") as own:
            if own:
                folder = place / str(number)
                for trouble in _cleared(folder):
                    raise Missing(
                        f"a lab of an earlier trial still runs: {trouble}", hint="end its process"
                    )
                try:
                    yield private_dir(folder)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return
    raise Missing(f"{SLOTS} trials run on this machine already", hint="fewer workers")


def _labs(settings: Settings) -> Path:
    return settings.state_dir / "sweeps" / ".labs"


def clear_left(settings: Settings) -> Iterator[str]:
    """Remove what killed trials of this machine left; yield what could not be stopped, a line
    each.
    """
    for path in sorted(_labs(settings).glob("*.lock")):
        with file_lock(path) as own:
            if own:
                yield from _cleared(path.with_suffix(""))


def _cleared(folder: Path) -> Iterator[str]:
    """Remove a trial's folder after the end of what a killed worker's trial started there; yield
    what does not end, a line each.

    Its lab ends with the worker; its command gets SIGTERM from the kernel then, and reverts its
    step.
    """
    left: list[int] = []
    for sent in (signal.SIGTERM, signal.SIGKILL, 0):  # 0: nothing, after a last look
        until = time.monotonic() + END_S
        while (left := _using(folder)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sent)
    if not left:
        shutil.rmtree(folder, ignore_errors=True)
    yield from (f"process {pid}, with files in {folder}" for pid in left)


def _using(folder: Path) -> list[int]:
    """The labs and the commands of this program whose words name a file in `folder`."""
    return [
        pid
        for pid, _, tokens in emulated.processes()
        if {"emulators", "orchestrator.cli.main"} & {*tokens[:6]}
        and any(word.startswith(f"{folder}/") for word in tokens)
    ]


@contextmanager
def generated_lab(wanted: Mapping[str, Any], *, hosts: bool) -> Iterator[Path]:
    """Start a generated lab, and stop it at the end; the kernel stops it if this process dies
    before.
    """
    with own_folder() as place:
        inventory = generated.prepare_lab(place / "lab", wanted_of(wanted))
        with running(inventory, "--with-parent", *([] if hosts else ["--devices-only"])):
            yield inventory
