"""An arm of a scenario whose jobs begin an iteration together, or are shifted after that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from extensions.pacing.options import SHIFT, TOGETHER, CoordinateOptions
from orchestrator.experiments.files.scenario.values import ArmService, Setup


class PacedArm(ArmService):
    """Whichever tenant paces the jobs, it does so for all."""

    key = "coordinate"
    section = Annotated[
        Literal["together", "shift"] | None,
        Field(
            description="together: iterations of all jobs begin at the same time, once, before those that count; shift: then "
            "`testbed service start pacing` shifts them, as far as they fit"
        ),
    ]

    def wrong(self, how: Any, setups: Mapping[str, Setup | None]) -> Iterator[str]:
        if len(setups) < 2:
            yield "jobs are shifted against each other: two tenants are needed"
        if any(setup is not None and setup.then for setup in setups.values()):
            yield "an arm that changes to another plan is not paced"

    def options(self, how: Any) -> Iterator[CoordinateOptions]:
        """An iteration of all jobs begins at once; and they are shifted from then on, if that is
        how.
        """
        yield CoordinateOptions(by=TOGETHER)
        if how == SHIFT:
            yield CoordinateOptions()

    def begun(self, how: Any, setups: Mapping[str, Setup]) -> Mapping[str, Any]:
        return {next(iter(setups)): how} if how else {}


ARM = PacedArm()
