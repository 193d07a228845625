"""An arm of a scenario with a plan whose circuits follow its job: they do beside that job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.experiments.files.scenario.values import ArmService, Setup


class FollowingArm(ArmService):
    """The plans say it, and how; the arm says nothing."""

    def begun(self, how: Any, setups: Mapping[str, Setup]) -> Mapping[str, Any]:
        return {
            tenant: None for tenant, setup in setups.items() if setup.plan.document.get("adapt")
        }


ARM = FollowingArm()
