"""The host side: the lab's hosts through Ansible and over persistent SSH channels."""

from orchestrator.hosts.api import (
    AtDown,
    ClockReading,
    Committed,
    FibreEnd,
    Heartbeat,
    Held,
    Hello,
    HostEvent,
    JobState,
    PortCounters,
    PortState,
    Probe,
    Provisioned,
    RankState,
    RankTimes,
    Staged,
    Stream,
    Tail,
)
from orchestrator.hosts.counters import SAMPLE, Samples, counter_samples
from orchestrator.hosts.fleet import Hosts
from orchestrator.hosts.launch import job_name

__all__ = [
    "SAMPLE",
    "AtDown",
    "ClockReading",
    "Committed",
    "FibreEnd",
    "Heartbeat",
    "Held",
    "Hello",
    "HostEvent",
    "Hosts",
    "JobState",
    "PortCounters",
    "PortState",
    "Probe",
    "Provisioned",
    "RankState",
    "RankTimes",
    "Samples",
    "Staged",
    "Stream",
    "Tail",
    "counter_samples",
    "job_name",
]
