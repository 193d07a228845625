"""The host side: the lab's hosts through Ansible and over persistent SSH channels."""

from orchestrator.hosts.api import (
    Committed,
    FibreEnd,
    Hello,
    HostEvent,
    HostSide,
    JobState,
    PortCounters,
    PortState,
    Probe,
    Provisioned,
    Staged,
    Tail,
)
from orchestrator.hosts.fleet import Hosts, port_counters
from orchestrator.hosts.launch import job_name

__all__ = [
    "Committed",
    "FibreEnd",
    "Hello",
    "HostEvent",
    "HostSide",
    "Hosts",
    "JobState",
    "PortCounters",
    "PortState",
    "Probe",
    "Provisioned",
    "Staged",
    "Tail",
    "job_name",
    "port_counters",
]
