"""A job as the requests that start its ranks: explicit ranks, rings, lanes and environment, nothing left to discovery. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import count
from typing import Any

from optics import HostName, Infeasible
from optics.plan import Job, Traffic
from orchestrator.hosts import render
from orchestrator.hosts.facts import HOST_DEVICE, workload_digest
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab
from workloads.options import OPTIONS

MASTER_PORT = 29500  # torch's own default; each run of a job shifts it, so that a dying rank 0 cannot be met by the next
MASTER_PORTS = 2000
ENV_LIMIT = 131_072  # bytes of one environment variable (MAX_ARG_STRLEN)


def requests(job: Job, lab: Lab, run: str, *, resume: bool = False) -> dict[HostName, dict[str, Any]]:
    """The `job.start` request for each rank's host. `run` makes the job's name on the hosts unique: `{job}.{run}`.

    Raises: Infeasible - nccl on a host without GPU.
    """
    nccl = backend(job, lab) == "nccl"
    lacking = [name for name in job.ranks if nccl and not lab.hosts[name].gpus]
    if lacking:
        raise Infeasible(f"job {job.name}: backend nccl, but {', '.join(lacking)} have no GPU (testbed_gpus)")
    port = MASTER_PORT + sum(run.encode()) % MASTER_PORTS
    found = {}
    for rank, name in enumerate(job.ranks):
        env = _environment(job, lab, rank, port, nccl) | dict(job.env)
        found[name] = {"op": "job.start", "name": job_name(job.name, run), "argv": argv(job, resume), "env": env}
        if resumable(job):
            found[name]["checkpoints"] = job_name(job.name, identity(job))
    return found


def rehearse(job: Job, lab: Lab) -> None:
    """Make the requests that would start the job and drop them. Raises: Infeasible - the job could not be started."""
    for name, request in requests(job, lab, "").items():
        render.pack(request, name)
        if long := [key for key, value in request["env"].items() if len(f"{key}={value}".encode()) >= ENV_LIMIT]:
            raise Infeasible(
                f"job {job.name}: {long[0]} would take more than {ENV_LIMIT} bytes, which is what Linux gives one variable",
                hint="fewer transfers or sends in its traffic",
            )


def job_name(job: str, run: str) -> str:
    """The job's name on the hosts, in the characters an agent accepts."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in f"{job}.{run}").lstrip("._-")[:100]


def backend(job: Job, lab: Lab) -> str:
    if job.backend != "auto":
        return job.backend
    return "nccl" if all(lab.hosts[name].gpus > 0 for name in job.ranks) else "gloo"


def argv(job: Job, resume: bool) -> list[str]:
    """The workload's command line: each of the job's args is an option of it; true is a bare flag, false is left out."""
    words = ["python3", "-m", f"workloads.{job.workload}"]
    for key, value in job.args.items():
        option = f"--{key.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not False:
            words += [option, str(value)]
    if resume and resumable(job) and "--resume" not in words:
        words.append("--resume")
    return words


def _environment(job: Job, lab: Lab, rank: int, port: int, nccl: bool) -> dict[str, str]:
    host = lab.hosts[job.ranks[rank]]
    chosen = layout(job, lab)
    env = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(job.ranks)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": lab.hosts[job.ranks[0]].mgmt_address,
        "MASTER_PORT": str(port),
        "TESTBED_BACKEND": "nccl" if nccl else "gloo",
        "TESTBED_RINGS": json.dumps(chosen["rings"]),
        "TESTBED_LANES": json.dumps([host.lane_address(lane) for lane in range(host.lanes)]),
        "TESTBED_PORTS": json.dumps([port.interface for _, port in sorted(host.ports.items())]),
        "PYTHONPATH": f"/var/lib/testbed/workloads/{workload_digest()}",
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": HOST_DEVICE,
    }
    if "traffic" in chosen:
        env["TESTBED_TRAFFIC"] = json.dumps(chosen["traffic"], separators=(",", ":"))
    return env | (_nccl(host, len(chosen["rings"])) if nccl else {})


def layout(job: Job, lab: Lab) -> dict[str, Any]:
    """What all ranks get of the job's rings and, for a replay, its traffic: by ranks instead of hosts."""
    order = {name: i for i, name in enumerate(job.ranks)}
    rings = [[order[name] for name in ring] for ring in job.rings] or [list(range(len(job.ranks)))]
    if job.traffic is None:
        return {"rings": rings}
    return {"rings": rings, "traffic": _traffic(job.traffic, order, min(lab.hosts[name].lanes for name in job.ranks))}


def _traffic(traffic: Traffic, order: Mapping[HostName, int], lanes: int) -> dict[str, Any]:
    """What workloads/replay.py reads: the traffic by ranks, each ring with its lane (ring k: lane k modulo their number)."""
    number = count()
    return {
        "compute_s": traffic.compute_s,
        "groups": [
            {
                "id": group.id,
                "bytes": group.bytes,
                "rings": [[order[host] for host in ring] for ring in group.rings],
                "lanes": [0 if group.schedule else next(number) % lanes for _ in group.rings],
                "schedule": [[s.step, order[s.src], order[s.dst], order[s.shard], s.begin, s.end] for s in group.schedule],
            }
            for group in traffic.groups
        ],
        "transfers": [[order[t.src], order[t.dst], t.bytes, t.lane] for t in traffic.transfers],
    }


def _nccl(host: Host, rings: int) -> dict[str, str]:
    """NCCL's view of the fabric; the values of the TopoOpt testbed's run scripts where they apply. A plan's `env` overrides."""
    interfaces = [port.interface for _, port in sorted(host.ports.items())]
    env = {"NCCL_MIN_NCHANNELS": str(rings), "NCCL_MAX_NCHANNELS": str(rings), "NCCL_ALGO": "Ring"}
    if host.forwarding == "npar-rdma":
        # the RDMA devices of a QLogic NIC count like its ports: qedr0 is port 1 (TopoOpt testbed, DLRM run scripts)
        devices = ",".join(f"qedr{number - 1}" for number in sorted(host.ports))
        return env | {
            "NCCL_NET": "IB",
            "NCCL_IB_HCA": devices,
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_SOCKET_IFNAME": "=" + ",".join(interfaces),
        }
    return env | {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": f"={HOST_DEVICE}"}


def resumable(job: Job) -> bool:
    """Whether the job's program keeps checkpoints."""
    return any(option.weights for option in OPTIONS[job.workload])


def identity(job: Job) -> str:
    """Which training a job is, in 12 hex digits: program, hosts, and the arguments that decide what the weights become.

    Not its rings, and not which host has which rank: all ranks hold the same weights, and a change of topology ends no training.
    """
    deciding = {option.name: job.args.get(option.name, option.default) for option in OPTIONS[job.workload] if option.weights}
    return hashlib.sha256(json.dumps([job.workload, sorted(job.ranks), deciding], sort_keys=True).encode()).hexdigest()[:12]
