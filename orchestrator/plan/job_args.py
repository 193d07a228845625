"""Checks the arguments, variables and back-end of a job against its program and its hosts."""

from __future__ import annotations

from collections.abc import Mapping

from optics.plain import did_you_mean
from optics.ranks import hosts_of
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.schema import show
from orchestrator.plan.edges import JobEdge
from orchestrator.plan.job_env import check_env
from orchestrator.plan.programs import check_declared
from workloads.programs.option import size
from workloads.programs.options import OPTIONS, conflicts


def check_program(job: JobEdge, lab: Lab, problems: Problems) -> None:
    """Report every argument, variable and back-end of a job that its program or its hosts do not
    accept.
    """
    ranks = [lab.hosts[name] for name in hosts_of(job.ranks) if name in lab.hosts]
    if job.workload == "program":
        check_declared(job, lab, problems)
    else:
        nccl = job.backend == "nccl" or (
            job.backend == "auto" and bool(ranks) and all(host.gpus for host in ranks)
        )
        _check_args(job.workload, job.args, nccl, len(job.ranks), problems)
        if job.program is not None:
            problems.add(
                ("job", "program"),
                f"only workload program names one; this job is {job.workload}",
                key=True,
            )
    opened = set.intersection(*(set(host.job_env) for host in ranks)) if ranks else set()
    check_env(job.env, opened, ("job", "env"), problems)
    if job.backend == "nccl" and (missing := [host.name for host in ranks if not host.gpus]):
        few = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
        problems.add(
            ("job", "backend"),
            f"nccl needs a GPU on every host of the job; none on {few} (testbed_gpus in hosts.yml)",
        )


def _check_args(
    program: str, given: Mapping[str, object], nccl: bool, ranks: int, problems: Problems
) -> None:
    options = {option.name: option for option in OPTIONS[program]}
    wrong = False
    for name, value in given.items():
        place: Path = ("job", "args", name)
        if name not in options:
            text = f"{program} takes no argument {name}{did_you_mean(name, options) or '; it takes ' + ', '.join(options)}"
            problems.add(place, text, key=True)
        elif not options[name].takes(value):
            wrong = True
            problems.add(
                place,
                f"wanted {options[name].wanted}, got {show(value)}{options[name].reason(value)}",
            )
    if wrong:
        return
    for name, text in conflicts(program, given, nccl, ranks):
        problems.add(("job", "args", name), text)
    if "maxbytes" in given and "maxbytes" in options:
        smallest, largest = (
            size(str(given.get(name, options[name].default))) for name in ("minbytes", "maxbytes")
        )
        if largest < smallest:
            problems.add(
                ("job", "args", "maxbytes"),
                f"wanted at least minbytes, {smallest}, got {show(given['maxbytes'])}",
            )
