"""A job as the requests that start its ranks: explicit ranks, rings, lanes and environment, nothing
left to discovery. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Any

from optics import HostName, Infeasible
from optics.plan import Job, Traffic
from optics.ranks import RankName, by_host, host_of_rank, local_rank, numbered
from orchestrator.hosts import program, render
from orchestrator.hosts.facts import HOST_DEVICE, workload_digest
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.partitions import MOST
from workloads.programs.options import OPTIONS, fixed

# torch's own default; each run of a job shifts it, so that the next run never meets a dying rank 0
MASTER_PORT = 29500
MASTER_PORTS = 2000
ENV_LIMIT = 131_072  # bytes of one environment variable (MAX_ARG_STRLEN)


Extra = Callable[[HostName], tuple[Mapping[str, str], Mapping[str, Any]]]
"""By host, variables of its ranks and fields of the requests that start them."""


def requests(
    job: Job,
    lab: Lab,
    run: str,
    *,
    resume: bool = False,
    fresh: Collection[HostName] = (),
    extra: Extra | None = None,
) -> dict[RankName, dict[str, Any]]:
    """The `job.start` request for each rank. `run` makes the job's name on the hosts unique:
    `{job}.{run}` (`on_host`).

    fresh: hosts that did not run it before; what they may have kept of an earlier time is dropped,
    and they get the others' state. extra: what ranks on a host get beside what every job has.
    Raises: Infeasible - nccl on a host without a GPU for each of its ranks.
    """
    nccl = backend(job, lab) == "nccl"
    missing = [name for name in job.hosts if nccl and not lab.hosts[name].gpus]
    if missing:
        raise Infeasible(
            f"job {job.name}: backend nccl, but {', '.join(missing)} have no GPU (testbed_gpus)"
        )
    for host, here in by_host(job.ranks).items():
        if nccl and len(here) > (gpus := lab.hosts[host].gpus):
            raise Infeasible(
                f"job {job.name}: backend nccl, {len(here)} ranks on {host} and {gpus} GPUs (testbed_gpus)"
            )
    port = _master_port(lab.hosts[job.hosts[0]], run)
    found = {}
    for rank, name in enumerate(job.ranks):
        own, more = extra(host_of_rank(name)) if extra is not None else ({}, {})
        env = {**_environment(job, lab, rank, port, nccl), **own, **job.env}
        found[name] = {
            "op": "job.start",
            "name": on_host(job_name(job.name, run), name),
            "argv": workload_argv(job, resume and host_of_rank(name) not in fresh),
            "env": env,
            **more,
        }
        if resumable(job):
            found[name]["checkpoints"] = job_name(job.name, identity(job))
        if job.program:
            found[name] = program.complete_request(found[name], job, lab, run, resume=resume)
    return found


def launch_payloads(requests: Mapping[RankName, Mapping[str, Any]]) -> dict[HostName, str]:
    """What Ansible hands to each host: the requests of its ranks, which `call` sends one after the
    other.

    Raises: Infeasible - they do not fit into one command.
    """
    return {
        host: render.pack(
            requests[here[0]] if len(here) == 1 else [requests[rank] for rank in here], host
        )
        for host, here in by_host(requests).items()
    }


def check_launch(job: Job, lab: Lab) -> None:
    """Build the requests that would start the job and discard them. Raises: Infeasible - the job
    could not be started.
    """
    wanted = requests(job, lab, "")
    launch_payloads(wanted)
    for request in wanted.values():
        if long := [
            key
            for key, value in request["env"].items()
            if len(f"{key}={value}".encode()) >= ENV_LIMIT
        ]:
            raise Infeasible(
                f"job {job.name}: {long[0]} would take more than {ENV_LIMIT} bytes, which is what Linux gives one variable",
                hint="fewer transfers or sends in its traffic",
            )


def job_name(job: str, run: str) -> str:
    """The job's name on the hosts, in the characters an agent accepts."""
    return "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in f"{job}.{run}"
    ).lstrip("._-")[:100]


def on_host(job: str, rank: RankName) -> str:
    """What a rank is called on its host: the job's name there (`job_name`), with the rank's number
    where there are several.
    """
    return f"{job[:97]}.{local_rank(rank)}" if numbered(rank) else job


def backend(job: Job, lab: Lab) -> str:
    if job.backend != "auto":
        return job.backend
    return "nccl" if all(lab.hosts[name].gpus > 0 for name in job.hosts) else "gloo"


