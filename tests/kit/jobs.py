"""Jobs as the store keeps them, for tests of what follows from them."""

from __future__ import annotations

from typing import Any

from optics.plan import Job
from orchestrator.store.job_spec import JobSpec


def spec(*ranks: str, name: str = "mlp", on_hosts: str = "mlp.1", **more: Any) -> JobSpec:
    """A training on these ranks. more: other fields of the spec."""
    return JobSpec(Job(name, "train", ranks), on_hosts, "gloo", **more)
