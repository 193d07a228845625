"""Reads the congestion control of a plan's job. Pure."""

from __future__ import annotations

from optics.plan import Congestion
from optics.ranks import hosts_of
from orchestrator.plan.edges import JobEdge
from orchestrator.plan.links import Links

OWN = "mltcp"


def read_congestion(edge: JobEdge, links: Links) -> Congestion | None:
    """The congestion control of a job. What is wrong is added to the problems of `links`."""
    if edge.congestion is None:
        return None
    hosts = [links.lab.hosts[name] for name in hosts_of(edge.ranks) if name in links.lab.hosts]
    nccl = edge.backend == "nccl" or (edge.backend == "auto" and bool(hosts) and all(host.gpus for host in hosts))
    if nccl and (rdma := [host.name for host in hosts if host.forwarding == "npar-rdma"]):
        few = ", ".join(rdma[:4]) + (", ..." if len(rdma) > 4 else "")
        links.problems.add(("job", "congestion"), f"a job over nccl sends by RDMA on {few}, where there is no TCP; leave it out")
    control = edge.congestion.control
    for name in sorted(edge.congestion.model_fields_set - {"control"}) if control != OWN else ():
        links.problems.add(("job", "congestion", name), f"only {OWN} has it; this control is {control}", key=True)
    return Congestion(**edge.congestion.model_dump())