def workload_argv(job: Job, resume: bool) -> list[str]:
    """The workload's command line: each of the job's args is an option of it; true is a bare flag,
    false is left out.
    """
    tokens = ["python3", "-m", f"workloads.programs.{job.workload}"]
    for key, value in job.args.items():
        option = f"--{key.replace('_', '-')}"
        if value is True:
            tokens.append(option)
        elif value is not False:
            tokens += [option, str(value)]
    if resume and resumable(job) and "--resume" not in tokens:
        tokens.append("--resume")
    return tokens


def _master_port(host: Host, run: str) -> int:
    """Where rank 0 of a job's run meets the others: partitions of one host have ports of their
    own.
    """
    first, count = (
        (host.partition.index * (MASTER_PORTS // MOST), MASTER_PORTS // MOST)
        if host.partition
        else (0, MASTER_PORTS)
    )
    return MASTER_PORT + first + sum(run.encode()) % count


def _environment(job: Job, lab: Lab, rank: int, port: int, nccl: bool) -> dict[str, str]:
    name = job.ranks[rank]
    host = lab.hosts[host_of_rank(name)]
    chosen = layout(job, lab)
    env = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(job.ranks)),
        "LOCAL_RANK": str(local_rank(name)),
        "MASTER_ADDR": lab.hosts[host_of_rank(job.ranks[0])].mgmt_address,
        "MASTER_PORT": str(port),
        "TESTBED_BACKEND": "nccl" if nccl else "gloo",
        "TESTBED_RINGS": json.dumps(chosen["rings"]),
        "TESTBED_LANES": json.dumps([host.lane_address(lane) for lane in range(host.lanes)]),
        "TESTBED_PORTS": json.dumps([port.interface for _, port in sorted(host.ports.items())]),
        "PYTHONPATH": f"/var/lib/testbed/workloads/{workload_digest()}",
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": HOST_DEVICE,
    }
    if numbered(name):
        env["LOCAL_WORLD_SIZE"] = str(len(by_host(job.ranks)[host.name]))
    if host.storage_mbps:
        env["TESTBED_STORAGE_MBPS"] = f"{host.storage_mbps / len(by_host(job.ranks)[host.name]):g}"
    sites = [lab.hosts[host_of_rank(name)].site for name in job.ranks]
    if all(sites):
        env["TESTBED_SITES"] = json.dumps(sites)
    if "traffic" in chosen:
        env["TESTBED_TRAFFIC"] = json.dumps(chosen["traffic"], separators=(",", ":"))
    return env | (nccl_environment(host, len(chosen["rings"])) if nccl else {})


def layout(job: Job, lab: Lab) -> dict[str, Any]:
    """What all ranks get of the job's rings and, for a replay, its traffic: by ranks instead of
    hosts.

    A ring visits the ranks of a host one after the other, so that it enters and leaves each host
    once. Ring k begins with rank k of a host (modulo their number): the ranks take turns in
    receiving from other hosts, and in sending to them.
    """
    order = {name: i for i, name in enumerate(job.ranks)}
    here = {
        host: tuple(order[name] for name in names) for host, names in by_host(job.ranks).items()
    }
    rings = [
        [rank for host in ring for rank in _rotated(here[host], k)]
        for k, ring in enumerate(job.rings)
    ]
    rings = rings or [list(range(len(job.ranks)))]
    if job.traffic is None:
        return {"rings": rings}
    return {
        "rings": rings,
        "traffic": _traffic(job.traffic, here, min(lab.hosts[name].lanes for name in job.hosts)),
    }


def _rotated(ranks: tuple[int, ...], by: int) -> tuple[int, ...]:
    at = by % len(ranks)
    return ranks[at:] + ranks[:at]


def _traffic(
    traffic: Traffic, here: Mapping[HostName, tuple[int, ...]], lanes: int
) -> dict[str, Any]:
    """What workloads/programs/replay.py reads: the traffic by ranks, each ring with its lane (ring
    k: lane k modulo their number).

    here: the ranks of each host, equally many on all. Rank i of every host moves the i-th part of
    each buffer and transfer, over the same links as the others, together with the ranks of that
    number on other hosts.
    """
    number, each = count(), len(next(iter(here.values())))
    groups, transfers = [], []
    for group in traffic.groups:
        over = [0 if group.schedule else next(number) % lanes for _ in group.rings]
        for i, size in enumerate(split_bytes(group.bytes, each)):
            order = {host: ranks[i] for host, ranks in here.items()}
            found = {
                "id": group.id if each == 1 else f"{group.id}.{i}",
                "bytes": size,
                "rings": [[order[host] for host in ring] for ring in group.rings],
                "lanes": over,
                "schedule": [
                    [s.step, order[s.src], order[s.dst], order[s.shard], s.begin, s.end]
                    for s in group.schedule
                ],
            }
            groups.append(found)
    for t in traffic.transfers:
        transfers += [
            [here[t.src][i], here[t.dst][i], size, t.lane, *([here[t.via][i]] if t.via else ())]
            for i, size in enumerate(split_bytes(t.bytes, each))
            if size
        ]
    return {"compute_s": traffic.compute_s, "groups": groups, "transfers": transfers}


