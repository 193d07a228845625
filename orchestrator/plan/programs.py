"""A job that runs a program of the lab's owner, checked against what the owner declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optics.plain import did_you_mean
from optics.plan import Job
from optics.ranks import hosts_of
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.programs import Program, nearest
from orchestrator.inventory.schema import show
from orchestrator.plan.edges import JobEdge


def check_declared(job: JobEdge, lab: Lab, problems: Problems) -> None:
    """Report what of a job its program, or the lab's owner, does not accept."""
    if job.program is None:
        problems.add(
            ("job", "workload"),
            "a job of workload program names it: add program; " + nearest("", lab.programs),
        )
        return
    place: Path = ("job", "program")
    program = lab.programs.get(job.program)
    if program is None:
        problems.add(place, f"no program {job.program}: {nearest(job.program, lab.programs)}")
        return
    for trouble in program.trouble:
        problems.add(
            place, f"{job.program} ({program.place}) cannot be copied to the hosts: {trouble}"
        )
    _check_args(program, job.args, problems)
    if job.backend not in ("auto", program.backend):
        problems.add(
            ("job", "backend"),
            f"the owner of the lab declares it for {job.program}: {program.backend}; leave it out",
        )
    missing = [
        name for name in hosts_of(job.ranks) if name in lab.hosts and not lab.hosts[name].gpus
    ]
    if program.backend == "nccl" and missing:
        few = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
        problems.add(
            place,
            f"{job.program} uses nccl, which needs a GPU on every host of the job; none on {few}",
        )


def _check_args(program: Program, given: Mapping[str, object], problems: Problems) -> None:
    known = program.args
    for name, value in given.items():
        place: Path = ("job", "args", name)
        if name not in known:
            others = "; it opens " + ", ".join(known) if known else "; it opens none"
            text = f"the owner of {program.name} opens no argument {name}{did_you_mean(name, known) or others}"
            problems.add(place, text, key=True)
        elif not known[name].takes(value):
            problems.add(place, f"wanted {known[name].wanted}, got {show(value)}")


def job_as_declared(job: Job, name: str, lab: Lab) -> Job:
    """The job with what its program's declaration says of it; as it is if it runs none that is
    declared.
    """
    program = lab.programs.get(name) if job.workload == "program" else None
    if program is None:
        return job
    args = program.complete(job.args)
    training = {key: args[key] for key in program.weights if key in args}
    return replace(
        job,
        args=args,
        backend=program.backend,
        program=name,
        version=program.version,
        training=training if program.resume is not None else None,
    )
