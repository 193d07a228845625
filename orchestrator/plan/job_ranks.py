"""Checks the ranks of a job: their names, their order, and whether each host can hold as many."""

from __future__ import annotations

from collections.abc import Sequence

from optics import HostName
from optics.ranks import RankName, by_host, parsed, ranks_on
from orchestrator.inventory.positions import Path, Problems
from orchestrator.plan.edges import JobEdge
from orchestrator.plan.links import Links


def check_ranks(job: JobEdge, links: Links, problems: Problems) -> tuple[RankName, ...] | None:
    """The ranks under the names that they have everywhere else: `gpu01/0` alone on its host is
    `gpu01`. None: some are wrong.

    Launchers count ranks host by host (torchrun: rank = GROUP_RANK x LOCAL_WORLD_SIZE +
    LOCAL_RANK), and so does a plan.
    """
    known = True
    seen: dict[HostName, list[tuple[int, int | None]]] = {}
    for index, name in enumerate(job.ranks):
        path: Path = ("job", "ranks", index)
        found = parsed(name)
        if found is None:
            problems.add(
                path,
                f"wanted a host such as gpu01, or one of its ranks such as gpu01/0, got {name!r}",
            )
            known = False
            continue
        host, local = found
        known &= links.known_host(host, path)
        before = seen.setdefault(host, [])
        if text := _misplaced(name, host, local, before, index):
            problems.add(path, text)
            known = False
        before.append((index, local))
    if not known:
        return None
    return _held(job, links, problems)


def _misplaced(
    name: RankName,
    host: HostName,
    local: int | None,
    before: Sequence[tuple[int, int | None]],
    index: int,
) -> str:
    """Why a rank cannot stand at this index, after those `before` of its host (index, number);
    empty where it can.
    """
    numbers = [number for _, number in before]
    if not before:
        return f"the ranks of {host} begin with {host}/0" if local else ""
    if local in numbers:
        first = before[numbers.index(local)][0]
        hint = f"; several ranks of a host are {host}/0, {host}/1, ..." if local is None else ""
        return f"{name} is already rank {first}{hint}"
    if local is None or None in numbers:
        first, number = before[0]
        other = host if number is None else f"{host}/{number}"
        return f"{name} after {other} (rank {first}): a host alone is its only rank; number all of them: {host}/0, {host}/1, ..."
    if local != len(before):
        return f"{name} after {host}/{numbers[-1]}: the ranks of a host are numbered 0, 1, 2, ... in this order, without gaps"
    if before[-1][0] != index - 1:
        return f"{name} follows ranks of other hosts: launchers number the ranks host by host, so list those of {host} together"
    return ""


def _held(job: JobEdge, links: Links, problems: Problems) -> tuple[RankName, ...] | None:
    """The ranks, if every host can hold its own."""
    ranks, lab = by_host(job.ranks), links.lab
    program = lab.programs.get(job.program or "")
    backend = job.backend if program is None else program.backend
    nccl = backend == "nccl" or (backend == "auto" and all(lab.hosts[host].gpus for host in ranks))
    good = True
    for host, here in ranks.items():
        found = lab.hosts[host]
        path: Path = ("job", "ranks", job.ranks.index(here[-1]))
        if nccl and len(here) > found.gpus > 0:
            has = f"{found.gpus} GPU{'s' if found.gpus > 1 else ''} (testbed_gpus)"
            problems.add(
                path,
                f"{len(here)} ranks on {host}, which has {has}: nccl needs one for each, gloo does not",
            )
            good = False
        elif not nccl and len(here) > found.max_ranks:
            problems.add(
                path,
                f"{len(here)} ranks on {host}, which holds {found.max_ranks} (testbed_ranks in hosts.yml)",
            )
            good = False
    if job.traffic is not None and len({len(here) for here in ranks.values()}) > 1:
        few = ", ".join(f"{len(here)} on {host}" for host, here in list(ranks.items())[:4])
        text = f"the ranks of a host share the traffic of a replay: give every host the same number of them; here {few}"
        problems.add(("job", "ranks"), text)
        good = False
    return (
        tuple(rank for host, here in ranks.items() for rank in ranks_on(host, len(here)))
        if good
        else None
    )
