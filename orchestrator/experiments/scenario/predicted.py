"""What the planner predicts for the arms of a comparison, shown beside the band before anything is
measured. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optics.errors import TestbedError, first_line
from orchestrator.experiments.files.scenario.values import METRICS, Arm, Compared, Metric
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.replan import predicted_of

PREDICTED: frozenset[Metric] = frozenset({"iteration_ms", "span_ms", "comm_ms", "busbw_gbps"})
"""Metrics that follow from the planner's iteration."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of both arms of a comparison, in the metric's unit. why: the reason where one has none."""

    compared: Compared
    of: float | None = None
    over: float | None = None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        return self.of / self.over if self.of is not None and self.over else None

    @property
    def message(self) -> str:
        unit = METRICS[self.compared.metric][0]
        if self.ratio is None:
            one = [
                f"{arm} {x:.4g} {unit}"
                for arm, x in ((self.compared.of, self.of), (self.compared.over, self.over))
                if x is not None
            ]
            return f"predicted {one[0]}; {self.why}" if one else f"no prediction: {self.why}"
        return f"predicted {self.ratio:.3g}: {self.of:.4g} / {self.over:.4g} {unit}"

    def to_json(self) -> dict[str, Any]:
        named = {"name": self.compared.name, "role": self.compared.role, "band": self.compared.band}
        return named | {"of": self.of, "over": self.over, "ratio": self.ratio, "why": self.why}


def predict_comparison(compared: Compared, arms: Mapping[str, Arm], lab: Lab) -> Prediction:
    """What the plans of the two arms predict, or what is reckoned of them (`predicted_of`)."""
    if compared.metric not in PREDICTED:
        return Prediction(compared, why=f"the planner predicts no {compared.metric}")
    of, over = (_of_arm(arms[name], compared, lab) for name in (compared.of, compared.over))
    why = "; ".join(dict.fromkeys(found for found in (of, over) if isinstance(found, str)))
    return Prediction(
        compared, None if isinstance(of, str) else of, None if isinstance(over, str) else over, why
    )


def _of_arm(arm: Arm, compared: Compared, lab: Lab) -> float | str:
    """The prediction, or why there is none."""
    if len(arm.setups) > 1:
        return f"the planner predicts a job alone, and arm {arm.name} has {len(arm.setups)}"
    if arm.changes:
        return f"the planner predicts no change, and arm {arm.name} makes one"
    try:
        found = _of_plan(arm, compared, lab)
    except TestbedError as error:  # or its slots never join two that have to talk
        return first_line(error)
    return f"the plan of arm {arm.name} predicts nothing" if found is None else found


def _of_plan(arm: Arm, compared: Compared, lab: Lab) -> float | None:
    plan = arm.setups[compared.tenant].plan
    reply = predicted_of(plan.document, plan.text, plan.file, lab)
    iteration, compute, busbw = (
        reply.get(name) for name in ("iteration_ms", "compute_ms", "busbw_mbps")
    )
    if compared.metric == "busbw_gbps":
        return None if busbw is None else float(busbw) * 8 / 1000
    if iteration is None:
        return None
    if compared.metric == "comm_ms":
        return None if compute is None else float(iteration) - float(compute)
    return float(iteration) * (compared.iterations if compared.metric == "span_ms" else 1)