def split_bytes(size: int, count: int) -> list[int]:
    """`size` bytes in `count` parts as equal as can be, all but the last of whole numbers of 4
    bytes.

    >>> split_bytes(1002, 3), split_bytes(7, 2), split_bytes(10, 1)
    ([332, 332, 338], [0, 7], [10])
    """
    each = size // count // 4 * 4
    return [each] * (count - 1) + [size - each * (count - 1)]


def nccl_environment(host: Host, rings: int) -> dict[str, str]:
    """NCCL's view of the fabric; the values of the TopoOpt testbed's run scripts where they apply.
    A plan's `env` overrides.
    """
    interfaces = [port.interface for _, port in sorted(host.ports.items())]
    env = {"NCCL_MIN_NCHANNELS": str(rings), "NCCL_MAX_NCHANNELS": str(rings), "NCCL_ALGO": "Ring"}
    if host.forwarding == "npar-rdma":
        # the RDMA devices of a QLogic NIC count like its ports: qedr0 is port 1 (TopoOpt testbed,
        # DLRM run scripts)
        devices = ",".join(f"qedr{number - 1}" for number in sorted(host.ports))
        return env | {
            "NCCL_NET": "IB",
            "NCCL_IB_HCA": devices,
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_SOCKET_IFNAME": "=" + ",".join(interfaces),
        }
    return env | {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": f"={HOST_DEVICE}"}


def why_fixed(job: Job, backend: str) -> str:
    """Why no rank can join this job while it runs; empty: one can."""
    if job.workload != "train":
        return f"what new ranks of {job.program or job.workload} would be given is not known; train is the one program that takes them"
    if backend == "nccl":
        return "its backend is nccl, whose rings are fixed at the start of the job"
    if job.attached:
        return f"what it has beside its ranks ({', '.join(sorted(job.attached))}) is for as many as it began with"
    return next((f"job.args.{name}: {why}" for name, why in fixed(job.args)), "")


def resumable(job: Job) -> bool:
    """Whether the job's program keeps checkpoints."""
    if job.program:
        return job.training is not None
    return any(option.weights for option in OPTIONS[job.workload])


def identity(job: Job) -> str:
    """Identifies a training, in 12 hex digits: program, hosts, and the arguments that determine the
    weights.

    Not its rings, nor the assignment of ranks to hosts: all ranks hold the same weights, and a
    change of topology ends no training. Nor does a rank whose place another took, or nobody
    (`Job.evicted`), or one that joined (`Job.joined`).
    """
    deciding: dict[str, Any]
    if job.program:
        what, deciding = f"program {job.program}", dict(job.training or {})
    else:
        what, options = job.workload, OPTIONS[job.workload]
        values = [
            (option, job.args.get(option.name, option.default))
            for option in options
            if option.weights
        ]
        deciding = {
            option.name: value
            for option, value in values
            if not option.later or value != option.default
        }
    return hashlib.sha256(
        json.dumps([what, _first_ranks(job), deciding], sort_keys=True).encode()
    ).hexdigest()[:12]


def rank_numbers(job: Job) -> list[int]:
    """A number for each rank, which it keeps when others leave, and hands on to who takes its
    place: its place among those that the training began with, by name, then among those that
    joined.
    """
    before = {now: rank for rank, now in job.evicted.items() if now}
    first = {rank: before.get(rank, rank) for rank in job.ranks if rank not in job.joined}
    order = [*_first_ranks(job), *job.joined]
    return [order.index(first.get(rank, rank)) for rank in job.ranks]


def _first_ranks(job: Job) -> list[RankName]:
    """The ranks that a training began with, by name."""
    before = {now: rank for rank, now in job.evicted.items() if now}
    ranks = [before.get(rank, rank) for rank in job.ranks if rank not in job.joined]
    return sorted([*ranks, *(rank for rank, now in job.evicted.items() if not now)])
