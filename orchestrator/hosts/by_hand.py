"""The ranks of a job for users who launch them by themselves: their environment, and lines for
common launchers. Pure.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from optics import HostName, Infeasible
from optics.plan import Job
from optics.ranks import host_of_rank
from orchestrator.extensions import extension_parts
from orchestrator.hosts import launch, program
from orchestrator.inventory.lab import Lab
from orchestrator.results import JsonReport

RUN = "manual"
"""Stands for the run in what is made of its name, such as the port of rank 0's store."""
OF_ONE_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK")
_ALONG_RINGS = ("TESTBED_RINGS", "TESTBED_LANES", "TESTBED_PORTS", "TESTBED_TRAFFIC")
RANKS_FILE = "ranks.txt"


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The variables of one rank; those that an agent adds are absent: the job's directory and the
    hand-off socket.
    """

    rank: int
    host: HostName
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ByHand(JsonReport):
    """A job's ranks and the command that each runs. rings: whether they send along the rings of the
    plan.
    """

    job: str
    ranks: tuple[RankEnvironment, ...]
    command: tuple[str, ...]
    rings: bool

    @property
    def common(self) -> dict[str, str]:
        """The variables that all ranks share, and that a launcher's ranks need."""
        first = dict(self.ranks[0].env)
        left_out = () if self.rings else _ALONG_RINGS
        return {
            name: value
            for name, value in first.items()
            if name not in (*OF_ONE_RANK, *left_out)
            and not name.startswith(("TORCHELASTIC_", "ROLE_", "GROUP_"))
            and all(rank.env.get(name) == value for rank in self.ranks)
        }

    @property
    def own(self) -> dict[int, dict[str, str]]:
        """By rank, the variables beyond its number that no two ranks need share."""
        names = ("LOCAL_WORLD_SIZE", *(_ALONG_RINGS if self.rings else ()))
        common = self.common
        return {
            r.rank: {k: v for k, v in r.env.items() if k in names and k not in common}
            for r in self.ranks
        }


def by_hand(job: Job, lab: Lab) -> ByHand:
    """The ranks as `launch.requests` would start them. Raises: Infeasible - they cannot be started,
    or not by hand.
    """
    for kind in extension_parts("plan", "PLANNED"):
        if kind.key in job.attached:
            kind.by_hand(job.attached[kind.key], job)
    requests = launch.requests(job, lab, RUN)
    text = (
        program.program_command(program.of(job, lab), job, resume=False)
        if job.program
        else launch.workload_argv(job, False)
    )
    ranks = (
        RankEnvironment(int(r["env"]["RANK"]), host_of_rank(name), r["env"])
        for name, r in requests.items()
    )
    return ByHand(
        job.name, tuple(sorted(ranks, key=lambda each: each.rank)), tuple(text), job.uses_rings
    )


def exports(found: ByHand, rank: int | None) -> list[str]:
    """Shell commands that set the environment of each rank, or of one. Raises: Infeasible - there
    is no such rank.
    """
    chosen = [each for each in found.ranks if rank in (None, each.rank)]
    if not chosen:
        raise Infeasible(f"job {found.job} has no rank {rank}: wanted 0 to {len(found.ranks) - 1}")
    lines = []
    for each in chosen:
        lines.append(f"# rank {each.rank} on {each.host}")
        lines += [f"export {name}={shlex.quote(value)}" for name, value in each.env.items()]
    return [*lines, f"# its command: {shlex.join(found.command)}"]


def srun(found: ByHand) -> list[str]:
    """For Slurm: `arbitrary` places ranks in the order of a file (srun(1), --distribution)."""
    hosts = [each.host for each in found.ranks]
    options = [
        f"--nodes={len(set(hosts))}",
        f"--ntasks={len(hosts)}",
        "--distribution=arbitrary",
        "--export=ALL",
    ]
    return [
        _file(hosts),
        _line(
            found,
            {"SLURM_HOSTFILE": RANKS_FILE},
            ["srun", *options],
            "$SLURM_PROCID",
            "$SLURM_LOCALID",
        ),
    ]


def mpirun(found: ByHand) -> list[str]:
    """For Open MPI, whose ranks go to hosts in the order given."""
    slots = Counter(each.host for each in found.ranks)
    hosts = ",".join(f"{host}:{count}" for host, count in slots.items())
    tokens = ["mpirun", "-np", str(len(found.ranks)), "--host", hosts]
    tokens += [word for name in found.common for word in ("-x", name)]
    return [_line(found, {}, tokens, "$OMPI_COMM_WORLD_RANK", "$OMPI_COMM_WORLD_LOCAL_RANK")]


def torchrun(found: ByHand) -> list[str]:
    """For torchrun, a line for each host: it numbers the ranks by --node-rank, and sets their
    variables itself.
    """
    env = found.ranks[0].env
    slots = Counter(each.host for each in found.ranks)
    tokens = list(found.command)
    tokens = tokens[1:] if tokens[0] in ("python", "python3") else ["--no-python", *tokens]
    set_by_it = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    lines = []
    for number, (host, count) in enumerate(slots.items()):
        own = found.own.get(next(each.rank for each in found.ranks if each.host == host), {})
        given = {
            name: value for name, value in (found.common | own).items() if name not in set_by_it
        }
        options = [f"--nnodes={len(slots)}", f"--nproc-per-node={count}", f"--node-rank={number}"]
        options += [f"--master-addr={env['MASTER_ADDR']}", f"--master-port={env['MASTER_PORT']}"]
        lines += [
            f"# on {host}",
            shlex.join(
                ["env", *(f"{k}={v}" for k, v in given.items()), "torchrun", *options, *tokens]
            ),
        ]
    return lines


def _file(hosts: list[HostName]) -> str:
    return f"printf '%s\\n' {shlex.join(hosts)} >{RANKS_FILE}"


def _line(
    found: ByHand, also: Mapping[str, str], launcher: list[str], rank: str, local: str
) -> str:
    """One command: the common variables, the launcher, and a shell on each rank that adds the
    variables of its own.
    """
    script = f"export RANK={rank} LOCAL_RANK={local}; "
    cases = [
        f"{number}) export {' '.join(f'{name}={shlex.quote(value)}' for name, value in own.items())};;"
        for number, own in found.own.items()
        if own
    ]
    script += f"case $RANK in {' '.join(cases)} esac; " if cases else ""
    env = [f"{name}={value}" for name, value in (found.common | dict(also)).items()]
    return shlex.join(
        ["env", *env, *launcher, "bash", "-c", script + 'exec "$@"', "-", *found.command]
    )
