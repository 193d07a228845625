"""What a job needs of a lab beside links: the section `needs` of a workload file. All clauses may
be left out, and all times are of this lab's clock but the deadline, which is of the workload's own
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

_BIG = 2**53

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Count = Annotated[int, Field(ge=1, le=_BIG)]
Amount = Annotated[int, Field(ge=0, le=_BIG)]
Time = Annotated[float, Field(gt=0, le=3_600_000)]


class Part(BaseModel):
    """A mapping of the file: strict types; unknown keys are refused, keys that begin with `x_`
    ignored.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_private_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            return {
                key: value
                for key, value in data.items()
                if not (isinstance(key, str) and key.startswith("x_"))
            }
        return data


class Train(Part):
    """The job is the program `train` with this model, whose gradients the layers describe."""

    model: Name
    hidden: Amount = 0
    batch: Amount = 0


class Checkpoints(Part):
    """Each rank of a training writes so many bytes every so many iterations, and is done before the
    next.
    """

    bytes: Count
    every: Annotated[int, Field(ge=1, le=10**9)]


class Requests(Part):
    """The job is the program `retrieve`: in an iteration each rank requests so many values of other
    ranks, by Zipf's law with exponent `skew`; an owner finds one at a time.
    """

    count: Annotated[int, Field(ge=1, le=10**9)]
    keys: Annotated[int, Field(ge=1, le=1 << 24)]
    bytes: Annotated[int, Field(ge=1, le=8896)]
    skew: Annotated[float, Field(ge=0, le=16)] = 0.99
    lookup_ms: Annotated[float, Field(ge=0, le=60_000)] = 1.0


class Needs(Part):
    """deadline_ms: of an iteration. latency_ms: the longest that a message may wait and travel.
    loss: the share of a sum that may be missing. watts: of the network that the plan uses.
    """

    deadline_ms: Time | None = None
    latency_ms: Time | None = None
    loss: Annotated[float, Field(gt=0, lt=1)] | None = None
    watts: Annotated[float, Field(gt=0, le=1e9)] | None = None
    checkpoints: Checkpoints | None = None
    train: Train | None = None
    requests: Requests | None = None

    @model_validator(mode="after")
    def _of_one_job(self) -> Needs:
        if self.train is not None and self.requests is not None:
            raise ValueError("train and requests are two jobs; give one of them")
        for name in ("loss", "checkpoints"):
            if getattr(self, name) is not None and self.train is None:
                raise ValueError(f"{name}: only a training has it; add train: {{model: mlp}}")
        return self
