"""Runs one trial where a worker is: a prediction, a change of emulated devices, or a change or a
scenario on a whole lab.
"""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from json import dumps
from math import isfinite
from typing import TYPE_CHECKING, Any, TypedDict

from optics.errors import Refused
from orchestrator.experiments.sweep.version import of_program

if TYPE_CHECKING:
    from orchestrator.experiments.sweep.onlab import Values
    from orchestrator.inventory.lab import Lab


class Outcome(TypedDict):
    """One attempt. error: empty if it is done. seconds: how long it took, without waiting for other
    labs. worker: name of the machine. began: Unix time (s)."""

    values: Values
    error: str
    seconds: float
    worker: str
    began: float


def dask_setup(worker: object) -> None:
    """Have a local worker, which Dask calls this in, leave Ctrl-C to the command, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_trial(task: Mapping[str, Any], version: str) -> Outcome:
    """Run the task of a trial; its error is part of the outcome. version: of the program that asks.

    Raises: Refused - this worker, which joined after the others were asked, runs another version.
    """
    if version != of_program():
        hint = "stop that worker, or install the same version there; then testbed experiment sweep FILE --resume"
        raise Refused(
            f"worker on {platform.node()} runs version {of_program()}, this is {version}", hint=hint
        )
    began, at = time.time(), time.monotonic()
    values: Values = {}
    error = ""
    try:
        work, alone = _kinds(task)
        with alone:
            began, at = time.time(), time.monotonic()
            # JSON has no others
            values = {name: value for name, value in work(task).items() if isfinite(value)}
    except Exception as caught:
        text = str(caught).strip() or "no message"
        error = f"{type(caught).__name__}: {text}"[:2000]
    return Outcome(
        values=values,
        error=error,
        seconds=time.monotonic() - at,
        worker=platform.node(),
        began=began,
    )


def _kinds(
    task: Mapping[str, Any],
) -> tuple[Callable[[Mapping[str, Any]], Values], AbstractContextManager[None]]:
    """What a trial does, and what it waits for on this machine."""
    if task["kind"] == "prediction":
        return predict, nullcontext()
    from orchestrator.experiments.sweep.onlab import change_of_devices, lab_lock, on_lab

    return (
        (change_of_devices, nullcontext())
        if task["kind"] == "devices"
        else (on_lab, lab_lock(task["lab"]))
    )


def impossible(tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why predictions on generated labs cannot be made, one entry each: their workload has more
    hosts than the lab.
    """
    from orchestrator.plan.design.workload import read_text

    needed: dict[str, int] = {}
    found = []
    for task in tasks:
        if task["kind"] == "prediction" and "wanted" in task["lab"]:
            name, text = task["files"]["workload"]["name"], task["files"]["workload"]["text"]
            if text not in needed:
                needed[text] = read_text(text, name).workload.hosts
            if needed[text] > (place := task["lab"]["wanted"]["hosts"]):
                found.append(f"{name} needs {needed[text]} hosts, the lab has {place}")
    return found


def predict(task: Mapping[str, Any]) -> Values:
    """Design a topology for the workload and predict its job. Raises: BadFile, Infeasible - it
    cannot be.
    """
    from orchestrator.plan.design.design import design
    from orchestrator.plan.design.workload import read_text
    from planner.topology.methods import Wanted

    given = {name: value for name, value in task["parameters"].items() if name != "repeat"}
    if "alpha_us" in given:
        given["alpha_s"] = given.pop("alpha_us") / 1e6
    workload = task["files"]["workload"]
    lab = _lab(dumps(task["lab"], sort_keys=True))
    found = design(read_text(workload["text"], workload["name"]), lab, Wanted(**given))
    times = {
        f"{place}{name}_ms": seconds * 1e3
        for place, each in (("", found.here), ("home_", found.own))
        for name, seconds in (
            ("iteration", each.iteration_s),
            ("compute", each.compute_s),
            ("transfers", each.transfers_s),
            ("allreduce", each.allreduce_s),
        )
    }
    shape = {
        "links": len(found.shape.cables),
        "diameter": found.shape.diameter,
        "mean_hops": found.shape.mean_hops(),
    }
    return (
        times
        | {"busbw_mbps": found.here.busbw / 1e6, "bytes_scale": found.scale}
        | {name: float(n) for name, n in shape.items()}
    )


@lru_cache(maxsize=64)
def _lab(text: str) -> Lab:
    """The lab of a task, as values: generated, or read from the files that came with it. Raises:
    BadFile.
    """
    from json import loads

    from orchestrator.experiments.scenario.lab import prepare_lab
    from orchestrator.experiments.sweep.onlab import own_folder, wanted_of
    from orchestrator.session import load_lab

    lab = loads(text)
    # one of those that a killed worker's campaign, or the next one, clears
    with own_folder() as place:
        if "wanted" in lab:
            return load_lab(prepare_lab(place / "lab", wanted_of(lab["wanted"])))
        for file, content in lab["files"].items():
            (place / file).write_text(content, encoding="utf-8")
        return load_lab(place)
